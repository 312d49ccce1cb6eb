"""What the cloud does (``rounds``): Algorithm 1 of the paper. With ``edge.py``, the whole algorithm.

One loop serves every method. It sees the columns of a method only through their protocols, and sites only through
``Edges``: a simulator, a cluster of actors and a real network differ there and nowhere else.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from fedbac.config.experiment import Experiment
from fedbac.core import trees
from fedbac.core.answers import (
    checked_ask,
    checked_assignment,
    checked_pair,
    checked_queries,
    checked_state,
    consult,
)
from fedbac.core.links import Ledger, Link
from fedbac.core.parts import Params, Parts
from fedbac.core.policies import Comparing, Gaps, Teaching
from fedbac.core.queries import (
    AT_CLOUD,
    FOR_SHARING,
    Accuracy,
    Ask,
    Evidence,
    Gram,
    Loss,
    Query,
    Slope,
    Statistic,
)
from fedbac.core.rng import stream
from fedbac.core.settings import FloatArray, IntArray
from fedbac.core.shortage import out_of_memory
from fedbac.core.state import State
from fedbac.core.world import BITS, MEGA
from fedbac.errors import TooFewSitesError
from fedbac.rounds.averaging import averages
from fedbac.rounds.common import moment_of
from fedbac.rounds.edge import NUMBERS_PER_MODEL, NUMBERS_PER_UPDATE
from fedbac.rounds.evidence import plan_look, told
from fedbac.rounds.exchange import evidence_of, exchanged, judged, mixed
from fedbac.rounds.holdings import Holding, rows_of
from fedbac.rounds.members import Members, given_another
from fedbac.rounds.memory import AT_SITES, Memory, Remembered
from fedbac.rounds.orders import (
    Averages,
    Edges,
    Site,
    Told,
    TrainOrder,
    TrainReport,
    Underway,
    foresaw,
    on_device,
    training,
)
from fedbac.rounds.scores import Scores, score
from fedbac.rounds.teaching import teachers
from fedbac.rounds.writing import Heard, beliefs, notes, written_gaps


def rounds(
    experiment: Experiment, sites: Sequence[Site], edges: Edges, state: State
) -> Iterator[tuple[dict[str, Any], State]]:
    """Algorithm 1: yield a record and the next state after every cloud round, from wherever ``state`` stands.

    Where a device does the work, it has begun with the next round when a record is yielded: it trains while the host
    makes the record, and while the caller keeps it. So there the time of a round is that from record to record;
    elsewhere it is without the caller's.
    """
    ahead, began = on_device(edges) is not None, time.perf_counter()
    played: Played | None = None
    while played is not None or state.round < experiment.task.rounds:
        begun: Begun | None = None
        try:
            if state.round < experiment.task.rounds and (ahead or played is None):
                current = Round(experiment, sites, edges, state.round + 1)
                begun = current.begin(state)
        finally:  # a round that is done is told, even if the next cannot begin
            if played is not None:
                record = played.record() | {"seconds": time.perf_counter() - began}
                played, began = None, time.perf_counter()
                yield record, state
                if not ahead:
                    began = time.perf_counter()
        if begun is None:
            continue
        try:
            played = current.finish(begun)
        except TooFewSitesError:  # nothing of the round counts, and the edges wait for more sites before the next try
            began = time.perf_counter()
            continue
        state = played.after


class Begun(NamedTuple):
    """A round whose sites have their orders."""

    before: State
    sent: Parts
    asked: "Asked"
    orders: list[TrainOrder]
    memories: list[Remembered]
    underway: Underway


class Played(NamedTuple):
    """A round that is over."""

    after: State
    record: Callable[[], dict[str, Any]]
    """Returns what is to be told of it, but for how long it took; waits for the scores."""


class Asked(NamedTuple):
    """What the policies of the cloud want to know of a round."""

    by_sharing: tuple[Query, ...]
    by_clustering: Ask | None
    """None when assignments are not due."""

    @property
    def queries(self) -> tuple[Query, ...]:
        """All of them, each once."""
        return tuple(dict.fromkeys((*self.by_sharing, *(self.by_clustering.after if self.by_clustering else ()))))

    @property
    def of_sites(self) -> tuple[Loss | Accuracy, ...]:
        """Those that a site answers about its own model, before the cloud has seen it."""
        return tuple(q for q in self.by_sharing if isinstance(q, Loss | Accuracy) and q.of == "trained")


class Round:
    """One round of the cloud, and what passed its links."""

    def __init__(self, experiment: Experiment, sites: Sequence[Site], edges: Edges, round_: int) -> None:
        self.experiment, self.method, self.sites, self.edges = experiment, experiment.method, sites, edges
        self.members = Members(experiment.method.unit, sites)
        self.moment = moment_of(experiment, sites, round_)
        self.when = f"round {round_}"
        self.link = Link("cloud", experiment.method.personalization, self.moment, experiment.method.links)
        self.traffic = Ledger()
        """What passed between clients and their sites."""
        self._held: dict[bytes, list[dict[str, Holding]]] = {}

    def _holdings(self, label_N: IntArray) -> list[dict[str, Holding]]:
        """Return what every site holds of each part; it is asked several times about the same labels."""
        if (key := label_N.tobytes()) not in self._held:
            self._held[key] = self.members.holdings(self.method.personalization.parts, label_N)
        return self._held[key]

    def begin(self, before: State) -> Begun:
        """Give the sites their orders."""
        before, sent, teaching = self._exchange(before)
        asked = self._asked(before)
        orders, memories = self._orders(before, sent, teaching, asked)
        return Begun(before, sent, asked, orders, memories, training(self.edges, orders))

    def finish(self, begun: Begun) -> Played:
        """Play the round to its end."""
        before, sent, asked, orders, memories, underway = begun
        ahead = None if underway.foreseen is None else self._foresee(before, sent, asked, underway.foreseen)
        reports = underway.reports()
        if ahead is None or not foresaw(underway.foreseen, reports):
            ahead = self._average(before, sent, reports), None
        averaged, scores = ahead
        averaged = replace(
            averaged,
            selection_M=tuple(report.selection for report in reports),
            momentum_M=tuple(report.momentum for report in reports),
            links_M=self._received(orders, reports, memories),
        )
        readings = self._look(asked, before, sent, averaged, reports)
        trained = self._share(averaged, asked, readings)
        after, gaps = self._reassign(trained, asked, readings)
        if scores is None:
            scores = self._score(after if self._judged_after_moves else trained, reports)
        # The next round has begun when this one is told: networks that came back must not take up its memory.
        heard, labels, made = Heard.of(reports), trained.label_N, self._made()

        def record() -> dict[str, Any]:
            made()
            return {"round": after.round, **scores(), **self._told(labels, after, heard, gaps)}

        return Played(after, record)

    def _made(self) -> Callable[[], object]:
        """Return what waits until a device has made the state: scores may have been begun before its last changes."""
        if on_device(self.edges) is None:
            return lambda: None
        return trees.to_host(torch.zeros(1, device=self.edges.device))

    def _told(self, labels: IntArray, after: State, heard: Heard, gaps: Gaps | None) -> dict[str, Any]:
        """Return what is to be told of the round besides its scores."""
        moved_N = after.label_N != labels
        return {
            "loss": heard.loss([site.size for site in self.sites]),
            "notes": notes(self.method, after),
            "gaps": None if gaps is None else written_gaps(gaps),
            "beliefs": beliefs(self.method, after),
            "assignment": labels.tolist(),
            "assignment_next": after.label_N.tolist(),
            "moves": int(moved_N.sum()),
            "entered_empty": int(sum(k not in labels for k in after.label_N[moved_N])),
            "active_clusters": int(np.unique(labels).size),
            **heard.clients(),
            "simulated_seconds": self._simulated_seconds(heard),
            "bytes": self._bytes(),
        }

    @property
    def _judged_after_moves(self) -> bool:
        return self.experiment.evaluation.point == "post_reassign"

    def _score(self, shown: State, reports: Sequence[Told]) -> Scores:
        networks = judged(self.experiment, self.members, shown)
        held = self._holdings(networks.label_N)
        scores = score(self.experiment, self.sites, held, self.edges, self.moment, networks, reports)
        if on_device(self.edges) is not None:
            return scores
        found = scores()  # sites elsewhere may fail to answer, which is a matter of this round
        return lambda: found

    def _evidence(self, state: State, round_: int, readings: dict[Query, FloatArray]) -> Evidence:
        return evidence_of(self.experiment, self.members, state, round_, readings)

    def _exchange(self, state: State) -> tuple[State, Parts, Teaching | None]:
        """Let clusters share what they know; return the state, the parts that are sent down, and who teaches."""
        exchange = exchanged(self.experiment, self.members, state)
        after = mixed(self.method.personalization, state, exchange.mix_KJ)
        return (after if exchange.kept else state), after.parts, exchange.teaching

    def _asked(self, state: State) -> "Asked":
        """Ask the policies what they want to know of the round."""
        sharing, clustering = self.method.sharing, self.method.clustering
        queries = checked_queries(sharing, consult("sharing", self.when, sharing.ask, state.sharing, self.moment))
        queries = checked_ask("sharing", sharing, Ask(after=queries), after=FOR_SHARING).after
        if state.num_clusters == 1:
            return Asked(queries, None)
        ask = consult("clustering", self.when, clustering.ask, state.clustering, self.moment)
        checked = None if ask is None else checked_ask("clustering", clustering, ask, after=AT_CLOUD)
        return Asked(queries, checked)

    def _orders(
        self, state: State, sent: Parts, teaching: Teaching | None, asked: "Asked"
    ) -> tuple[list[TrainOrder], list[Remembered]]:
        """Phases 1 to 4 of a round, as orders to the sites: receive networks, select, train and average."""
        wants_updates = self.members.unit == "client" and not {Gram(), Slope()}.isdisjoint(asked.queries)
        taught = None if teaching is None else teachers(self.method.personalization, state, teaching)
        orders, memories = [], []
        rows: dict[tuple[str, bytes], Params] = {}
        for m, held in enumerate(self._holdings(state.label_N)):
            bank = {part: rows_of(sent, part, own, rows) for part, own in held.items()}
            memory = Remembered(state.links_M[m], held)
            bank, had, broadcast = self.link.broadcast(bank, memory.of("cloud_down"))
            memories.append(Remembered(memory.with_({"cloud_down": had}), held))
            orders.append(
                TrainOrder(
                    site=m,
                    round=state.round + 1,
                    bank=bank,
                    row_N={part: own.row_N for part, own in held.items()},
                    owner_R={part: own.owner_R for part, own in held.items()},
                    selection=state.selection_M[m],
                    moved=bool(state.moved_N[self.members.at(m)].any()),
                    momentum=state.momentum_M[m],
                    readings=asked.of_sites,
                    statistics=frozenset(query for query in asked.queries if isinstance(query, Statistic)),
                    teachers=None if taught is None else taught.at(m, self.members, self.link),
                    links={name: memory.of(name) for name in AT_SITES if name in memory.whole},
                    broadcast=broadcast,
                    wants_updates=wants_updates,
                )
            )
        return orders, memories

    def _received(
        self, orders: Sequence[TrainOrder], reports: Sequence[TrainReport], memories: Sequence[Remembered]
    ) -> tuple[Memory, ...]:
        """Count what the sites sent, and return what the links remember."""
        after = []
        for order, report, memory in zip(orders, reports, memories, strict=True):
            self.traffic.merge(report.traffic)
            tellers = len(report.selected) if self.members.unit == "client" else 1
            self.link.tell("up", NUMBERS_PER_UPDATE * tellers + len(order.readings))
            averages = {part: stack for part, stack in report.bank.items() if part not in report.updates}
            self.link.send("up", "train", averages)
            self.link.send("up", "train", report.updates)
            after.append(memory.with_(report.links))
        return tuple(after)

    def _average(self, state: State, sent: Parts, told: Sequence[Told]) -> State:
        """Phase 5: two-phase aggregation (Eqs. 5 and 6), and the step of the owners."""
        held = self._holdings(state.label_N)
        return averages(self.method, self.moment, self.sites, held, state, sent, told)

    def _foresee(
        self, before: State, sent: Parts, asked: "Asked", foreseen: Sequence[Averages]
    ) -> tuple[State, Scores | None] | None:
        """Average what sites will report if all clients are healthy, and have it scored.

        So a device has work while the host hears the reports. What the scores depend on must be known by then.
        """
        moves = asked.by_clustering is not None
        settled = not self.method.sharing.active and not (moves and self._judged_after_moves)
        try:
            averaged = self._average(before, sent, foreseen)
            return averaged, self._score(averaged, foreseen) if settled else None
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            return None  # there is more room once the clients that train are gone

    def _share(self, state: State, asked: "Asked", readings: dict[Query, FloatArray]) -> State:
        """Let the sharing policy learn from the round."""
        policy = self.method.sharing
        mine = {query: readings[query] for query in asked.by_sharing}
        learned = consult("sharing", self.when, policy.learn, state.sharing, self._evidence(state, state.round, mine))
        return replace(state, sharing=checked_state("sharing", policy, learned, state.sharing))

    def _reassign(self, state: State, asked: "Asked", readings: dict[Query, FloatArray]) -> tuple[State, Gaps | None]:
        """Phase 6: when due, let the clustering policy learn from what it asked for, and let it act.

        Also return the gaps between clusters on which it acted, if it is a policy that has such.
        """
        policy = self.method.clustering
        if asked.by_clustering is None:
            return replace(state, moved_N=np.zeros_like(state.moved_N)), None
        evidence = self._evidence(state, state.round, {query: readings[query] for query in asked.by_clustering.after})
        memory = consult("clustering", self.when, policy.learn, state.clustering, evidence)
        memory = checked_state("clustering", policy, memory, state.clustering)
        gaps = (
            consult("clustering", self.when, policy.gaps, memory, evidence) if isinstance(policy, Comparing) else None
        )
        chance = stream(self.experiment.seed, "clustering", state.round)
        memory, answer = checked_pair(policy, consult("clustering", self.when, policy.act, memory, evidence, chance))
        memory = checked_state("clustering", policy, memory, state.clustering)
        label_N, origin_KJ = checked_assignment(policy, answer, self.members.count, state.num_clusters)
        after = replace(
            mixed(self.method.personalization, state, origin_KJ),
            label_N=label_N,
            moved_N=(label_N != state.label_N) | given_another(label_N, origin_KJ),
            used_K=state.used_K | np.isin(np.arange(state.num_clusters), label_N),
            clustering=memory,
        )
        return after, gaps

    def _look(
        self, asked: "Asked", before: State, sent: Parts, averaged: State, reports: Sequence[TrainReport]
    ) -> dict[Query, FloatArray]:
        """Answer the queries of the policies: from the reports, and by having networks measured."""
        readings = told(asked.queries, self.method.personalization, self.members, before, sent, reports)
        readings |= {
            query: np.array([report.readings[i] for report in reports]) for i, query in enumerate(asked.of_sites)
        }
        wanted = [query for query in asked.queries if query not in readings]
        orders, places = plan_look(self.experiment, self.members, averaged, reports, wanted)
        if not orders:
            return readings
        orders = [replace(order, bank=self.link.send("down", "evaluate", order.bank)) for order in orders]
        answers = self.edges.measure(orders)
        for order, answer in zip(orders, answers, strict=True):
            self.traffic.merge(answer.traffic)
            tellers = [1 if wanted.by == "site" else len(self.sites[order.site].clients) for wanted in order.wanted]
            models = [wanted.num_models for wanted in order.wanted]
            self.link.tell("up", NUMBERS_PER_MODEL * int(np.dot(tellers, models)))
        return readings | places.read(answers, averaged.num_clusters)

    def _simulated_seconds(self, heard: Heard) -> float | None:
        """Return how long the round would have taken: until the slowest site has done, and the cloud heard of it."""
        world = self.experiment.task.world
        if world is None:
            return None
        num_bytes = sum(self.link.traffic.entries.values()) if self.method.topology.tiers == 3 else 0
        passing = BITS * num_bytes / len(self.sites) / (MEGA * world.megabits_cloud)
        return max(heard.seconds_M) + passing

    def _bytes(self) -> dict[str, dict[str, dict[str, int]]]:
        if self.method.topology.tiers == 3:  # else sites and cloud are one, and nothing passes between them
            self.traffic.merge(self.link.traffic)
        return self.traffic.nested()
