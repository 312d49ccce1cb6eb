"""Edges in actors of Ray: on one machine's cores or GPUs, or on a cluster.

An actor holds its clients' data and nothing else; networks and reports travel. An order carries all the state its work
needs, so an actor or a node that dies loses nothing: Ray starts the actor elsewhere and gives it its orders again.
"""

import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from ipaddress import ip_address
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import nn

from fedbac.config.experiment import Experiment, Runtime
from fedbac.core.parts import Parts, Scope
from fedbac.engines.simulator import Simulator
from fedbac.errors import ConfigError, EngineError, Error
from fedbac.federation import Federation
from fedbac.local import Examples, make_trainer, per_example
from fedbac.rounds.messages import MeasureOrder, MeasureReport, Order, Site, TrainOrder, TrainReport

try:
    import ray
    from ray._private import ray_constants
    from ray.exceptions import RayError
except ImportError as error:
    raise ConfigError(
        "runtime.engine: 'ray' needs the package ray, which is not installed; pip install 'fedbac[ray]'"
    ) from error

log = logging.getLogger("fedbac")


def join(runtime: Runtime) -> bool:
    """Connect to the cluster that the runtime names, unless connected already; say whether it was done here."""
    if ray.is_initialized():
        return False
    try:
        with nullcontext() if runtime.address else _on_loopback():
            # Without an address Ray would join any cluster it finds on this machine.
            ray.init(
                address=runtime.address or "local",
                log_to_driver=False,
                configure_logging=False,
                include_dashboard=False,
            )
    except (ConnectionError, RayError, RuntimeError, ValueError) as error:
        if runtime.address:
            raise EngineError(f"runtime.address: no Ray cluster at {runtime.address!r}: {error}") from error
        raise EngineError(
            f"runtime.engine: Ray did not start on this machine: {error}. Try again when it is less busy, or use "
            "--engine simulator."
        ) from error
    if not runtime.address and not ip_address(ray.util.get_node_ip_address()).is_loopback:
        log.warning("Ray listens on all networks of this machine; see docs/scale.md for how to keep strangers out.")
    return True


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Have Ray listen on this machine's loopback address alone, as it does by itself where it forms no clusters. There
    is no argument for it: Ray replaces a loopback address that it is given by one that others can reach."""
    before = getattr(ray_constants, "ENABLE_RAY_CLUSTER", None)
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def plain(error: RayError, what: str) -> Error:
    """Return the error of ours that was raised elsewhere, as the simulator would raise it; else say what failed."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, Error) else EngineError(f"{what}: {error}")


class RemoteTask:
    """A call somewhere on the cluster, with the two verbs of a future that sweeps need."""

    def __init__(self, reference: Any) -> None:
        self.reference = reference

    def done(self) -> bool:
        """Whether it has ended."""
        return bool(ray.wait([self.reference], timeout=0)[0])

    def result(self) -> None:
        """Raise what it raised."""
        try:
            ray.get(self.reference)
        except RayError as error:
            raise plain(error, "a run failed on Ray") from error


@contextmanager
def tasks(runtime: Runtime, function: Callable[..., None]) -> Iterator[Callable[..., RemoteTask]]:
    """Yield a function that runs ``function`` on any free core of the cluster; folders must be on a shared disk."""
    started = join(runtime)
    on_gpu = runtime.device != "cpu" and ray.cluster_resources().get("GPU", 0) > 0
    remote = ray.remote(num_cpus=1, num_gpus=1 if on_gpu else 0, max_retries=-1)(function)
    try:
        yield lambda *words: RemoteTask(remote.remote(*words))
    finally:
        if started:
            ray.shutdown()


class Place(NamedTuple):
    """Where an actor is and how it trains."""

    node: str
    pid: int
    path: str


class EdgeActor:
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

    def place(self) -> Place:
        """Say where this is and how it trains."""
        return Place(ray.get_runtime_context().get_node_id(), os.getpid(), self.edges.path)

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


def packed(parts: Parts) -> Parts:
    """Return networks ready to travel: on the CPU, and no views, which would take along all that they look at."""
    return {part: {n: v.detach().cpu().clone() for n, v in params.items()} for part, params in parts.items()}


