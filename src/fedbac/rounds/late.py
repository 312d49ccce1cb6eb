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
from fedbac.core.policies import Aggregation
from fedbac.core.queries import Moment, Statistic
from fedbac.core.requests import Averaged, Train
from fedbac.core.rng import Rng
from fedbac.core.runtime import one_thread
from fedbac.core.settings import BoolArray, FloatArray, IntArray
from fedbac.core.state import Waiting
from fedbac.core.world import Participants, World
from fedbac.rounds.messages import Site, TrainOrder, TrainReport

NOBODY = np.zeros(0, dtype=np.int64)


class Late:
    """What is on its way to a site while it makes its averages of one round of the cloud."""

    def __init__(self, order: TrainOrder, site: Site, experiment: Experiment, rules: Mapping[str, Aggregation]) -> None:
        assert order.waiting is not None
        self.waiting, self.came = order.waiting, order.waiting.of(np.zeros(len(order.waiting), dtype=bool))
        """Updates on their way, and those that have arrived for the average that is being made."""
        self.order, self.site, self.experiment, self.rules = order, site, experiment, rules
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
                size = np.concatenate([self.site.size_N[chosen[fresh]], self.came.size_W])
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
            size_W=self.site.size_N[chosen[late]],
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


class LateSites:
    """What is on its way to the cloud when it goes on without the slowest sites."""

    def __init__(self, experiment: Experiment, sites: Sequence[Site], waiting: Waiting, round_: int) -> None:
        self.experiment, self.sites, self.waiting, self.round = experiment, sites, waiting, round_
        self.busy = frozenset(waiting.child_W.tolist())
        """Sites that still work at an order of an earlier round."""
        parts = experiment.method.personalization.parts
        self.shared = [part for part, spec in parts.items() if spec.scope in ("cloud", "cluster")]
        self.ages: list[int] = []

    def heard(self, orders: Sequence[TrainOrder], answered: Sequence[TrainReport]) -> list[TrainReport]:
        """Return what the cloud hears of every site when the round ends, as soon as there are enough for the clock. An
        update that comes late counts for the cluster in which its edge is then."""
        clock, fresh = self.experiment.method.cloud_clock, dict(zip(self._free(orders), answered, strict=True))
        due_M = {m: report.seconds or 0.0 for m, report in fresh.items()}
        due_M |= dict(zip(self.waiting.child_W.tolist(), self.waiting.due_W.tolist(), strict=True))
        end = max(0.0, sorted(due_M.values())[clock.enough(len(orders)) - 1])
        came = self.waiting.of(self.waiting.due_W <= end)
        self.waiting = self.waiting.of(self.waiting.due_W > end)
        heard: list[TrainReport] = []
        for m, order in enumerate(orders):
            report = fresh.get(m)
            if report is None:
                nothing = replace(self._nothing(order), seconds=end, under_way=True)
                heard.append(self._arrived(nothing, order, came, m) if m in came.child_W else nothing)
            elif due_M[m] <= end:
                self.ages.append(0)
                heard.append(report)
            else:
                heard.append(self._put_aside(report, order, end))
        return heard

    def free(self, orders: Sequence[TrainOrder]) -> list[TrainOrder]:
        """Return the orders of the sites that can begin with them."""
        return [orders[m] for m in self._free(orders)]

    def _free(self, orders: Sequence[TrainOrder]) -> list[int]:
        return [m for m in range(len(orders)) if m not in self.busy]

    def _nothing(self, order: TrainOrder) -> TrainReport:
        epochs = self.experiment.passes(Moment(self.round, self.experiment.task.rounds))
        return replace(unheard(order, self.sites[order.site], epochs), absent=False)

    def _put_aside(self, report: TrainReport, order: TrainOrder, end: float) -> TrainReport:
        """Keep what a site will send, and return what the cloud knows of it: only that it has begun."""
        aside = Waiting(
            child_W=np.array([order.site]),
            due_W=np.array([report.seconds or 0.0]),
            began_W=np.array([self.round]),
            size_W=np.array([max(int(report.weight[part].max()) for part in self.shared)]),
            loss_W=np.array([report.loss]),
            square_W=np.full(1, np.nan),
            change_W={part: moved(order.bank[part], report.bank[part]) for part in self.shared},
        )
        self.waiting = self.waiting.joined(aside)
        nothing = self._nothing(order)
        own = {part: stack for part, stack in report.bank.items() if part not in self.shared}
        weight = {**nothing.weight, **{part: report.weight[part] for part in own}}
        return replace(
            report, bank={**order.bank, **own}, weight=weight, loss=nothing.loss, statistic_N=nothing.statistic_N,
            readings=nothing.readings, updates={}, seconds=end, under_way=True,
        )  # fmt: skip

    def _arrived(self, nothing: TrainReport, order: TrainOrder, came: Waiting, m: int) -> TrainReport:
        """Return the report of a site whose update comes now: start + s Δ, ``start`` being what others began with."""
        mine = came.of(came.child_W == m)
        age_W = (self.round - mine.began_W).astype(np.float64)
        self.ages += age_W.astype(np.int64).tolist()
        share_W = self.experiment.method.cloud_clock.discount(age_W)
        late = {part: arrived(order.bank[part], mine.change_W[part], share_W) for part in self.shared}
        weight = {**nothing.weight, **dict.fromkeys(self.shared, mine.size_W)}
        bank = {**nothing.bank, **late}
        return replace(nothing, bank=bank, weight=weight, loss=float(mine.loss_W[0]), under_way=False)


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
