"""What cloud and edges exchange, and what an edge does with an order (``serve``): Algorithm 2 of the paper."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch

from fedbac.config.experiment import Experiment, Method
from fedbac.core import trees
from fedbac.core.links import BYTES_PER_NUMBER, Ledger, client_numbers, payload
from fedbac.core.parts import Parts
from fedbac.core.policies import Trusting
from fedbac.core.queries import Evidence, Split
from fedbac.core.requests import Average, Averaged, Evaluate, Measured, Request, Result, Train
from fedbac.core.rng import stream
from fedbac.core.settings import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class EdgeSite:
    """What an edge knows of itself: its number, its clients and how much data each holds."""

    index: int
    clients: tuple[int, ...]
    size_N: IntArray
    validation_N: IntArray


@dataclass(frozen=True)
class TrainOrder:
    """Run a round: select, train, average, and let selection learn."""

    edge: int
    round: int
    parts: Parts
    selection: Any
    moved: bool
    momentum: Parts | None = None


@dataclass(frozen=True)
class MeasureOrder:
    """Measure these models on a split of the edge's data."""

    edge: int
    models: tuple[Parts, ...]
    split: Split
    clients: tuple[int, ...]
    max_samples: int | None = None


EdgeOrder = TrainOrder | MeasureOrder


@dataclass(frozen=True)
class TrainReport:
    """What an edge sends up after a round."""

    parts: Parts
    trained_size: int
    """Examples of the clients that count in the average; 0 when every selected client failed."""
    selection: Any
    selected: tuple[int, ...]
    failed: tuple[int, ...]
    loss: float
    traffic: Ledger
    momentum: Parts | None = None
    validation_loss: float = float("nan")
    """That of the edge's model on the clients that measure; NaN if nobody asked for validation data or nobody trained,
    not finite if the model is not."""


@dataclass(frozen=True)
class MeasureReport:
    """Mean loss and accuracy of each model on the edge's data, weighted by client size."""

    loss_V: FloatArray
    accuracy_V: FloatArray
    count: int
    traffic: Ledger


EdgeReport = TrainReport | MeasureReport


@dataclass(frozen=True)
class Survey:
    """What each of the clients measured, and how much it counts; the edge's test data are one group."""

    clients: tuple[int, ...]
    weight_G: FloatArray
    measured: Measured
    traffic: Ledger

    def mean(self, value_VG: FloatArray, among: tuple[int, ...] | None = None) -> FloatArray:
        """Return the mean over groups, weighted by their data; over the clients among these, if any of them count."""
        counts_G = np.ones(self.weight_G.size, dtype=bool)
        if among is not None and self.weight_G[np.isin(self.clients, among)].any():
            counts_G = np.isin(self.clients, among)
        mean_V: FloatArray = np.average(value_VG[:, counts_G], axis=1, weights=self.weight_G[counts_G])
        return mean_V


class Edges(Protocol):
    """How the cloud reaches its edges."""

    path: str
    """Which trainer does the work, for the record."""
    device: torch.device
    """Where the cloud keeps the networks of a run."""

    def train(self, orders: Sequence[TrainOrder]) -> list[TrainReport]:
        """Have every edge run its order."""

    def measure(self, orders: Sequence[MeasureOrder]) -> list[MeasureReport]:
        """Have every edge measure."""

    def close(self) -> None:
        """Let the edges go."""


# ------------------------------------------------------------------------------------------------- the work


def serve(order: EdgeOrder, site: EdgeSite, experiment: Experiment) -> Generator[Request, Result, EdgeReport]:
    """Do an order's work, yielding each request to the clients and receiving its result."""
    if isinstance(order, TrainOrder):
        return (yield from _edge_rounds(order, site, experiment))
    return (yield from _measure(order, site, experiment))


@dataclass
class Work:
    """What an edge has come to in a cloud round."""

    parts: Parts
    selection: Any
    momentum: Parts | None
    trained_size: int = 0
    selected: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    losses: list[float] = field(default_factory=list)
    validation_loss: float = float("nan")
    traffic: Ledger = field(default_factory=Ledger)


