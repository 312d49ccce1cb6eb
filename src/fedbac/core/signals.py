"""Ctrl-C and SIGTERM: who handles them, and when they are held back."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def handled_by(handle: Callable[[int, object], None]) -> Iterator[Callable[[], None]]:
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


@contextmanager
def held() -> Iterator[None]:
    """Hold signals back until the end; processes started meanwhile are born with them blocked. So a process is started
    whole or not at all, and one that is still importing does not die of a Ctrl-C, which a terminal sends to all
    processes."""
    came: list[int] = []
    try:
        with handled_by(lambda number, frame: came.append(number)), _blocked():
            yield
    finally:
        for number in came:
            signal.raise_signal(number)


@contextmanager
def _blocked() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
