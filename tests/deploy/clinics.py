"""A federation of processes on this machine, over either transport, and the same run in the simulator."""

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil

from fedbac.config.experiment import Experiment
from fedbac.deploy.pki.kits import FederationFolder
from fedbac.deploy.settings import CloudPlace, DeploySettings, EdgePlace, FederationConfig
from fedbac.deploy.trial import Trial, cut_data, free_ports
from fedbac.federation import assemble
from fedbac.runs.configure import Inputs, configure
from fedbac.runs.play import play
from tests.deploy.following import until
from tests.deploy.in_memory import CPU, gathered

ROUNDS = 5000
"""More than are ever played: a test stops the cloud when it has seen enough."""
SMALL = {
    "task.network": {"kind": "mlp", "hidden": [8]},
    "method.selection.fraction": 1.0,  # so that whoever is there takes part
    "method.links.client_up": ["clip", {"kind": "noise", "multiplier": 1e-4}, "top_k", "eight_bits"],
    "method.links.cloud_up": [{"kind": "clip", "norm": 9.0}, {"kind": "noise", "multiplier": 1e-5}],
    "method.aggregation": "median",  # which must hold all clients at their edge
    "method.step": "adam",  # which the cloud remembers
}
PLAIN = {name: SMALL[name] for name in ("task.network", "method.selection.fraction")}
SLIVER = {"task.data_fraction": 0.05, "task.partition.min_edge_test": 5, "task.partition.min_client_samples": 5}


@dataclass(frozen=True)
class Clinic:
    """A federation, the folder with a folder of data per site, and what it computes."""

    folder: FederationFolder
    data: Path
    experiment: Experiment

    def trial(self, folder: Path) -> Trial:
        """Return its processes, which write into a folder."""
        return Trial(self.folder.path / "kits", self.data, folder, self.folder.config.sites())

    def simulated(self, rounds: int) -> list[dict[str, Any]]:
        """Return the first records of the same experiment in the simulator, on everybody's data."""
        sites = {path.name: dict(np.load(path / "data.npz")) for path in self.data.iterdir()}
        task = self.experiment.task
        inputs = Inputs(*gathered(task.dataset, sites, task.clients(), 10))
        playing = play(self.experiment, runtime=CPU, inputs=inputs)
        first = list(islice(playing, rounds))
        playing.close()
        return first


def make_clinic(
    folder: Path,
    transport: Literal["grpc", "nvflare"],
    method: str = "fed-bac",
    counts: tuple[int, ...] = (2, 2),
    min_edges: int = 1,
    settings: Mapping[str, Any] = SMALL,
    min_deadline: float = 30.0,
    **more: Any,
) -> Clinic:
    """Make a federation of edges with so many clients, on free ports of this machine."""
    settings = {**settings, "task.num_edges": len(counts), "task.clients_per_edge": list(counts)}
    settings |= {f"method.personalization.{name}": value for name, value in more.items()}
    experiment = configure(method, "fashion-mnist-mini", rounds=ROUNDS, settings=settings)
    sliver = configure(method, "fashion-mnist-mini", rounds=ROUNDS, settings=settings | SLIVER)
    cut_data(sliver, assemble(sliver), folder / "data")
    ports = free_ports(1 + len(counts))
    cloud, *edges = ({"address": f"127.0.0.1:{port}", "listen": f"127.0.0.1:{port}"} for port in ports)
    config = FederationConfig(
        name="clinic",
        cloud=CloudPlace(**cloud),
        edges=tuple(EdgePlace(**edge, clients=count) for edge, count in zip(edges, counts, strict=True)),
        deploy=DeploySettings(
            heartbeat=1,
            deadline=60,
            min_deadline=min_deadline,
            min_edges=min_edges,
            min_clients=1,
            transport=transport,
        ),
        experiment=experiment.model_dump(mode="json"),
    )
    return Clinic(FederationFolder.init(folder / "clinic", config), folder / "data", experiment)


def family(trial: Trial, name: str) -> list[psutil.Process]:
    """Return the processes of a site: its command, and what that started."""
    command = psutil.Process(trial.processes[name].pid)
    return [command, *command.children(recursive=True)]


def kill(trial: Trial, name: str, patience: float) -> None:
    """Kill the command of a site; what it started ends with it."""
    _, *below = family(trial, name)
    os.kill(trial.processes[name].pid, signal.SIGKILL)
    trial.processes[name].wait()
    until("its processes end too", lambda: not any(process.is_running() for process in below), trial, patience)


def freeze(trial: Trial, *names: str) -> None:
    """Stop all processes of sites, as a machine that hangs."""
    for name in names:
        for process in family(trial, name):
            process.suspend()


def thaw(trial: Trial, *names: str) -> None:
    """Have them go on."""
    for name in names:
        for process in family(trial, name):
            process.resume()
