"""What a site does with an order, over a network: the same ``serve`` as in the simulator, its clients elsewhere."""

import threading
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedbac.core.codecs import remembering
from fedbac.core.parts import Parts
from fedbac.core.requests import Average, Request, Result
from fedbac.core.settings import BoolArray
from fedbac.deploy.charter import Charter
from fedbac.deploy.clients import Clients, Reach, TooFewClientsError
from fedbac.deploy.failures import Failure, SiteError
from fedbac.deploy.keepsakes import Keepsakes
from fedbac.deploy.protocol.packing import Shelf
from fedbac.local import one_thread
from fedbac.rounds.edge import serve
from fedbac.rounds.messages import MeasureOrder, MeasureReport, Order, Report, Site, TrainOrder, TrainReport
from fedbac.rounds.rows import Holding, Remembered, first_memory

OF_SITES = ("client_down", "cloud_up")
"""The links of which a site is the sender, and so remembers what they do."""


class Desk:
    """A site at work. What it owns stays here; what clients own stays with them."""

    def __init__(self, charter: Charter, site: Site, reach: Reach, state: Path, min_clients: int) -> None:
        self.charter, self.site, self.reach, self.min_clients = charter, site, reach, min_clients
        self.clients = Clients(charter, reach)
        self.keepsakes = Keepsakes(state / charter.run)
        self.shelf = Shelf(lambda: charter.first)
        """The networks that the site was sent last."""
        self.trained: tuple[int, Parts] = (0, {})
        """The last round that was trained here, and the averages of it."""

    def own(self, before: tuple[int, int], received: Parts) -> Parts:
        """Return the parts that the site owns, and what stands for those of its clients."""
        kept = self.keepsakes.before(before) or {"parts": {}}
        own = self.charter.own("edge", self.site.index, kept["parts"], received)
        return own | self.charter.unknown(len(self.site.clients))

    def first_memory(self) -> Any:
        """Return what the selection policy remembers before the first round, as a template."""
        return self.charter.experiment.method.selection.init(len(self.site.clients))

    def averages(self, round_: int) -> Parts:
        """Return what the site itself averaged in a round; nothing if it was not there."""
        return self.trained[1] if self.trained[0] == round_ else {}

    def train(self, order: TrainOrder, gone: threading.Event) -> TrainReport:
        """Run a round with the clients that are there."""
        present_N = self._present()
        self.clients.before = (order.round, 0)
        parts = self.charter.experiment.method.personalization.parts
        memory = self._memory(order)
        links = {name: memory.of(name) for name in memory.whole}
        order = replace(order, bank={part: order.bank[part] for part in parts}, links=links)
        report = self._drive(order, gone, present_N)
        assert isinstance(report, TrainReport)
        came = len(report.selected) - len(report.failed)
        if came < min(self.min_clients, len(report.selected)):
            raise TooFewClientsError(Failure.FEW_TRAINED, came, len(report.selected), self.min_clients)
        own = self.charter.owners.only(report.bank, "edge")
        self.keepsakes.keep((order.round, 0), parts=own, links=memory.with_(report.links))
        self.trained = (order.round, report.bank)
        return report

    def measure(self, order: MeasureOrder, round_: int, gone: threading.Event) -> MeasureReport:
        """Measure models after a round."""
        self.clients.before = (round_ + 1, 0)
        report = self._drive(order, gone, None)
        assert isinstance(report, MeasureReport)
        return report

    def _memory(self, order: TrainOrder) -> Remembered:
        """Return what the links of which the site is the sender remember from before a round."""
        method = self.charter.experiment.method
        held = {part: Holding(owner_R, order.row_N[part]) for part, owner_R in order.owner_R.items()}
        kept = self.keepsakes.before((order.round, 0))
        if kept is not None:
            names = [name for name in OF_SITES if name in remembering(method.links.chains)]
            return Remembered({name: kept["links"].get(name, {}) for name in names}, held)
        first = first_memory(method.links.chains, method.personalization, self.charter.first, self.site)
        memory = Remembered({name: first[name] for name in OF_SITES if name in first}, held)
        if order.round == 1:
            return memory
        # It was away, or lost its memory: what clients have is unknown, so they are sent all of what it was sent.
        return Remembered(memory.with_({"client_down": order.bank}), held)

    def _present(self) -> BoolArray:
        here = self.reach.clients()
        present_N = np.array([client in here for client in self.site.clients])
        count = int((present_N & (self.site.size_N > 0)).sum())
        if count < self.min_clients:
            raise TooFewClientsError(Failure.FEW_PRESENT, count, len(self.site.clients), self.min_clients)
        return present_N

    def _drive(self, order: Order, gone: threading.Event, present_N: BoolArray | None) -> Report:
        work: Generator[Request, Result, Report] = serve(order, self.site, self.charter.experiment, present_N)
        with one_thread():
            try:
                request = next(work)
                while True:
                    if gone.is_set():
                        raise SiteError(Failure.NOT_WAITED_FOR)
                    result: Result = (
                        self.clients.average(request)
                        if isinstance(request, Average)
                        else self.clients.evaluate(request)
                    )
                    request = work.send(result)
            except StopIteration as done:
                report: Report = done.value
                return report