def _edge_rounds(order: TrainOrder, site: EdgeSite, experiment: Experiment) -> Generator[Request, Result, TrainReport]:
    """Algorithm 2, as often as the topology wants before the cloud hears of it."""
    work = Work(order.parts, order.selection, order.momentum)
    for edge_round in range(experiment.method.topology.edge_rounds):
        yield from _edge_round(work, edge_round, order, site, experiment)
    return TrainReport(
        parts=work.parts,
        trained_size=work.trained_size,
        selection=work.selection,
        selected=tuple(sorted(work.selected)),
        failed=tuple(sorted(work.failed)),
        loss=float(np.mean(work.losses)) if work.losses else float("nan"),
        traffic=work.traffic,
        momentum=work.momentum,
        validation_loss=work.validation_loss,
    )


def _edge_round(
    work: Work, edge_round: int, order: TrainOrder, site: EdgeSite, experiment: Experiment
) -> Generator[Request, Result, None]:
    """Algorithm 2: select (lines 1 to 5), train and average (6 to 9), measure (10), learn (11)."""
    policy = experiment.method.selection
    evidence = Evidence(order.round, experiment.task.rounds, site.size_N, moved=order.moved and edge_round == 0)
    ask = policy.ask(work.selection, order.round)
    if ask.accuracy is not None and ask.baseline:
        own = yield from _survey_own(work, ask.accuracy, site, experiment)
        evidence = replace(evidence, baseline=float(own.mean(own.measured.accuracy_VG)[0]))
    rng = stream(experiment.seed, "selection", order.round, edge_round, site.index)
    mask_N = policy.act(work.selection, evidence, rng)
    loss_N = yield from _train_and_average(work, mask_N, edge_round, order, site, experiment)
    if ask.training_losses:
        evidence = replace(evidence, loss_N=loss_N)
    if ask.accuracy is not None:
        own = yield from _survey_own(work, ask.accuracy, site, experiment)
        evidence = replace(evidence, accuracy=float(own.mean(own.measured.accuracy_VG)[0]))
        if ask.accuracy == "validation" and work.losses and np.isfinite(loss_N).any():
            trained = tuple(site.clients[i] for i in np.flatnonzero(np.isfinite(loss_N)))
            asked = clients_to_ask(experiment.method, site, work.selection, trained)
            work.validation_loss = float(own.mean(own.measured.loss_VG, asked)[0])
    # A client that failed had no part in the outcome: neither credit nor blame.
    work.selection = policy.learn(work.selection, evidence, np.isfinite(loss_N))


def _train_and_average(
    work: Work, mask_N: BoolArray, edge_round: int, order: TrainOrder, site: EdgeSite, experiment: Experiment
) -> Generator[Request, Result, FloatArray]:
    """Train the selected clients, average those that trained well (Eq. 1), and return their losses, NaN for others."""
    chosen = np.flatnonzero(mask_N)
    loss_N = np.full(mask_N.size, np.nan)
    if chosen.size == 0:
        return loss_N
    clients = tuple(site.clients[i] for i in chosen)
    rate = experiment.task.training.rate(order.round)
    momentum = None
    if work.momentum is not None:
        momentum = {part: {name: v[chosen] for name, v in buffers.items()} for part, buffers in work.momentum.items()}
    request = Train(clients, work.parts, order.round, edge_round, rate, momentum)
    trained = yield Average(request, site.size_N[chosen])
    assert isinstance(trained, Averaged)
    one_way = client_numbers([len(clients)], [trees.size(params) for params in work.parts.values()]) // 2
    for direction in ("down", "up"):
        work.traffic.add("client", direction, "train", BYTES_PER_NUMBER * one_way)
    work.traffic.add("client", "up", "control", len(clients) * 2 * BYTES_PER_NUMBER)  # number of examples and loss

    healthy_C = trained.healthy_C
    size_C = np.where(healthy_C, site.size_N[chosen], 0)
    if trained.parts is not None:
        work.parts = trained.parts
        work.losses.append(float(np.average(trained.loss_C[healthy_C], weights=size_C[healthy_C])))
        work.trained_size = int(size_C.sum())  # an edge that fails later keeps what it had
    if work.momentum is not None and trained.momentum is not None:
        work.momentum = _keep_momentum(work.momentum, trained.momentum, chosen, healthy_C)
    work.selected |= set(clients)
    work.failed |= {client for client, healthy in zip(clients, healthy_C, strict=True) if not healthy}
    loss_N[chosen[healthy_C]] = trained.loss_C[healthy_C]
    return loss_N


