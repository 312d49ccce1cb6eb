"""The command's output: nothing that becomes of it, or of its reader, ends the work or holds it up."""

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fedbac.cli.terminal import err, say
from fedbac.files import why

PATIENCE = 1.0
"""Seconds that a reader may hold up the work once, before what follows is kept for it instead."""
KEPT = 1 << 20
"""So many bytes are kept; of more, the oldest are lost."""
END_PATIENCE = 3.0
"""Seconds without a byte taken after which the end gives up what is kept."""


class Lasting:
    """A stream whose reader may go, or stand still, and whose disk may be full: what is written then is lost, and
    nothing else."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._beside: _Beside | None = None
        self.lost: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, or lose, a text."""
        if self._beside is not None:
            self._beside.write(text.encode(self._stream.encoding, self._stream.errors))
        else:
            self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Hand on what was written."""
        if self._beside is None:
            self._attempt(self._stream.flush)

    def never_wait(self) -> None:
        """Write in a thread from now on, as a pipe may be full for good (a stopped ``tee``)."""
        self.flush()
        try:
            number = self._stream.fileno()
        except OSError:  # it is in memory
            return
        self._beside = self._beside or _Beside(lambda data: self._attempt(lambda: _write(number, data)))

    def close(self) -> bool:
        """Return whether the reader took everything, or has gone."""
        self.flush()
        return self._beside is None or self._beside.empty()

    def _attempt(self, do: Callable[[], object]) -> None:
        try:
            do()
        except OSError as error:
            self.lost = error
            # Python keeps what it could not write, and tries again at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


class _Beside:
    """A thread that writes, so that only it may have to wait for good."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._kept: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._late = False
        self._dropped = False
        threading.Thread(target=self._work, name="output", daemon=True).start()

    def write(self, data: bytes) -> None:
        """Hand over; while the reader keeps up, return when it is written, so that two streams keep their order."""
        with self._changed:
            self._kept.append(data)
            while sum(map(len, self._kept)) > KEPT and len(self._kept) > 1:
                self._kept.popleft()
                self._dropped = True
            self._changed.notify_all()
            if not self._late:
                self._late = not self._changed.wait_for(lambda: not self._kept, PATIENCE)

    def empty(self) -> bool:
        """Wait while the reader takes something, and return whether it got everything."""
        with self._changed:
            while (left := len(self._kept)) and self._changed.wait_for(lambda: len(self._kept) < left, END_PATIENCE):
                pass
            return not self._kept and not self._dropped

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._kept))
                data = self._kept[0]
            self._write(data)
            with self._changed:
                if self._kept[0] is data:
                    self._kept.popleft()
                self._late &= bool(self._kept)
                self._changed.notify_all()


def _write(number: int, data: bytes) -> None:
    while data:
        data = data[os.write(number, data) :]


@contextmanager
def lasting() -> Iterator[None]:
    """Let nothing that becomes of the output end the work; say so at the end, unless its reader has gone (``head``)."""
    before = sys.stdout, sys.stderr
    said, warned = Lasting(sys.stdout), Lasting(sys.stderr)
    sys.stdout, sys.stderr = said, warned
    try:
        yield
    finally:
        taken = said.close()
        if said.lost is not None and not isinstance(said.lost, BrokenPipeError):
            say(f"The output could not be written ({why(said.lost)}); what was saved is safe.", err)
        elif not taken:
            say("Nobody read the output, so some of it is lost; what was saved is safe.", err)
        warned.close()
        sys.stdout, sys.stderr = before
        if said.lost is not None or not taken:
            sys.exit(1)


def never_wait() -> None:
    """Begin work that must not stand still because nobody reads what it says."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, Lasting):
            stream.never_wait()
