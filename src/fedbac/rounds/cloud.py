"""What the cloud does (``rounds``): Algorithm 1 of the paper. With ``edge.py``, the whole algorithm.

One loop serves every method. It sees the columns of a method only through their protocols, and edges only through
``Edges``: a simulator, a cluster of actors and a real network differ there and nowhere else.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedbac import models
from fedbac.config.experiment import Experiment, Method
from fedbac.core import trees
from fedbac.core.aggregation import cloud_average, draw_together
from fedbac.core.links import BYTES_PER_NUMBER, Ledger, payload, state_bytes
from fedbac.core.parts import Params, Parts, Scope
from fedbac.core.queries import Ask, Evidence, Split
from fedbac.core.rng import stream
from fedbac.core.settings import BoolArray, FloatArray, IntArray
from fedbac.rounds import metrics
from fedbac.rounds.edge import Edges, EdgeSite, MeasureOrder, TrainOrder, TrainReport, clients_to_ask

MUCH_TO_LOSE = 0.25
"""Nats that validation data may cost more than training before clusters share, however much is left to learn."""
NEWEST = 0.2
"""Weight of the newest round in the running mean of ``overfitting``: one noisy round seldom makes clusters share."""


@dataclass(frozen=True)
class State:
    """Everything a run needs to go on after a round."""

    round: int
    """Cloud rounds completed."""
    parts: Parts
    """Stacked: one network for a part of scope cloud, K for a part of scope cluster."""
    label_M: IntArray
    moved_M: BoolArray
    used_K: BoolArray
    """Which clusters have ever had a member."""
    clustering: Any
    selection_M: tuple[Any, ...]
    momentum_M: tuple[Parts | None, ...]
    overfitting: float = float("nan")
    """How much more validation data cost than training, a running mean; NaN as long as nobody has measured.

    In units of the loss in training, but at most of ``MUCH_TO_LOSE``.
    """
    overfitted: bool = False
    """Whether it was above 1 in the first half of the run: sharing costs at first, so a start near the end cannot pay.
    Once true it stays so: sharing makes ``overfitting`` smaller, which is no reason to stop."""

    @property
    def num_clusters(self) -> int:
        """K."""
        return self.used_K.size


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
        used_K=np.isin(np.arange(num_clusters), label_M),
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
        reports = _train_edges(experiment, sites, edges, state, ledger)
        trained = _aggregate(experiment, sites, state, reports)
        labels = trained.label_M
        after = _reassign(experiment, sites, edges, trained, reports, ledger)
        scores = _score(sites, edges, *_judged(experiment, trained, after, reports))
        record = {
            "round": after.round,
            **scores,
            "loss": _mean_loss(sites, reports),
            "overfitting": None if np.isnan(after.overfitting) else after.overfitting,
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


def _sizes(sites: Sequence[EdgeSite]) -> FloatArray:
    return np.array([site.size_N.sum() for site in sites], dtype=np.float64)


def models_of(state: State, scopes: Mapping[str, Scope], clusters: Sequence[int]) -> tuple[Parts, ...]:
    """Return the model of each given cluster; networks of scope cloud are one object in all of them."""
    shared: dict[str, Params] = {p: trees.take(state.parts[p], 0) for p, scope in scopes.items() if scope == "cloud"}
    own: dict[tuple[str, int], Params] = {
        (part, k): trees.take(state.parts[part], k)
        for part, s in scopes.items()
        if s == "cluster"
        for k in set(clusters)
    }
    return tuple({part: shared[part] if part in shared else own[part, k] for part in scopes} for k in clusters)


def _train_edges(
    experiment: Experiment, sites: Sequence[EdgeSite], edges: Edges, state: State, ledger: Ledger
) -> list[TrainReport]:
    """Phases 1 to 4 of a round: send networks down, let edges select, train and average."""
    method = experiment.method
    scopes = method.personalization.scopes
    sent = models_of(_shared(method, sites, state), scopes, state.label_M.tolist())
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
        if method.sharing and method.sharing_by == "overfitting":
            ledger.add("cloud", "up", "control", BYTES_PER_NUMBER)
    return reports


def _shared(method: Method, sites: Sequence[EdgeSite], state: State) -> State:
    """Return the state with the networks of clusters drawn together, if and as far as the method says."""
    if not method.sharing or (method.sharing_by == "overfitting" and not state.overfitted):
        return state
    size_K = np.zeros(state.num_clusters)
    np.add.at(size_K, state.label_M, _sizes(sites))
    return replace(state, parts=draw_together(state.parts, method.sharing, size_K, method.personalization.scopes))


def _aggregate(
    experiment: Experiment, sites: Sequence[EdgeSite], state: State, reports: Sequence[TrainReport]
) -> State:
    """Phase 5: two-phase aggregation (Eqs. 5 and 6) by the scopes of the parts."""
    selected_M = np.array([report.trained_size for report in reports], dtype=np.float64)
    total_M = _sizes(sites)
    weight_M = {"total": total_M, "selected": selected_M, "uniform": np.ones_like(total_M)}[
        experiment.method.cloud_weight
    ]
    weight_M = np.where(selected_M > 0, weight_M, 0.0)
    scopes = experiment.method.personalization.scopes
    overfitting = _overfitting(state.overfitting, total_M, reports)
    round_ = state.round + 1
    early = 2 * round_ <= experiment.task.rounds
    return replace(
        state,
        round=round_,
        parts=cloud_average(state.parts, [report.parts for report in reports], weight_M, state.label_M, scopes),
        selection_M=tuple(report.selection for report in reports),
        momentum_M=tuple(report.momentum for report in reports),
        overfitting=overfitting,
        overfitted=state.overfitted or (early and overfitting > 1),
    )


def _overfitting(before: float, size_M: FloatArray, reports: Sequence[TrainReport]) -> float:
    """Return the running mean of (V − T) / min(T, ``MUCH_TO_LOSE``) with this round; as it was, if no edge measured.

    V, the loss on validation data, and T, the loss in training, are means over the edges that measured. An edge whose
    model has diverged does not count: it is no reason for the others to share.
    """
    validation_M, training_M = np.array([(report.validation_loss, report.loss) for report in reports]).T
    told_M = np.isfinite(validation_M)
    if not size_M[told_M] @ training_M[told_M]:
        return before
    validation, training = (np.average(loss_M[told_M], weights=size_M[told_M]) for loss_M in (validation_M, training_M))
    now = float((validation - training) / min(training, MUCH_TO_LOSE))
    return now if np.isnan(before) else before + NEWEST * (now - before)


def _reassign(
    experiment: Experiment, sites: Sequence[EdgeSite], edges: Edges, state: State, reports: Sequence[TrainReport],
    ledger: Ledger,
) -> State:  # fmt: skip
    """Phase 6: when due, measure what the clustering policy asks for, let it learn, and let it act."""
    policy = experiment.method.clustering
    ask = policy.ask(state.clustering, state.round)
    still = replace(state, moved_M=np.zeros_like(state.moved_M))
    if ask is None or state.num_clusters == 1:
        return still
    num_edges, num_clusters = len(sites), state.num_clusters
    evidence = Evidence(
        round=state.round,
        num_rounds=experiment.task.rounds,
        size_N=np.array([site.size_N.sum() for site in sites]),
        label_N=state.label_M,
        used_K=state.used_K,
    )
    if ask.losses:
        loss_NK = _losses(experiment, sites, edges, state, reports, ask, ledger)
        evidence = replace(evidence, loss_NK=loss_NK)
    if ask.alone:
        of_splits = [_own_losses(experiment, sites, edges, state, reports, split, ledger).T for split in ask.alone]
        alone_NS, together_NS = (np.stack(losses, axis=1) for losses in zip(*of_splits, strict=True))
        evidence = replace(evidence, alone_NS=alone_NS, together_NS=together_NS)
    turns = np.eye(num_edges, dtype=bool) if ask.one_by_one else np.ones((1, num_edges), dtype=bool)
    rng = stream(experiment.seed, "clustering", state.round)
    memory, label_M = state.clustering, state.label_M
    for turn_N in turns:
        evidence = replace(evidence, label_N=label_M, turn_N=turn_N)
        memory = policy.learn(memory, evidence)
        memory, label_M = policy.act(memory, evidence, rng)
    return replace(
        state,
        parts=_furnish(experiment, sites, state, label_M),
        label_M=label_M,
        moved_M=label_M != state.label_M,
        used_K=state.used_K | np.isin(np.arange(num_clusters), label_M),
        clustering=memory,
    )


def _losses(
    experiment: Experiment, sites: Sequence[EdgeSite], edges: Edges, state: State, reports: Sequence[TrainReport],
    ask: Ask, ledger: Ledger,
) -> FloatArray:  # fmt: skip
    """L_m^(k): the loss of every cluster's model on every edge's data."""
    asked_K = np.unique(state.label_M) if ask.occupied else np.arange(state.num_clusters)
    candidates = models_of(state, experiment.method.personalization.scopes, asked_K.tolist())
    everywhere = dict.fromkeys(range(len(sites)), candidates)
    loss_MK = np.full((len(sites), state.num_clusters), np.inf)
    loss_MK[:, asked_K] = _measured(
        experiment, sites, edges, reports, everywhere, experiment.method.measurement.split, ledger
    )
    return loss_MK


def _own_losses(
    experiment: Experiment, sites: Sequence[EdgeSite], edges: Edges, state: State, reports: Sequence[TrainReport],
    split: Split, ledger: Ledger,
) -> FloatArray:  # fmt: skip
    """Return what each member of a shared cluster has with its own network and with its cluster's; NaN for others."""
    scopes = experiment.method.personalization.scopes
    sharing = np.flatnonzero(np.bincount(state.label_M)[state.label_M] > 1)
    loss_M2 = np.full((len(sites), 2), np.nan)
    models = {}
    for m, together in zip(sharing.tolist(), models_of(state, scopes, state.label_M[sharing].tolist()), strict=True):
        own = {part: (reports[m].parts if scope == "cluster" else together)[part] for part, scope in scopes.items()}
        models[m] = (own, together)
    if models:
        loss_M2[sharing] = _measured(experiment, sites, edges, reports, models, split, ledger)
    return loss_M2


