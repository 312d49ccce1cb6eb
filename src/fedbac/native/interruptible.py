"""Calls of the kernel that a signal ends at once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_int32
from typing import TypeVar

Result = TypeVar("Result")


def interruptible(work: Callable[[c_int32], Result]) -> Result:
    """Return ``work(stop)``, done in another thread while this one waits.

    Python's signal handlers run on the main thread, and not while it is in the kernel; here it only waits. When a
    handler raises, ``stop`` tells the kernel to end after the samples in hand, and what it computed is lost.
    """
    stop = c_int32(0)
    with ThreadPoolExecutor(max_workers=1) as thread:
        try:
            return thread.submit(work, stop).result()
        except BaseException:
            stop.value = 1
            raise
