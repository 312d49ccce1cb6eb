"""Messages cut into frames, and put together again by a receiver that believes nothing it is told."""

import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from fedbac.deploy.spool import SMALL, Payload, Spool
from fedbac.errors import DeployError

CHUNK = 256 * 1024
"""Bytes of a message in one frame. Every frame that arrives is a sign of life, so one must pass over a slow link
before its sender is given up."""
HEADER = struct.Struct("!BQQ")
"""Kind, number of the request, length of the whole message."""
LARGEST_FRAME = HEADER.size + CHUNK


class Kind(IntEnum):
    """What a frame belongs to."""

    PING = 0
    HELLO = 1
    WELCOME = 2
    REQUEST = 3
    ANSWER = 4
    FAILED = 5
    CANCEL = 6

    @property
    def one(self) -> str:
        """Its name in a sentence."""
        return f"{'an' if self is Kind.ANSWER else 'a'} {self.name}"


class Packet(NamedTuple):
    """A whole message."""

    kind: Kind
    number: int
    """Of the request that it is, answers or cancels; 0 for all others."""
    payload: Payload


class FrameError(DeployError):
    """A peer broke the rules of the link; the text says what it sent."""


def framed(kind: Kind, number: int, payload: bytes) -> Iterator[bytes]:
    """Yield the frames of a message, each made when it is asked for."""
    view = memoryview(payload)
    header = HEADER.pack(kind, number, len(payload))
    for start in range(0, max(1, len(payload)), CHUNK):
        yield header + view[start : start + CHUNK]


class Assembler:
    """Puts the messages of one peer together, one at a time.

    ``limits`` has the kinds that the peer may send and the bytes that each may have; what may have none is no message
    but a sign that may come between the frames of one. ``admit`` is told kind and number by the first frame, before
    anything is kept, and raises a FrameError for a message that nobody expects. With a folder, a message that is not
    small is put there.
    """

    def __init__(
        self, limits: Mapping[Kind, int], admit: Callable[[Kind, int], None], folder: Path | None = None
    ) -> None:
        self._limits, self._folder = limits, folder
        self._admit = admit
        self._open: bytes | None = None
        self._chunks: list[memoryview] = []
        self._spool: Spool | None = None
        self._missing = 0

    @property
    def held(self) -> int:
        """Return the bytes kept in memory of a message that is not whole yet."""
        return sum(map(len, self._chunks))

    def take(self, frame: bytes) -> Packet | None:
        """Take the next frame; return the message that it completes."""
        if not HEADER.size <= len(frame) <= LARGEST_FRAME:
            raise FrameError(f"a frame of {len(frame)} bytes")
        header, chunk = frame[: HEADER.size], memoryview(frame)[HEADER.size :]
        code, number, total = HEADER.unpack(header)
        if code not in self._limits:
            raise FrameError(f"a frame of kind {code}, which it may not send")
        kind = Kind(code)
        if not self._limits[kind]:
            if total or len(chunk):
                raise FrameError(f"{kind.one} with content")
            self._admit(kind, number)
            return Packet(kind, number, b"")
        if self._open is None:
            if total > self._limits[kind]:
                raise FrameError(f"{kind.one} of {total:,} bytes, where {self._limits[kind]:,} are allowed")
            self._admit(kind, number)
            self._open, self._missing = header, total
            self._spool = Spool(self._folder) if self._folder is not None and total > SMALL else None
        elif header != self._open:
            raise FrameError(f"{kind.one} inside another message")
        if len(chunk) != min(CHUNK, self._missing):  # whoever sends crumbs keeps the receiver busy
            raise FrameError(f"a chunk of {len(chunk)} bytes, where {min(CHUNK, self._missing)} were due")
        if self._spool is None:
            self._chunks.append(chunk)
        else:
            self._spool.add(chunk)
        self._missing -= len(chunk)
        if self._missing:
            return None
        payload = b"".join(self._chunks) if self._spool is None else self._spool
        self._open, self._chunks, self._spool = None, [], None
        return Packet(kind, number, payload)


class Outbox:
    """What waits to be sent over one link, as an iterator of frames that ends when it is closed.

    Frames are made one at a time as the network takes them, so a message costs no second copy. When nothing waits for
    the length of a heartbeat, a sign of life is sent.
    """

    def __init__(self, heartbeat: float) -> None:
        self._heartbeat = heartbeat
        self._changed = threading.Condition()
        self._waiting: deque[Iterator[bytes]] = deque()
        self._closed = False

    @property
    def empty(self) -> bool:
        """Whether the network has taken everything."""
        with self._changed:
            return not self._waiting

    def put(self, kind: Kind, number: int = 0, payload: bytes = b"") -> None:
        """Send a message after those that wait already."""
        with self._changed:
            if not self._closed:
                self._waiting.append(framed(kind, number, payload))
                self._changed.notify_all()

    def close(self) -> None:
        """Send nothing more, not even what waits."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        with self._changed:
            while True:
                while self._waiting:
                    frame = next(self._waiting[0], None)
                    if frame is not None:
                        return frame
                    self._waiting.popleft()
                if self._closed:
                    raise StopIteration
                if not self._changed.wait_for(lambda: self._waiting or self._closed, self._heartbeat):
                    return next(framed(Kind.PING, 0, b""))


class Budget:
    """How often something may happen: ``burst`` times at once, and ``per_second`` in the long run."""

    def __init__(self, burst: float, per_second: float) -> None:
        self._burst, self._per_second = burst, per_second
        self._left, self._when = burst, time.monotonic()

    def spend(self) -> bool:
        """Count one more; say whether that is still allowed."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._when) * self._per_second)
        self._when = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
