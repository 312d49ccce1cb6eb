"""A client: waits for its edge, and has a process of its own do the work, by bytes through pipes, with an end for what
takes or waits too long. Imports no torch."""

import json
import os
import select
import struct
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Any

from fedbac.deploy import log
from fedbac.deploy.pki.kits import Kit
from fedbac.deploy.protocol.failures import Failure, SiteError
from fedbac.deploy.protocol.heads import kind_of
from fedbac.deploy.transports.connect import serve_parent
from fedbac.errors import DeployError

OK, FAILED = 0, 1
HEADER = struct.Struct("<BQ")
GRACE = 10.0
"""Seconds that work goes on for which nobody waits any more, before its process is ended: most work is shorter."""
LOOK = 0.2
BEFORE_THE_LAST = ("secret_keys", "secret_shares", "secret_fit", "secret_evaluate", "secret_confirm")
IN_A_SUM = 3600.0
"""Seconds without work for which a process lives on that holds the secrets of a sum: slower clients may still train,
and whoever ends before it has said its last word of the sum counts as lost."""


def send(to: IO[bytes], status: int, payload: bytes) -> None:
    """Write one message."""
    to.write(HEADER.pack(status, len(payload)))
    to.write(payload)
    to.flush()


def receive(source: IO[bytes]) -> tuple[int, bytes] | None:
    """Read one message; None at the end."""
    head = source.read(HEADER.size)
    if len(head) < HEADER.size:
        return None
    status, length = HEADER.unpack(head)
    payload = source.read(length)
    return (status, payload) if len(payload) == length else None


class Worker:
    """Answers by a process that is started when it is needed and ended when it has not been for a while."""

    def __init__(self, says: dict[str, Any], idle: float) -> None:
        self.command = [sys.executable, "-m", "fedbac.deploy.roles.worker", json.dumps(says)]
        self.idle = idle
        self.charter: bytes | None = None
        """The message by which the process learned what the run is; one that is started later is told again."""
        self.process: subprocess.Popen[bytes] | None = None
        self.lock = threading.Lock()
        self.used, self.patience = time.monotonic(), idle
        self.closed = threading.Event()
        self.reaper = threading.Thread(target=self._reap, name="fedbac-idle", daemon=True)
        self.reaper.start()

    def start(self) -> None:
        """Start the process, which reads the data first; a DeployError says what is wrong with them."""
        with self.lock:
            self._started()

    def ask(self, payload: bytes, gone: threading.Event) -> bytes:
        """Return the process's answer; work that nobody waits for any more may be ended."""
        with self.lock:
            process = self._started()
            assert process.stdin is not None
            try:
                send(process.stdin, OK, payload)
                answer = self._answer(process, gone)
            except OSError:
                answer = None
            self.used = time.monotonic()
            if answer is None:
                raise SiteError(Failure.ENDED, self._end() or 0)
            if answer[0] == FAILED:
                raise SiteError.decoded(answer[1])
            kind = kind_of(payload)
            self.patience = max(self.idle, IN_A_SUM) if kind in BEFORE_THE_LAST else self.idle
            if kind == "begin":
                self.charter = payload
            return answer[1]

    def close(self) -> None:
        """End the process."""
        self.closed.set()
        with self.lock:
            self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        if self.process is not None and self.process.poll() is None:
            return self.process
        self._end()  # of one that ended by itself, pipes are left
        # Of a process group of its own: Ctrl-C is for the client, which ends it in its own time. It trains with one
        # thread, as many clients may share a machine.
        pipe, env = subprocess.PIPE, {"OMP_NUM_THREADS": "1", **os.environ}
        self.process = subprocess.Popen(self.command, stdin=pipe, stdout=pipe, start_new_session=True, env=env)
        assert self.process.stdout is not None
        first = receive(self.process.stdout)
        self.used = time.monotonic()
        if first is None or first[0] == FAILED:
            code = self._end()
            told = f"the process that trains did not start (exit status {code})" if first is None else first[1].decode()
            raise DeployError(told)
        self._tell_again(self.process)
        return self.process

    def _tell_again(self, process: subprocess.Popen[bytes]) -> None:
        """Tell a new process what the run is, or the parent would, and then send all its request a second time."""
        if self.charter is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):  # whoever asks next finds that the process has ended
            send(process.stdin, OK, self.charter)
            answer = receive(process.stdout)
            if answer is None or answer[0] == FAILED:
                self.charter = None

    def _answer(self, process: subprocess.Popen[bytes], gone: threading.Event) -> tuple[int, bytes] | None:
        assert process.stdout is not None
        since = None
        while not select.select([process.stdout], [], [], LOOK)[0]:
            if gone.is_set() or self.closed.is_set():
                since = since or time.monotonic()
                if self.closed.is_set() or time.monotonic() - since > GRACE:
                    return None
        return receive(process.stdout)

    def _end(self) -> int | None:
        process, self.process = self.process, None
        if process is None:
            return None
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        return process.wait()

    def _reap(self) -> None:
        while not self.closed.wait(min(self.idle, 1.0)):
            if time.monotonic() - self.used > self.patience and self.lock.acquire(blocking=False):
                try:
                    if self.process is not None:
                        log.info("no work for %g seconds: the process that trains is ended", self.idle)
                        self._end()
                finally:
                    self.lock.release()


def run_client(
    kit: Kit,
    source: str,
    stop: threading.Event,
    *,
    address: str | None = None,
    state: Path | None = None,
    idle: float = 60.0,
    device: str = "cpu",
) -> None:
    """Serve the client's edge until ``stop`` is set. The data are read once at the start, to see that they can be."""
    site = kit.site
    says = {"name": site.name, "number": site.number, "edge": site.edge, "source": source, "kit": str(kit.folder)}
    where = {"state": str(state or kit.folder / "state"), "runtime": {"workers": 1, "device": device}}
    with closing(Worker(says | where, idle)) as worker:
        worker.start()
        log.info("its data can be read; dialling %s at %s", site.parent, address or site.parent_address)
        serve_parent(kit, worker.ask, stop, address)