def _measured(
    experiment: Experiment, sites: Sequence[EdgeSite], edges: Edges, reports: Sequence[TrainReport],
    models: Mapping[int, tuple[Parts, ...]], split: Split, ledger: Ledger,
) -> FloatArray:  # fmt: skip
    """Return the losses of these models of edges on the edges' data, a row for each edge that has any."""
    measured = edges.measure(
        [
            MeasureOrder(
                edge=m,
                models=candidates,
                split=split,
                clients=clients_to_ask(experiment.method, sites[m], reports[m].selection, reports[m].selected),
                max_samples=experiment.method.measurement.max_samples_per_client,
            )
            for m, candidates in models.items()
        ]
    )
    for report in measured:
        ledger.merge(report.traffic)
    # A model that has diverged fits nothing: infinitely bad, not undefined.
    return np.nan_to_num([report.loss_V for report in measured], nan=np.inf, posinf=np.inf)


def _furnish(experiment: Experiment, sites: Sequence[EdgeSite], state: State, label_M: IntArray) -> Parts:
    """Prepare the networks of clusters that edges enter (C.17)."""
    method = experiment.method
    average = method.newcomers == "average"
    if not average and method.empty_cluster == "keep":
        return state.parts
    entered = set(label_M[label_M != state.label_M].tolist())
    size_M = _sizes(sites)
    parts = dict(state.parts)
    for k in sorted(entered if average else entered - set(state.label_M.tolist())):
        mover = int(np.flatnonzero(label_M == k)[0])
        size_K = np.zeros(state.num_clusters)  # of what the members come with
        np.add.at(size_K, state.label_M[label_M == k], size_M[label_M == k])
        for part, scope in method.personalization.scopes.items():
            if scope == "cluster":
                before_K = state.parts[part]
                if average:
                    source = trees.weighted_mean(before_K, size_K)
                elif method.empty_cluster == "clone":
                    source = trees.take(before_K, int(state.label_M[mover]))
                else:
                    source = models.zero_last_layer(trees.take(before_K, k))
                parts[part] = trees.put(parts[part], k, source)
    return parts


