"""Tiers that do not wait for all: who is under way, and what an update counts that comes late."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedbac.config.experiment import Experiment
from fedbac.core import trees
from fedbac.core.aggregation import combine_by_owner
from fedbac.core.bandits import budget
from fedbac.core.links import Ledger
from fedbac.core.parts import Params, Parts
from fedbac.core.policies import Aggregation, Clock
from fedbac.core.queries import Moment, Statistic
from fedbac.core.requests import Averaged, Train
from fedbac.core.rng import Rng
from fedbac.core.runtime import one_thread
from fedbac.core.settings import BoolArray, FloatArray, IntArray
from fedbac.core.state import InTransit, RowsInTransit, Waiting
from fedbac.core.world import Participants, World
from fedbac.rounds.messages import NUMBERS_PER_UPDATE, Arrival, Arriving, Edges, Site, TrainOrder, TrainReport
from fedbac.rounds.rows import Rows

NOBODY = np.zeros(0, dtype=np.int64)


class Late:
    """What is on its way to a site while it makes its averages of one round of the cloud."""

    def __init__(self, order: TrainOrder, site: Site, experiment: Experiment, rules: Mapping[str, Aggregation]) -> None:
        assert order.waiting is not None
        self.waiting, self.came = order.waiting, order.waiting.of(np.zeros(len(order.waiting), dtype=bool))
        """Updates on their way, and those that have arrived for the average that is being made."""
        self.order, self.site, self.experiment, self.rules = order, site, experiment, rules
        self.counted_N = experiment.method.counted(site.size_N)
        self.clock, parts = experiment.method.clock, experiment.method.personalization.parts
        self.own = frozenset(part for part, spec in parts.items() if spec.scope == "client")
        self.under_way = NOBODY
        """Places of the clients that start now and come later."""
        self._due = np.zeros(0)
        """When each client that starts now is back."""
        self.ages: list[int] = []
        """How many averages each update that has come was behind."""
        self.share_N: FloatArray | None = None
        """What each client's change counted in the last average; None if none came late."""

    def first_back(self, world: World, mask_N: BoolArray, seconds_N: FloatArray, now: float, rng: Rng) -> Participants:
        """Let as many of the selected clients start as keep the usual number under way, and wait until the clock has
        enough. Whoever is back by then counts."""
        wanted = budget(self.experiment.method.selection.fraction, len(self.site.clients))
        chosen = rng.permutation(np.flatnonzero(mask_N))[: max(wanted - len(self.waiting), 0)]
        most = max(chosen.size + len(self.waiting) - 1, 0)  # somebody always stays
        dropped, left = np.split(chosen, [min(round(world.dropout * chosen.size), most)])
        present = np.sort(left)
        due_C = now + seconds_N[present]
        due = np.sort(np.concatenate([self.waiting.due_W, due_C]))
        end = max(now, float(due[min(self.clock.enough(wanted), due.size) - 1])) if due.size else now
        here_W = self.waiting.due_W <= end
        self.came, self.waiting = self.waiting.of(here_W), self.waiting.of(~here_W)
        self.under_way, self._due = present[due_C > end], due_C[due_C > end]
        return Participants(present, np.sort(dropped), NOBODY, end - now)

    def keeps(self, bank: Parts) -> set[str]:
        """Return the parts of which every client's own weights are needed."""
        return set(bank) if self.under_way.size else set(self.rules) if len(self.came) else set()

    def averaged(self, trained: Averaged, request: Train, chosen: IntArray, edge_round: int) -> Averaged:
        """Put aside what the clients under way will send, and return the averages with what has come late."""
        version = (self.order.round - 1) * self.experiment.edge_rounds + edge_round
        late_C = np.isin(chosen, self.under_way)
        self._put_aside(trained, request, chosen, np.flatnonzero(late_C & trained.healthy_C), version)
        age_W = (version - self.came.began_W).astype(np.float64)
        fresh = np.flatnonzero(trained.healthy_C & ~late_C)
        self.ages += [0] * fresh.size + age_W.astype(np.int64).tolist()
        self.share_N = None
        if not len(self.came):
            return trained
        self.share_N = np.ones(len(self.site.clients))
        self.share_N[self.came.child_W] = self.clock.discount(age_W)
        bank, weight = dict(trained.bank), dict(trained.weight)
        for part, stack in trained.bank.items():
            row_W = self.order.row_N[part][self.came.child_W]
            weight[part] = weight[part] + np.bincount(row_W, self.came.size_W, weight[part].size).astype(np.int64)
            share_W = np.ones_like(age_W) if part in self.own else self.clock.discount(age_W)
            start = trees.select(request.bank[part], row_W)
            late = arrived(start, self.came.change_W[part], share_W)
            if part in self.rules:
                rows = trees.join([trees.select(trained.kept[part], fresh), late])
                size = np.concatenate([self.counted_N[chosen[fresh]], self.came.size_W])
                place = np.concatenate([request.row_C[part][fresh], row_W])
                bank[part] = combine_by_owner(request.bank[part], rows, size, place, self.rules[part])
            else:
                bank[part] = added(stack, trained.weight[part], late, self.came.size_W, row_W)
        return replace(trained, bank=bank, weight=weight)

    def _put_aside(self, trained: Averaged, request: Train, chosen: IntArray, late: IntArray, version: int) -> None:
        if not late.size:
            return
        square_C = np.full(chosen.size, np.nan) if trained.square_C is None else trained.square_C
        due_N = dict(zip(self.under_way.tolist(), self._due.tolist(), strict=True))
        aside = Waiting(
            child_W=chosen[late],
            due_W=np.array([due_N[place] for place in chosen[late].tolist()]),
            began_W=np.full(late.size, version),
            size_W=self.counted_N[chosen[late]],
            loss_W=trained.loss_C[late],
            square_W=square_C[late],
            change_W={part: changes(request, part, trained, late) for part in request.bank},
        )
        self.waiting = self.waiting.joined(aside)

    def heard(self, statistic_N: Mapping[Statistic, FloatArray]) -> None:
        """Note among the statistics of clients those of the updates that have come late, as far as they are known."""
        known = {Statistic("loss"): self.came.loss_W, Statistic("square"): self.came.square_W}
        for query in known.keys() & statistic_N.keys():
            statistic_N[query][self.came.child_W] = known[query]

    def updates(self, updates: Parts, fresh: IntArray) -> Parts:
        """Return the changes of clients at some places with those that have come late, in the order of clients."""
        order = np.argsort(np.concatenate([fresh, self.came.child_W]), kind="stable")
        return {
            part: trees.select(trees.join([change, self.came.change_W[part]]), order)
            for part, change in updates.items()
        }


