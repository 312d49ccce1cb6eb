"""A client whose training breaks down is a weight of zero, never an exception and never a NaN that spreads."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedbac
from fedbac.clustering import Fixed, LinUCB, LowestLoss
from fedbac.config.experiment import Measurement, Method, Task, Training
from fedbac.core import trees
from fedbac.core.parts import Params, Personalization
from fedbac.core.policies import ClusterPolicy
from fedbac.core.requests import Trainer
from fedbac.core.state import State
from fedbac.data import Dataset, planted_groups
from fedbac.local import LoopTrainer, NativeTrainer, VmapTrainer
from fedbac.local.kernel import layers_of
from fedbac.models import Perceptron
from fedbac.personalization import Additive, PerCluster, Shared
from fedbac.selection import Random, Thompson
from fedbac.topology import Hierarchical
from tests.covering import first
from tests.support import (
    NO_KERNEL,
    ON_GPU,
    PLAIN_SGD,
    Played,
    StubTrainer,
    deal,
    distance,
    federate,
    on_gpu,
    only_edge,
    order,
    play,
    poisoned,
    without,
)

DATA, SHARDS, _ = planted_groups(4, 3, 2, train=10, validation=2, test=12)
BAD = 4
"""A client of edge 1."""
ISOLATED = Method(name="isolated", clustering=Fixed(), personalization=PerCluster())
HIERFAVG = Method(name="hierfavg")


def bad(*clients: int, dataset: Dataset = DATA) -> Dataset:
    return poisoned(dataset, np.concatenate([SHARDS.train[client] for client in clients]))


def finite(state: State) -> bool:
    everything: list[Params] = [*state.parts.values(), *(p for m in state.momentum_M if m for p in m.values())]
    return all(bool(torch.isfinite(value).all()) for params in everything for value in params.values())


def edge_weights(played: Played, edge: int) -> dict[str, Params]:
    """Return the networks of cluster ``edge``; edge m is alone in cluster m."""
    return {"cluster": {name: value[edge] for name, value in played.end.parts["cluster"].items()}}


def test_a_client_with_infinite_features_is_left_out_and_counted() -> None:
    played = play(ISOLATED, bad(BAD), SHARDS)
    assert [record["failed"] for record in played.records] == [[BAD]] * 3
    assert all(BAD in record["selected"][1] for record in played.records), "it was selected all the same"
    assert all(finite(state) for state in played.states)
    assert all(np.isfinite(record["loss"]) for record in played.records)
    clean = play(ISOLATED, DATA, SHARDS)
    assert all(record["failed"] == [] for record in clean.records)
    for edge in (0, 2, 3):
        assert distance(edge_weights(played, edge), edge_weights(clean, edge)) == 0
        for one, other in zip(played.records, clean.records, strict=True):
            assert one["accuracy_per_edge"][edge] == other["accuracy_per_edge"][edge]
    assert distance(edge_weights(played, 1), edge_weights(clean, 1)) > 1e-3


def test_the_edge_average_is_that_of_the_clients_that_are_left() -> None:
    played = play(ISOLATED, bad(5), SHARDS)
    rest = replace(SHARDS, clients=(range(3), range(3, 5), range(6, 9), range(9, 12)))
    assert distance(edge_weights(played, 1), edge_weights(play(ISOLATED, DATA, rest), 1)) < 1e-6


def test_a_client_whose_loss_explodes_during_training_is_left_out() -> None:
    huge = DATA.x_train.copy()
    huge[SHARDS.train[BAD]] *= 1e15
    dataset = Dataset(DATA.name, huge, DATA.y_train, DATA.x_test, DATA.y_test, DATA.num_classes)
    training = PLAIN_SGD.model_copy(update={"epochs": 3, "batch_size": 2})
    played = play(HIERFAVG, dataset, SHARDS, training=training)
    assert [record["failed"] for record in played.records] == [[BAD]] * 3
    assert finite(played.end)
    calm = play(HIERFAVG, DATA, SHARDS, training=training)
    assert abs(played.accuracy - calm.accuracy) < 0.3


@pytest.mark.parametrize("scheme", first(1, [Shared(), PerCluster(), Additive()]), ids=lambda scheme: scheme.kind)
def test_every_scheme_goes_on_with_thompson_sampling_and_a_failing_client(scheme: Personalization) -> None:
    clustering: ClusterPolicy = Fixed(num_clusters=1)
    if scheme.kind != "shared":
        clustering = LowestLoss(num_clusters=2, period=1)
    method = Method(
        name="test", clustering=clustering, selection=Thompson(fraction=0.7, warmup=1), personalization=scheme
    )
    played = play(method, bad(BAD), SHARDS, num_rounds=4)
    for record in played.records:
        assert record["failed"] == ([BAD] if BAD in record["selected"][1] else [])
        assert 0 <= record["accuracy_min"] <= record["accuracy"] <= 1
    assert any(record["failed"] for record in played.records)
    assert finite(played.end)


@pytest.mark.parametrize(
    "clients", first(1, [(BAD,), (3, 4, 5), tuple(range(12))]), ids=["client", "edge", "everybody"]
)
def test_linucb_goes_on_when_losses_are_infinite(clients: tuple[int, ...]) -> None:
    method = Method(name="test", clustering=LinUCB(period=1), selection=Thompson(), personalization=Additive())
    played = play(method, bad(*clients), SHARDS, num_rounds=4)
    assert len(played.records) == 4
    assert np.isfinite(played.end.clustering.A_NKFF).all()
    assert np.isfinite(played.end.clustering.b_NKF).all()


def test_an_edge_with_a_failing_client_can_still_find_its_cluster() -> None:
    """The client is left out of F_m as it is left out of the average."""
    clustering = LowestLoss(num_clusters=2, period=1, threshold=1.0, start_labels="uniform")
    method = Method(name="test", clustering=clustering, personalization=PerCluster(cluster_init="distinct"))
    healthy = play(method, DATA, SHARDS, num_rounds=4, seed=1).end.label_N.tolist()
    assert healthy in ([0, 1, 0, 1], [1, 0, 1, 0])
    mover = healthy.index(1)  # all began in cluster 0
    broken = play(method, bad(SHARDS.clients[mover][0]), SHARDS, num_rounds=4, seed=1)
    assert broken.end.label_N.tolist() == healthy


def test_an_edge_whose_clients_all_fail_has_no_weight() -> None:
    played = play(HIERFAVG, bad(3, 4, 5), SHARDS)
    assert [record["failed"] for record in played.records] == [[3, 4, 5]] * 3
    assert finite(played.end)
    rest = replace(SHARDS, clients=(range(3), range(6, 9), range(9, 12)), test=tuple(SHARDS.test[m] for m in (0, 2, 3)))
    others = play(HIERFAVG, DATA, rest)
    assert distance(played.end.parts, others.end.parts) < 1e-6
    for one, other in zip(played.records, others.records, strict=True):
        assert one["loss"] == pytest.approx(other["loss"])


def test_a_cluster_whose_edges_all_fail_keeps_its_network() -> None:
    played = play(ISOLATED, bad(3, 4, 5), SHARDS)
    for name, value in played.end.parts["cluster"].items():
        assert torch.equal(value[1], played.states[0].parts["cluster"][name][1])
        assert not torch.equal(value[0], played.states[0].parts["cluster"][name][0])


@pytest.mark.parametrize("method", [HIERFAVG, ISOLATED], ids=lambda method: method.name)
def test_when_everybody_fails_nothing_changes(method: Method) -> None:
    played = play(method, bad(*range(12)), SHARDS)
    for record in played.records:
        assert record["loss"] is None
        assert record["failed"] == list(range(12))
        assert record["accuracy_per_edge"] == played.records[0]["accuracy_per_edge"]
    assert distance(played.end.parts, played.states[0].parts) == 0


def test_a_run_in_which_everybody_fails_ends_with_a_summary() -> None:
    task = Task(rounds=2, network=Perceptron(hidden=(4,)), training=Training(epochs=1))
    run = fedbac.run("hierfavg", task, dataset=bad(*range(12)), shards=SHARDS, device="cpu", workers=1)
    assert run.summary["failed_clients"] == 24
    assert run.summary["loss"] is None


def test_a_failed_round_does_not_touch_the_momentum_of_a_client() -> None:
    training = Training(epochs=1, batch_size=4, momentum_state="persist", clip_norm=None)
    method = Method(name="test", selection=Random(fraction=0.7))
    played = play(method, bad(BAD), SHARDS, training=training, num_rounds=4)
    assert any(BAD in record["selected"][1] for record in played.records)
    trained: set[int] = set()
    for state, record in zip(played.states[1:], played.records, strict=True):
        trained |= {client for edge in record["selected"] for client in edge} - {BAD}
        assert finite(state)
        for site, momentum in zip(played.federation.sites, state.momentum_M, strict=True):
            assert momentum is not None
            for row, client in enumerate(site.clients):
                moving = any(bool(value[row].any()) for value in momentum["global"].values())
                assert moving == (client in trained)
    before, after = played.states[1].momentum_M[0], played.states[2].momentum_M[0]
    assert before is not None
    assert after is not None
    for row, client in enumerate(played.federation.sites[0].clients):
        same = all(torch.equal(before["global"][n][row], after["global"][n][row]) for n in before["global"])
        assert same == (client not in played.records[1]["selected"][0])


def test_failures_by_hand_over_two_edge_rounds() -> None:
    """Client i comes back with weights i in the first edge round and 2i in the second; sizes are 1, 2 and 3."""
    shards = deal(DATA, [[1, 2, 3], [4]])
    method = Method(name="test", topology=Hierarchical(edge_rounds=2))
    played = play(method, DATA, shards, StubTrainer(failing={1: [(1, 0)], 2: [(1, 1)]}), num_rounds=1)
    assert played.records[0]["failed"] == [1, 2]
    first_edge = (0 * 1 + 2 * 2) / 3  # clients 0 and 1, of sizes 1 and 2, second edge round
    expected = (6 * first_edge + 4 * (2 * 3)) / 10
    for value in played.end.parts["global"].values():
        torch.testing.assert_close(value, torch.full_like(value, expected))


def test_an_edge_that_fails_only_in_its_last_edge_round_keeps_what_it_learned_before() -> None:
    shards = deal(DATA, [[2, 2], [4]])
    method = Method(name="test", topology=Hierarchical(edge_rounds=2))
    played = play(method, DATA, shards, StubTrainer(failing={0: [(1, 1)], 1: [(1, 1)]}), num_rounds=1)
    expected = (4 * 0.5 + 4 * (2 * 2)) / 8
    for value in played.end.parts["global"].values():
        torch.testing.assert_close(value, torch.full_like(value, expected))


EVERY_PATH = ["loop", "vmap", pytest.param("native", marks=NO_KERNEL), *ON_GPU]


IMAGES = replace(DATA, x_train=DATA.x_train.reshape(-1, 1, 2, 4), x_test=DATA.x_test.reshape(-1, 1, 2, 4))


def healthy(path: str, dataset: Dataset, training: Training, rate: float) -> list[bool]:
    """Train the first three clients on one path and return who comes back with finite loss and weights."""
    scheme = Shared()
    federation = federate(dataset, SHARDS, training=training)
    start = {part: trees.take(params, 0) for part, params in scheme.init(federation.build, {"cloud": 1}).items()}
    trainer: Trainer = LoopTrainer(federation.network, scheme, federation.examples)
    if path == "vmap":
        trainer = VmapTrainer(federation.network, scheme, federation.examples, torch.device("cpu"))
    if path in ("emulated", "fused", "vmap-cuda"):
        trainer = on_gpu(path, federation, scheme)
    if path == "native":
        layers = layers_of(federation.network, (1, 2, 4))
        assert layers is not None
        trainer = NativeTrainer(federation.network, scheme, federation.examples, layers, threads=1)
    trained = trainer.train([order((0, 1, 2), start, rate=rate)])[0]
    healthy_C: list[bool] = (np.isfinite(trained.loss_C) & trees.finite_rows(trained.parts_C)).tolist()
    return healthy_C


@pytest.mark.parametrize("path", EVERY_PATH)
def test_a_failing_client_does_not_reach_others_through_a_common_batch(path: str) -> None:
    """Client 0 holds example 0 of the data set; ten examples make a ragged second batch."""
    assert healthy(path, bad(0, dataset=IMAGES), PLAIN_SGD, 0.1) == [False, True, True]


@pytest.mark.parametrize("path", EVERY_PATH)
def test_an_absurd_learning_rate_is_a_failure_of_the_clients(path: str) -> None:
    """The largest that settings take, with all else that is multiplied by it."""
    training = Training(epochs=2, batch_size=4, learning_rate=1e30, weight_decay=1e30, momentum=0.9, clip_norm=1e30)
    assert healthy(path, IMAGES, training, 1e30) == [False, False, False]


def test_losses_of_selected_clients_without_validation_data() -> None:
    shards = replace(SHARDS, validation=tuple(v if i % 3 == 0 else v[:0] for i, v in enumerate(SHARDS.validation)))
    method = Method(
        name="test",
        clustering=LowestLoss(num_clusters=2, period=1),
        selection=Random(fraction=0.4),
        personalization=PerCluster(),
        measurement=Measurement(split="validation", clients="selected"),
    )
    played = play(method, DATA, shards)
    without_data = [set(edge) & {0, 3, 6, 9} == set() for record in played.records for edge in record["selected"]]
    assert any(without_data), "otherwise nothing was tested"


def test_a_run_with_a_failing_client_repeats_itself() -> None:
    runs = [play(HIERFAVG, bad(BAD), SHARDS) for _ in range(2)]
    assert without(runs[0].records) == without(runs[1].records)
    alone = play(HIERFAVG, bad(BAD), only_edge(SHARDS, 1))
    assert [record["failed"] for record in alone.records] == [[BAD]] * 3
