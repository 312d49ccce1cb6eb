"""The library against ``examples/fedbac_plain.py``, which was written from the paper alone."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from examples import fedbac_plain
from examples.fedbac_plain import Config, fed_bac
from torch import nn

from fedbac.clustering import LinUCB
from fedbac.data import Dataset, Partition, Shards, partition, toy
from fedbac.engines import Simulator
from fedbac.experiment import Experiment, Measurement, Method, Runtime, Task, Training
from fedbac.federation import assemble
from fedbac.local import LoopTrainer, VmapTrainer, make_trainer
from fedbac.models import LeNet5, Perceptron
from fedbac.personalization import Additive
from fedbac.rounds import State, rounds, start
from fedbac.selection import Thompson
from fedbac.types import Trainer

NUM_EDGES, CLIENTS_PER_EDGE = 4, 3
# Few examples for the loss, so that the subset is drawn; a batch size that leaves ragged batches.
CONFIG = Config(
    num_rounds=8, seed=2, participation=0.67, epochs=2, warmup=2, period=2, tau_norm=3, batch_size=8, loss_examples=25
)
PARTITION = Partition(min_edge_test=10, min_client_samples=8, validation_fraction=0.3)
NETWORKS: dict[str, tuple[Perceptron | LeNet5, int]] = {
    "mlp": (Perceptron(hidden=(16,)), 8),
    "lenet5": (LeNet5(width=(3, 4, 12, 8)), 16),
}


@dataclass
class Case:
    dataset: Dataset
    shards: Shards
    network: Perceptron | LeNet5

    def build(self) -> nn.Module:
        return self.network.build(self.dataset.x_train.shape[1:], self.dataset.num_classes)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=NETWORKS)
def case(request: pytest.FixtureRequest) -> Case:
    network, size = NETWORKS[request.param]
    dataset = toy(num_classes=5, size=size)
    clients = [CLIENTS_PER_EDGE] * NUM_EDGES
    shards = partition(dataset.y_train, dataset.y_test, dataset.num_classes, clients, PARTITION, CONFIG.seed)
    return Case(dataset, shards, network)


@pytest.fixture(scope="module")
def plain(case: Case) -> fedbac_plain.History:
    return fed_bac(case.dataset, case.shards, CONFIG, case.build)


def test_the_task_exercises_both_bandits(case: Case, plain: fedbac_plain.History) -> None:
    history, _, _ = plain
    moves = [done.labels != done.labels_after for done in history]
    assert sum(moves) >= 2
    assert any(moves[:-2])  # so that a move is followed by learning and by another decision
    assert any(len(set(done.labels)) < NUM_EDGES for done in history)  # a cluster of several edges, an empty one
    assert max(len(indices) for indices in case.shards.train) > CONFIG.loss_examples
    at_random, _, _ = fed_bac(case.dataset, case.shards, replace(CONFIG, warmup=CONFIG.num_rounds), case.build)
    differs = [a.selected != b.selected for a, b in zip(history, at_random, strict=True)]
    assert differs[: CONFIG.warmup] == [False] * CONFIG.warmup
    assert sum(differs) >= 4


@pytest.mark.parametrize("path", ["loop", "vmap", "default"])
def test_the_library_agrees(case: Case, plain: fedbac_plain.History, path: str) -> None:
    history, h, f = plain
    records, state = run_library(case, path)
    assert len(records) == len(history) == CONFIG.num_rounds
    for record, done in zip(records, history, strict=True):
        assert record["accuracy"] == pytest.approx(done.accuracy)
        assert record["selected"] == done.selected
        assert record["assignment"] == done.labels
        assert record["assignment_next"] == done.labels_after
    assert_weights(state, "global", 0, h)
    for k in range(NUM_EDGES):
        assert_weights(state, "cluster", k, f[k])


def test_the_example_stays_short() -> None:
    assert len(Path(fedbac_plain.__file__).read_text(encoding="utf-8").splitlines()) < 250


def run_library(case: Case, path: str) -> tuple[list[dict[str, Any]], State]:
    experiment = Experiment(
        seed=CONFIG.seed,
        task=Task(
            num_edges=NUM_EDGES,
            clients_per_edge=CLIENTS_PER_EDGE,
            rounds=CONFIG.num_rounds,
            partition=PARTITION,
            network=case.network,
            training=Training(epochs=CONFIG.epochs, batch_size=CONFIG.batch_size),
        ),
        method=Method(
            name="fed-bac",
            clustering=LinUCB(period=CONFIG.period, tau_norm=CONFIG.tau_norm),
            selection=Thompson(fraction=CONFIG.participation, warmup=CONFIG.warmup),
            personalization=Additive(),
            measurement=Measurement(max_samples_per_client=CONFIG.loss_examples),
        ),
    )
    federation = assemble(experiment, dataset=case.dataset, shards=case.shards)
    parts = (federation.network, experiment.method.personalization, federation.examples)
    trainers: dict[str, Callable[[], Trainer]] = {
        "loop": lambda: LoopTrainer(*parts),
        "vmap": lambda: VmapTrainer(*parts, torch.device("cpu")),
        "default": lambda: make_trainer(*parts, Runtime(workers=1, device="cpu")),
    }
    trainer = trainers[path]()
    edges = Simulator(experiment, federation.sites, trainer)
    records = []
    state = start(experiment, federation.build, federation.sites)
    for record, after in rounds(experiment, federation.sites, edges, state):
        records.append(record)
        state = after
    trainer.close()
    return records, state


def assert_weights(state: State, part: str, index: int, expected: nn.Module) -> None:
    for name, parameter in expected.named_parameters():
        torch.testing.assert_close(state.parts[part][name][index], parameter.detach(), atol=1e-5, rtol=0)