class LateChildren:
    """What is on its way to a node, or to the cloud, while it makes its averages of one round of the cloud."""

    def __init__(self, clock: Clock, waiting: InTransit) -> None:
        self.clock, self.waiting = clock, waiting
        self.ages: list[int] = []
        """How many averages each of those that have come was behind."""
        self.came: list[int] = []
        """Who they were."""
        self.losses: dict[int, float] = {}
        """Of children whose averages came late."""

    @property
    def busy(self) -> frozenset[int]:
        """Children that still work at what they were sent earlier."""
        return frozenset(self.waiting.child_W.tolist())

    def back(
        self,
        start: Rows,
        sent: Mapping[int, Parts],
        heard: Mapping[int, Rows],
        owner_C: Sequence[Mapping[str, IntArray]],
        wanted: int,
        version: int,
    ) -> tuple[dict[int, Rows], float]:
        """Return what counts in an average that begins with ``start``, of the children that were sent something and of
        those under way, and when it is made: as soon as there are enough for the clock. Times are from one moment."""
        due = sorted([*self.waiting.due_W.tolist(), *(rows.seconds for rows in heard.values())])
        end = max(start.seconds, due[min(self.clock.enough(wanted), len(due)) - 1]) if due else start.seconds
        came, self.waiting = self.waiting.of(self.waiting.due_W <= end), self.waiting.of(self.waiting.due_W > end)
        counting = {c: rows for c, rows in heard.items() if rows.seconds <= end}
        for c in heard.keys() - counting.keys():
            self.waiting = self.waiting.joined(self._aside(c, sent[c], heard[c], version))
        self.ages, self.came = self.ages + [0] * len(counting), self.came + list(counting)
        for w, c in enumerate(came.child_W.tolist()):
            age = version - int(came.began_W[w])
            self.ages.append(age)
            self.came.append(c)
            self.losses[c] = float(came.loss_W[w])
            counting[c] = self._arrived(start, came, w, owner_C[c], float(self.clock.discount(np.array([age]))[0]))
        return dict(sorted(counting.items())), end

    def _aside(self, c: int, sent: Parts, rows: Rows, version: int) -> InTransit:
        """Return what a child will have sent."""
        mine = {
            part: RowsInTransit(
                line_R=np.zeros(rows.owner[part].size, dtype=np.int64),
                owner_R=rows.owner[part],
                weight_R=rows.weight[part],
                trained_R=rows.trained[part],
                change_R=moved(sent[part], rows.bank[part]),
            )
            for part in self.waiting.rows
        }
        return InTransit(np.array([c]), np.array([rows.seconds]), np.array([version]), np.array([rows.loss]), mine)

    def _arrived(self, start: Rows, came: InTransit, w: int, held: Mapping[str, IntArray], share: float) -> Rows:
        """Return start + s Δ. A child with one row of a part may have moved since: it counts for whom it has now. Rows
        of owners who have left count for nobody."""
        bank, owner, weight, trained = {}, {}, {}, {}
        for part, all_rows in came.rows.items():
            mine = all_rows.of(np.array([w]))
            if mine.owner_R.size == held[part].size == 1:
                mine = mine._replace(owner_R=held[part])
            there = np.flatnonzero(np.isin(mine.owner_R, start.owner[part]))
            owner[part], weight[part], trained[part] = mine.owner_R[there], mine.weight_R[there], mine.trained_R[there]
            begun = trees.select(start.bank[part], np.searchsorted(start.owner[part], owner[part]))
            change_R = trees.select(mine.change_R, there)
            bank[part] = arrived(begun, change_R, np.full(there.size, share))
        return Rows(bank, owner, weight, trained, float(came.loss_W[w]), NUMBERS_PER_UPDATE)


