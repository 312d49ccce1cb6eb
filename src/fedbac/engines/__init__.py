"""Engines: how the cloud reaches its edges."""

from fedbac.config.experiment import Experiment, Runtime
from fedbac.engines.adjusting import adjusted
from fedbac.engines.prefetch import Prefetching, QueueingTrainer
from fedbac.engines.simulator import Simulator, check_room
from fedbac.federation import Federation
from fedbac.local import make_trainer, per_example
from fedbac.rounds.messages import Edges


def connect(experiment: Experiment, federation: Federation, runtime: Runtime) -> Edges:
    """Return the edges of a federation, on the engine that the runtime names."""
    if runtime.engine == "ray":
        from fedbac.engines.ray import RayEdges  # an extra, imported only when asked for

        return RayEdges(experiment, federation, runtime)
    scheme, gradients = experiment.method.personalization, per_example(experiment, experiment.seed)
    trainer = make_trainer(federation.network, scheme, federation.examples, runtime, gradients)
    goes_on = isinstance(adjusted(trainer, scheme), QueueingTrainer)
    engine = Prefetching if goes_on and not experiment.method.secret else Simulator
    return engine(experiment, federation.sites, trainer, runtime.memory_gib)


__all__ = ["Prefetching", "Simulator", "check_room", "connect"]