class RayEdges:
    """Edges in actors; the numbers are the simulator's."""

    def __init__(self, experiment: Experiment, federation: Federation, runtime: Runtime) -> None:
        self.owns_ray = join(runtime)
        self.device = torch.device("cpu")
        self.keeps: frozenset[Scope] = frozenset()
        self.actors: list[Any] = []
        try:
            self._start(experiment, federation, runtime)
            self.path = self.places()[0].path
        except BaseException:  # nobody else can close what was never returned
            self.close()
            raise

    def _start(self, experiment: Experiment, federation: Federation, runtime: Runtime) -> None:
        one_core = runtime.model_copy(update={"workers": runtime.workers or 1, "engine": "simulator"})
        sites = federation.sites
        gpus = 0 if runtime.device == "cpu" else int(ray.cluster_resources().get("GPU", 0))
        dealt = deal([site.size for site in sites], min(runtime.actors or gpus or len(sites), len(sites)))
        self.actor_of = {site: place for place, mine in enumerate(dealt) for site in mine}
        # Next to no CPU each, spread out, so that survivors of a lost node have room for its edges.
        share: dict[str, Any] = {"num_cpus": 0.001, "scheduling_strategy": "SPREAD"}
        if gpus:
            share["num_gpus"] = gpu_share(len(dealt), gpus)
        remote = ray.remote(max_restarts=-1, max_task_retries=-1, **share)(EdgeActor)
        # Ray forgets what an actor was made of once nobody refers to it, and could then not make it again.
        common = (experiment, sites, federation.network, one_core, math.ceil(len(dealt) / (gpus or 1)))
        self.common = [ray.put(value) for value in common]
        edges = [[edge for site in mine for edge in sites[site].edges] for mine in dealt]
        self.examples = [ray.put(federation.examples.of_edges(mine)) for mine in edges]
        self.actors = [remote.remote(examples, *self.common) for examples in self.examples]

    def places(self) -> list[Place]:
        """Return where every actor is now."""
        return self._get([actor.place.remote() for actor in self.actors])

    def train(self, orders: Sequence[TrainOrder]) -> list[TrainReport]:
        """Have every edge run its order."""
        return self._run(orders)

    def measure(self, orders: Sequence[MeasureOrder]) -> list[MeasureReport]:
        """Have every edge measure."""
        return self._run(orders)

    def _run(self, orders: Sequence[Order]) -> list[Any]:
        of_actor: dict[int, list[int]] = {}
        for number, order in enumerate(orders):
            of_actor.setdefault(self.actor_of[order.site], []).append(number)
        asked = [self.actors[a].run.remote([_ready(orders[n]) for n in mine]) for a, mine in of_actor.items()]
        numbers = [number for mine in of_actor.values() for number in mine]
        found = dict(zip(numbers, chain.from_iterable(self._get(asked)), strict=True))
        return [found[number] for number in range(len(orders))]

    def _get(self, futures: list[Any]) -> list[Any]:
        try:
            return list(ray.get(futures))
        except RayError as error:
            raise plain(error, "an edge could not do its work on Ray") from error

    def close(self) -> None:
        """Stop the actors, and Ray if it was started here."""
        if not ray.is_initialized():  # the interpreter is on its way out
            return
        for actor in self.actors:
            ray.kill(actor)
        if self.owns_ray:
            ray.shutdown()


def _ready(order: Order) -> Order:
    if isinstance(order, TrainOrder):
        teachers = order.teachers and replace(order.teachers, bank=packed({"": order.teachers.bank})[""])
        links = {name: packed(parts) for name, parts in order.links.items()}
        momentum = order.momentum and packed(order.momentum)
        waiting = order.waiting and replace(order.waiting, change_W=packed(order.waiting.change_W))
        own: dict[str, Any] = {"momentum": momentum, "waiting": waiting, "links": links}
        return replace(order, bank=packed(order.bank), teachers=teachers, broadcast=None, **own)
    return replace(order, bank=packed(order.bank), kept=packed(order.kept))


def deal(loads: Sequence[int], actors: int) -> list[list[int]]:
    """Return which sites each actor has: the one with the most examples goes to whoever has the fewest so far, then the
    next one; each has one at least."""
    dealt: list[list[int]] = [[] for _ in range(actors)]
    for site in sorted(range(len(loads)), key=lambda site: (-loads[site], site)):
        least = min(dealt, key=lambda mine: (sum(loads[one] for one in mine), len(mine)))
        least.append(site)
    return [sorted(mine) for mine in dealt]


def gpu_share(num_actors: int, gpus: int) -> float:
    """Return the share of a GPU with which all actors find a place: none can have parts of two GPUs."""
    return 1 / math.ceil(num_actors / gpus)
