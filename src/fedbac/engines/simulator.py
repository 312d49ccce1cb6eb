"""All edges and clients in this process: the edges' work is driven in step and their requests are merged."""

from collections.abc import Generator, Sequence

from fedbac.config.experiment import Experiment
from fedbac.core.parts import Parts, Scope
from fedbac.core.requests import Average, Evaluate, Request, Result, Trainer
from fedbac.engines.adjusting import adjusted
from fedbac.engines.chunks import GIB, Chunks
from fedbac.engines.expecting import Expected
from fedbac.local import one_thread
from fedbac.rounds.common import Common
from fedbac.rounds.edge import serve
from fedbac.rounds.orders import MeasureOrder, MeasureReport, Order, Report, Site, TrainOrder, TrainReport


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
        self.path = trainer.path
        self.device = trainer.device
        self.keeps: frozenset[Scope] = frozenset()

    def train(self, orders: Sequence[TrainOrder]) -> list[TrainReport]:
        """Have every edge run its order."""
        return [report for report in self._run(orders) if isinstance(report, TrainReport)]

    def measure(self, orders: Sequence[MeasureOrder]) -> list[MeasureReport]:
        """Have every edge measure."""
        return [report for report in self._run(orders) if isinstance(report, MeasureReport)]

    def close(self) -> None:
        """Release the trainer."""
        self.trainer.close()

    def _run(self, orders: Sequence[Order]) -> list[Report]:
        """Drive the edges' generators in step: collect what each asks for, answer all at once, repeat."""
        with one_thread():
            return self._drive(orders)

    def _drive(self, orders: Sequence[Order]) -> list[Report]:
        rounds = {order.round for order in orders if isinstance(order, TrainOrder)}
        common = {round_: Common(self.experiment, round_) for round_ in rounds}
        work = [
            serve(
                order,
                self.sites[order.site],
                self.experiment,
                common=common[order.round] if isinstance(order, TrainOrder) else None,
            )
            for order in orders
        ]
        reports: dict[int, Report] = {}
        requests: dict[int, Request] = {}
        for i, edge in enumerate(work):
            _advance(i, edge, None, requests, reports)
        averaged = False
        while requests:
            results, averaged = self._answer(requests, averaged)
            requests = {}
            for i, result in results.items():
                _advance(i, work[i], result, requests, reports)
        return [reports[i] for i in range(len(work))]

    def _answer(self, requests: dict[int, Request], averaged: bool) -> tuple[dict[int, Result], bool]:
        """Return the results, and whether there are averages among them; whether there were some the time before is
        given."""
        training = {i: request for i, request in requests.items() if isinstance(request, Average)}
        measuring = {i: request for i, request in requests.items() if isinstance(request, Evaluate)}
        results: dict[int, Result] = {}
        if training:

            def upon(averages: list[Parts]) -> None:
                self.expected.begin(dict(zip(training, averages, strict=True)))

            results |= zip(training, self.chunks.average(list(training.values()), upon), strict=True)
        if measuring:
            results |= zip(measuring, self.expected.answer(measuring, averaged), strict=True)
        return results, bool(training)


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
