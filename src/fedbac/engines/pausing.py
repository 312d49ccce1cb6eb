"""Work that pauses whenever a device is busy with it, so that the host can do something else before it waits."""

from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")
Pausing = Generator[None, None, T]


def through(work: Pausing[T]) -> T:
    """Do work without using its pauses."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result


def begun(work: Pausing[T]) -> Callable[[], T]:
    """Do work up to its first pause, and return what does the rest."""
    try:
        next(work)
    except StopIteration as done:
        result: T = done.value
        return lambda: result
    return lambda: through(work)
