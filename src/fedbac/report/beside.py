"""The live page of a running command, as a process of its own: what becomes of the page does not touch the runs."""

import logging
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import starlette  # noqa: F401 (what the page needs is missed here, where somebody is told)
import uvicorn  # noqa: F401

from fedbac.errors import ConfigError

log = logging.getLogger("fedbac")

HOST = "127.0.0.1"
END_SECONDS = 2
"""What a reader that does not listen may delay the end."""


def listen(port: int | None) -> socket.socket:
    """Take a port of this machine, any free one if none is asked for."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if port:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((HOST, port or 0))
        listening.listen()  # from now on a reader waits instead of being turned away
    except OSError as error:
        listening.close()
        raise ConfigError(f"--port {port}: it cannot be used ({error.strerror}); choose another one") from error
    return listening


def new_path() -> str:
    """Return a path that nobody can guess."""
    return f"/{secrets.token_urlsafe(16)}/"


def address(listening: socket.socket, path: str) -> str:
    """Return where a page is."""
    return f"http://{HOST}:{listening.getsockname()[1]}{path}"


@contextmanager
def page_beside(folder: Path) -> Iterator[str]:
    """Yield the address of a page about the runs in a folder; at the end all readers have seen the last state."""
    path = new_path()
    with listen(None) as listening:
        number = listening.fileno()
        # A session of its own, so that Ctrl-C is not meant for it; no path among its words, which everybody can read.
        command = [sys.executable, "-P", "-m", "fedbac.report.live", str(number), str(folder)]
        page = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[number], start_new_session=True, bufsize=0)
        where = address(listening, path)
    assert page.stdin is not None
    try:
        with suppress(BrokenPipeError):
            page.stdin.write(f"{path}\n".encode())
        yield where
    finally:
        if page.poll() is not None:
            log.warning("The live page ended before the runs did.")
        page.stdin.close()  # which ends it, as our own end does
        try:
            page.wait(2 * END_SECONDS)
        except subprocess.TimeoutExpired:
            page.kill()
            page.wait()
