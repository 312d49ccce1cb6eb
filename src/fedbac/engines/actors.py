"""Edges in several processes: who has which, and what each does. Orders and reports travel, examples do not."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any

from torch import nn

from fedbac.config.experiment import Experiment, Runtime
from fedbac.core.parts import Parts
from fedbac.engines.simulator import Simulator
from fedbac.federation import Federation
from fedbac.local import Examples, make_trainer, per_example
from fedbac.rounds.messages import MeasureOrder, MeasureReport, Order, Site, TrainOrder, TrainReport


def deal(loads: Sequence[int], actors: int) -> list[list[int]]:
    """Return which sites each actor has: the one with the most examples goes to whoever has the fewest so far, then the
    next one; each has one at least."""
    dealt: list[list[int]] = [[] for _ in range(actors)]
    for site in sorted(range(len(loads)), key=lambda site: (-loads[site], site)):
        min(dealt, key=lambda mine: (sum(loads[one] for one in mine), len(mine))).append(site)
    return [sorted(mine) for mine in dealt]


def gpu_share(num_actors: int, gpus: int) -> float:
    """Return the share of a GPU with which all actors find a place: none can have parts of two GPUs."""
    return 1 / math.ceil(num_actors / gpus)


def examples_of(federation: Federation, sites: Sequence[int]) -> Examples:
    """Return what the edges and clients of some sites hold."""
    return federation.examples.of_edges([edge for site in sites for edge in federation.sites[site].edges])


class EdgeHost:
    """Some edges: their data, a trainer, and the same ``serve`` as in the simulator. They are made at the first call:
    Ray passes on what a call raised, but of a failure in here only a text."""

    def __init__(
        self,
        examples: Examples,
        experiment: Experiment,
        sites: Sequence[Site],
        network: nn.Module,
        runtime: Runtime,
        sharers: int,
    ) -> None:
        self.examples, self.experiment, self.sites = examples, experiment, sites
        self.network, self.runtime, self.sharers = network, runtime, sharers

    @cached_property
    def edges(self) -> Simulator:
        """The engine that does the orders of these edges."""
        scheme = self.experiment.method.personalization
        gradients = per_example(self.experiment, self.experiment.seed)
        trainer = make_trainer(self.network, scheme, self.examples, self.runtime, gradients)
        return Simulator(self.experiment, self.sites, trainer, self.runtime.memory_gib, self.sharers)

    def run(self, orders: Sequence[Order]) -> list[Any]:
        """Do the orders of these edges, all at once; what travels is on the CPU, as the cloud may have no GPU."""
        training = [order for order in orders if isinstance(order, TrainOrder)]
        if not training:
            return self.edges.measure([order for order in orders if isinstance(order, MeasureOrder)])
        return [
            replace(
                report,
                bank=packed(report.bank),
                momentum=report.momentum and packed(report.momentum),
                waiting=report.waiting and replace(report.waiting, change_W=packed(report.waiting.change_W)),
                updates=packed(report.updates),
                links={name: packed(parts) for name, parts in report.links.items()},
                changes={},
            )
            for report in self.edges.train(training)
        ]


class Dealt(ABC):
    """Edges that were dealt out to processes; the numbers are the simulator's."""

    dealt: Sequence[Sequence[int]]
    """The sites of each process."""

    @abstractmethod
    def ask(self, orders: Mapping[int, list[Order]]) -> list[list[Any]]:
        """Have processes do their orders, and return their reports."""

    @cached_property
    def _process_of(self) -> dict[int, int]:
        return {site: process for process, mine in enumerate(self.dealt) for site in mine}

    def train(self, orders: Sequence[TrainOrder]) -> list[TrainReport]:
        """Have every edge run its order."""
        return self._run(orders)

    def measure(self, orders: Sequence[MeasureOrder]) -> list[MeasureReport]:
        """Have every edge measure."""
        return self._run(orders)

    def _run(self, orders: Sequence[Order]) -> list[Any]:
        of_process: dict[int, list[int]] = {}
        for number, order in enumerate(orders):
            of_process.setdefault(self._process_of[order.site], []).append(number)
        reports = self.ask({process: [ready(orders[n]) for n in mine] for process, mine in of_process.items()})
        numbers = [number for mine in of_process.values() for number in mine]
        found = dict(zip(numbers, chain.from_iterable(reports), strict=True))
        return [found[number] for number in range(len(orders))]


def packed(parts: Parts) -> Parts:
    """Return networks ready to travel: on the CPU, and no views, which would take along all that they look at."""
    return {part: {n: v.detach().cpu().clone() for n, v in params.items()} for part, params in parts.items()}


def ready(order: Order) -> Order:
    """Return an order ready to travel."""
    if isinstance(order, TrainOrder):
        teachers = order.teachers and replace(order.teachers, bank=packed({"": order.teachers.bank})[""])
        links = {name: packed(parts) for name, parts in order.links.items()}
        momentum = order.momentum and packed(order.momentum)
        waiting = order.waiting and replace(order.waiting, change_W=packed(order.waiting.change_W))
        own: dict[str, Any] = {"momentum": momentum, "waiting": waiting, "links": links}
        return replace(order, bank=packed(order.bank), teachers=teachers, broadcast=None, **own)
    return replace(order, bank=packed(order.bank), kept=packed(order.kept))
