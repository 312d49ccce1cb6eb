"""The whole algorithm: what an edge does in a round (``serve``) and what the cloud does (``rounds``).

One loop serves every method. It sees the columns of a method only through their protocols, and edges only through
``Edges``: a simulator, a cluster of actors and a real network differ there and nowhere else.
"""

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from fedbac import metrics, models, trees
from fedbac.aggregation import cloud_average, edge_average
from fedbac.costs import BYTES_PER_NUMBER, Ledger, payload, state_bytes
from fedbac.experiment import Experiment
from fedbac.rng import stream
from fedbac.types import (
    Ask,
    BoolArray,
    Evaluate,
    Evidence,
    FloatArray,
    IntArray,
    Measured,
    Params,
    Parts,
    Request,
    Result,
    Split,
    Train,
    Trained,
)  # fmt: skip

# ------------------------------------------------------------------------------ what cloud and edges exchange


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


@dataclass(frozen=True)
class MeasureReport:
    """Mean loss and accuracy of each model on the edge's data, weighted by client size."""

    loss_V: FloatArray
    accuracy_V: FloatArray
    count: int
    traffic: Ledger


EdgeReport = TrainReport | MeasureReport


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


# ------------------------------------------------------------------------------------------------- the edge


def serve(order: EdgeOrder, site: EdgeSite, experiment: Experiment) -> Generator[Request, Result, EdgeReport]:
    """Do an order's work, yielding each request to the clients and receiving its result."""
    if isinstance(order, TrainOrder):
        return (yield from _edge_round(order, site, experiment))
    return (yield from _measure(order, site, experiment))


def _edge_round(order: TrainOrder, site: EdgeSite, experiment: Experiment) -> Generator[Request, Result, TrainReport]:
    """Algorithm 2, repeated ``edge_rounds`` times before the cloud hears of it."""
    policy, ledger = experiment.method.selection, Ledger()
    parts, state, momentum = order.parts, order.selection, order.momentum
    everyone: set[int] = set()
    broken: set[int] = set()
    trained_size, losses = 0, []
    for edge_round in range(experiment.method.topology.edge_rounds):
        evidence = Evidence(order.round, experiment.task.rounds, site.size_N, moved=order.moved and edge_round == 0)
        ask = policy.ask(state, order.round)
        if ask.baseline:
            evidence = replace(evidence, baseline=(yield from _accuracy(parts, ask, site, experiment, ledger)))
        rng = stream(experiment.seed, "selection", order.round, edge_round, site.index)
        mask_N = policy.act(state, evidence, rng)
        chosen = np.flatnonzero(mask_N)
        clients = tuple(site.clients[i] for i in chosen)
        trained = yield from _local_training(
            clients, chosen, parts, momentum, order.round, edge_round, experiment, ledger
        )
        healthy_C = np.isfinite(trained.loss_C) & trees.finite_rows(trained.parts_C)
        weight_C = site.size_N[chosen] * healthy_C
        if weight_C.any():
            parts = edge_average(trained.parts_C, weight_C.astype(np.float64))
            losses.append(float(np.average(trained.loss_C[healthy_C], weights=weight_C[healthy_C])))
        if momentum is not None and trained.momentum is not None:
            momentum = _keep_momentum(momentum, trained.momentum, chosen, healthy_C)
        everyone |= set(clients)
        broken |= {client for client, healthy in zip(clients, healthy_C, strict=True) if not healthy}
        trained_size = int(weight_C.sum()) or trained_size  # an edge that fails late keeps what it had
        if ask.accuracy is not None:
            evidence = replace(evidence, accuracy=(yield from _accuracy(parts, ask, site, experiment, ledger)))
        state = policy.learn(state, evidence, mask_N)
    return TrainReport(
        parts=parts,
        trained_size=trained_size,
        selection=state,
        selected=tuple(sorted(everyone)),
        failed=tuple(sorted(broken)),
        loss=float(np.mean(losses)) if losses else float("nan"),
        traffic=ledger,
        momentum=momentum,
    )


def _local_training(
    clients: tuple[int, ...], chosen: IntArray, parts: Parts, momentum: Parts | None, round_: int, edge_round: int,
    experiment: Experiment, ledger: Ledger,
) -> Generator[Request, Result, Trained]:  # fmt: skip
    rate = experiment.task.training.rate(round_)
    rows = None if momentum is None else {part: {n: v[chosen] for n, v in m.items()} for part, m in momentum.items()}
    trained = yield Train(clients, parts, round_, edge_round, rate, rows)
    assert isinstance(trained, Trained)
    for direction in ("down", "up"):
        ledger.add("client", direction, "train", len(clients) * payload([parts]))
    ledger.add("client", "up", "control", len(clients) * 2 * BYTES_PER_NUMBER)  # number of examples and loss
    return trained


