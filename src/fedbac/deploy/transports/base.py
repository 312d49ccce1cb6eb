"""The seam between roles and networks: a parent calls its children, a child serves its parent; calls are counted."""

import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Literal, Protocol, TypeVar

from fedbac.deploy import log
from fedbac.deploy.pki.credentials import Revoked
from fedbac.deploy.protocol.failures import Failure, SiteError
from fedbac.deploy.protocol.heads import ROOM, kind_of
from fedbac.deploy.spool import Payload
from fedbac.deploy.transports.frames import Budget
from fedbac.errors import DeployError

Reason = Literal["certificate", "revoked", "name", "version", "no_tls", "other"]
Child = TypeVar("Child")
Answered = tuple[Mapping[Child, Payload], dict[Child, str]]
"""By child, answers, and the reasons of those who gave none."""
Handshake = Callable[[str, bytes], bytes]
"""Takes a child's name, as its certificate has it, and its hello; returns the welcome, or raises a Refusal.

A transport calls it for one child at a time, from a thread of its own.
"""
Answer = Callable[[bytes, threading.Event], bytes]
"""Takes a request and an event; returns the answer. The event is set once nobody waits for the answer any more."""
NO_ANSWER = "gave no answer within"
"""So begins the reason of a child that passed its deadline."""
MISSED = 3
"""Heartbeats without a sign of life after which a peer is gone."""


class Refusal(DeployError):  # noqa: N818 (turning someone away is no error)
    """Turns a child away, or the parent by its welcome; the text is what the other side reads, so it says the fix."""

    def __init__(self, text: str, reason: Reason = "other") -> None:
        super().__init__(text)
        self.reason: Reason = reason


class Refusals:
    """Who was turned away from a process, which is one site. A flood of strangers does not fill the disk."""

    def __init__(self, burst: float = 20, per_second: float = 0.2) -> None:
        self.counts: Counter[str] = Counter()
        self._lines, self._unsaid = Budget(burst, per_second), 0
        self._lock = threading.Lock()

    def note(self, who: str, reason: Reason, text: str, level: int = logging.WARNING) -> None:
        """Count a refusal, and log it unless there were many of late."""
        with self._lock:
            self.counts[reason] += 1
            if not self._lines.spend():
                self._unsaid += 1
                return
            more, self._unsaid = f" ({self._unsaid} more refusals were not logged)" * bool(self._unsaid), 0
        log.log(level, "%s was refused: %s%s", who, text, more)


REFUSED = Refusals()


class Children(Protocol):
    """A parent's end of the links to its children."""

    def present(self) -> frozenset[str]:
        """Return the children whose link is alive and whose hello was taken."""

    def seen(self) -> dict[str, float]:
        """Return the seconds since the last sign of life, for everyone who was ever there."""

    def call(self, messages: Mapping[str, bytes], deadline: float, limit: int = ROOM) -> Answered[str]:
        """Send each child its message and wait; return the answers, and a reason for each child that gave none.

        An answer may have ``limit`` bytes. Never raises for a lost child: one that is not present, dies, falls silent
        or passes the deadline (in seconds) is a reason at once.
        """

    def turn_away(self, revoked: bytes) -> bool:
        """End the links of all whose certificates are on a list that the authority signed, and take them no more, if it
        is newer than the one before; return whether it is."""

    def close(self) -> None:
        """End all links and stop listening."""


def replied(work: Callable[[], bytes]) -> tuple[bool, bytes]:
    """Return whether work went well, and its answer, or what the parent may be told of why there is none."""
    try:
        return True, work()
    except Exception as error:
        failure = SiteError.of(error)
        log.error("a request failed: %s", failure)
        log.debug("in full", exc_info=True)
        return False, failure.public.encode()


def sendable(found: bytes, gone: threading.Event, limit: int) -> bytes:
    """Return an answer, if somebody waits for it and it is not too long."""
    if gone.is_set():
        raise SiteError(Failure.NOT_WAITED_FOR)
    if len(found) > limit:
        raise SiteError(Failure.LONG_ANSWER, len(found), limit)
    return found


