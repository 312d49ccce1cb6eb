"""The console command ``fedbac``: it answers Ctrl-C from the first moment, while the rest is still being imported."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def main() -> None:
    """Import the command and run it."""
    with leaving_on_interrupt():
        from fedbac.cli.main import main as command
    command()


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
