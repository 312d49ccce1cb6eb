"""NVFlare's own processes at a site, which start those of jobs: begun, begun again when they die, and ended."""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, Self

import psutil

from fedbac.deploy.pki.kits import Kit
from fedbac.deploy.transports.nvflare.project import FOLDER, RELAY
from fedbac.errors import DeployError
from fedbac.files import make_folder, read_json, write_whole

ORDER, OUTCOME, STOP = "fedbac.json", "outcome.json", "stop"


@dataclass(frozen=True)
class SiteOrder:
    """What a site's operator wants: options of fedbac cloud, edge and client."""

    data: str | None = None
    state: str | None = None
    device: str = "cpu"
    out: str | None = None
    rounds: int | None = None
    overwrite: bool = False
    track: str | None = None

    @classmethod
    def read(cls, workspace: Path) -> Self:
        """Return the order in a site's workspace."""
        path = workspace / "local" / ORDER
        try:
            return cls(**read_json(path))
        except (OSError, ValueError, TypeError) as error:
            raise DeployError(f"{path}: it cannot be read; start the site by fedbac cloud, edge or client") from error

    def save(self, kit: Path) -> None:
        """Put the order into a kit."""
        write_whole(make_folder(kit / FOLDER / "local") / ORDER, json.dumps(asdict(self)))

    def begun(self, kit: Path) -> Self:
        """Note that the run has begun: a job that is submitted again goes on with it, and overwrites nothing."""
        if not self.overwrite:
            return self
        order = replace(self, overwrite=False)
        order.save(kit)
        return order


@dataclass(frozen=True)
class Outcome:
    """How the cloud's part of a job ended; there is none where its process died."""

    job: str
    ended: Literal["finished", "stopped", "failed", "refused"]
    """A job that failed may go better the next time; one that the cloud refused to play will not."""
    said: str = ""

    def save(self, kit: Path) -> None:
        """Write it for the supervisor."""
        write_whole(make_folder(kit / "state") / OUTCOME, json.dumps(asdict(self)))

    @classmethod
    def read(cls, kit: Path, job: str) -> Self | None:
        """Return how a job ended; None if its process did not live to say so."""
        try:
            found = cls(**read_json(kit / "state" / OUTCOME))
        except (OSError, ValueError, TypeError):
            return None
        return found if found.job == job else None


def ask_to_stop(kit: Path, wanted: bool) -> None:
    """Ask the run to stop once its round is saved, or take that back."""
    path = make_folder(kit / "state") / STOP
    if wanted:
        write_whole(path, "")
    else:
        path.unlink(missing_ok=True)


def stop_asked(kit: Path) -> bool:
    """Whether the run is to stop."""
    return (kit / "state" / STOP).exists()


PATIENCE = 3.0
"""Seconds that a process has to end by itself."""
PAUSE = 5.0
"""Seconds before a process that died is begun again."""
LOOK = 0.5
LOG = "nvflare.log"
ENDS_WITH_US = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Becomes the program of its arguments, which Linux ends when the process that began it dies, however it does."""

log = logging.getLogger("fedbac")


class Host:
    """The processes of NVFlare at one site, by the names of their workspaces in the kit."""

    def __init__(self, kit: Kit, workspaces: tuple[str, ...]) -> None:
        self.kit, self.workspaces = kit, workspaces
        for name in workspaces:
            if not (kit.folder / name / "startup" / "sub_start.sh").exists():
                raise DeployError(
                    f"{kit.folder / name}: the startup folder of NVFlare is missing; run fedbac federation nvflare, "
                    "then copy the kit again"
                )
        self.processes: dict[str, psutil.Popen] = {}
        self.begun: dict[str, float] = {}

    def look_after(self) -> None:
        """Begin what does not run."""
        for name in self.workspaces:
            process = self.processes.get(name)
            if process is not None and process.poll() is None:
                continue
            if time.monotonic() - self.begun.get(name, -PAUSE) < PAUSE:
                continue
            if process is not None:
                log.warning("the process of %s ended (exit status %s); it is begun again", name, process.returncode)
            self.begun[name] = time.monotonic()
            self.processes[name] = _begin(self.kit.folder / name)

    def close(self) -> None:
        """End all processes, and those that they started."""
        family: list[psutil.Process] = []
        for process in self.processes.values():
            with suppress(psutil.NoSuchProcess):
                family += [*process.children(recursive=True), process]
        for signal_all in ("terminate", "kill"):
            for one in family:
                with suppress(psutil.NoSuchProcess):
                    getattr(one, signal_all)()
            _, family = psutil.wait_procs(family, timeout=PATIENCE)


def run_site(kit: Kit, order: SiteOrder, stop: threading.Event) -> None:
    """Have NVFlare run an edge or a client until ``stop`` is set. An edge is a relay and a client beside it."""
    order.save(kit.folder)
    with hosted(kit, (RELAY, FOLDER) if kit.site.role == "edge" else (FOLDER,)) as host:
        log.info("run by NVFlare, which logs to %s", kit.folder / FOLDER / LOG)
        while not stop.wait(LOOK):
            host.look_after()


@contextmanager
def hosted(kit: Kit, workspaces: tuple[str, ...]) -> Iterator[Host]:
    """Yield NVFlare's processes of a site, begun; at the end they are ended."""
    host = Host(kit, workspaces)
    try:
        host.look_after()
        yield host
    finally:
        host.close()


def _begin(workspace: Path) -> psutil.Popen:
    make_folder(workspace)
    with (workspace / LOG).open("ab") as out:
        return psutil.Popen(
            [sys.executable, "-c", ENDS_WITH_US, "bash", str(workspace / "startup" / "sub_start.sh"), "--once"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for the command, which ends this in its own time
        )


def _environment() -> Mapping[str, str]:
    """Return our environment, in which python3 is the Python that runs this.

    NVFlare tells others of exceptions that escape to it; by our wish without their text, which may quote data.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {"OMP_NUM_THREADS": "1", "NVFLARE_SECURE_LOGGING": "true", **os.environ, "PATH": path}
