"""``rounds.jsonl``: one JSON object per complete round, each with a checksum that continues the one before.

A line ends in ``"check"``: the first 16 hex digits of the SHA-256 of the check before it and of the line without its
own. The first line continues the hash of all that ``config.yaml`` says, ``runtime`` apart. So no line can change,
vanish or change its place unnoticed. A line from which on another environment computes says so in ``"computed_by"``.
Records in memory have neither.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from fedbac.errors import ConfigError, OutputError, RunFolderError
from fedbac.files import read_lines, write_whole
from fedbac.rounds.metrics import JUDGED_AT

Record = dict[str, Any]

CHECK = re.compile(rb', "check": "([0-9a-f]{16})"\}\Z')
"""How a line with a checksum ends."""


BY = "computed_by"


class Segment(NamedTuple):
    """Rounds that one environment computed, up to the next segment."""

    first: int
    by: dict[str, Any]


@dataclass(frozen=True)
class Log:
    """What a file of records holds, up to the first line that cannot be trusted."""

    records: list[Record]
    checks: list[str]
    """Of each record; empty texts where records have none."""
    signed: bool
    """Whether records have checksums; those of earlier versions have none."""
    trouble: str | None = None
    """What is wrong with the line after the last record."""
    segments: list[Segment] = field(default_factory=list)
    """Who computed the rounds; those of earlier versions do not say."""

    def up_to(self, count: int) -> "Log":
        """Return what it says of the first rounds."""
        segments = [segment for segment in self.segments if segment.first <= count]
        return Log(self.records[:count], self.checks[:count], self.signed, segments=segments)


def root_of(config: Mapping[str, Any], source: Path) -> str:
    """Return the hash of a configuration, which the first record continues; where a run is played may change."""
    try:
        json.dumps(config, default=str)  # a report shows all of it
        fixed = {key: value for key, value in config.items() if key != "runtime"}
        return hashlib.sha256(json.dumps(fixed, sort_keys=True, default=str).encode()).hexdigest()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: it is no configuration of a run ({error}); restore it") from error


def read_log(file: Path, root: str, signed: bool) -> Log:
    """Return the records in a file; ``signed`` if they are known to have checksums.

    What follows the last line break is half a line of a process that died, or that is writing now: no trouble.
    """
    try:
        signed = signed or any(map(CHECK.search, read_lines(file)))
        log = Log([], [], signed)
        previous = root if signed else ""
        for number, line in enumerate(read_lines(file), start=1):
            try:
                record, previous = _parse(line, number, previous)
            except ValueError as error:
                return replace(log, trouble=f"line {number} {error}")
            if isinstance(by := record.pop(BY, None), dict):
                log.segments.append(Segment(number, by))
            log.records.append(record)
            log.checks.append(previous)
    except FileNotFoundError:
        return Log([], [], signed)
    except OSError as error:
        raise RunFolderError(f"{file}: it cannot be read ({error.strerror}); put the run's own file back") from error
    return log


def record_in(line: bytes) -> Record | None:
    """Return the record in a line, whatever its checksum; None if there is none."""
    try:
        return _record(line)
    except ValueError:
        return None


class Writer:
    """Adds records to a file that nobody else may touch meanwhile, and notices if somebody does."""

    def __init__(self, file: Path, log: Log, root: Callable[[], str], resume: str) -> None:
        """``resume`` is the command that resumes the run."""
        self.file, self.resume = file, resume
        self.check = log.checks[-1] if log.checks else None
        self.signed = log.signed or not log.records
        self.segments = list(log.segments)
        self._root = root
        self._rounds = len(log.records)
        # A deleted file stays readable through its handle until that is closed.
        self._handle = os.open(file, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW)
        self._size = os.fstat(self._handle).st_size

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._handle)

    def append(self, record: Mapping[str, Any], by: dict[str, Any] | None = None) -> str:
        """Put a record on the disk and return its check; an empty text in a file whose records have none.

        ``by`` is what computed it; it is written where that has changed.
        """
        self._notice()
        began = by is not None and (not self.segments or self.segments[-1].by != by)
        record = {**record, BY: by} if began else record
        body, check = json.dumps(record, allow_nan=False).encode(), ""
        if self.signed:
            check = _continued(self._root() if self.check is None else self.check, body)
            body = body[:-1] + f', "check": "{check}"}}'.encode()
        line = memoryview(body + b"\n")
        try:
            while line:
                line = line[os.write(self._handle, line) :]
            os.fsync(self._handle)
        except OSError:
            os.ftruncate(self._handle, self._size)  # half a line helps nobody
            raise
        self.check, self._size, self._rounds = check, self._size + len(body) + 1, self._rounds + 1
        if began and by is not None:
            self.segments.append(Segment(self._rounds, by))
        return check

    def _notice(self) -> None:
        ours = os.fstat(self._handle)
        try:
            there = os.stat(self.file, follow_symlinks=False)
        except FileNotFoundError:
            raise RunFolderError(f"{self.file}: it was deleted during the run; {self._put_back()}") from None
        if not os.path.samestat(ours, there) or ours.st_size != self._size:
            raise RunFolderError(
                f"{self.file}: somebody else changed it during the run, so no more rounds are added to it; see what "
                f"it is, then resume with: {self.resume}"
            )

    def _put_back(self) -> str:
        try:
            write_whole(self.file, os.pread(self._handle, self._size, 0))
        except OutputError as error:
            return f"its folder is gone too, or cannot be written ({error})"
        return f"all rounds that were in it have been put back, resume with: {self.resume}"


def _parse(line: bytes, number: int, previous: str) -> tuple[Record, str]:
    """Return a record and its check; a ValueError says what is wrong with the line."""
    check = ""
    if previous:
        end = CHECK.search(line)
        line = line[: end.start()] + b"}" if end else line
        check = _continued(previous, line)
        if end is None or end[1] != check.encode():
            also = ", which covers config.yaml too" if number == 1 else ""
            raise ValueError(f"does not match its checksum{also}")
    record = _record(line)
    if record["round"] != number:
        raise ValueError(f"holds round {record['round']}")
    return record, check


def _record(line: bytes) -> Record:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError("is no record") from error
    if not isinstance(record, dict):
        raise ValueError("is no record")
    for key, fits in (FIELDS | {key: fits for key, fits in SOMETIMES.items() if key in record}).items():
        if key not in record or not fits(record[key]):
            raise ValueError(f"has {'a strange' if key in record else 'no'} {key!r}")
    return record


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_number_or_none(value: Any) -> bool:
    return value is None or _is_number(value)


def _are_bytes(value: Any) -> bool:
    return _is_number(value) or (isinstance(value, dict) and all(map(_are_bytes, value.values())))


def _are_edges(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_number_or_none, value))


def _is_moment(value: Any) -> bool:
    fits = isinstance(value, dict) and _is_number(value.get("accuracy")) and _are_edges(value.get("accuracy_per_edge"))
    return value is None or fits


FIELDS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("round", "accuracy", "accuracy_std", "accuracy_min", "accuracy_max"), _is_number),
    **dict.fromkeys(("accuracy_weighted", "moves", "active_clusters", "seconds"), _is_number),
    **dict.fromkeys(("accuracy_global", "loss"), _is_number_or_none),
    **dict.fromkeys(("accuracy_per_edge", "assignment"), _are_edges),
    "failed": lambda value: isinstance(value, list),
    "bytes": lambda value: isinstance(value, dict) and _are_bytes(value),
}
"""What summaries and reports need of every record."""
SOMETIMES: dict[str, Callable[[Any], bool]] = {
    "decided": lambda value: isinstance(value, list) and all(isinstance(one, int) for one in value),
    **dict.fromkeys(JUDGED_AT, _is_moment),
}
"""What only some records have."""


def _continued(check: str, body: bytes) -> str:
    return hashlib.sha256(check.encode() + body).hexdigest()[:16]
