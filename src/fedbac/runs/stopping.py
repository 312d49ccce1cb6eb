"""Ctrl-C and SIGTERM: the first finishes the round and saves it, the second stops at once."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)

log = logging.getLogger("fedbac")


class Stop:
    """A wish to stop once the round in hand is saved: by a signal while ``caught`` is in force, or by setting it."""

    def __init__(self) -> None:
        self.wanted = False

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Turn the first signal into the wish to stop; the next one does what it did before, or interrupts."""

        def handle(number: int, frame: object) -> None:
            self.wanted = True
            log.warning("Stopping once this round is saved. Press Ctrl-C again to stop at once.")
            restore()
            if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as shells start background jobs
                signal.signal(signal.SIGINT, signal.default_int_handler)

        with _handled_by(handle) as restore:
            yield


class Interrupted(BaseException):
    """Stopped at once, under a name that the command line does not take for itself as it does KeyboardInterrupt."""


@contextmanager
def interrupting() -> Iterator[None]:
    """Let a signal raise ``Interrupted`` wherever no ``Stop`` catches it."""

    def handle(number: int, frame: object) -> None:
        raise Interrupted

    with _handled_by(handle):
        yield


def leave_signals_to_the_parent() -> None:
    """Ignore signals in a worker: a terminal sends Ctrl-C to all processes, and the parent tells workers to stop."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def _handled_by(handle: Callable[[int, object], None]) -> Iterator[Callable[[], None]]:
    """Handle signals; yield a function that puts back what was before, as the end does."""
    if threading.current_thread() is not threading.main_thread():  # Python allows handlers only there
        yield lambda: None
        return
    before = {number: signal.signal(number, handle) for number in SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    try:
        yield restore
    finally:
        restore()
