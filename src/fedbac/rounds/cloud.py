"""What the cloud does (``rounds``): Algorithm 1 of the paper. With ``edge.py``, the whole algorithm.

One loop serves every method. It sees the columns of a method only through their protocols, and sites only through
``Edges``: a simulator, a cluster of actors and a real network differ there and nowhere else.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedbac.config.experiment import Experiment
from fedbac.core import trees
from fedbac.core.aggregation import average_by_owner, bounded, lengths, shared_by_few
from fedbac.core.answers import (
    checked_ask,
    checked_assignment,
    checked_pair,
    checked_queries,
    checked_state,
    consult,
)
from fedbac.core.links import Ledger, Link
from fedbac.core.parts import Params, Parts, moving_parts
from fedbac.core.policies import Opening, Showing, Teaching
from fedbac.core.queries import AT_CLOUD, FOR_SHARING, Accuracy, Ask, Evidence, Loss, Query, Statistic, of_updates
from fedbac.core.rng import stream
from fedbac.core.settings import FloatArray, IntArray
from fedbac.core.state import State
from fedbac.core.world import BITS, MEGA
from fedbac.errors import TooFewSitesError
from fedbac.rounds.edge import moment_of
from fedbac.rounds.late import ArrivingSites, LateSites
from fedbac.rounds.measure import answers_from, plan_look
from fedbac.rounds.messages import (
    NUMBERS_PER_MODEL,
    NUMBERS_PER_UPDATE,
    Arriving,
    Edges,
    Site,
    TrainOrder,
    TrainReport,
)
from fedbac.rounds.mix import evidence_of, exchanged, judged, mixed, teachers
from fedbac.rounds.record import Reported, Scores, beliefs, notes, other_moment, score
from fedbac.rounds.rows import Members, Memory, Remembered, Rows, SiteRows, given_another, rows_of
from fedbac.rounds.start import BEFORE
from fedbac.rounds.tiers import Leaves, Tree, rows_at, stepped, whole


def rounds(
    experiment: Experiment, sites: Sequence[Site], edges: Edges, state: State
) -> Iterator[tuple[dict[str, Any], State]]:
    """Algorithm 1: yield a record and the next state after every cloud round, from wherever ``state`` stands."""
    while state.round < experiment.task.rounds:
        began = time.perf_counter()
        try:
            state, record = Round(experiment, sites, edges, state.round + 1).play(state)
        except TooFewSitesError:  # nothing of the round counts, and the edges wait for more sites before the next try
            continue
        yield record() | {"seconds": time.perf_counter() - began}, state


class Ordered(NamedTuple):
    """What the sites are told to do, and what it rests on."""

    before: State
    sent: Parts
    asked: "Questions"
    orders: list[TrainOrder]
    memories: list[Remembered]


Recording = Callable[[], dict[str, Any]]
"""Returns what is to be told of a round, but for how long it took. It holds no networks but those of the state."""


class Questions(NamedTuple):
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
        self.when, self.judged_after_moves = f"round {round_}", experiment.evaluation.point == "post_reassign"
        scheme, chains = experiment.method.personalization, experiment.method.links.chains
        self.links = {
            name: Link(name, scheme, self.moment, chains, experiment.seed) for name in experiment.link_names[1:]
        }
        """By what is above the edges: to the nodes of the tier below it. The last one is the cloud's."""
        self.link = self.links["cloud"]
        self.tree: Tree | None = None
        """The tiers between edges and the cloud, as they are after they have worked."""
        self.traffic = Ledger()
        """What passed between clients and their sites."""
        self.opened = False
        """Whether clusters were chosen before this round, which is the first."""
        self.late: LateSites | ArrivingSites | None = None
        """Which sites are under way, where the cloud does not wait for all."""
        self.bounded: set[str] = set()
        """Whose changes could only be bounded, as a robust rule needs more than two children."""
        self._held: dict[bytes, list[dict[str, SiteRows]]] = {}

    def _site_rows(self, label_N: IntArray) -> list[dict[str, SiteRows]]:
        """Return what every site holds of each part; it is asked several times about the same labels."""
        if (key := label_N.tobytes()) not in self._held:
            self._held[key] = self.members.site_rows(self.method.personalization.parts, label_N)
        return self._held[key]

    def play(self, state: State) -> tuple[State, Recording]:
        """Play the round after a state."""
        ordered = self.order(state)
        return self.conclude(ordered, self.reports(ordered))

    def reports(self, ordered: Ordered) -> list[TrainReport]:
        """Return what the sites have done, as far as the cloud waits for it."""
        if self.experiment.heights:
            before, sent, _, orders, memories = ordered
            held = self._site_rows(before.label_N)
            below = self.links[self.experiment.link_names[1]]
            leaves = Leaves(self.experiment, self.sites, held, self.edges, below, orders, memories, self.moment)
            self.tree = Tree(self.experiment, leaves, self.links, before, self.moment)
            return self.tree.train(sent)
        if self.late is None:
            return self.edges.train(ordered.orders)
        return self.late.reports(ordered.sent, ordered.orders, self.edges)

    def order(self, before: State) -> Ordered:
        """Phases 1 to 4, as orders to the sites: let clusters share, ask the policies, and send networks down."""
        if self.method.cloud_clock.holds and not self.experiment.heights:
            self.late = self._late_sites(before)
        before, sent, teaching = self._exchange(before if before.round else self._opened(before))
        asked = self._asked(before)
        orders, memories = self._orders(before, sent, teaching, asked)
        return Ordered(before, sent, asked, orders, memories)

    def _late_sites(self, before: State) -> LateSites | ArrivingSites:
        if isinstance(self.edges, Arriving):
            return ArrivingSites(self.experiment, self.sites, self.edges, self.moment.round)
        ((waiting,),) = before.sent
        return LateSites(self.experiment, self.sites, waiting, self.moment.round)

    def conclude(self, ordered: Ordered, reports: Sequence[TrainReport]) -> tuple[State, Recording]:
        """Phases 5 and 6: average what the sites report, score it, measure, learn from it and reassign."""
        before, sent, asked, orders, memories = ordered
        averaged = self._average(before, sent, reports)
        moves = asked.by_clustering is not None and self.judged_after_moves
        settled = not (moves or self.method.sharing.active)
        scores = self._score(averaged, reports) if settled else None
        averaged = replace(
            averaged,
            selection_M=tuple(report.selection for report in reports),
            momentum_M=tuple(report.momentum for report in reports),
            links_M=self._received(orders, reports, memories),
            nodes=() if self.tree is None else tuple(nodes.state for nodes in self.tree.tiers),
        )
        readings = self._look(asked, before, sent, averaged, reports)
        trained = self._share(averaged, asked, readings)
        after, shown = self._reassign(trained, asked, readings)
        if scores is None:  # only now is it known what is judged
            scores = self._score(after if self.judged_after_moves else trained, reports)
        reported, labels, other = Reported.of(reports), trained.label_N, self._other_moment(trained, reports, scores)
        if after.waiting_M or any(after.sent):
            after = self._under_way(before, after, reports, reported)
        if self.tree is not None:  # who has had no order is told of its new cluster with the next
            unaware = [n for m, had in enumerate(self.tree.leaves.reports) if not had for n in self.members.at(m)]
            after = replace(
                after, moved_N=after.moved_N | (before.moved_N & np.isin(np.arange(self.members.count), unaware))
            )
        decided = [0] * self.opened + [after.round] * (asked.by_clustering is not None)
        return after, lambda: {
            **shown, "round": after.round, **scores(), **other(), "decided": decided,
            **self._noted(labels, after, reported),
        }  # fmt: skip

    def _noted(self, labels: IntArray, after: State, reported: Reported) -> dict[str, Any]:
        """Return what is to be told of the round besides its scores."""
        moved_N = after.label_N != labels
        return {
            "loss": reported.loss([site.size for site in self.sites]),
            "notes": notes(self.method, after) | ({"bounded_only": len(self.bounded)} if after.longest else {}),
            "beliefs": beliefs(self.method, after),
            "assignment": labels.tolist(),
            "assignment_next": after.label_N.tolist(),
            "moves": int(moved_N.sum()),
            "entered_empty": int(sum(k not in labels for k in after.label_N[moved_N])),
            "active_clusters": int(np.unique(labels).size),
            **reported.clients(),
            **({} if self.late is None else self._late()),
            **({} if self.tree is None else self.tree.late_ones()),
            "simulated_seconds": self._simulated_seconds(reported),
            "bytes": self._bytes(),
            **({} if (promise := self.experiment.promise) is None else {"epsilon": promise.spent(after.round)}),
        }

    def _late(self) -> dict[str, Any]:
        """Return which edges have come, how old their averages are, and how many are on their way."""
        assert self.late is not None
        return {"edges_back": self.late.came, "edge_ages": self.late.ages, "edges_under_way": self.late.under_way}

    def _score(self, shown: State, reports: Sequence[TrainReport], other: bool = False) -> Scores:
        """Have models measured when they are judged, or at the other moment: before or after local training."""
        networks = judged(self.experiment, self.members, shown)
        held, evaluation = self._site_rows(networks.label_N), self.experiment.evaluation
        by_site = self.experiment.judged_after_training != other
        due = self.moment.round % evaluation.global_every == 0 or self.moment.round == self.moment.num_rounds
        everywhere = due and not other
        return score(self.experiment, self.sites, held, self.edges, networks, reports, by_site, everywhere)

    def _other_moment(self, trained: State, reports: Sequence[TrainReport], scores: Scores) -> Scores:
        """Return the accuracy before or after local training, whichever the run is not judged by; in last rounds."""
        if self.moment.round <= self.moment.num_rounds - self.experiment.evaluation.last_rounds:
            return dict
        return other_moment(self.experiment, scores, lambda: self._score(trained, reports, other=True))

    def _evidence(self, state: State, round_: int, readings: dict[Query, FloatArray]) -> Evidence:
        return evidence_of(self.experiment, self.members, state, round_, readings)

    def _opened(self, state: State) -> State:
        """Before the first round: let a clustering policy that wants to look at the initial networks assign members."""
        policy = self.method.clustering
        ask = consult("clustering", BEFORE, policy.first) if isinstance(policy, Opening) else None
        if ask is None or state.num_clusters == 1:
            return state
        asked, self.opened = Questions((), checked_ask("clustering", policy, ask, after=AT_CLOUD)), True
        after, _ = self._reassign(state, asked, self._measured(asked.queries, state, ()))
        return replace(after, moved_N=state.moved_N, used_K=np.isin(np.arange(state.num_clusters), after.label_N))

    def _exchange(self, state: State) -> tuple[State, Parts, Teaching | None]:
        """Let clusters share what they know; return the state, the parts that are sent down, and who teaches."""
        exchange = exchanged(self.experiment, self.members, state)
        after = mixed(self.method.personalization, state, exchange.mix_KJ)
        return (after if exchange.kept else state), after.parts, exchange.teaching

    def _asked(self, state: State) -> "Questions":
        """Ask the policies what they want to know of the round."""
        sharing, clustering = self.method.sharing, self.method.clustering
        queries = checked_queries(sharing, consult("sharing", self.when, sharing.ask, state.sharing, self.moment))
        queries = checked_ask("sharing", sharing, Ask(after=queries), after=FOR_SHARING).after
        if state.num_clusters == 1:
            return Questions(queries, None)
        ask = consult("clustering", self.when, clustering.ask, state.clustering, self.moment)
        checked = None if ask is None else checked_ask("clustering", clustering, ask, after=AT_CLOUD)
        return Questions(queries, checked)

    def _orders(
        self, state: State, sent: Parts, teaching: Teaching | None, asked: "Questions"
    ) -> tuple[list[TrainOrder], list[Remembered]]:
        """Return what every site is to do: receive networks, select, train and average."""
        wants_updates = self.members.unit == "client" and of_updates(asked.queries)
        taught = None if teaching is None else teachers(self.method.personalization, state, teaching)
        orders, memories, above = [], [], f"{self.experiment.link_names[1]}_down"
        rows: dict[tuple[str, bytes], Params] = {}
        for m, held in enumerate(self._site_rows(state.label_N)):
            bank = {part: rows_of(sent, part, own, rows) for part, own in held.items()}
            memory = Remembered(state.links_M[m], held)
            if self.experiment.heights or (self.late is not None and m in self.late.unaware):
                had, broadcast = memory.of("cloud_down"), None  # it is not for the cloud to send it anything
            else:
                bank, had, broadcast = self.link.broadcast(bank, memory.of("cloud_down"), sender=m)
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
                    waiting=state.waiting_M[m] if state.waiting_M else None,
                    readings=asked.of_sites,
                    statistics=frozenset(query for query in asked.queries if isinstance(query, Statistic)),
                    teachers=None if taught is None else taught.at(m, self.members, self.link),
                    links={name: memory.of(name) for name in memory.whole if name != above},
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
            if self.tree is not None:
                after.append(self.tree.leaves.memories[order.site].whole)
                continue
            if report.under_way:
                after.append(memory.with_(report.links))
                continue
            tellers = len(report.selected) if self.members.unit == "client" else 1
            self.link.tell("up", NUMBERS_PER_UPDATE * tellers + len(order.readings))
            averages = {part: stack for part, stack in report.bank.items() if part not in report.updates}
            self.link.send("up", "train", averages)
            self.link.send("up", "train", report.updates)
            after.append(memory.with_(report.links))
        return tuple(after)

    def _average(self, state: State, sent: Parts, reports: Sequence[TrainReport]) -> State:
        """Phase 5: two-phase aggregation (Eqs. 5 and 6) of what started from ``sent``, and the step of the owners."""
        method, held = self.method, self._site_rows(state.label_N)
        at_sites = [rows_at(method, *one) for one in zip(self.sites, held, reports, strict=True)]
        moving = moving_parts(method.personalization, self.moment)  # a mean of what keeps still would only round it
        rule = method.cloud_aggregation or method.aggregation
        parts, trained, steps, longest = {}, {}, dict(state.steps), dict(state.longest)
        for part, stack in state.parts.items():
            children = (None if self.tree is None else self.tree.rows(part)) or at_sites
            rows, weight_R, owner_R = [one.bank[part] for one in children], *_joined(part, children)
            parts[part] = stack
            if part in moving:
                if part in longest:
                    rows = [bounded(rows, weight_R, owner_R, sent[part], longest[part])]
                    self.bounded |= {f"{part} {k}" for k in owner_R[shared_by_few(weight_R, owner_R)].tolist()}
                parts[part] = average_by_owner(stack, rows, weight_R, owner_R, rule, sent[part])
                if part in longest:
                    heard_K = np.isin(np.arange(longest[part].size), owner_R[weight_R > 0])
                    length_K = np.where(heard_K, lengths(parts[part], sent[part]), 0.0)
                    longest[part] = np.maximum(longest[part], length_K)
            if part in moving and part in steps:
                trained_R = np.concatenate([one.trained[part] for one in children])
                all_K = whole(method, part, trees.count(stack), self.sites, held)
                share_K = np.bincount(owner_R, trained_R, all_K.size) / np.maximum(all_K, 1)
                when, names = f"round {state.round + 1}, part {part!r}", state.stepped[part]
                parts[part], steps[part] = stepped(
                    method.step, sent[part], parts[part], steps[part], names, share_K, when
                )
            if part in state.trained:
                owners = np.arange(state.trained[part].size)
                trained[part] = state.trained[part] | np.isin(owners, owner_R[weight_R > 0])
        for part, trained_R in trained.items():
            leader = method.personalization.parts[part].follows
            assert leader is not None
            if not trained_R.all():
                parts[part] = trees.put(parts[part], np.flatnonzero(~trained_R), parts[leader])
        return replace(state, round=state.round + 1, parts=parts, trained=trained, steps=steps, longest=longest)

    def _share(self, state: State, asked: "Questions", readings: dict[Query, FloatArray]) -> State:
        """Let the sharing policy learn from the round."""
        policy = self.method.sharing
        mine = {query: readings[query] for query in asked.by_sharing}
        learned = consult("sharing", self.when, policy.learn, state.sharing, self._evidence(state, state.round, mine))
        return replace(state, sharing=checked_state("sharing", policy, learned, state.sharing))

    def _reassign(
        self, state: State, asked: "Questions", readings: dict[Query, FloatArray]
    ) -> tuple[State, Mapping[str, Any]]:
        """Phase 6: when due, let the clustering policy learn and act; also return what it shows of the round."""
        policy = self.method.clustering
        if asked.by_clustering is None:
            return replace(state, moved_N=np.zeros_like(state.moved_N)), {}
        evidence = self._evidence(state, state.round, {query: readings[query] for query in asked.by_clustering.after})
        memory = consult("clustering", self.when, policy.learn, state.clustering, evidence)
        memory = checked_state("clustering", policy, memory, state.clustering)
        shown: Mapping[str, Any] = {}
        if isinstance(policy, Showing):
            shown = consult("clustering", self.when, policy.shown, memory, evidence)
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
        return after, shown

    def _look(
        self, asked: "Questions", before: State, sent: Parts, averaged: State, reports: Sequence[TrainReport]
    ) -> dict[Query, FloatArray]:
        """Answer the queries of the policies: from the reports, and by having networks measured."""
        readings = answers_from(asked.queries, self.method.personalization, self.members, before, sent, reports)
        readings |= {
            query: np.array([report.readings[i] for report in reports]) for i, query in enumerate(asked.of_sites)
        }
        return readings | self._measured([q for q in asked.queries if q not in readings], averaged, reports)

    def _measured(
        self, queries: Sequence[Query], state: State, reports: Sequence[TrainReport]
    ) -> dict[Query, FloatArray]:
        """Have networks measured to answer queries; there are no reports before the first round."""
        orders, places = plan_look(self.experiment, self.members, state, reports, queries)
        if not orders:
            return {}
        first, *higher = self.links.values()
        orders = [replace(order, bank=first.send("down", "evaluate", order.bank)) for order in orders]
        node_M, held, scheme = np.arange(len(self.sites)), self._site_rows(state.label_N), self.method.personalization
        for height, link in zip(self.experiment.heights, higher, strict=True):
            node_M = height.parent_C[node_M]
            for n in range(height.num_nodes):
                below = np.flatnonzero(node_M == n).tolist()
                for part, stack in orders[below[0]].bank.items():
                    count = len({row for m in below for row in places.rows(m, part, held[m][part], scheme)})
                    link.send("down", "evaluate", {part: stack}, receivers=count, one_row=True)
        answers = self.edges.measure(orders)
        for order, answer in zip(orders, answers, strict=True):
            self.traffic.merge(answer.traffic)
            tellers = [1 if wanted.by == "site" else len(self.sites[order.site].clients) for wanted in order.wanted]
            models = [wanted.num_models for wanted in order.wanted]
            for link in self.links.values():
                link.tell("up", NUMBERS_PER_MODEL * int(np.dot(tellers, models)))
        return places.read(answers, state.num_clusters)

    def _under_way(self, before: State, after: State, reports: Sequence[TrainReport], reported: Reported) -> State:
        """Return the state with what is still on its way when the round has taken its time."""
        seconds = self._simulated_seconds(reported)
        assert seconds is not None
        waiting_M = tuple(report.waiting.later(seconds) for report in reports if report.waiting is not None)
        if self.late is None:
            sent = () if self.tree is None else self.tree.sent
        else:
            sent = ((self.late.waiting,),) if isinstance(self.late, LateSites) else after.sent
            unaware_N = np.isin(np.arange(self.members.count), list(self.late.unaware))
            # Whoever is under way is told of its move with its next order.
            after = replace(after, moved_N=after.moved_N | (before.moved_N & unaware_N))
        sent = tuple(tuple(one.later(seconds) for one in own) for own in sent)
        return replace(after, waiting_M=waiting_M, sent=sent)

    def _simulated_seconds(self, reported: Reported) -> float | None:
        """Return how long the round would have taken, until the cloud has heard of the slowest site."""
        world = self.experiment.world
        if world is None:
            return None
        num_bytes = self.link.traffic.total if self.method.topology.tiers == 3 else 0
        heights = self.experiment.heights
        children = heights[-1].num_nodes if heights else len(self.sites)
        passing = BITS * num_bytes / children / (MEGA * world.megabits_cloud)
        return (max(reported.seconds_M) if self.tree is None else self.tree.seconds) + passing

    def _bytes(self) -> dict[str, dict[str, dict[str, int]]]:
        if self.method.topology.tiers == 3:  # else sites and cloud are one, and nothing passes between them
            for link in self.links.values():
                self.traffic.merge(link.traffic)
        return self.traffic.nested(self.experiment.link_names)


def _joined(part: str, children: Sequence[Rows]) -> tuple[FloatArray, IntArray]:
    """Return what each row of a part counts, and its owner."""
    return np.concatenate([one.weight[part] for one in children]), np.concatenate([one.owner[part] for one in children])
