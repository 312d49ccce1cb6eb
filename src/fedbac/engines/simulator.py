"""All edges and clients in this process: the edges' work is driven in step and their requests are merged."""

from collections.abc import Callable, Generator, Sequence

from fedbac.config.experiment import Experiment
from fedbac.core.aggregation import Foreseen
from fedbac.core.parts import Scope
from fedbac.core.requests import Average, Beginning, Evaluate, Request, Result, Trainer
from fedbac.engines.adjusting import adjusted
from fedbac.engines.chunks import GIB, Chunks
from fedbac.engines.expecting import Expected
from fedbac.engines.pausing import Pausing, begun
from fedbac.local import one_thread
from fedbac.rounds.common import Common
from fedbac.rounds.edge import serve
from fedbac.rounds.orders import (
    Averages,
    MeasureOrder,
    MeasureReport,
    Order,
    Report,
    Site,
    TrainOrder,
    TrainReport,
    Underway,
    foresaw,
)


class Simulator:
    """Edges that share one trainer."""

    def __init__(
        self,
        experiment: Experiment,
        sites: Sequence[Site],
        trainer: Trainer,
        memory_gib: float | None = None,
        sharers: int = 1,
    ) -> None:
        self.experiment = experiment
        self.sites = sites
        self.trainer = trainer
        self.hooked = adjusted(trainer, experiment.method.personalization)
        self.chunks = Chunks(self.hooked, None if memory_gib is None else memory_gib * GIB, sharers)
        self.expected = Expected(self.hooked)
        self.goes_on = isinstance(self.hooked, Beginning)
        self.following: Common | None = None
        """The round after the one that the device is busy with."""
        self.foreseen: dict[int, Averages] = {}
        """By edge, averages of clients in training, before they are known to be sound."""
        self.doubtful = False
        """Whether the last round was foreseen wrongly: then the next is not foreseen."""
        method = experiment.method
        self.final = method.topology.edge_rounds == 1 and method.links.cloud_up is None
        """Whether what edges average once is what they report."""
        self.path = trainer.path
        self.device = trainer.device
        self.keeps: frozenset[Scope] = frozenset()

    def train(self, orders: Sequence[TrainOrder]) -> list[TrainReport]:
        """Have every edge run its order."""
        return self.begin_training(orders).reports()

    def measure(self, orders: Sequence[MeasureOrder]) -> list[MeasureReport]:
        """Have every edge measure."""
        return self.begin_measuring(orders)()

    def begin_training(self, orders: Sequence[TrainOrder]) -> Underway:
        """Have every edge run its order."""
        common = self._common(orders[0].round)
        finish = self._begin(orders, common)

        def reports() -> list[TrainReport]:
            if self.goes_on and common.round < self.experiment.task.rounds:
                self.following = common.following()  # before the host waits for the device
            try:
                told = [report for report in finish() if isinstance(report, TrainReport)]
            finally:
                self.foreseen = {}  # edges may have measured before they trained
                self.expected.forget()
            self.doubtful = foreseen is not None and not foresaw(foreseen, told)
            return told

        foreseen, averages, self.foreseen = None, self.foreseen, {}
        if self.final and not self.doubtful and len(averages) == len(orders):
            foreseen = [_reported(order, common, averages[i]) for i, order in enumerate(orders)]
        return Underway(reports, foreseen)

    def begin_measuring(self, orders: Sequence[MeasureOrder]) -> Callable[[], list[MeasureReport]]:
        """Have every edge measure; what is returned waits for the device, if there is one."""
        finish = self._begin(orders)
        return lambda: [report for report in finish() if isinstance(report, MeasureReport)]

    def close(self) -> None:
        """Release the trainer."""
        self.trainer.close()

    def _common(self, round_: int) -> Common:
        known, self.following = self.following, None
        return known if known is not None and known.round == round_ else Common(self.experiment, round_)

    def _begin(self, orders: Sequence[Order], common: Common | None = None) -> Callable[[], list[Report]]:
        with one_thread():
            rest = begun(self._drive(orders, common))

        def finish() -> list[Report]:
            with one_thread():
                return rest()

        return finish

    def _drive(self, orders: Sequence[Order], common: Common | None) -> Pausing[list[Report]]:
        """Drive the edges' generators in step: collect what each asks for, answer all at once, repeat."""
        work = [serve(order, self.sites[order.site], self.experiment, common=common) for order in orders]
        reports: dict[int, Report] = {}
        requests: dict[int, Request] = {}
        for i, edge in enumerate(work):
            _advance(i, edge, None, requests, reports)
        averaged = False
        while requests:
            results, averaged = yield from self._answer(requests, averaged)
            requests = {}
            for i, result in results.items():
                _advance(i, work[i], result, requests, reports)
        return [reports[i] for i in range(len(work))]

    def _answer(self, requests: dict[int, Request], averaged: bool) -> Pausing[tuple[dict[int, Result], bool]]:
        """Return the results, and whether there are averages among them; whether there were some the time before is
        given."""
        training = {i: request for i, request in requests.items() if isinstance(request, Average)}
        measuring = {i: request for i, request in requests.items() if isinstance(request, Evaluate)}
        results: dict[int, Result] = {}
        if training:

            def upon(averages: list[Foreseen]) -> None:
                found = dict(zip(training, averages, strict=bool(averages)))
                self.expected.begin({i: average.bank for i, average in found.items()})
                self.foreseen = {i: Averages(average.bank, average.weight) for i, average in found.items()}

            found = yield from self.chunks.average(list(training.values()), upon)
            results |= zip(training, found, strict=True)
        if measuring:
            measured = yield from self.expected.answer(measuring, averaged)
            results |= zip(measuring, measured, strict=True)
        return results, bool(training)


def _reported(order: TrainOrder, common: Common, averages: Averages) -> Averages:
    """Return what an edge will report of its networks; those that keep still are as they came."""
    bank = {part: averages.bank[part] if part in common.moving else stack for part, stack in order.bank.items()}
    return averages._replace(bank=bank)


def _advance(
    i: int,
    edge: Generator[Request, Result, Report],
    result: Result | None,
    requests: dict[int, Request],
    reports: dict[int, Report],
) -> None:
    try:
        requests[i] = next(edge) if result is None else edge.send(result)
    except StopIteration as done:
        reports[i] = done.value
