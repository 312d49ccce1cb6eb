"""Starts sites that have everything imported already, so that a soak is made of attacks and not of imports."""

import multiprocessing as mp
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedbac.deploy.trial import Trial

PRELOADED = ["fedbac.cli.main", "fedbac.deploy.roles.cloud", "fedbac.deploy.roles.edge", "fedbac.report"]


class Born:
    """A process of the nursery, with the methods of a ``subprocess.Popen`` that a trial needs."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self.pid: int = process.pid

    def poll(self) -> int | None:
        """Return the exit status, once there is one."""
        return None if self._process.is_alive() else self._process.exitcode

    def wait(self, seconds: float | None = None) -> None:
        """Wait for the end."""
        self._process.join(seconds)
        if self.poll() is None:
            raise subprocess.TimeoutExpired("fedbac", seconds or 0.0)

    def send_signal(self, number: int) -> None:
        """Send a signal."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


@dataclass
class Nursed(Trial):
    """A trial whose cloud and edges are the same commands, run by copies of a process that has imported them.

    Clients are quick to start, and are to be as small as they really are.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._context = mp.get_context("forkserver")
        self._context.set_forkserver_preload([*PRELOADED, __name__])

    def start(self, name: str) -> None:
        """Start a site; what it says goes to a file."""
        if self.sites[name].role == "client":
            super().start(name)
            return
        (self.folder / "logs").mkdir(exist_ok=True)
        log = self.folder / "logs" / f"{name}.log"
        process = self._context.Process(target=_live, args=(self.command(name)[3:], str(log)))
        process.start()
        self.processes[name] = Born(process)  # type: ignore[assignment]


def _live(words: Sequence[str], log: str) -> None:
    os.setsid()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(file, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["fedbac", *words]
    from fedbac.cli.main import main

    main()


def nursed(trial: Trial) -> Nursed:
    """Return a trial with the sites of another."""
    return Nursed(trial.kits, trial.data, trial.folder, trial.sites, trial.cloud_options, trial.client_options)