def _keep_momentum(before_N: Parts, trained_C: Parts, chosen: IntArray, healthy_C: BoolArray) -> Parts:
    """Return the edge's momentum buffers with those of the clients that trained well replaced."""
    rows, sources = chosen[healthy_C], np.flatnonzero(healthy_C)
    after: Parts = {}
    for part, buffers in before_N.items():
        after[part] = {name: value.clone() for name, value in buffers.items()}
        for name, value in after[part].items():
            value[rows] = trained_C[part][name][sources].to(value.device)
    return after


def _accuracy(
    parts: Parts, ask: Ask, site: EdgeSite, experiment: Experiment, ledger: Ledger
) -> Generator[Request, Result, float]:
    """a_m: the accuracy of the edge's model on the split a selection policy asked for."""
    assert ask.accuracy is not None
    report = yield from _measure(MeasureOrder(site.index, (parts,), ask.accuracy, site.clients), site, experiment)
    # The edge measures its own model: only what it sends to clients travels, nothing to or from the cloud.
    for key, num_bytes in report.traffic.entries.items():
        if key[0] == "client":
            ledger.add(*key, num_bytes)
    return float(report.accuracy_V[0])


def _measure(order: MeasureOrder, site: EdgeSite, experiment: Experiment) -> Generator[Request, Result, MeasureReport]:
    """F_m = Σ_i (n_i / n_m) F_i for each model, on the clients' data or on the edge's test data."""
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
    return MeasureReport(
        loss_V=np.average(measured.loss_VG, axis=1, weights=weight_G),
        accuracy_V=np.average(measured.accuracy_VG, axis=1, weights=weight_G),
        count=int(measured.count_G.sum()),
        traffic=ledger,
    )


# ------------------------------------------------------------------------------------------------ the cloud


@dataclass(frozen=True)
class State:
    """Everything a run needs to go on after a round."""

    round: int
    """Cloud rounds completed."""
    parts: Parts
    """Stacked: one network for a part of scope cloud, K for a part of scope cluster."""
    label_M: IntArray
    moved_M: BoolArray
    trained_K: BoolArray
    clustering: Any
    selection_M: tuple[Any, ...]
    momentum_M: tuple[Parts | None, ...]


def start(experiment: Experiment, build: models.Build, sites: Sequence[EdgeSite]) -> State:
    """Return the state before the first round."""
    method = experiment.method
    num_edges, num_clusters = len(sites), method.clustering.clusters(len(sites))
    label_M = method.clustering.start(num_edges, stream(experiment.seed, "clustering", 0))
    parts = method.personalization.init(build, num_clusters)
    trainable = [name for name, _ in build(0).named_parameters()]

    def momentum(site: EdgeSite) -> Parts | None:
        if experiment.task.training.momentum_state == "reset":
            return None
        count = len(site.clients)
        return {
            part: {name: stacked[name][:1].expand(count, *stacked[name].shape[1:]) * 0 for name in trainable}
            for part, stacked in parts.items()
        }

    return State(
        round=0,
        parts=parts,
        label_M=label_M,
        moved_M=np.zeros(num_edges, dtype=bool),
        trained_K=np.isin(np.arange(num_clusters), label_M),
        clustering=method.clustering.init(num_edges),
        selection_M=tuple(method.selection.init(len(site.clients)) for site in sites),
        momentum_M=tuple(momentum(site) for site in sites),
    )


def rounds(
    experiment: Experiment, sites: Sequence[EdgeSite], edges: Edges, state: State
) -> Iterator[tuple[dict[str, Any], State]]:
    """Algorithm 1: yield a record and the next state after every cloud round, from wherever ``state`` stands."""
    while state.round < experiment.task.rounds:
        began = time.perf_counter()
        ledger = Ledger()
        reports = _train_edges(experiment, edges, state, ledger)
        trained = _aggregate(experiment, sites, state, reports)
        labels = trained.label_M
        if experiment.evaluation.point == "pre_reassign":
            scores = _score(experiment, sites, edges, trained)
        elif experiment.evaluation.point == "edge_model":
            scores = _score_edge_models(sites, edges, reports)
        after = _reassign(experiment, sites, edges, trained, reports, ledger)
        if experiment.evaluation.point == "post_reassign":
            scores = _score(experiment, sites, edges, after)
        record = {
            "round": after.round,
            **scores,
            "loss": _mean_loss(sites, reports),
            "assignment": labels.tolist(),
            "assignment_next": after.label_M.tolist(),
            "moves": int(after.moved_M.sum()),
            "entered_empty": int(sum(k not in labels for k in after.label_M[after.moved_M])),
            "active_clusters": int(np.unique(labels).size),
            "selected": [list(report.selected) for report in reports],
            "failed": [client for report in reports for client in report.failed],
            "bytes": ledger.nested(),
            "seconds": time.perf_counter() - began,
        }
        state = after
        yield record, state


