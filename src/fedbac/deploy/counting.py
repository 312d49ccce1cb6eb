"""Counts what a parent says to its children and hears from them, so that it can be held against the ledger."""

import re
import threading
from collections.abc import Mapping

from fedbac.deploy.transport import Children

KIND = re.compile(rb'"kind\\": \\"([a-z]{1,16})\\"')
LOOKED_AT = 256
"""Bytes at the beginning of a message, within which it says its kind."""
KINDS = {
    *("enroll", "facts", "roster", "begin", "ready", "stranger", "forgotten", "revoked", "absent", "relay", "relayed"),
    *("train", "trained", "measure", "measured", "fit", "update", "evaluate", "evaluation"),
}
"""Those that are told apart: a child cannot make its parent remember others."""


class Counted:
    """Children whose messages are counted, by kind: how many there were, and their bytes without frames."""

    def __init__(self, children: Children) -> None:
        self._children = children
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

    def call(self, messages: Mapping[str, bytes], deadline: float) -> tuple[dict[str, bytes], dict[str, str]]:
        """Send each child its message and wait; return the answers, and a reason for each child that gave none."""
        here = self._children.present()
        answers, reasons = self._children.call(messages, deadline)
        sent = [message for name, message in messages.items() if name in here]
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


def kind_of(message: bytes) -> str:
    """Return what a message says that it is, without reading it; ``other`` for what nobody here says."""
    found = KIND.search(message[:LOOKED_AT])
    kind = found[1].decode() if found else ""
    return kind if kind in KINDS else "other"