def _keep_momentum(before_N: Parts, trained_C: Parts, chosen: IntArray, healthy_C: BoolArray) -> Parts:
    """Return the edge's momentum buffers with those of the clients that trained well replaced."""
    rows, sources = chosen[healthy_C], np.flatnonzero(healthy_C)
    after: Parts = {}
    for part, buffers in before_N.items():
        after[part] = {name: value.clone() for name, value in buffers.items()}
        for name, value in after[part].items():
            value[rows] = trained_C[part][name][sources].to(value.device)
    return after


def clients_to_ask(method: Method, site: EdgeSite, selection: Any, selected: tuple[int, ...]) -> tuple[int, ...]:
    """Return the clients of an edge whose measurements count (``method.measurement.clients``)."""
    if method.measurement.clients == "selected":
        return selected or site.clients
    if method.measurement.clients == "trusted" and isinstance(method.selection, Trusting):
        trusted_N = method.selection.trusted(selection)
        return tuple(client for client, sound in zip(site.clients, trusted_N, strict=True) if sound) or site.clients
    return site.clients


def _survey_own(work: Work, split: Split, site: EdgeSite, experiment: Experiment) -> Generator[Request, Result, Survey]:
    """Measure the edge's model with all its clients, on the split that a selection policy asked for."""
    survey = yield from _survey(MeasureOrder(site.index, (work.parts,), split, site.clients), site, experiment)
    # The edge measures its own model: only what it sends to clients travels, nothing to or from the cloud.
    for key, num_bytes in survey.traffic.entries.items():
        if key[0] == "client":
            work.traffic.add(*key, num_bytes)
    return survey


def _measure(order: MeasureOrder, site: EdgeSite, experiment: Experiment) -> Generator[Request, Result, MeasureReport]:
    """F_m = Σ_i (n_i / n_m) F_i for each model, on the clients' data or on the edge's test data."""
    survey = yield from _survey(order, site, experiment)
    return MeasureReport(
        loss_V=survey.mean(survey.measured.loss_VG),
        accuracy_V=survey.mean(survey.measured.accuracy_VG),
        count=int(survey.measured.count_G.sum()),
        traffic=survey.traffic,
    )


def _survey(order: MeasureOrder, site: EdgeSite, experiment: Experiment) -> Generator[Request, Result, Survey]:
    if order.split == "test":
        clients: tuple[int, ...] = ()
        weight_G = np.ones(1)
    else:
        size_N = site.validation_N if order.split == "validation" else site.size_N
        asked = np.isin(site.clients, order.clients) & (size_N > 0)
        holders = np.flatnonzero(asked if asked.any() else size_N > 0)  # none of those asked may hold any
        clients = tuple(site.clients[i] for i in holders)
        weight_G = size_N[holders].astype(np.float64)
    measured = yield Evaluate(order.models, order.split, site.index, clients, order.max_samples)
    assert isinstance(measured, Measured)
    ledger = Ledger()
    networks, numbers = payload(order.models), 2 * BYTES_PER_NUMBER * len(order.models)
    ledger.add("cloud", "down", "evaluate", networks)
    ledger.add("cloud", "up", "control", numbers)
    if clients and experiment.method.measurement.location == "clients":
        ledger.add("client", "down", "evaluate", len(clients) * networks)
        ledger.add("client", "up", "control", len(clients) * numbers)
    # A client whose loss is not finite under any model is broken itself and says nothing about the models.
    sound_G = np.isfinite(measured.loss_VG).any(0)
    if sound_G.any():
        weight_G = weight_G * sound_G
        measured = replace(measured, loss_VG=np.where(sound_G, measured.loss_VG, 0.0))
    return Survey(clients, weight_G, measured, ledger)
