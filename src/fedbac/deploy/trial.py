"""A whole federation on one machine, for a first look: data cut for every site, and every site a process."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedbac.config.experiment import Experiment
from fedbac.data import Dataset
from fedbac.data.sources import FILE
from fedbac.deploy.local_data import read_local
from fedbac.deploy.protocol.charter import outputs
from fedbac.deploy.settings import CLOUD, SiteConfig, client_name, edge_name
from fedbac.errors import DeployError
from fedbac.federation import Federation
from fedbac.files import make_folder, remove, replacing
from fedbac.rounds.record import by_clients

PATIENCE = 10.0
"""Seconds that a site has to end by itself."""


def own_data(experiment: Experiment, source: str) -> Dataset:
    """Return all data of a trial from a file or a function of the user's, with the arrays of a site."""
    data = read_local(source)
    if missing := {"train", "test"} - data.y.keys():
        raise DeployError(f"{source}: a trial needs training and test data; add x_ and y_{sorted(missing)[0]}")
    num_classes = outputs(
        experiment, len(data.classes("train")), data.label_shape, data.example.shape[1:], data.largest_token
    )
    arrays = (data.x["train"], data.y["train"], data.x["test"], data.y["test"])
    return Dataset(experiment.task.dataset, *arrays, num_classes)


def cut_data(experiment: Experiment, federation: Federation, folder: Path) -> None:
    """Write all sites' data as the task partitions them; test data go to edges, or to clients with own models."""
    dataset, shards = federation.dataset, federation.shards
    at_clients = by_clients(experiment.method)
    for edge, clients in enumerate(shards.clients):
        if not at_clients:
            test = shards.test[edge]
            _write(folder / edge_name(edge), {"x_test": dataset.x_test[test], "y_test": dataset.y_test[test]})
        for within, client in enumerate(clients):
            arrays: dict[str, Any] = {}
            for split, indices in (("train", shards.train[client]), ("validation", shards.validation[client])):
                if indices.size:
                    arrays |= {f"x_{split}": dataset.x_train[indices], f"y_{split}": dataset.y_train[indices]}
            share = federation.examples.client_test[client] if at_clients else np.zeros(0, dtype=np.int64)
            if share.size:
                arrays |= {"x_test": dataset.x_test[share], "y_test": dataset.y_test[share]}
            _write(folder / client_name(edge, within), arrays)


def _write(folder: Path, arrays: dict[str, Any]) -> None:
    make_folder(folder)
    with replacing(folder / FILE) as partial, partial.open("wb") as file:
        np.savez(file, **arrays)


@dataclass
class Trial:
    """The processes of a federation on this machine."""

    kits: Path
    """Folder of the kits."""
    data: Path
    """Folder with a folder of data for every client, and for edges that test."""
    folder: Path
    """Where logs, states and the run are written."""
    sites: dict[str, SiteConfig]
    cloud_options: tuple[str, ...] = ()
    client_options: tuple[str, ...] = ()
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        listening = [name for name, site in self.sites.items() if site.role != "client"]
        for name, port in zip(listening, free_ports(len(listening)), strict=True):
            self.addresses[name] = f"127.0.0.1:{port}"

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.folder / "run"

    def state(self, name: str) -> Path:
        """Return where a site keeps its status and what it has of a run; the kit is for the real run."""
        return self.folder / "state" / name

    def command(self, name: str) -> list[str]:
        """Return the command that starts a site."""
        site = self.sites[name]
        words = [sys.executable, "-m", "fedbac", site.role, str(self.kits / name)]
        by_us = site.deploy.transport == "grpc"  # NVFlare's addresses are in its startup folders
        if site.role != "client" and by_us:
            words += ["--listen", self.addresses[name]]
        if site.parent is not None:
            words += ["--parent", self.addresses[site.parent]] if by_us else []
        words += ["--state", str(self.state(name))]
        if site.role == "cloud":
            return [*words, "--out", str(self.run), *self.cloud_options]
        if (self.data / name).is_dir():
            words += ["--data", str(self.data / name)]
        return words if site.role == "edge" else [*words, *self.client_options]

    def start(self, name: str) -> None:
        """Start a site; what it says goes to a file."""
        make_folder(self.folder / "logs")
        with (self.folder / "logs" / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                self.command(name), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Have all sites run; at the end stop those that were started. Logs of an earlier trial are removed."""
        remove(self.folder / "logs")
        try:
            for name in self.sites:
                self.start(name)
            yield
        finally:
            self.stop()

    def wait(self, show: Callable[[str], None]) -> int:
        """Show what the cloud says until it ends; return its exit status. A site that cannot start is an error."""
        cloud = self.processes[CLOUD]
        log = self.folder / "logs" / f"{CLOUD}.log"
        shown = 0
        while True:
            ended = cloud.poll()
            text = log.read_text(errors="replace")
            show(text[shown:])
            shown = len(text)
            if ended is not None:
                return ended
            for name, process in self.processes.items():
                if process.poll() not in (None, 0):
                    said = (self.folder / "logs" / f"{name}.log").read_text(errors="replace").strip()
                    raise DeployError(f"{name} ended: {said[-1000:]}")
            time.sleep(0.2)

    def stop(self) -> None:
        """Ask all sites to end, and end those that do not."""
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        until = time.monotonic() + PATIENCE
        for process in self.processes.values():
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def free_ports(count: int) -> list[int]:
    """Return ports that are free now; they are asked for together, so that all differ."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
