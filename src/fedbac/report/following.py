"""Runs as they grow: reads folders again when something in them has changed, and says what a page shows of them."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbac.errors import ConfigError, FederationError
from fedbac.report.document import document
from fedbac.report.groups import summarized
from fedbac.report.sections import NAMES, escaped, sections
from fedbac.runs.store import RunFolder, StoredRun

TITLE = "Federated learning, live"

Find = Callable[[], Sequence[RunFolder]]
"""Says which run folders there are now."""
Stamp = tuple[tuple[int, int] | None, ...]


@dataclass(frozen=True)
class Shown:
    """What a page shows at a moment."""

    version: str
    """Another one for every change, and for every start of a server."""
    parts: Mapping[str, str]
    document: Mapping[str, Any]


class Follower:
    """Follows run folders; any thread may look."""

    def __init__(self, find: Find) -> None:
        self.find = find
        self._start, self._count = time.time_ns(), 0
        self._lock = threading.Lock()
        self._seen: dict[Path, tuple[Stamp, StoredRun | str]] = {}
        self.shown = self._show()
        self.refresh()

    def refresh(self) -> None:
        """Look again; ``shown`` is another one afterwards if something has changed."""
        with self._lock:
            now = {}
            for folder in self.find():
                stamp, known = _stamp(folder), self._seen.get(folder.path)
                now[folder.path] = known if known and known[0] == stamp else (stamp, _read(folder))
            if {path: stamp for path, (stamp, _) in now.items()} != {p: stamp for p, (stamp, _) in self._seen.items()}:
                self._seen = now
                self.shown = self._show()

    def _show(self) -> Shown:
        found = [found for _, found in self._seen.values()]
        runs = [found for found in found if isinstance(found, StoredRun) and found.records]
        problems = [found for found in found if isinstance(found, str)]
        nothing = f'<header><h1>{TITLE}</h1><p class="lead">No round is finished yet.</p></header>'
        parts = sections(summarized(runs), TITLE) if runs else dict.fromkeys(NAMES, "") | {"header": nothing}
        parts["header"] += "".join(f'<p class="warn" role="note">{escaped(problem)}</p>' for problem in problems)
        self._count += 1
        version = f"{self._start}-{self._count}"
        shown = document(summarized(runs) if runs else [])
        return Shown(version, parts, shown | {"version": version, "status": _status(found)})


def _status(found: Sequence[StoredRun | str]) -> str:
    """Return in words how far the runs are."""
    runs = [run for run in found if isinstance(run, StoredRun)]
    planned = [int(run.config["experiment"]["task"]["rounds"]) for run in runs]
    finished = sum(len(run.records) >= rounds for run, rounds in zip(runs, planned, strict=True))
    done, total = sum(len(run.records) for run in runs), sum(planned)
    number = f"{len(found)} run{'s' if len(found) != 1 else ''}"
    return f"Live: {number}, {finished} finished; round {done} of {total} in all"


def _stamp(folder: RunFolder) -> Stamp:
    """Return what changes when a run does."""
    stamps: list[tuple[int, int] | None] = []
    for file in (folder.config_file, folder.rounds_file):
        try:
            found = file.stat()
            stamps.append((found.st_size, found.st_mtime_ns))
        except OSError:
            stamps.append(None)
    return tuple(stamps)


def _read(folder: RunFolder) -> StoredRun | str:
    """Return the run, or what is wrong with it; a last line that is still being written is not there yet."""
    try:
        return folder.read()
    except (ConfigError, FederationError) as error:
        return str(error)
    except OSError as error:
        return f"{folder.path}: it cannot be read ({error.strerror})"
