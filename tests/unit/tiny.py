"""A federation small enough to train in a blink, for tests that look at whole rounds."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedbac import Experiment, Method, Partition, Perceptron, PerCluster, Run, Task, Training, run
from fedbac.core.links import Ledger
from fedbac.core.parts import Scope
from fedbac.core.policies import ClusterPolicy
from fedbac.core.queries import Accuracy, Evidence, Loss, Models, Query, Split, Statistic
from fedbac.core.requests import Measured
from fedbac.core.settings import BoolArray, FloatArray, IntArray
from fedbac.core.state import State
from fedbac.data import Dataset, toy
from fedbac.models import builder
from fedbac.rounds.cloud import rounds
from fedbac.rounds.messages import MeasureOrder, MeasureReport, Site, TrainOrder, TrainReport, Wanted
from fedbac.rounds.start import start


def tiny_task(**changes: Any) -> Task:
    """Two edges of five clients, a few examples each, a network of a few hundred weights."""
    settings: dict[str, Any] = {
        "num_edges": 2,
        "clients_per_edge": 5,
        "rounds": 2,
        "network": Perceptron(hidden=(4,)),
        "partition": Partition(dirichlet_server=5, dirichlet_client=5, min_client_samples=10, min_edge_test=5),
        "training": Training(epochs=1, batch_size=32, learning_rate=0.05),
        "targets": (0.5,),
    }
    return Task(**(settings | changes))


def tiny_data() -> Dataset:
    return toy(train=300, test=60)


def tiny_run(method: str | Method, *settings: str, task: Task | None = None, **inputs: Any) -> Run:
    """Play a method on the tiny task, in this process."""
    return run(
        method,
        task or tiny_task(),
        settings=settings,
        device="cpu",
        workers=1,
        **({"dataset": tiny_data()} | inputs),
    )


def clustering_evidence(
    label_N: IntArray | list[int],
    loss_NK: FloatArray | list[list[float]],
    *,
    round_: int = 20,
    num_rounds: int = 100,
    num_classes: int = 10,
    used_K: BoolArray | None = None,
    readings: Mapping[Query, FloatArray] | None = None,
) -> Evidence:
    """Return what the cloud shows a clustering policy; by default all clusters trained, and averaging changed nothing.

    ``readings`` holds answers other than those.
    """
    label, loss = np.asarray(label_N, np.int64), np.asarray(loss_NK, np.float64)
    own_N = loss[np.arange(label.size), label]
    splits: tuple[Split, ...] = ("train", "validation")
    models: tuple[Models, ...] = ("own", "unaveraged")
    known: dict[Query, FloatArray] = {Loss("clusters"): loss, Loss("occupied"): loss}
    for of in models:
        for split in splits:
            known[Loss(of, split)] = own_N
    return Evidence(
        round=round_,
        num_rounds=num_rounds,
        num_classes=num_classes,
        size_N=np.full(label.size, 100),
        readings=known | dict(readings or {}),
        label_N=label,
        used_K=np.ones(loss.shape[1], bool) if used_K is None else used_K,
    )


def beginning(round_: int, num_rounds: int = 100, num_members: int = 10) -> Evidence:
    """Return what an edge shows a selection policy before anything is measured."""
    size_N = np.full(num_members, 10)
    return Evidence(round=round_, num_rounds=num_rounds, num_classes=10, size_N=size_N)


def selection_evidence(
    size_N: IntArray | list[int],
    round_: int = 1,
    *,
    received: float | None = None,
    trained: float | None = None,
    loss_N: FloatArray | None = None,
    on: Split = "validation",
    num_classes: int = 10,
    moved: bool = False,
) -> Evidence:
    """Return what an edge shows a selection policy: its model's accuracy before and after, its clients' losses."""
    answers: dict[Query, float | FloatArray | None] = {
        Accuracy("received", on): received,
        Accuracy("trained", on): trained,
        Statistic("loss"): loss_N,
    }
    return Evidence(
        round=round_,
        num_rounds=100,
        num_classes=num_classes,
        size_N=np.asarray(size_N, np.int64),
        readings={query: np.asarray(value, np.float64) for query, value in answers.items() if value is not None},
        moved=moved,
    )


def inclusion_statistic(count_N: IntArray, trials: int, picks: int) -> float:
    """Return a statistic that is χ² of N − 1 degrees when every draw takes ``picks`` of N members uniformly.

    Each count has variance T·(B/N)(1 − B/N) and any two the covariance −variance/(N − 1).
    """
    share = picks / count_N.size
    squares = (count_N - trials * share) ** 2 / (trials * share * (1 - share))
    return float(squares.sum() * (count_N.size - 1) / count_N.size)


class ScriptedEdges:
    """Edges that train nothing and report losses written down beforehand: ``loss_TMK[t − 1]`` after round t."""

    path = "scripted"
    device = torch.device("cpu")
    keeps: frozenset[Scope] = frozenset()

    def __init__(self, loss_TMK: FloatArray) -> None:
        self.loss_TMK = loss_TMK
        self.orders: list[TrainOrder] = []

    def train(self, orders: Sequence[TrainOrder]) -> list[TrainReport]:
        self.orders.extend(orders)
        return [
            TrainReport(
                bank=order.bank,
                weight={part: np.ones(1, dtype=np.int64) for part in order.bank},
                selection=order.selection,
                selected=(),
                failed=(),
                loss=0.0,
                statistic_N={Statistic("loss"): np.zeros(1)},
                traffic=Ledger(),
                readings=tuple(np.nan for _ in order.readings),
            )
            for order in orders
        ]

    def measure(self, orders: Sequence[MeasureOrder]) -> list[MeasureReport]:
        loss_MK = self.loss_TMK[self.orders[-1].round - 1]
        return [
            MeasureReport(tuple(self._reading(wanted, loss_MK[order.site]) for wanted in order.wanted), Ledger())
            for order in orders
        ]

    def _reading(self, wanted: Wanted, loss_K: FloatArray) -> Measured:
        loss_V = np.zeros(wanted.num_models) if wanted.by == "edge" else loss_K
        return Measured(loss_V[:, None], np.zeros((wanted.num_models, 1)), np.ones(1, dtype=np.int64))

    def close(self) -> None:
        pass


def scripted_rounds(
    clustering: ClusterPolicy, loss_TMK: FloatArray, heard: list[tuple[int, int, bool]] | None = None
) -> Iterator[tuple[dict[str, Any], State]]:
    """Play the real round loop with a clustering policy on scripted losses, one round per loss matrix.

    ``heard`` collects what each order told its edge: round, edge, moved.
    """
    num_rounds, num_edges, _ = loss_TMK.shape
    task = tiny_task(num_edges=num_edges, clients_per_edge=1, rounds=num_rounds, network=Perceptron(hidden=()))
    experiment = Experiment(task=task, method=Method(name="x", clustering=clustering, personalization=PerCluster()))
    sites = [Site(m, (m,), np.array([1]), np.array([0]), num_classes=2) for m in range(num_edges)]
    build = builder(Perceptron(hidden=()), None, (1,), 2, seed=0)
    edges = ScriptedEdges(loss_TMK)
    yield from rounds(experiment, sites, edges, start(experiment, build, sites))
    if heard is not None:
        heard.extend((order.round, order.site, order.moved) for order in edges.orders)
