"""What tiers between edges and the cloud do: a node is to its children what the cloud is, and to its parent an edge.

``Nodes`` are sent networks, have the tier below work with them, average what comes back, as often as their rounds say,
and send that up. Below the lowest are the edges (``Leaves``), which take orders.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from fedbac.config.experiment import Experiment, Method
from fedbac.config.tiers import Height
from fedbac.core import trees
from fedbac.core.aggregation import average_by_owner
from fedbac.core.answers import checked_ask, checked_mask, checked_state, checked_step, consult
from fedbac.core.bandits import budget
from fedbac.core.links import INNER, PASSES, Ledger, Link, Tier
from fedbac.core.parts import Params, Parts, moving_parts
from fedbac.core.policies import Step
from fedbac.core.queries import Evidence, Moment, Statistic
from fedbac.core.rng import stream
from fedbac.core.settings import FloatArray, IntArray
from fedbac.core.state import InTransit, NodeState, State
from fedbac.core.world import BITS, EQUAL, MEGA
from fedbac.rounds.late import NOBODY, LateChildren, unheard, untold
from fedbac.rounds.messages import NUMBERS_PER_UPDATE, Edges, Site, TrainOrder, TrainReport
from fedbac.rounds.rows import Remembered, Rows, SiteRows, rows_of


def rows_at(method: Method, site: Site, held: Mapping[str, SiteRows], report: TrainReport) -> Rows:
    """Return what a site reports."""
    weight, trained = {}, {}
    for part, own in held.items():
        trained[part] = report.weight[part].astype(np.float64)
        counted_N = method.counted(site.size_N)
        all_R = np.bincount(own.row_N, weights=counted_N, minlength=own.owner_R.size).astype(np.float64)
        weight[part] = counted(method, trained[part], all_R)
    return Rows(report.bank, {part: own.owner_R for part, own in held.items()}, weight, trained)


def counted(method: Method, trained_R: FloatArray, all_R: FloatArray) -> FloatArray:
    """Return what rows count above: as the clients that trained them, or as all of their clients."""
    weight_R = {"total": all_R, "selected": trained_R, "uniform": np.ones_like(all_R)}[method.cloud_weight]
    return np.where(trained_R > 0, weight_R, 0.0)


def whole(
    method: Method, part: str, num_owners: int, sites: Sequence[Site], held: Sequence[Mapping[str, SiteRows]]
) -> FloatArray:
    """Return, by owner of a part, what all its clients at some sites count."""
    all_K = np.zeros(num_owners)
    for site, own in zip(sites, held, strict=True):
        np.add.at(all_K, own[part].owner_R[own[part].row_N], method.counted(site.size_N))
    return all_K


def stepped(
    step: Step, sent_K: Params, combined_K: Params, memory: Parts, names: Sequence[str], share_K: FloatArray, when: str
) -> tuple[Params, Parts]:
    """Return a part after its owners' step, and their memory; an owner without reports keeps both. Weights without a
    name here, such as statistics of batches, are none of the step's: they are taken as they are."""
    reported = np.flatnonzero(share_K > 0)
    device = next(iter(combined_K.values())).device

    def rows(tree_K: Params) -> Tensor:
        mine = trees.select(trees.to(tree_K, device), reported)
        return mine[""] if "" in mine else trees.rows(mine)

    def put(tree_K: Params, rows_K: Tensor) -> Params:
        mine = trees.to(tree_K, device)
        return trees.put(mine, reported, trees.shaped(rows_K.reshape(reported.size, -1), mine))

    sent_K, moved_K = ({name: tree_K[name] for name in names} for tree_K in (sent_K, combined_K))
    before_KD, combined_KD, known = rows(sent_K), rows(moved_K), {name: rows(stack) for name, stack in memory.items()}
    share = trees.onto(share_K[reported], device).to(before_KD.dtype)
    answer = consult("step", when, step.step, before_KD, combined_KD, known, share)
    after_KD, learned = checked_step(step, answer, before_KD, combined_KD, known, when)
    return combined_K | put(moved_K, after_KD), {name: put(memory[name], learned[name]) for name in memory}


