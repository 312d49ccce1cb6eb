"""Watching a run from outside: how far it is, by its records."""

from fedbac.runs.records import Record, record_in
from fedbac.runs.store import RunFolder


class Tail:
    """The rounds in a folder as they are written by whomever; reads only what is new."""

    def __init__(self, folder: RunFolder) -> None:
        self.file = folder.rounds_file
        self._start_over()

    def _start_over(self) -> None:
        self.rounds, self.last, self._end = 0, b"", 0

    def refresh(self) -> int:
        """Return how many rounds are complete now."""
        try:
            if self.file.stat().st_size != self._end:
                self._read_on()
        except OSError:  # no file, or no longer
            self._start_over()
        return self.rounds

    def _read_on(self) -> None:
        seen = self.last + b"\n" if self.rounds else b""
        with self.file.open("rb") as file:
            file.seek(self._end - len(seen))
            # A resumed run cuts off what lies beyond its last checkpoint and writes it again, longer or shorter. Each
            # line continues the checksum of the one before, so all lines are the same if the last one is.
            if file.read(len(seen)) != seen:
                self._start_over()
                file.seek(0)
            *lines, _ = file.read().split(b"\n")
        if lines:
            self.rounds, self.last = self.rounds + len(lines), lines[-1]
            self._end += sum(len(line) + 1 for line in lines)

    def record(self) -> Record | None:
        """Return the record of the last complete round that was seen; None if it cannot be read."""
        return record_in(self.last)
