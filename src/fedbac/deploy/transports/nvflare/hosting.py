"""NVFlare's own processes at a site, which start those of jobs: begun, begun again when they die, and ended."""

import os
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import psutil

from fedbac.deploy import log
from fedbac.deploy.pki.kits import Kit
from fedbac.deploy.transports.nvflare.files import FOLDER, LOOK, RELAY, SiteOrder
from fedbac.errors import DeployError
from fedbac.files import make_folder

PATIENCE = 3.0
"""Seconds that a process has to end by itself."""
PAUSE = 5.0
"""Seconds before a process that died is begun again."""
LOG = "nvflare.log"
ENDS_WITH_US = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Becomes the program of its arguments, which Linux ends when the process that began it dies, however it does."""


class Host:
    """The processes of NVFlare at one site, by the names of their workspaces in the kit."""

    def __init__(self, kit: Kit, workspaces: tuple[str, ...]) -> None:
        self.kit, self.workspaces = kit, workspaces
        for name in workspaces:
            if not (kit.folder / name / "startup" / "sub_start.sh").exists():
                raise DeployError(
                    f"{kit.folder / name}: the startup folder of NVFlare is missing; ask whoever keeps the authority "
                    "to run fedbac federation nvflare and for this kit again"
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
    with closing(Host(kit, (RELAY, FOLDER) if kit.site.role == "edge" else (FOLDER,))) as host:
        host.look_after()
        log.info("run by NVFlare, which logs to %s", kit.folder / FOLDER / LOG)
        while not stop.wait(LOOK):
            host.look_after()


def _begin(workspace: Path) -> psutil.Popen:
    """Begin NVFlare in a workspace, with the Python that runs this as python3.

    It tells others of exceptions that escape to it; by our wish without their text, which may quote data.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    wishes = {"OMP_NUM_THREADS": "1", "NVFLARE_SECURE_LOGGING": "true"}
    make_folder(workspace)
    with (workspace / LOG).open("ab") as out:
        return psutil.Popen(
            [sys.executable, "-c", ENDS_WITH_US, "bash", str(workspace / "startup" / "sub_start.sh"), "--once"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**wishes, **os.environ, "PATH": path},
            start_new_session=True,  # Ctrl-C is for the command, which ends this in its own time
        )