class Below(Protocol):
    """The children of a tier."""

    link: Link
    """To these children."""

    def train(self, banks: Mapping[int, Parts], number: int, at: Mapping[int, float]) -> dict[int, Rows]:
        """Send children what they start from, have them work, and return what arrives of each; for a round of their
        parents, by its number in that of the cloud, and the seconds since this began."""


class Leaves:
    """Sites below a tier, in a round of the cloud."""

    def __init__(
        self,
        experiment: Experiment,
        sites: Sequence[Site],
        held: Sequence[Mapping[str, SiteRows]],
        edges: Edges,
        link: Link,
        orders: Sequence[TrainOrder],
        memories: Sequence[Remembered],
        moment: Moment,
    ) -> None:
        self.experiment, self.sites, self.held, self.edges, self.link = experiment, sites, held, edges, link
        self.orders, self.memories = list(orders), list(memories)
        """What sites are to do next, and what the links around them remember."""
        self.reports: list[list[TrainReport]] = [[] for _ in sites]
        self._edge_rounds = experiment.method.topology.edge_rounds
        self._last = experiment.edge_rounds // self._edge_rounds - 1
        self._passes = experiment.passes(moment)

    def train(self, banks: Mapping[int, Parts], number: int, at: Mapping[int, float]) -> dict[int, Rows]:
        """Have sites run their orders."""
        begun = [self._order(m, bank, number, at[m]) for m, bank in banks.items()]
        return {
            order.site: self._heard(order, report, at[order.site])
            for order, report in zip(begun, self.edges.train(begun), strict=True)
        }

    def _order(self, m: int, bank: Parts, number: int, at: float) -> TrainOrder:
        order, down = self.orders[m], f"{self.link.tier}_down"
        bank, had, broadcast = self.link.broadcast(order.bank | bank, self.memories[m].of(down), m, number)
        self.memories[m] = self.memories[m].after({down: had})
        return replace(
            order,
            bank=bank,
            broadcast=broadcast,
            waiting=None if order.waiting is None else order.waiting.later(at),
            readings=order.readings if number == self._last else (),
            edge_round=number * self._edge_rounds,
        )

    def _heard(self, order: TrainOrder, report: TrainReport, at: float) -> Rows:
        """Count what a site sends, and put down where it goes on."""
        m = order.site
        tellers = 1 if self.experiment.method.unit == "edge" else len(report.selected)
        numbers = NUMBERS_PER_UPDATE * tellers + len(order.readings)
        self.link.tell("up", numbers)
        self.link.send("up", "train", report.bank)
        self.memories[m] = self.memories[m].after(report.links)
        self.orders[m] = replace(
            self.orders[m],
            bank=report.bank,
            selection=report.selection,
            moved=False,
            momentum=report.momentum,
            links=report.links,
            waiting=None if report.waiting is None else report.waiting.later(-at),
        )
        self.reports[m].append(report)
        rows = rows_at(self.experiment.method, self.sites[m], self.held[m], report)
        return rows._replace(loss=report.loss, numbers=numbers, seconds=report.seconds or 0.0)

    def done(self) -> list[TrainReport]:
        """Return what every site has done in the round of the cloud; nothing, if none of its nodes selected it."""
        return [
            self._done(order, reports) if reports else self.unheard(order.site)
            for order, reports in zip(self.orders, self.reports, strict=True)
        ]

    def _done(self, order: TrainOrder, reports: Sequence[TrainReport]) -> TrainReport:
        """Return one report; who had no part in the last round of its nodes was asked nothing for the cloud."""
        whole = together(reports)
        readings = whole.readings or (float("nan"),) * len(order.readings)
        return replace(whole, waiting=order.waiting, readings=readings)

    def unheard(self, m: int) -> TrainReport:
        """Return what is known of a site that nothing has come from."""
        return replace(unheard(self.orders[m], self.sites[m], self._passes), absent=False)


def together(reports: Sequence[TrainReport]) -> TrainReport:
    """Return one report of a site that has run several orders."""
    traffic, weight = Ledger(), dict(reports[0].weight)
    for report in reports:
        traffic.merge(report.traffic)
        weight |= {part: np.where(new > 0, new, weight[part]) for part, new in report.weight.items()}
    losses = [report.loss for report in reports if np.isfinite(report.loss)]
    who: dict[str, Any] = {
        name: tuple(sorted({client for report in reports for client in getattr(report, name)}))
        for name in ("selected", "failed", "dropped", "late")
    }
    return replace(
        reports[-1],
        **who,
        weight=weight,
        ages=tuple(age for report in reports for age in report.ages),
        reasons={name: why for report in reports for name, why in report.reasons.items()},
        absent=all(report.absent for report in reports),
        loss=float(np.mean(losses)) if losses else float("nan"),
        traffic=traffic,
    )


