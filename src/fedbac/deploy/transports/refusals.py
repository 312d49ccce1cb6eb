"""Who was turned away, and why: counted, and logged with the address; a flood of strangers does not fill the disk."""

import logging
import threading
from collections import Counter
from typing import Literal

from fedbac.deploy.transports.frames import Budget

Reason = Literal["certificate", "revoked", "name", "version", "no_tls", "other"]

log = logging.getLogger("fedbac")


class Refusals:
    """The refusals of a process, which is one site."""

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