class Call:
    """One request to one child, and what became of it."""

    def __init__(self, message: bytes, limit: int) -> None:
        self.number = secrets.randbits(63)  # as a signed number of 64 bits has room for
        self.message, self.limit = message, limit
        self.answer: Payload | None = None
        self.reason: str | None = None

    @property
    def done(self) -> bool:
        """Whether there is an answer, or a reason why there is none."""
        return self.answer is not None or self.reason is not None


class ParentLinks:
    """A parent's calls, whatever network carries them."""

    late = 0.0
    """Seconds that the network itself may take longer than the deadline."""

    def __init__(self, revoked: Revoked, handshake: Handshake, heartbeat: float, limit: int) -> None:
        self._revoked, self._shake_hands = revoked, handshake
        self._heartbeat, self._limit = heartbeat, limit
        self._changed = threading.Condition()
        """Guards what becomes of children and of calls."""
        self._handshaking, self._closing = threading.Lock(), threading.Event()

    def call(self, messages: Mapping[str, bytes], deadline: float, limit: int = ROOM) -> Answered[str]:
        """Send each child its message and wait; return the answers, and a reason for each child that gave none.

        A child that is still busy with a request that passed its deadline has one heartbeat to become free.
        """
        began, calls = time.monotonic(), {name: Call(one, min(limit, self._limit)) for name, one in messages.items()}
        with self._changed:
            for name, call in calls.items():
                if len(call.message) > self._limit:
                    call.reason = f"was not sent {len(call.message):,} bytes; {self._limit:,} are allowed"
                else:
                    self._start(name, call, deadline)
            for patience in (min(deadline, self._heartbeat), deadline + self.late):
                left = max(0.0, began + patience - time.monotonic())
                self._changed.wait_for(lambda: all(call.done for call in calls.values()), left)
                for name, call in calls.items():
                    if not call.done and self._waits(name, call):
                        call.reason = Failure.BUSY.value
            for name, call in calls.items():
                if not call.done:
                    call.reason = f"{NO_ANSWER} {deadline:g} s"
                    self._abandon(name, call)
        answers = {name: call.answer for name, call in calls.items() if call.answer is not None}
        return answers, {name: call.reason for name, call in calls.items() if call.reason is not None}

    def turn_away(self, revoked: bytes) -> bool:
        """Have whoever looks after the links find that they are those of revoked sites."""
        with self._changed:
            return self._revoked.take(revoked)

    def _start(self, name: str, call: Call, deadline: float) -> None:
        """Send a request, or have it wait for its turn, or say why not."""
        raise NotImplementedError

    def _waits(self, name: str, call: Call) -> bool:
        """Take back a request that still waits for its turn; return whether it did."""
        return False

    def _abandon(self, name: str, call: Call) -> None:
        """Tell a child that nobody waits any more."""
        raise NotImplementedError


class Counted:
    """Children whose messages are counted, by kind: how many there were, and their bytes without frames."""

    def __init__(self, children: Children, moved: Callable[[int, int], None] = lambda sent, received: None) -> None:
        """``moved`` is told of the bytes that were sent and received."""
        self._call, self._moved = children.call, moved
        self.present, self.seen = children.present, children.seen
        self.turn_away, self.close = children.turn_away, children.close
        self._lock = threading.Lock()
        self._traffic: dict[str, list[int]] = {}

    def traffic(self) -> dict[str, list[int]]:
        """Return messages and bytes so far, by kind."""
        with self._lock:
            return {kind: list(counts) for kind, counts in self._traffic.items()}

    def call(self, messages: Mapping[str, bytes], deadline: float, limit: int = ROOM) -> Answered[str]:
        """Send each child its message and wait; return the answers, and a reason for each child that gave none."""
        here = self.present()
        answers, reasons = self._call(messages, deadline, limit)
        sent = [message for name, message in messages.items() if name in here]
        self._moved(sum(map(len, sent)), sum(map(len, answers.values())))
        with self._lock:
            for message in (*sent, *answers.values()):
                counts = self._traffic.setdefault(kind_of(message), [0, 0])
                counts[0] += 1
                counts[1] += len(message)
        return answers, reasons