class Nodes:
    """The nodes of one tier, in a round of the cloud."""

    def __init__(
        self,
        experiment: Experiment,
        height: Height,
        link: Link,
        below: Below,
        owner_C: Sequence[Mapping[str, IntArray]],
        size_C: IntArray,
        whole_K: Sequence[Mapping[str, FloatArray]],
        state: Sequence[NodeState],
        waiting: Sequence[InTransit],
        parts: Parts,
        names: Mapping[str, Sequence[str]],
        moment: Moment,
        num_classes: int,
    ) -> None:
        self.experiment, self.method, self.height, self.does = experiment, experiment.method, height, height.does
        self.link, self.below, self.owner_C, self.size_C = link, below, owner_C, size_C
        """Its nodes' link upwards; the tier below; and of its children the owners of what they hold, and sizes."""
        self.names, self.moment = names, moment
        """The weights that owners step with."""
        self.moving, self.num_classes = moving_parts(self.method.personalization, moment), num_classes
        nodes = range(height.num_nodes)
        self.children = [np.flatnonzero(height.parent_C == n).tolist() for n in nodes]
        self.owner = [
            {part: np.unique(np.concatenate([owner_C[c][part] for c in self.children[n]])) for part in owner_C[0]}
            for n in nodes
        ]
        """By node, the owners of what its children hold, and below what the clients of each count."""
        self.all = [{part: whole_K[n][part][owner_R] for part, owner_R in self.owner[n].items()} for n in nodes]
        held = [{part: SiteRows(owner_R, NOBODY) for part, owner_R in own.items()} for own in self.owner]
        self.memories = [Remembered(mine.links, own) for mine, own in zip(state, held, strict=True)]
        self.steps = [dict(mine.steps) for mine in state]
        self.late = [LateChildren(self.does.clock, sent) for sent in waiting]
        self.selection = [mine.selection for mine in state]
        specs = self.method.personalization.parts
        self.own = [
            self._own(n, parts, [part for part in owner_C[0] if specs[part].scope == height.name]) for n in nodes
        ]
        """Of each node the parts that it owns, which stay with it."""

    @property
    def state(self) -> tuple[NodeState, ...]:
        """What its nodes remember now."""
        columns = zip(self.memories, self.steps, self.selection, strict=True)
        return tuple(NodeState(memory.whole, steps, selection) for memory, steps, selection in columns)

    def train(self, banks: Mapping[int, Parts], number: int, at: Mapping[int, float]) -> dict[int, Rows]:
        """Have nodes make their averages, each as often as it does before its parent hears of it."""
        for n in banks:
            self.late[n].waiting = self.late[n].waiting.later(at[n])
        start = {n: self._received(n, bank, number) | self.own[n].bank for n, bank in banks.items()}
        nothing = [{part: np.zeros(owner_R.size) for part, owner_R in own.items()} for own in self.owner]
        rows = {n: Rows(bank, self.owner[n], nothing[n], nothing[n]) for n, bank in start.items()}
        for again in range(self.does.rounds):
            before, place = self.below.link.traffic.total, number * self.does.rounds + again
            chosen = {n: self._chosen(n, place) for n in rows}
            sent = {c: bank for n, mine in rows.items() for c, bank in self._sent(n, mine.bank, chosen[n]).items()}
            now = {c: at[n] + mine.seconds for n, mine in rows.items() for c in chosen[n]}
            heard = self.below.train(sent, place, now) if sent else {}
            passing = self._seconds((self.below.link.traffic.total - before) / max(len(sent), 1))
            for n, mine in rows.items():
                back = {c: heard[c]._replace(seconds=mine.seconds + heard[c].seconds + passing) for c in chosen[n]}
                came, end = self.late[n].back(mine, sent, back, self.owner_C, self._wanted(n), self._version(place))
                self._learn(n, {c: one.loss for c, one in came.items()})
                if came:
                    rows[n] = self._combined(n, mine, came, end)
        for n, mine in rows.items():
            self._keep(n, mine)
            self.late[n].waiting = self.late[n].waiting.later(-at[n])
        return {n: self._reported(n, start[n], mine, number) for n, mine in rows.items()}

    def _own(self, n: int, parts: Parts, own: Sequence[str]) -> Rows:
        """Return what a node owns before the round."""
        owner, nothing = {part: np.array([n]) for part in own}, {part: np.zeros(1) for part in own}
        return Rows({part: trees.select(parts[part], owner[part]) for part in own}, owner, nothing, nothing)

    def _keep(self, n: int, mine: Rows) -> None:
        own = self.own[n]
        weight = {part: np.where(mine.weight[part] > 0, mine.weight[part], old) for part, old in own.weight.items()}
        trained = {part: np.where(mine.trained[part] > 0, mine.trained[part], old) for part, old in own.trained.items()}
        self.own[n] = Rows({part: mine.bank[part] for part in own.bank}, own.owner, weight, trained)

    def _wanted(self, n: int) -> int:
        """Return how many children of a node are under way at a time."""
        return budget(self.does.selection.fraction, len(self.children[n]))

    def _version(self, place: int) -> int:
        """Return the number of an average, from the beginning of the run."""
        heights = self.experiment.heights[INNER.index(self.height.name) :]
        each = math.prod(height.does.rounds for height in heights)
        return (self.moment.round - 1) * each + place

    def _chosen(self, n: int, place: int) -> list[int]:
        """Return the children that begin in a round of a node: as many as it selects, less those under way."""
        policy, address = self.does.selection, (self.moment.round, place, n)
        evidence, name, busy = self._evidence(n), self.height.name, len(self.late[n].busy)
        if not evidence.size_N.any():
            return []
        chance = stream(self.experiment.seed, f"candidates of a {name}", *address)
        ask = consult("selection", self._when(n), policy.ask, self.selection[n], evidence, chance)
        checked_ask("selection", policy, ask, after={"trained"})
        chance = stream(self.experiment.seed, f"selection of a {name}", *address)
        mask_N = consult("selection", self._when(n), policy.act, self.selection[n], evidence, chance)
        mask_N = checked_mask(policy, mask_N, evidence.size_N)
        chosen_N = np.flatnonzero(mask_N)
        if busy:
            chance = stream(self.experiment.seed, f"beginning at a {name}", *address)
            chosen_N = np.sort(chance.permutation(chosen_N)[: max(self._wanted(n) - busy, 0)])
        return [self.children[n][place] for place in chosen_N]

    def _learn(self, n: int, losses: Mapping[int, float]) -> None:
        """Let the selection policy of a node learn from the losses of those that it has chosen."""
        children, policy = self.children[n], self.does.selection
        loss_N = np.array([losses.get(c, np.nan) for c in children])
        mask_N = np.array([c in losses for c in children])
        evidence = replace(self._evidence(n), readings={Statistic("loss"): loss_N}, selected_N=mask_N)
        learned = consult("selection", self._when(n), policy.learn, self.selection[n], evidence, np.isfinite(loss_N))
        self.selection[n] = checked_state("selection", policy, learned, self.selection[n])

    def _evidence(self, n: int) -> Evidence:
        """Return what a selection policy knows of a node's children, whose links and devices are alike."""
        children, busy = tuple(self.children[n]), self.late[n].busy
        return Evidence(
            round=self.moment.round,
            num_rounds=self.moment.num_rounds,
            num_classes=self.num_classes,
            size_N=np.array([0 if c in busy else self.size_C[c] for c in children]),
            profile=EQUAL.profile(self.experiment.seed, children),
            expected_N=np.ones(len(children)),
        )

    def _when(self, n: int) -> str:
        return f"round {self.moment.round}, {self.height.name} {n}"

    def _received(self, n: int, bank: Parts, number: int) -> Parts:
        down = f"{self.link.tier}_down"
        bank, had, _ = self.link.broadcast(bank, self.memories[n].of(down), n, number)
        self.memories[n] = self.memories[n].after({down: had})
        return bank

    def _sent(self, n: int, bank: Parts, chosen: Sequence[int]) -> dict[int, Parts]:
        """Return what children are sent; those with the same rows get the same object."""
        sent: dict[int, Parts] = {c: {} for c in chosen}
        known: dict[tuple[str, bytes], Params] = {}
        for c, part in product(chosen, bank):
            places = SiteRows(self._places(n, part, self.owner_C[c][part]), NOBODY)
            whole = places.owner_R.size == self.owner[n][part].size
            sent[c][part] = bank[part] if whole else rows_of(bank, part, places, known)
        return sent

    def _combined(self, n: int, mine: Rows, heard: Mapping[int, Rows], seconds: float) -> Rows:
        """Average what children report, and step."""
        rows, bank, weight, trained = heard.values(), dict(mine.bank), {}, {}
        for part, before in mine.bank.items():
            place_R = np.concatenate([self._places(n, part, one.owner[part]) for one in rows])
            weight_R = np.concatenate([one.weight[part] for one in rows])
            trained_R = np.concatenate([one.trained[part] for one in rows])
            new_R = np.bincount(place_R, trained_R, self.owner[n][part].size).astype(np.float64)
            # A row that nobody trained this time keeps what it had, and its weight.
            trained[part] = np.where(new_R > 0, new_R, mine.trained[part])
            weight[part] = counted(self.method, trained[part], self.all[n][part])
            if part not in self.moving:
                continue
            rule, banks = self.does.aggregation, [one.bank[part] for one in rows]
            bank[part] = average_by_owner(before, banks, weight_R, place_R, rule, before)
            if part in self.steps[n]:
                bank[part] = self._stepped(n, part, before, bank[part], new_R)
        loss_C, size_C = np.array([one.loss for one in rows]), self.size_C[list(heard)]
        known_C = np.isfinite(loss_C)
        return Rows(
            bank,
            mine.owner,
            weight,
            trained,
            loss=float(np.average(loss_C[known_C], weights=size_C[known_C])) if known_C.any() else np.nan,
            numbers=NUMBERS_PER_UPDATE + sum(one.numbers for one in rows),
            seconds=seconds,
        )

    def _stepped(self, n: int, part: str, before: Params, combined: Params, trained_R: FloatArray) -> Params:
        owner_R, memory = self.owner[n][part], self.steps[n][part]
        known = {name: trees.select(stack, owner_R) for name, stack in memory.items()}
        share_R = trained_R / np.maximum(self.all[n][part], 1)
        when = f"{self._when(n)}, part {part!r}"
        after, learned = stepped(self.does.step, before, combined, known, self.names[part], share_R, when)
        self.steps[n][part] = {name: trees.put(stack, owner_R, learned[name]) for name, stack in memory.items()}
        return after

    def _reported(self, n: int, start: Parts, mine: Rows, number: int) -> Rows:
        """Send what a node has made to its parent; return what arrives."""
        up = f"{self.link.tier}_up"
        bank, left, _ = self.link.upload(mine.bank, start, self.memories[n].of(up), (n,), number)
        self.memories[n] = self.memories[n].after({up: left})
        self.link.tell("up", mine.numbers)
        self.link.send("up", "train", bank)
        return mine._replace(bank=bank)

    def _places(self, n: int, part: str, owner_R: IntArray) -> IntArray:
        """Return where a child's rows of a part are among those of its node."""
        return np.searchsorted(self.owner[n][part], owner_R)

    def _seconds(self, num_bytes: float) -> float:
        """Return how long it takes to pass so many bytes between nodes and each of their children."""
        world = self.experiment.world
        return 0.0 if world is None else BITS * num_bytes / (MEGA * world.megabits_cloud)


