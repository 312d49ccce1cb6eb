"""Edges in actors of Ray: on one machine's cores or GPUs, or on a cluster.

An actor holds its clients' data and nothing else; networks and reports travel. An order carries all the state its work
needs, so an actor or a node that dies loses nothing: Ray starts the actor elsewhere and gives it its orders again.
"""

import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from ipaddress import ip_address
from typing import Any, NamedTuple

import torch

from fedbac.config.experiment import Experiment, Runtime
from fedbac.core.parts import Scope
from fedbac.engines.actors import Dealt, EdgeHost, deal, examples_of, gpu_share
from fedbac.errors import ConfigError, EngineError, Error
from fedbac.federation import Federation
from fedbac.rounds.messages import Order

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


class EdgeActor(EdgeHost):
    """Some edges, as an actor of Ray."""

    def place(self) -> Place:
        """Say where this is and how it trains."""
        return Place(ray.get_runtime_context().get_node_id(), os.getpid(), self.edges.path)


class RayEdges(Dealt):
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
        dealt = self.dealt = deal([site.size for site in sites], min(runtime.actors or gpus or len(sites), len(sites)))
        # Next to no CPU each, spread out, so that survivors of a lost node have room for its edges.
        share: dict[str, Any] = {"num_cpus": 0.001, "scheduling_strategy": "SPREAD"}
        if gpus:
            share["num_gpus"] = gpu_share(len(dealt), gpus)
        remote = ray.remote(max_restarts=-1, max_task_retries=-1, **share)(EdgeActor)
        # Ray forgets what an actor was made of once nobody refers to it, and could then not make it again.
        common = (experiment, sites, federation.network, one_core, math.ceil(len(dealt) / (gpus or 1)))
        self.common = [ray.put(value) for value in common]
        self.examples = [ray.put(examples_of(federation, mine)) for mine in dealt]
        self.actors = [remote.remote(examples, *self.common) for examples in self.examples]

    def places(self) -> list[Place]:
        """Return where every actor is now."""
        return self._get([actor.place.remote() for actor in self.actors])

    def ask(self, orders: Mapping[int, list[Order]]) -> list[list[Any]]:
        """Have actors do their orders."""
        return self._get([self.actors[actor].run.remote(mine) for actor, mine in orders.items()])

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
