"""Watching a run from outside: how far it is, by its records."""

from fedbac.runs.records import Record, record_in
from fedbac.runs.store import RunFolder


class Tail:
    """The rounds in a folder as they are written by whomever; reads only what is new."""

    def __init__(self, folder: RunFolder) -> None:
        self.file = folder.rounds_file
        self.rounds, self.last, self._end = 0, b"", 0

    def refresh(self) -> int:
        """Return how many rounds are complete now."""
        try:
            size = self.file.stat().st_size
            if size < self._end:  # what lay beyond the last checkpoint was cut off
                self.rounds, self.last, self._end = 0, b"", 0
            if size > self._end:
                self._read_on()
        except OSError:  # no file, or no longer
            self.rounds, self.last, self._end = 0, b"", 0
        return self.rounds

    def _read_on(self) -> None:
        with self.file.open("rb") as file:
            file.seek(self._end)
            *lines, _ = file.read().split(b"\n")
        if lines:
            self.rounds, self.last = self.rounds + len(lines), lines[-1]
            self._end += sum(len(line) + 1 for line in lines)

    def record(self) -> Record | None:
        """Return the record of the last complete round that was seen; None if it cannot be read."""
        return record_in(self.last)