def _judged(
    experiment: Experiment, trained: State, after: State, reports: Sequence[TrainReport]
) -> tuple[tuple[Parts, ...], IntArray]:
    """Return the models that edges are judged by (C.14), and which of them is whose."""
    if experiment.evaluation.point == "edge_model":
        return tuple(report.parts for report in reports), np.arange(len(reports))
    state = trained if experiment.evaluation.point == "pre_reassign" else after
    active, column_M = np.unique(state.label_M, return_inverse=True)
    return models_of(state, experiment.method.personalization.scopes, active.tolist()), column_M


def _score(
    sites: Sequence[EdgeSite], edges: Edges, candidates: tuple[Parts, ...], column_M: IntArray
) -> dict[str, Any]:
    """Distributed accuracy: each edge's model on its own test data; and the mean of these models on all test data.

    Its bytes are not counted: the reported accuracy is the experimenter's instrument, not part of a method.
    """
    reports = edges.measure([MeasureOrder(site.index, candidates, "test", site.clients) for site in sites])
    accuracy_MV = np.stack([report.accuracy_V for report in reports])
    count_M = np.array([report.count for report in reports])
    accuracy_M = accuracy_MV[np.arange(len(sites)), column_M]
    everywhere_V = np.average(accuracy_MV, axis=0, weights=count_M)
    return {
        **metrics.distributed(accuracy_M, count_M),
        "accuracy_per_edge": accuracy_M.tolist(),
        "accuracy_global": float(everywhere_V[column_M].mean()),
    }


def _mean_loss(sites: Sequence[EdgeSite], reports: Sequence[TrainReport]) -> float | None:
    """Mean training loss over the edges that trained, weighted by their data; None when all clients failed."""
    pairs = [(report.loss, site.size_N.sum()) for report, site in zip(reports, sites, strict=True)]
    pairs = [(loss, size) for loss, size in pairs if np.isfinite(loss)]
    if not pairs:
        return None
    loss_M, size_M = zip(*pairs, strict=True)
    return float(np.average(loss_M, weights=size_M))
