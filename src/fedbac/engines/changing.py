"""Tasks in which data move, and clients and edges come and go: an engine for every stretch of rounds between."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from fedbac.config.experiment import Experiment
from fedbac.core.queries import Moment
from fedbac.core.state import State
from fedbac.federation import Federation
from fedbac.rounds.cloud import rounds
from fedbac.rounds.late import unheard
from fedbac.rounds.measure import unmeasured
from fedbac.rounds.messages import Edges, MeasureOrder, MeasureReport, TrainOrder, TrainReport


class Changing:
    """Edges by a task that changes. To the cloud, an edge whose clients are all away is one that does not answer."""

    def __init__(self, experiment: Experiment, federation: Federation, connect: Callable[[Federation], Edges]) -> None:
        self.experiment, self.federation, self._connect = experiment, federation, connect
        self._begin(1)
        self.path, self.device, self.keeps = self.edges.path, self.edges.device, self.edges.keeps

    def _begin(self, round_: int) -> None:
        self.now = self.federation.at(self.experiment, round_)
        self.edges = self._connect(self.now)
        self.since = round_

    def rounds(self, state: State) -> Iterator[tuple[dict[str, Any], State]]:
        """Play like ``fedbac.rounds.cloud.rounds``, with an engine for each stretch."""
        firsts, last = self.experiment.stretches, self.experiment.task.rounds
        while state.round < last:
            place = bisect_right(firsts, state.round + 1)
            if self.since != firsts[place - 1]:
                self.edges.close()
                self._begin(firsts[place - 1])
            end = firsts[place] - 1 if place < len(firsts) else last
            played = rounds(self.experiment, self.now.sites, self, state)
            for record, state in islice(played, end - state.round):  # noqa: B020 (the next stretch goes on from it)
                yield record, state

    def train(self, orders: Sequence[TrainOrder]) -> list[TrainReport]:
        """Have every edge that is there run its order."""
        here = [order for order in orders if self.now.sites[order.site].size]
        reports = {order.site: one for order, one in zip(here, self.edges.train(here), strict=True)} if here else {}
        passes = self.experiment.passes(Moment(orders[0].round, self.experiment.task.rounds))
        return [reports.get(order.site) or unheard(order, self.now.sites[order.site], passes) for order in orders]

    def measure(self, orders: Sequence[MeasureOrder]) -> list[MeasureReport]:
        """Have every edge that is there measure."""
        here = [order for order in orders if self.now.sites[order.site].size]
        reports = {order.site: one for order, one in zip(here, self.edges.measure(here), strict=True)} if here else {}
        return [reports.get(order.site) or unmeasured(order, self.now.sites[order.site]) for order in orders]

    def close(self) -> None:
        """Close the engine."""
        self.edges.close()