CHILDREN = {"edge": "edges", "region": "regions", "country": "countries"}


class Tree:
    """All tiers between edges and the cloud, in a round of the cloud."""

    def __init__(
        self, experiment: Experiment, leaves: Leaves, links: Mapping[Tier, Link], state: State, moment: Moment
    ) -> None:
        method, sites, held = experiment.method, leaves.sites, leaves.held
        self.leaves = leaves
        self.tiers: list[Nodes] = []
        below: Below = self.leaves
        owner_C = [{part: own.owner_R for part, own in mine.items()} for mine in held]
        node_M, size_M = np.arange(len(sites)), np.array([site.size for site in sites])
        size_C = size_M
        sent: Sequence[InTransit]
        columns = zip(experiment.heights, experiment.link_names[2:], state.nodes, state.sent[:-1], strict=True)
        for height, above, mine, sent in columns:
            shared = [part for part, spec in method.personalization.parts.items() if spec.scope in PASSES[height.name]]
            owner_C = [{part: own[part] for part in shared} for own in owner_C]
            node_M = height.parent_C[node_M]
            whole_K = []
            for n in range(height.num_nodes):
                below_n = np.flatnonzero(node_M == n).tolist()
                own = [sites[m] for m in below_n], [held[m] for m in below_n]
                whole_K.append({part: whole(method, part, trees.count(state.parts[part]), *own) for part in shared})
            nodes = Nodes(
                experiment,
                height,
                links[above],
                below,
                owner_C,
                size_C,
                whole_K,
                mine,
                sent or [InTransit.nobody({part: state.parts[part] for part in shared})] * height.num_nodes,
                state.parts,
                state.stepped,
                moment,
                sites[0].num_classes,
            )
            self.tiers.append(nodes)
            below, owner_C, size_C = nodes, nodes.owner, np.bincount(node_M, size_M).astype(np.int64)
        self.top, self.moment = nodes, moment
        owned = {part: state.parts[part] for part in nodes.owner[0] if part not in nodes.own[0].bank}
        (waiting,) = state.sent[-1] or (InTransit.nobody(owned),)
        self.late = LateChildren(method.cloud_clock, waiting)
        """Of the cloud."""
        self.rows_heard: list[Rows] = []
        self.seconds = 0.0
        """When the cloud has heard of enough nodes."""

    def train(self, sent: Parts) -> list[TrainReport]:
        """Have all tiers work with what the cloud sends; return what sites have done."""
        known: dict[tuple[str, bytes], Params] = {}
        banks = {
            n: {
                part: rows_of(sent, part, SiteRows(own, NOBODY), known)
                for part, own in owner.items()
                if part not in self.top.own[n].bank
            }
            for n, owner in enumerate(self.top.owner)
            if n not in self.late.busy
        }
        heard = self.top.train(banks, 0, dict.fromkeys(banks, 0.0)) if banks else {}
        start = Rows(sent, {part: np.arange(trees.count(sent[part])) for part in self.late.waiting.rows}, {}, {})
        count = self.top.height.num_nodes
        came, self.seconds = self.late.back(start, banks, heard, self.top.owner, count, self.moment.round)
        self.rows_heard = list(came.values())
        return [self._told(report, site) for report, site in zip(self.leaves.done(), self.leaves.sites, strict=True)]

    def _told(self, report: TrainReport, site: Site) -> TrainReport:
        """Return a report as the cloud knows it: without what is on its way, and with the losses that came late."""
        above = [nodes.late[n] for nodes, n in zip(self.tiers, site.above, strict=True)]
        way = list(zip([*above, self.late], (site.index, *site.above), strict=True))
        if any(child in late.busy for late, child in way):
            return untold(report, self.leaves.unheard(site.index))
        losses = [late.losses[child] for late, child in way if child in late.losses]
        return replace(report, loss=losses[-1]) if losses and np.isnan(report.loss) else report

    @property
    def sent(self) -> tuple[tuple[InTransit, ...], ...]:
        """What is on its way now, to those who do not wait for all."""
        return tuple(tuple(late.waiting for late in own if late.clock.holds) for own in self._lates)

    @property
    def _lates(self) -> list[list[LateChildren]]:
        return [*(nodes.late for nodes in self.tiers), [self.late]]

    def late_ones(self) -> dict[str, Any]:
        """Return by tier how old the averages are that have come, and how many are on their way."""
        found: dict[str, Any] = {}
        for (one, many), own in zip(CHILDREN.items(), self._lates, strict=False):
            if own[0].clock.holds:
                found[f"{one}_ages"] = [age for late in own for age in late.ages]
                found[f"{many}_under_way"] = sum(len(late.waiting) for late in own)
        return found

    def rows(self, part: str) -> Sequence[Rows] | None:
        """Return what there is of a part above the edges: of its owners, or else what arrives at the cloud; None if
        all of it is at edges."""
        owning = [nodes.own for nodes in self.tiers if part in nodes.own[0].bank]
        return next(iter(owning), self.rows_heard if part in self.top.owner[0] else None)
