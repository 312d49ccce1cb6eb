"""Where all edges hold the same mix of classes, fedfork does no harm: it is one model for all."""

import numpy as np
import pytest

import fedbac
from tests.covering import first

ALIKE = (
    "task.partition.edge_distributions=1",
    "task.num_edges=4",
    "task.clients_per_edge=2",
    "task.data_fraction=0.2",
    "evaluation.last_rounds=3",
)


def accuracy(method: str, seed: int, *settings: str) -> tuple[float, fedbac.Run]:
    run = fedbac.run(
        method, "demo", rounds=20, seed=seed, settings=[*ALIKE, *settings], device="cpu", workers=1, progress=False
    )
    return float(np.mean([record["accuracy"] for record in run.records[-3:]])), run


@pytest.mark.parametrize("seed", first(1, [1, 0, 2]))
def test_edges_that_are_alike_end_in_one_cluster_at_the_level_of_one_model_for_all(seed: int) -> None:
    """On seed 1 edges fork at first, as validation data are few, and merge again."""
    ours, run = accuracy("fedfork", seed)
    simple, _ = accuracy("hierfavg", seed)
    assert run.records[-1]["active_clusters"] == 1
    assert (max(record["active_clusters"] for record in run.records) > 1) == (seed == 1)
    assert ours > simple - 0.01


def test_with_one_network_it_is_hierfavg_bit_by_bit_as_long_as_edges_are_together() -> None:
    _, ours = accuracy("fedfork", 0, "method.personalization.networks=1")
    _, simple = accuracy("hierfavg", 0)
    together = [record["active_clusters"] == 1 for record in ours.records]
    assert all(together[:2])
    for mine, theirs, same in zip(ours.records, simple.records, together, strict=True):
        if not same:
            break
        assert mine["accuracy_per_edge"] == theirs["accuracy_per_edge"]
