"""Watches what a cloud writes, while it may be killed at any moment."""

import json
import re
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LOOK = 0.05
ANNOUNCED = re.compile(rb"^round (\d+): accuracy", re.MULTILINE)
AGAIN = re.compile(rb"round \d+ is played again")


@dataclass
class Watch:
    """Reads the rounds of a run as they come, and complains if one that was there is not any more."""

    folder: Path
    """Of the federation."""
    records: list[dict[str, Any]] = field(default_factory=list)
    seen: list[float] = field(default_factory=list)
    """When each record was first there."""
    complaints: list[str] = field(default_factory=list)
    unfinished: int = 0
    """Rounds whose record was there before their checkpoint, when the cloud was killed: they are played once more."""

    def __post_init__(self) -> None:
        self._lines: list[bytes] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def since(self, moment: float) -> list[dict[str, Any]]:
        """Return the records of rounds that began after a moment."""
        pairs = zip(list(self.records), list(self.seen), strict=False)
        return [record for record, seen in pairs if seen - record["seconds"] > moment]

    @property
    def log(self) -> bytes:
        file = self.folder / "logs" / "cloud.log"
        return file.read_bytes() if file.exists() else b""

    @property
    def announced(self) -> int:
        """The last round that the cloud said was finished."""
        return max((int(number) for number in ANNOUNCED.findall(self.log)), default=0)

    @property
    def again(self) -> int:
        """How often the cloud said that a round is played again."""
        return len(AGAIN.findall(self.log))

    def _follow(self) -> None:
        while not self._stopped.wait(LOOK):
            self._look()
        self._look()

    def _look(self) -> None:
        file = self.folder / "run" / "rounds.jsonl"
        if not file.exists():
            return
        lines = file.read_bytes().split(b"\n")[:-1]  # what follows the last end of a line is not written yet
        same = 0
        while same < min(len(lines), len(self._lines)) and lines[same] == self._lines[same]:
            same += 1
        if same < len(self._lines):
            if same < len(self._lines) - 1 or self.announced > same:
                self.complaints.append(f"rounds.jsonl kept {same} of {len(self._lines)} rounds")
            else:
                self.unfinished += 1
        now = time.time()
        self.records[same:] = [json.loads(line) for line in lines[same:]]
        self.seen[same:] = [now] * (len(lines) - same)
        self._lines = lines
