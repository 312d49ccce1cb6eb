"""What the cloud does (``rounds``): Algorithm 1 of the paper. With ``edge.py``, the whole algorithm.

One loop serves every method. It sees the columns of a method only through their protocols, and sites only through
``Edges``: a simulator, a cluster of actors and a real network differ there and nowhere else.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
from torch import nn

from fedbac.config.experiment import Experiment
from fedbac.core import trees
from fedbac.core.aggregation import average_by_owner
from fedbac.core.answers import (
    checked_ask,
    checked_assignment,
    checked_exchange,
    checked_labels,
    checked_pair,
    checked_queries,
    checked_start,
    checked_state,
)
from fedbac.core.links import Ledger, Link
from fedbac.core.parts import Params, Parts, Scope
from fedbac.core.policies import Noting
from fedbac.core.queries import AT_EDGE, Accuracy, Ask, Evidence, Gram, Loss, Models, Moment, Query, Statistic
from fedbac.core.rng import stream
from fedbac.core.schemes import moving_parts
from fedbac.core.settings import BoolArray, FloatArray, IntArray
from fedbac.core.state import State
from fedbac.rounds.edge import NUMBERS_PER_MODEL, NUMBERS_PER_UPDATE
from fedbac.rounds.evidence import gram, plan_look
from fedbac.rounds.holdings import holdings
from fedbac.rounds.orders import Edges, Site, TrainOrder, TrainReport
from fedbac.rounds.scores import score


def start(experiment: Experiment, build: Callable[[int], nn.Module], sites: Sequence[Site]) -> State:
    """Return the state before the first round."""
    method = experiment.method
    num_sites, num_clusters = len(sites), method.clustering.clusters(len(sites))
    label_M = method.clustering.start(num_sites, stream(experiment.seed, "clustering", 0))
    label_M = checked_labels(method.clustering, "start()", label_M, num_sites, num_clusters)
    owners: dict[Scope, int] = {
        "cloud": 1,
        "cluster": num_clusters,
        "edge": num_sites,
        "client": 1 + max(client for site in sites for client in site.clients),
    }
    parts = checked_start(method.personalization, method.personalization.init(build, owners), owners)
    trainable = {name for name, _ in build(0).named_parameters()}

    def momentum(site: Site) -> Parts | None:
        if experiment.task.training.momentum_state == "reset":
            return None
        count = len(site.clients)
        return {
            part: {n: v[:1].expand(count, *v.shape[1:]) * 0 for n, v in stacked.items() if n in trainable}
            for part, stacked in parts.items()
        }

    return State(
        round=0,
        parts=parts,
        label_M=label_M,
        moved_M=np.zeros(num_sites, dtype=bool),
        used_K=np.isin(np.arange(num_clusters), label_M),
        clustering=method.clustering.init(num_sites),
        sharing=method.sharing.init(num_sites),
        selection_M=tuple(method.selection.init(len(site.clients)) for site in sites),
        trained={
            part: np.zeros(owners[spec.scope], dtype=bool)
            for part, spec in method.personalization.parts.items()
            if spec.follows
        },
        momentum_M=tuple(momentum(site) for site in sites),
    )


def rounds(
    experiment: Experiment, sites: Sequence[Site], edges: Edges, state: State
) -> Iterator[tuple[dict[str, Any], State]]:
    """Algorithm 1: yield a record and the next state after every cloud round, from wherever ``state`` stands."""
    while state.round < experiment.task.rounds:
        record, state = Round(experiment, sites, edges).play(state)
        yield record, state


class Round:
    """One round of the cloud, and what passed its links."""

    def __init__(self, experiment: Experiment, sites: Sequence[Site], edges: Edges) -> None:
        self.experiment, self.method, self.sites, self.edges = experiment, experiment.method, sites, edges
        self.link = Link("cloud", experiment.method.personalization)
        self.traffic = Ledger()
        """What passed between clients and their sites."""

    def play(self, before: State) -> tuple[dict[str, Any], State]:
        """Play the round and return its record and the state after it."""
        began = time.perf_counter()
        before, sent = self._exchange(before)
        reports = self._train(before, sent)
        trained = self._average(before, sent, reports)
        after = self._reassign(trained, sent, reports)
        labels, moved_M = trained.label_M, after.label_M != trained.label_M
        record = {
            "round": after.round,
            **score(self.experiment, self.sites, self.edges, trained, after, reports),
            "loss": _mean_loss(self.sites, reports),
            "notes": self._notes(after),
            "assignment": labels.tolist(),
            "assignment_next": after.label_M.tolist(),
            "moves": int(moved_M.sum()),
            "entered_empty": int(sum(k not in labels for k in after.label_M[moved_M])),
            "active_clusters": int(np.unique(labels).size),
            "selected": [list(report.selected) for report in reports],
            "failed": [client for report in reports for client in report.failed],
            "bytes": self._bytes(),
            "seconds": time.perf_counter() - began,
        }
        return record, after

    def _evidence(self, state: State, round_: int, readings: dict[Query, FloatArray]) -> Evidence:
        return Evidence(
            round=round_,
            num_rounds=self.experiment.task.rounds,
            num_classes=self.sites[0].num_classes,
            size_N=np.array([site.size for site in self.sites]),
            readings=readings,
            label_N=state.label_M,
            used_K=state.used_K,
        )

    def _exchange(self, state: State) -> tuple[State, Parts]:
        """Let clusters share what their networks know; return the state, and the parts that are sent down."""
        policy = self.method.sharing
        answer = policy.act(state.sharing, self._evidence(state, state.round + 1, {}))
        exchange = checked_exchange(policy, answer, state.num_clusters)
        sent = self._mixed(state.parts, exchange.mix_KJ)
        return (replace(state, parts=sent) if exchange.kept else state), sent

    def _mixed(self, parts: Parts, mix_KJ: FloatArray | None) -> Parts:
        if mix_KJ is None:
            return parts
        owned = {part for part, spec in self.method.personalization.parts.items() if spec.scope == "cluster"}
        return {part: trees.mix(stack, mix_KJ) if part in owned else stack for part, stack in parts.items()}

    def _train(self, state: State, sent: Parts) -> list[TrainReport]:
        """Phases 1 to 4 of a round: send networks down, let sites select, train and average."""
        moment = Moment(state.round + 1, self.experiment.task.rounds)
        asked = self._asked_by_sharing(state, moment)
        orders = []
        for m, site in enumerate(self.sites):
            held = holdings(self.method.personalization.parts, site, int(state.label_M[m]))
            bank = {part: trees.select(sent[part], own.owner_R) for part, own in held.items()}
            orders.append(
                TrainOrder(
                    site=m,
                    round=moment.round,
                    bank=self.link.send("down", "train", bank),
                    row_N={part: own.row_N for part, own in held.items()},
                    selection=state.selection_M[m],
                    moved=bool(state.moved_M[m]),
                    momentum=state.momentum_M[m],
                    readings=tuple(query for query in asked if isinstance(query, Loss | Accuracy)),
                )
            )
        reports = []
        for order, report in zip(orders, self.edges.train(orders), strict=True):
            self.traffic.merge(report.traffic)
            self.link.tell("up", NUMBERS_PER_UPDATE + len(order.readings))
            reports.append(replace(report, bank=self.link.send("up", "train", report.bank)))
        return reports

    def _average(self, state: State, sent: Parts, reports: Sequence[TrainReport]) -> State:
        """Phase 5: two-phase aggregation (Eqs. 5 and 6) by the owners of the parts; then sharing learns."""
        moving = moving_parts(self.method.personalization)  # a mean of what never moves would only round it
        parts, trained = {}, {}
        for part, stack in state.parts.items():
            rows, weight_R, owner_R = self._contributions(part, state, reports)
            parts[part] = average_by_owner(stack, rows, weight_R, owner_R) if part in moving else stack
            if part in state.trained:
                owners = np.arange(state.trained[part].size)
                trained[part] = state.trained[part] | np.isin(owners, owner_R[weight_R > 0])
        for part, trained_R in trained.items():
            leader = self.method.personalization.parts[part].follows
            assert leader is not None
            parts[part] = trees.fill(parts[part], ~trained_R, parts[leader])
        moment = Moment(state.round + 1, self.experiment.task.rounds)
        asked = self._asked_by_sharing(state, moment)
        readings = self._told(asked, state, sent, reports)
        measured = [query for query in asked if isinstance(query, Loss | Accuracy)]
        readings |= {q: np.array([report.readings[i] for report in reports]) for i, q in enumerate(measured)}
        learned = self.method.sharing.learn(state.sharing, self._evidence(state, moment.round, readings))
        return replace(
            state,
            round=moment.round,
            parts=parts,
            trained=trained,
            sharing=checked_state("sharing", self.method.sharing, learned, state.sharing),
            selection_M=tuple(report.selection for report in reports),
            momentum_M=tuple(report.momentum for report in reports),
        )

    def _asked_by_sharing(self, state: State, moment: Moment) -> tuple[Query, ...]:
        policy = self.method.sharing
        asked = checked_queries(policy, policy.ask(state.sharing, moment))
        return checked_ask("sharing", policy, Ask(after=asked), after={"trained"}).after

    def _contributions(
        self, part: str, state: State, reports: Sequence[TrainReport]
    ) -> tuple[list[Params], FloatArray, IntArray]:
        """Return what was reported of a part: the rows of all sites, the weight and the owner of each."""
        weights, owners = [], []
        for m, (site, report) in enumerate(zip(self.sites, reports, strict=True)):
            own = holdings(self.method.personalization.parts, site, int(state.label_M[m]))[part]
            trained_R = report.weight[part].astype(np.float64)
            weight_R = {
                "total": np.bincount(own.row_N, weights=site.size_N, minlength=own.owner_R.size),
                "selected": trained_R,
                "uniform": np.ones_like(trained_R),
            }[self.method.cloud_weight]
            weights.append(np.where(trained_R > 0, weight_R, 0.0))
            owners.append(own.owner_R)
        return [report.bank[part] for report in reports], np.concatenate(weights), np.concatenate(owners)

    def _reassign(self, state: State, sent: Parts, reports: Sequence[TrainReport]) -> State:
        """Phase 6: when due, measure what the clustering policy asks for, let it learn, and let it act."""
        policy = self.method.clustering
        ask = policy.ask(state.clustering, Moment(state.round, self.experiment.task.rounds))
        if ask is None or state.num_clusters == 1:
            return replace(state, moved_M=np.zeros_like(state.moved_M))
        ask = checked_ask("clustering", policy, ask, after=set(get_args(Models)) - AT_EDGE)
        evidence = self._evidence(state, state.round, self._look(ask.after, state, sent, reports))
        memory = checked_state("clustering", policy, policy.learn(state.clustering, evidence), state.clustering)
        acted = policy.act(memory, evidence, stream(self.experiment.seed, "clustering", state.round))
        memory, answer = checked_pair(policy, acted)
        memory = checked_state("clustering", policy, memory, state.clustering)
        label_M, origin_KJ = checked_assignment(policy, answer, len(self.sites), state.num_clusters)
        return replace(
            state,
            parts=self._mixed(state.parts, origin_KJ),
            label_M=label_M,
            moved_M=(label_M != state.label_M) | _given_another(label_M, origin_KJ),
            used_K=state.used_K | np.isin(np.arange(state.num_clusters), label_M),
            clustering=memory,
        )

    def _look(
        self, queries: tuple[Query, ...], state: State, sent: Parts, reports: Sequence[TrainReport]
    ) -> dict[Query, FloatArray]:
        """Answer the queries of the clustering policy."""
        readings = self._told(queries, state, sent, reports)
        orders, places = plan_look(self.experiment, self.sites, state, reports, queries)
        if not orders:
            return readings
        orders = [replace(order, bank=self.link.send("down", "evaluate", order.bank)) for order in orders]
        answers = self.edges.measure(orders)
        for order, answer in zip(orders, answers, strict=True):
            self.traffic.merge(answer.traffic)
            self.link.tell("up", NUMBERS_PER_MODEL * sum(wanted.num_models for wanted in order.wanted))
        return readings | places.read(answers, state.num_clusters)

    def _told(
        self, queries: tuple[Query, ...], state: State, sent: Parts, reports: Sequence[TrainReport]
    ) -> dict[Query, FloatArray]:
        """Answer the queries that reports answer by themselves."""
        readings: dict[Query, FloatArray] = {}
        if Statistic("loss") in queries:
            readings[Statistic("loss")] = np.array([report.loss for report in reports])
        if Gram() in queries:
            readings[Gram()] = gram(self.method.personalization.parts, sent, state.label_M, reports)
        return readings

    def _notes(self, state: State) -> dict[str, float | None]:
        """Return the numbers of the method's own policies, those that are not finite as missing."""
        notes: dict[str, float | None] = {}
        for policy, memory in ((self.method.clustering, state.clustering), (self.method.sharing, state.sharing)):
            if isinstance(policy, Noting):
                found = policy.notes(memory).items()
                notes |= {name: float(value) if np.isfinite(value) else None for name, value in found}
        return notes

    def _bytes(self) -> dict[str, dict[str, dict[str, int]]]:
        if self.method.topology.tiers == 3:  # else sites and cloud are one, and nothing passes between them
            self.traffic.merge(self.link.traffic)
        return self.traffic.nested()


def _given_another(label_M: IntArray, origin_KJ: FloatArray | None) -> BoolArray:
    """Return which sites find another network in their cluster, though they may never have left it."""
    if origin_KJ is None:
        return np.zeros(label_M.size, dtype=bool)
    changed_K: BoolArray = (origin_KJ != np.eye(len(origin_KJ))).any(axis=1)
    return changed_K[label_M]


def _mean_loss(sites: Sequence[Site], reports: Sequence[TrainReport]) -> float | None:
    """Return the mean training loss over the sites that trained, weighted by their data; None when all failed."""
    pairs = [(report.loss, site.size) for report, site in zip(reports, sites, strict=True)]
    pairs = [(loss, size) for loss, size in pairs if np.isfinite(loss)]
    if not pairs:
        return None
    loss_M, size_M = zip(*pairs, strict=True)
    return float(np.average(loss_M, weights=size_M))