class LateSites(LateChildren):
    """What is on its way to a cloud whose children are sites."""

    def __init__(self, experiment: Experiment, sites: Sequence[Site], waiting: InTransit, round_: int) -> None:
        super().__init__(experiment.method.cloud_clock, waiting)
        self.experiment, self.sites, self.round = experiment, sites, round_
        self.unaware = self.busy
        """Sites that had no order in this round."""

    def reports(self, sent: Parts, orders: Sequence[TrainOrder], edges: Edges) -> list[TrainReport]:
        """Have those sites train that can begin; return what the cloud hears of each when the round ends."""
        free = [order for order in orders if order.site not in self.unaware]
        answered = edges.train(free) if free else []
        fresh = {order.site: report for order, report in zip(free, answered, strict=True)}
        begun = Rows(sent, {part: np.arange(trees.count(sent[part])) for part in self.waiting.rows}, {}, {})
        rows = {}
        for m, report in fresh.items():
            weight = {part: report.weight[part].astype(np.float64) for part in self.waiting.rows}
            rows[m] = Rows(report.bank, orders[m].owner_R, weight, weight, report.loss, seconds=report.seconds or 0.0)
        banks, owner_M = {m: orders[m].bank for m in fresh}, [order.owner_R for order in orders]
        came, end = self.back(begun, banks, rows, owner_M, len(orders), self.round)
        return [self._known(order, fresh.get(order.site), came.get(order.site), end) for order in orders]

    @property
    def under_way(self) -> int:
        """How many sites are still at work."""
        return len(self.waiting)

    def _known(self, order: TrainOrder, report: TrainReport | None, came: Rows | None, end: float) -> TrainReport:
        """Return what the cloud knows of a site: its report, what comes late, or only that it has begun."""
        if came is not None and report is not None:
            return report
        nothing = replace(begun(order, self.sites, self.experiment), seconds=end, under_way=came is None)
        if came is not None:
            weight = {part: weight_R.astype(np.int64) for part, weight_R in came.weight.items()}
            bank = {**nothing.bank, **came.bank}
            return replace(nothing, bank=bank, weight={**nothing.weight, **weight}, loss=came.loss)
        if report is None:
            return nothing
        own = {part: stack for part, stack in report.bank.items() if part not in self.waiting.rows}
        weight = {**nothing.weight, **{part: report.weight[part] for part in own}}
        return untold(replace(report, bank={**order.bank, **own}, weight=weight, seconds=end), nothing)


