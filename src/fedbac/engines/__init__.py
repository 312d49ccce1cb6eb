"""Engines: how the cloud reaches its edges."""

from fedbac.edge import Edges
from fedbac.engines.simulator import Simulator
from fedbac.experiment import Experiment, Runtime
from fedbac.federation import Federation
from fedbac.local import make_trainer


def connect(experiment: Experiment, federation: Federation, runtime: Runtime) -> Edges:
    """Return the edges of a federation, on the engine that the runtime names."""
    if runtime.engine == "ray":
        from fedbac.engines.ray import RayEdges  # an extra, imported only when asked for

        return RayEdges(experiment, federation, runtime)
    trainer = make_trainer(federation.network, experiment.method.personalization, federation.examples, runtime)
    return Simulator(experiment, federation.sites, trainer, runtime.memory_gib)


__all__ = ["Simulator", "connect"]
