"""The console command ``fedbac``: it answers Ctrl-C from the first moment, while the rest is still being imported."""

import os
import signal


def main() -> None:
    """Import the command and run it."""
    mine = leave_on_interrupt()
    from fedbac.cli.main import main as command

    if mine:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command()


def leave_on_interrupt() -> bool:
    """Let Ctrl-C end the process without a traceback, unless it is ignored, as in background jobs; return whether."""
    mine = signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _leave)
    if mine:
        signal.signal(signal.SIGINT, _leave)
    return mine


def _leave(number: int, frame: object) -> None:
    """End the process here and now: there is nothing to save, and an exception might be lost in a library's import."""
    os.write(2, b"Stopped before anything began.\n")
    os._exit(130)
