"""The console command ``fedbac``: it answers Ctrl-C from the first moment, while the rest is still being imported."""

import os
import signal


def main() -> None:
    """Import the command and run it."""
    mine = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # background jobs ignore the signal
    if mine:
        signal.signal(signal.SIGINT, _leave)
    from fedbac.cli.main import main as command

    if mine:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command()


def _leave(number: int, frame: object) -> None:
    """End the process here and now: there is nothing to save, and an exception might be lost in a library's import."""
    os.write(2, b"Stopped before anything began.\n")
    os._exit(130)
