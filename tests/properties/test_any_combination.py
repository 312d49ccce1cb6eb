"""Any combination of choices runs, or says why not before any work: rows of Table I that nobody has written down."""

import numpy as np
import pytest

from fedbac import (
    AGGREGATION,
    CLUSTERING,
    PERSONALIZATION,
    SELECTION,
    SHARING,
    STEP,
    TOPOLOGY,
    Dataset,
    Runtime,
    Task,
    Training,
)
from fedbac.core.rng import Rng, stream
from fedbac.data import Shards, planted_groups
from fedbac.errors import ConfigError
from fedbac.models import Perceptron
from fedbac.runs.configure import Inputs, configure
from fedbac.runs.play import finish, play
from tests.covering import first

COLUMNS = {
    "topology": TOPOLOGY,
    "clustering": CLUSTERING,
    "selection": SELECTION,
    "sharing": SHARING,
    "personalization": PERSONALIZATION,
    "aggregation": AGGREGATION,
    "step": STEP,
}
RUNS, DRAWN = 40, 200
TASK = Task(rounds=2, network=Perceptron(hidden=(6,)), training=Training(epochs=1, batch_size=8, learning_rate=0.05))


@pytest.fixture(scope="module")
def given() -> tuple[Dataset, Shards]:
    dataset, shards, _ = planted_groups(4, 3, 2, train=10, validation=4, test=15)
    return dataset, shards


def draw(rng: Rng) -> list[str]:
    """Return the settings of a random row, sometimes with devices, compression or clients as members."""
    settings = [f"method.{column}.kind={rng.choice(list(choice.kinds))}" for column, choice in COLUMNS.items()]
    extras = (
        "method.unit=client",
        "task.world.dropout=0.3",
        "method.links.client_up={kind: top_k, keep: 0.3}",
        "method.links.cloud_down={kind: eight_bits}",
        "task.training.momentum_state=persist",
    )
    return settings + [extra for extra in extras if rng.random() < 0.3]


def test_a_row_that_nobody_has_written_down(given: tuple[Dataset, Shards]) -> None:
    """Oort's selection, Fed-BAC's bandit over clusters, and FedRep's order of training with a head per edge."""
    inputs = Inputs(dataset=given[0], shards=given[1])
    wanted = {"selection.kind": "oort", "clustering.kind": "linucb", "personalization.kind": "additive"}
    settings = [f"method.{path}={value}" for path, value in wanted.items()]
    experiment = configure("hierfavg", TASK, settings=settings, inputs=inputs)
    run = finish(play(experiment, runtime=Runtime(device="cpu", trainer="torch", workers=1), inputs=inputs))
    assert len(run.records) == 2
    with pytest.raises(ConfigError, match="'personal_head' has no part per cluster"):
        configure(
            "hierfavg", TASK, settings=[*settings[:2], "method.personalization.kind=personal_head"], inputs=inputs
        )


def test_not_everything_is_refused(given: tuple[Dataset, Shards]) -> None:
    inputs, rng, accepted = Inputs(dataset=given[0], shards=given[1]), stream(12, "combination"), 0
    for _ in range(DRAWN):
        try:
            configure("hierfavg", TASK, settings=draw(rng), inputs=inputs)
        except ConfigError:
            continue
        accepted += 1
    assert accepted >= DRAWN // 20  # seven columns are drawn, and one that does not fit is enough


@pytest.mark.parametrize("number", first(8, range(RUNS)))
def test_it_runs_or_says_why_not(number: int, given: tuple[Dataset, Shards]) -> None:
    """Draw until a row is accepted; those before it were refused with a sentence that names a setting."""
    inputs, rng = Inputs(dataset=given[0], shards=given[1]), stream(11, "combination", number)
    for _ in range(200):
        settings = draw(rng)
        try:
            experiment = configure("hierfavg", TASK, settings=settings, inputs=inputs)
        except ConfigError as error:
            assert "method." in str(error), f"{settings}: {error}"  # noqa: PT017 (a refusal is as good)
        else:
            break
    run = finish(play(experiment, runtime=Runtime(device="cpu", trainer="torch", workers=1), inputs=inputs))
    assert len(run.records) == 2, settings
    assert all(np.isfinite(record["accuracy"]) for record in run.records), settings