def models_of(state: State, scopes: Any, clusters: Sequence[int]) -> tuple[Parts, ...]:
    """Return the model of each given cluster; networks of scope cloud are one object in all of them."""
    shared: dict[str, Params] = {p: trees.take(state.parts[p], 0) for p, scope in scopes.items() if scope == "cloud"}
    own: dict[tuple[str, int], Params] = {
        (part, k): trees.take(state.parts[part], k)
        for part, s in scopes.items()
        if s == "cluster"
        for k in set(clusters)
    }
    return tuple({part: shared[part] if part in shared else own[part, k] for part in scopes} for k in clusters)


def _train_edges(experiment: Experiment, edges: Edges, state: State, ledger: Ledger) -> list[TrainReport]:
    """Phases 1 to 4 of a round: send networks down, let edges select, train and average."""
    sent = models_of(state, experiment.method.personalization.scopes, state.label_M.tolist())
    orders = [
        TrainOrder(m, state.round + 1, parts, state.selection_M[m], bool(state.moved_M[m]), state.momentum_M[m])
        for m, parts in enumerate(sent)
    ]
    reports = edges.train(orders)
    for order, report in zip(orders, reports, strict=True):
        ledger.merge(report.traffic)
        ledger.add("cloud", "down", "train", payload([order.parts]))
        ledger.add("cloud", "up", "train", payload([report.parts]))
        ledger.add("cloud", "down", "control", state_bytes(order.selection))
        ledger.add("cloud", "up", "control", state_bytes(report.selection) + 2 * BYTES_PER_NUMBER)
    return reports


def _aggregate(
    experiment: Experiment, sites: Sequence[EdgeSite], state: State, reports: Sequence[TrainReport]
) -> State:
    """Phase 5: two-phase aggregation (Eqs. 5 and 6) by the scopes of the parts."""
    selected_M = np.array([report.trained_size for report in reports], dtype=np.float64)
    total_M = np.array([site.size_N.sum() for site in sites], dtype=np.float64)
    weight_M = {"total": total_M, "selected": selected_M, "uniform": np.ones_like(total_M)}[
        experiment.method.cloud_weight
    ]
    weight_M = np.where(selected_M > 0, weight_M, 0.0)
    scopes = experiment.method.personalization.scopes
    return replace(
        state,
        round=state.round + 1,
        parts=cloud_average(state.parts, [report.parts for report in reports], weight_M, state.label_M, scopes),
        selection_M=tuple(report.selection for report in reports),
        momentum_M=tuple(report.momentum for report in reports),
    )


def _reassign(
    experiment: Experiment, sites: Sequence[EdgeSite], edges: Edges, state: State, reports: Sequence[TrainReport],
    ledger: Ledger,
) -> State:  # fmt: skip
    """Phase 6: when due, measure what the clustering policy asks for, let it learn, and let it act."""
    policy = experiment.method.clustering
    ask = policy.ask(state.clustering, state.round)
    still = replace(state, moved_M=np.zeros_like(state.moved_M))
    if ask is None or state.trained_K.size == 1:
        return still
    num_edges, num_clusters = len(sites), state.trained_K.size
    evidence = Evidence(
        round=state.round,
        num_rounds=experiment.task.rounds,
        size_N=np.array([site.size_N.sum() for site in sites]),
        label_N=state.label_M,
        trained_K=state.trained_K,
        loss_NK=_losses(experiment, sites, edges, state, reports, ledger) if ask.losses else None,
    )
    turns = np.eye(num_edges, dtype=bool) if ask.one_by_one else np.ones((1, num_edges), dtype=bool)
    rng = stream(experiment.seed, "clustering", state.round)
    memory, label_M = state.clustering, state.label_M
    for turn_N in turns:
        evidence = replace(evidence, label_N=label_M, turn_N=turn_N)
        memory = policy.learn(memory, evidence)
        memory, label_M = policy.act(memory, evidence, rng)
    return replace(
        state,
        parts=_furnish(experiment, state, label_M),
        label_M=label_M,
        moved_M=label_M != state.label_M,
        trained_K=state.trained_K | np.isin(np.arange(num_clusters), label_M),
        clustering=memory,
    )


