"""The seam between roles and networks: a parent calls its children, a child serves its parent.

Nothing here knows how bytes travel. What travels is whole messages of bytes; what they mean is the roles' business.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from fedbac.errors import DeployError


class Refusal(DeployError):  # noqa: N818 (turning someone away is no error)
    """Turns a child away, or the parent by its welcome; the text is what the other side reads, so it says the fix."""


Greet = Callable[[str, bytes], bytes]
"""Takes a child's name, as its certificate has it, and its hello; returns the welcome, or raises a Refusal.

A transport calls it for one child at a time, from a thread of its own.
"""

Answer = Callable[[bytes, threading.Event], bytes]
"""Takes a request and an event; returns the answer. The event is set once nobody waits for the answer any more."""


class Children(Protocol):
    """A parent's end of the links to its children."""

    def present(self) -> frozenset[str]:
        """Return the children whose link is alive and whose hello was taken."""
        ...

    def seen(self) -> dict[str, float]:
        """Return the seconds since the last sign of life, for everyone who was ever there."""
        ...

    def call(self, messages: Mapping[str, bytes], deadline: float) -> tuple[dict[str, bytes], dict[str, str]]:
        """Send each child its message and wait; return the answers, and a reason for each child that gave none.

        Never raises for a lost child. One that is not present, dies, falls silent or passes the deadline (in seconds)
        is a reason at once.
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
