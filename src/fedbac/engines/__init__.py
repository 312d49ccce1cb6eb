"""Engines: how the cloud reaches its edges."""

from collections.abc import Iterator
from typing import Any

from fedbac.config.experiment import Experiment, Runtime
from fedbac.core.state import State
from fedbac.engines.adjusting import adjusted
from fedbac.engines.changing import Changing
from fedbac.engines.prefetch import Prefetching, QueueingTrainer
from fedbac.engines.simulator import Simulator, check_room
from fedbac.federation import Assembled, Federation
from fedbac.local import make_trainer, per_example
from fedbac.rounds.cloud import rounds
from fedbac.rounds.messages import Edges


def connect(experiment: Experiment, federation: Federation, runtime: Runtime) -> Edges:
    """Return the edges of a federation, on the engine that the runtime names."""
    if experiment.task.changes:
        return Changing(experiment, federation, lambda now: _connect(experiment, now, runtime, ahead=False))
    return _connect(experiment, federation, runtime, ahead=not experiment.method.secret)


def _connect(experiment: Experiment, federation: Federation, runtime: Runtime, ahead: bool) -> Edges:
    if runtime.engine == "ray":
        from fedbac.engines.ray import RayEdges  # an extra, imported only when asked for

        return RayEdges(experiment, federation, runtime)
    scheme, gradients = experiment.method.personalization, per_example(experiment, experiment.seed)
    trainer = make_trainer(federation.network, scheme, federation.examples, runtime, gradients)
    goes_on = isinstance(adjusted(trainer, scheme), QueueingTrainer)
    engine = Prefetching if goes_on and ahead else Simulator
    return engine(experiment, federation.sites, trainer, runtime.memory_gib)


def played(
    experiment: Experiment, federation: Assembled, edges: Edges, state: State
) -> Iterator[tuple[dict[str, Any], State]]:
    """Return the rounds after a state, played by edges in their own way if they have one."""
    if isinstance(edges, Prefetching | Changing):
        return edges.rounds(state)
    return rounds(experiment, federation.sites, edges, state)


__all__ = ["Changing", "Prefetching", "Simulator", "check_room", "connect", "played"]
