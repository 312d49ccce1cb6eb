"""The most memory that a parent ever holds, by the number of its children and for a network of 19 MB.

    python benchmarks/parents.py edge 3 10 30

Cloud and edges talk as they always do. Children of the parent that is measured, and theirs, are threads of this process
which train nothing: they send back what they were sent.
"""

import argparse
import re
import tempfile
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from deploying.sites import made

from fedbac.config.experiment import Runtime
from fedbac.core import trees
from fedbac.core.requests import Measured, Trained
from fedbac.deploy.pki.kits import Kit
from fedbac.deploy.roles.data_holder import DataHolder
from fedbac.deploy.roles.edge import run_edge
from fedbac.deploy.settings import CLOUD, DeploySettings
from fedbac.deploy.transports.connect import serve_parent
from fedbac.deploy.trial import Trial
from fedbac.runs.configure import configure

SETTINGS = ["task.network.kind=mlp", "task.network.hidden=[2048,1536]"]
CPU = Runtime(device="cpu", workers=1)


class Idle:
    """A trainer that hands back what it got."""

    path, device = "idle", torch.device("cpu")

    def train(self, requests: Any) -> list[Trained]:
        return [Trained({p: trees.select(it, r.row_C[p]) for p, it in r.bank.items()}, np.ones(1)) for r in requests]

    def evaluate(self, requests: Any) -> list[Measured]:
        found = [np.ones((request.num_models, len(request.owners))) for request in requests]
        return [Measured(ones, ones, np.ones(ones.shape[1], dtype=np.int64)) for ones in found]


class IdleHolder(DataHolder):
    trainer = Idle()  # type: ignore[assignment]


def served(trial: Trial, name: str, stop: threading.Event) -> None:
    """Be a client or an edge."""
    kit, source, state = Kit.load(trial.kits / name), trial.data / name, trial.state(name)
    site, address = kit.site, trial.addresses[kit.site.parent or ""]
    if site.role == "edge":
        tests = str(source) if source.is_dir() else None
        run_edge(kit, tests, stop, CPU, listen=trial.addresses[name], address=address, state=state)
        return
    holder = IdleHolder(name, site.number, site.edge or 0, True, str(source), state, CPU)
    serve_parent(kit, lambda payload, gone: holder.answer(payload), stop, address)


def peak(parent: str, children: int, method: str) -> float:
    """Return the MiB that a parent with so many children held when it held most, in a run of two rounds."""
    sizes = (1, children) if parent == "edge" else (children, 1)
    sizes_set = [f"task.num_edges={sizes[0]}", f"task.clients_per_edge={sizes[1]}"]
    experiment = configure(method, rounds=2, settings=[*SETTINGS, *sizes_set])
    stop = threading.Event()
    with tempfile.TemporaryDirectory(prefix="federation-") as folder, ExitStack() as stack:
        trial = made(Path(folder), experiment, DeploySettings(deadline=300))
        measured = CLOUD if parent == CLOUD else "edge-0"
        stack.callback(trial.stop)
        for name in {CLOUD, measured}:
            trial.start(name)
        for name in trial.sites.keys() - {CLOUD, measured}:
            thread = threading.Thread(target=partial(served, trial, name, stop))
            thread.start()
            stack.callback(thread.join)
        stack.callback(stop.set)
        process, found = trial.processes[measured], 0
        while trial.processes[CLOUD].poll() is None:
            lines = Path(f"/proc/{process.pid}/status").read_text()
            found = max(found, *(int(kib) for kib in re.findall(r"VmHWM:\s+(\d+) kB", lines)), 0)
            stop.wait(0.2)
        if trial.processes[CLOUD].returncode:
            raise SystemExit((Path(folder) / "logs" / "cloud.log").read_text()[-1000:])
    return found / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parent", choices=["edge", CLOUD])
    parser.add_argument("children", type=int, nargs="+")
    parser.add_argument("--method", default="hierfavg")
    options = parser.parse_args()
    for children in options.children:
        print(
            f"{options.parent} with {children}: {peak(options.parent, children, options.method):,.0f} MiB", flush=True
        )


if __name__ == "__main__":
    main()