class ArrivingSites:
    """Sites that answer when they answer: nobody works out when that would be, and none of it is in the state."""

    def __init__(self, experiment: Experiment, sites: Sequence[Site], edges: Arriving, round_: int) -> None:
        self.experiment, self.sites, self.edges, self.round = experiment, sites, edges, round_
        self.unaware = edges.busy(round_)
        self.ages: list[int] = []
        self.came: list[int] = []
        self.under_way = 0

    def reports(self, sent: Parts, orders: Sequence[TrainOrder], edges: Edges) -> list[TrainReport]:
        """Have those sites train that can begin; return what the cloud hears of each when enough have answered."""
        free = [order for order in orders if order.site not in self.unaware]
        found = {arrival.order.site: arrival for arrival in self.edges.arrivals(self.round, free)}
        self.under_way = len(orders) - len(found)
        return [self._known(order, found.get(order.site)) for order in orders]

    def _known(self, order: TrainOrder, arrival: Arrival | None) -> TrainReport:
        nothing = begun(order, self.sites, self.experiment)
        if arrival is None:
            return nothing
        answered, report = arrival.order, replace(arrival.report, momentum=order.momentum)  # that is with clients
        if report.absent:
            return replace(nothing, under_way=False, absent=True, reasons=report.reasons)
        age = self.round - answered.round
        self.ages.append(age)
        self.came.append(order.site)
        if age == 0:
            return replace(report, bank={**order.bank, **report.bank})
        share, bank = self.experiment.method.cloud_clock.discount(np.array([float(age)])), dict(order.bank)
        for part, spec in self.experiment.method.personalization.parts.items():
            if spec.scope in ("cloud", "cluster"):  # which of the clusters: that of the site now
                change = moved(answered.bank[part], report.bank[part])
                bank[part] = arrived(order.bank[part], change, share)
        return replace(untold(report, nothing), bank=bank, loss=report.loss, under_way=False)


def begun(order: TrainOrder, sites: Sequence[Site], experiment: Experiment) -> TrainReport:
    """Return what is known of a site that is at work."""
    epochs = experiment.passes(Moment(order.round, experiment.task.rounds))
    return replace(unheard(order, sites[order.site], epochs), absent=False, under_way=True)


def untold(report: TrainReport, nothing: TrainReport) -> TrainReport:
    """Return a report without what has not arrived, given one of a site that did nothing."""
    return replace(
        report,
        loss=nothing.loss,
        statistic_N=nothing.statistic_N,
        readings=nothing.readings,
        updates={},
        under_way=True,
    )


def unheard(order: TrainOrder, site: Site, num_epochs: int) -> TrainReport:
    """Return what is known of a site that did not answer: everything is as it was, and counts for nothing."""
    count, asked = len(site.clients), order.statistics | {Statistic("loss")}
    shapes = {query: (count, num_epochs) if query.name == "epochs" else (count,) for query in asked}
    return TrainReport(
        bank=order.bank,
        weight={part: np.zeros(trees.count(params), dtype=np.int64) for part, params in order.bank.items()},
        selection=order.selection,
        selected=(),
        failed=(),
        loss=float("nan"),
        statistic_N={query: np.full(shape, np.nan) for query, shape in shapes.items()},
        traffic=Ledger(),
        momentum=order.momentum,
        readings=(float("nan"),) * len(order.readings),
        links=order.links,
        waiting=order.waiting,
        absent=True,
    )


def changes(request: Train, part: str, trained: Averaged, which: IntArray) -> Params:
    """Return what some of the clients changed in a part."""
    return moved(trees.select(request.bank[part], request.row_C[part][which]), trees.select(trained.kept[part], which))


def moved(before: Params, after: Params) -> Params:
    """Return Δ."""
    return {name: value - before[name].to(value.device) for name, value in after.items()}


def arrived(start_W: Params, change_W: Params, share_W: FloatArray) -> Params:
    """Return start + s Δ for every update."""
    return {
        name: value + trees.column(share_W, value) * change_W[name].to(value.device) for name, value in start_W.items()
    }


def added(mean_R: Params, weight_R: IntArray, late_W: Params, size_W: IntArray, row_W: IntArray) -> Params:
    """Return means over so many examples with some more rows counted in."""
    matrix_RD, late_WD = trees.rows(mean_R).clone(), trees.rows(late_W)
    with one_thread():
        for row in np.unique(row_W).tolist():
            total_D, there = float(weight_R[row]) * matrix_RD[row].double(), float(weight_R[row])
            for w in np.flatnonzero(row_W == row).tolist():  # one after another: always the same bits
                total_D, there = total_D + float(size_W[w]) * late_WD[w].double(), there + float(size_W[w])
            matrix_RD[row] = (total_D / there).to(matrix_RD.dtype)
    return trees.shaped(matrix_RD, mean_R)