def _losses(
    experiment: Experiment, sites: Sequence[EdgeSite], edges: Edges, state: State, reports: Sequence[TrainReport],
    ledger: Ledger,
) -> FloatArray:  # fmt: skip
    """L_m^(k): the loss of every cluster's model on every edge's data."""
    wanted = experiment.method.measurement
    candidates = models_of(state, experiment.method.personalization.scopes, range(state.trained_K.size))
    measured = edges.measure(
        [
            MeasureOrder(
                edge=site.index,
                models=candidates,
                split=wanted.split,
                clients=site.clients if wanted.clients == "all" else report.selected,
                max_samples=wanted.max_samples_per_client,
            )
            for site, report in zip(sites, reports, strict=True)
        ]
    )
    for report in measured:
        ledger.merge(report.traffic)
    # A model that has diverged fits nothing: infinitely bad, not undefined.
    return np.nan_to_num(np.stack([report.loss_V for report in measured]), nan=np.inf, posinf=np.inf)


def _furnish(experiment: Experiment, state: State, label_M: IntArray) -> Parts:
    """Prepare the networks of clusters that were empty and now get a member (C.17)."""
    rule = experiment.method.empty_cluster
    if rule == "keep":
        return state.parts
    parts = dict(state.parts)
    for k in sorted(set(label_M.tolist()) - set(state.label_M.tolist())):
        mover = int(np.flatnonzero(label_M == k)[0])
        for part, scope in experiment.method.personalization.scopes.items():
            if scope == "cluster":
                source = trees.take(state.parts[part], int(state.label_M[mover]) if rule == "clone" else k)
                parts[part] = trees.put(parts[part], k, source if rule == "clone" else models.zero_last_layer(source))
    return parts


def _score(experiment: Experiment, sites: Sequence[EdgeSite], edges: Edges, state: State) -> dict[str, Any]:
    """Distributed accuracy of the cluster models on the edges' test data, and their mean on all test data.

    Its bytes are not counted: the reported accuracy is the experimenter's instrument, not part of a method.
    """
    active, column_M = np.unique(state.label_M, return_inverse=True)
    candidates = models_of(state, experiment.method.personalization.scopes, active.tolist())
    reports = edges.measure([MeasureOrder(s.index, candidates, "test", s.clients) for s in sites])
    accuracy_MK = np.stack([report.accuracy_V for report in reports])
    count_M = np.array([report.count for report in reports])
    everywhere_K = np.average(accuracy_MK, axis=0, weights=count_M)
    return _scores(accuracy_MK[np.arange(len(sites)), column_M], count_M, float(everywhere_K[column_M].mean()))


def _score_edge_models(sites: Sequence[EdgeSite], edges: Edges, reports: Sequence[TrainReport]) -> dict[str, Any]:
    """The same for the edges' own averages, before the cloud mixes them."""
    candidates = tuple(report.parts for report in reports)
    measured = edges.measure([MeasureOrder(s.index, candidates, "test", s.clients) for s in sites])
    accuracy_MM = np.stack([report.accuracy_V for report in measured])
    count_M = np.array([report.count for report in measured])
    return _scores(np.diag(accuracy_MM), count_M, float(np.average(accuracy_MM, axis=0, weights=count_M).mean()))


def _scores(accuracy_M: FloatArray, count_M: IntArray, accuracy_global: float) -> dict[str, Any]:
    return {
        **metrics.distributed(accuracy_M, count_M),
        "accuracy_per_edge": accuracy_M.tolist(),
        "accuracy_global": accuracy_global,
    }


def _mean_loss(sites: Sequence[EdgeSite], reports: Sequence[TrainReport]) -> float | None:
    """Mean training loss over the edges that trained, weighted by their data; None when all clients failed."""
    pairs = [(report.loss, site.size_N.sum()) for report, site in zip(reports, sites, strict=True)]
    pairs = [(loss, size) for loss, size in pairs if np.isfinite(loss)]
    if not pairs:
        return None
    loss_M, size_M = zip(*pairs, strict=True)
    return float(np.average(loss_M, weights=size_M))
