"""The console command ``fedbac``: it answers Ctrl-C from the first moment, while the rest is still being imported."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def main() -> None:
    """Import the command and run it."""
    _open_streams()
    with leaving_on_interrupt():
        from fedbac.cli.main import main as command
    command()


def _open_streams() -> None:
    """Let streams that were closed (``>&-``) lead nowhere, before a file of a run gets their number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, this one
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115 (it stays open)


@contextmanager
def leaving_on_interrupt() -> Iterator[None]:
    """Let Ctrl-C end the process without a traceback, unless it is ignored, as in background jobs."""
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _leave(number: int, frame: object) -> None:
    """End the process here and now: there is nothing to save, and an exception might be lost in a library's import."""
    os.write(2, b"Stopped before anything began.\n")
    os._exit(130)
