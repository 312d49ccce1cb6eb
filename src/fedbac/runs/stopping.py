"""Ctrl-C and SIGTERM: the first finishes the round and saves it, the second stops at once."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fedbac.core.signals import SIGNALS, handled_by

log = logging.getLogger("fedbac")

PATIENCE = 0.3
"""Seconds that a signal has to be handled before it is answered all the same."""


class Stop:
    """A wish to stop once the round in hand is saved: by a signal while ``caught`` is in force, or by setting it."""

    def __init__(self) -> None:
        self.wanted = False

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Turn the first signal into the wish to stop; the next one does what it did before, or interrupts."""
        handled = threading.Event()

        def handle(number: int, frame: object) -> None:
            self.wanted = True
            restore()
            if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as shells start background jobs
                signal.signal(signal.SIGINT, signal.default_int_handler)
            handled.set()

        with handled_by(handle) as restore, _acknowledged(handled):
            yield


@contextmanager
def _acknowledged(handled: threading.Event) -> Iterator[None]:
    """Answer the first signal the moment it comes, by a thread: the main one, which handles it, may be in a kernel."""
    if threading.current_thread() is not threading.main_thread():  # Python handles signals only there
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=_answer, args=(reader, handled), daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)
        thread.join()
        os.close(reader)


def _answer(reader: int, handled: threading.Event) -> None:
    while number := os.read(reader, 1):  # nothing at the end
        if number[0] in SIGNALS:
            handled.wait(PATIENCE)  # so that the next signal, however soon after these words, is the second
            log.warning("Stopping once this round is saved. Press Ctrl-C again to stop at once.")
            return


class Interrupted(BaseException):
    """Stopped at once, under a name that the command line does not take for itself as it does KeyboardInterrupt."""


@contextmanager
def interrupting() -> Iterator[None]:
    """Let a signal raise ``Interrupted`` wherever no ``Stop`` catches it."""

    def handle(number: int, frame: object) -> None:
        raise Interrupted

    with handled_by(handle):
        yield
