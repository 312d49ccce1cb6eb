"""The seam between roles and networks: a parent calls its children, a child serves its parent; calls are counted."""

import secrets
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from fedbac.deploy.protocol.messages import kind_of
from fedbac.deploy.protocol.wire import ROOM
from fedbac.deploy.transports.refusals import Reason
from fedbac.errors import DeployError


class Refusal(DeployError):  # noqa: N818 (turning someone away is no error)
    """Turns a child away, or the parent by its welcome; the text is what the other side reads, so it says the fix."""

    def __init__(self, text: str, reason: Reason = "other") -> None:
        super().__init__(text)
        self.reason: Reason = reason


Handshake = Callable[[str, bytes], bytes]
"""Takes a child's name, as its certificate has it, and its hello; returns the welcome, or raises a Refusal.

A transport calls it for one child at a time, from a thread of its own.
"""

Answer = Callable[[bytes, threading.Event], bytes]
"""Takes a request and an event; returns the answer. The event is set once nobody waits for the answer any more."""


NO_ANSWER = "gave no answer within"
"""So begins the reason of a child that passed its deadline."""


class Children(Protocol):
    """A parent's end of the links to its children."""

    def present(self) -> frozenset[str]:
        """Return the children whose link is alive and whose hello was taken."""
        ...

    def seen(self) -> dict[str, float]:
        """Return the seconds since the last sign of life, for everyone who was ever there."""
        ...

    def call(
        self, messages: Mapping[str, bytes], deadline: float, limit: int = ROOM
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        """Send each child its message and wait; return the answers, and a reason for each child that gave none.

        An answer may have ``limit`` bytes. Never raises for a lost child: one that is not present, dies, falls silent
        or passes the deadline (in seconds) is a reason at once.
        """
        ...

    def turn_away(self, revoked: bytes) -> None:
        """End the links of all whose certificates are on a list that the authority signed, and take them no more."""
        ...

    def close(self) -> None:
        """End all links and stop listening."""
        ...


class Parent(Protocol):
    """A child's end of the link to its parent."""

    def serve(
        self,
        hello: Callable[[], bytes],
        welcomed: Callable[[bytes], None],
        answer: Answer,
        stop: threading.Event,
    ) -> None:
        """Answer the parent's requests, one at a time, until ``stop`` is set.

        Dials, says hello, is welcomed and answers; when the link is lost it dials again. An exception of ``answer`` is
        logged here, and the parent is told what ``SiteError`` lets it be told. A refusal, by the parent or by
        ``welcomed``, is logged and tried again later, since an operator may mend its cause.
        """
        ...


class Call:
    """One request to one child, and what became of it."""

    def __init__(self, message: bytes, limit: int) -> None:
        self.number = secrets.randbits(63)  # as a signed number of 64 bits has room for
        self.message, self.limit = message, limit
        self.answer: bytes | None = None
        self.reason: str | None = None

    @property
    def done(self) -> bool:
        """Whether there is an answer, or a reason why there is none."""
        return self.answer is not None or self.reason is not None


class Counted:
    """Children whose messages are counted, by kind: how many there were, and their bytes without frames."""

    def __init__(self, children: Children, moved: Callable[[int, int], None] = lambda sent, received: None) -> None:
        """``moved`` is told of the bytes that were sent and received."""
        self._children, self._moved = children, moved
        self._lock = threading.Lock()
        self._traffic: dict[str, list[int]] = {}

    def traffic(self) -> dict[str, list[int]]:
        """Return messages and bytes so far, by kind."""
        with self._lock:
            return {kind: list(counts) for kind, counts in self._traffic.items()}

    def present(self) -> frozenset[str]:
        """Return the children whose link is alive and whose hello was taken."""
        return self._children.present()

    def seen(self) -> dict[str, float]:
        """Return the seconds since the last sign of life, for everyone who was ever there."""
        return self._children.seen()

    def call(
        self, messages: Mapping[str, bytes], deadline: float, limit: int = ROOM
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        """Send each child its message and wait; return the answers, and a reason for each child that gave none."""
        here = self._children.present()
        answers, reasons = self._children.call(messages, deadline, limit)
        sent = [message for name, message in messages.items() if name in here]
        self._moved(sum(map(len, sent)), sum(map(len, answers.values())))
        with self._lock:
            for message in (*sent, *answers.values()):
                counts = self._traffic.setdefault(kind_of(message), [0, 0])
                counts[0] += 1
                counts[1] += len(message)
        return answers, reasons

    def turn_away(self, revoked: bytes) -> None:
        """End the links of all whose certificates are on a list that the authority signed, and take them no more."""
        self._children.turn_away(revoked)

    def close(self) -> None:
        """End all links and stop listening."""
        self._children.close()
