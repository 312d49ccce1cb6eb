"""All edges and clients in this process: the edges' work is driven in step and their requests are merged."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from fedbac.config.experiment import Experiment
from fedbac.core.parts import Scope
from fedbac.core.requests import Average, Evaluate, Request, Result, Trainer
from fedbac.engines.adjusting import adjusted
from fedbac.engines.chunks import GIB, Chunks
from fedbac.local import one_thread
from fedbac.rounds.edge import serve
from fedbac.rounds.messages import MeasureOrder, MeasureReport, Order, Report, Site, TrainOrder, TrainReport
from fedbac.rounds.plan import Common


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
        self.path = trainer.path
        self.device = trainer.device
        self.keeps: frozenset[Scope] = frozenset()

    def train(self, orders: Sequence[TrainOrder]) -> list[TrainReport]:
        """Have every edge run its order."""
        with one_thread():
            return self._through(self._work(orders, Common(self.experiment, orders[0].round)))

    def measure(self, orders: Sequence[MeasureOrder]) -> list[MeasureReport]:
        """Have every edge measure."""
        with one_thread():
            return self._through(self._work(orders))

    def close(self) -> None:
        """Release the trainer."""
        self.trainer.close()

    def _work(self, orders: Sequence[Order], common: Common | None = None) -> "Work":
        return Work([serve(order, self.sites[order.site], self.experiment, common=common) for order in orders])

    def _through(self, work: "Work") -> list[Any]:
        """Answer all that edges ask for, and return their reports."""
        while work.requests:
            work.answer(self._answer(work.requests))
        return [work.reports[i] for i in range(len(work.edges))]

    def _answer(self, requests: Mapping[int, Request]) -> dict[int, Result]:
        training = {i: request for i, request in requests.items() if isinstance(request, Average)}
        measuring = {i: request for i, request in requests.items() if isinstance(request, Evaluate)}
        results: dict[int, Result] = {}
        if training:
            results |= zip(training, self.chunks.average(list(training.values())), strict=True)
        if measuring:
            results |= zip(measuring, self.hooked.evaluate(list(measuring.values())), strict=True)
        return results


class Work:
    """What edges do, driven in step: what each asks for is collected, and all are answered at once."""

    def __init__(self, edges: Sequence[Generator[Request, Result, Report]]) -> None:
        self.edges = edges
        self.requests: dict[int, Request] = {}
        """What edges ask for now, and below the reports of those that are done; by their place."""
        self.reports: dict[int, Report] = {}
        for i in range(len(edges)):
            self._advance(i, None)

    def answer(self, results: Mapping[int, Result]) -> None:
        """Let the edges go on to what they ask for next."""
        self.requests = {}
        for i, result in results.items():
            self._advance(i, result)

    def _advance(self, i: int, result: Result | None) -> None:
        try:
            self.requests[i] = next(self.edges[i]) if result is None else self.edges[i].send(result)
        except StopIteration as done:
            self.reports[i] = done.value
