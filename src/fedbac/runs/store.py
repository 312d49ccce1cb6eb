"""The run folder: configuration, one record per round, checkpoints, summary. No pickle anywhere.

    config.yaml         everything that decides the numbers; the run repeats from it alone
    rounds.jsonl        one JSON object per completed cloud round
    summary.json        the numbers of the final table, for people; computed from the records whenever it is needed
    checkpoint/         round-000012.safetensors and round-000012.json, the newest two

A record is on the disk before its checkpoint, and the checkpoint's manifest (its JSON) comes last: whenever a process
dies, the folder holds a complete round to resume from. On a GPU there may be records beyond it, of rounds that are
played again. Records vouch for the configuration and for each other, manifests for their tensors and for the records
up to them. What does not match is never believed in silence.
"""

import functools
import itertools
import json
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedbac.config.text import read_yaml, to_yaml
from fedbac.core.state import State
from fedbac.errors import CheckpointError, ConfigError, Error, OutputError, RunFolderError, RunInUseError
from fedbac.files import (
    add_folder,
    lines_of,
    make_folder,
    opened,
    read_json,
    read_lines,
    remove,
    remove_empty,
    remove_partial,
    why,
    write_copy,
    write_whole,
)
from fedbac.runs import checkpoints
from fedbac.runs.folders import refuse_strangers, usable
from fedbac.runs.records import Log, Record, Segment, Writer, read_log, record_in, root_of
from fedbac.runs.summary import NEWER, check_experiment, summarize
from fedbac.runs.tracking import OF_TRACKERS

FORMAT = 2
"""Of the folder, in its config.yaml. Folders of format 1, which did not say so, have no checksums."""

START_OVER = "To start over, run again with --overwrite (overwrite=True in Python)"

log = logging.getLogger("fedbac")

_HELD: set[Path] = set()
"""Locks that this process holds."""


@dataclass(frozen=True)
class StoredRun:
    """A run to look at: its configuration, its records and its summary."""

    folder: Path | None
    config: dict[str, Any]
    records: list[dict[str, Any]]
    summary: dict[str, Any]
    segments: Sequence[Segment] = field(default=(), compare=False)
    """Who computed the rounds; empty for runs of versions that did not say."""
    models: Any = field(default=None, repr=False, compare=False)
    """The models of a run that has just been played (``fedbac.runs.models.Models``)."""

    def computed_by(self, round_: int) -> Mapping[str, Any]:
        """Return what computed a round; nothing where the run does not say."""
        return next((segment.by for segment in reversed(self.segments) if segment.first <= round_), {})

    @property
    def name(self) -> str:
        """The method's name, and the seed where it is not 0."""
        seed = self.config["experiment"]["seed"]
        return str(self.config["experiment"]["method"]["name"]) + (f" (seed {seed})" if seed else "")


class RunFolder:
    """Writes a run's folder, and reads it back."""

    def __init__(self, path: Path | str, resume: str | None = None) -> None:
        """``resume`` is the command by which a person resumes the run, where that is not fedbac resume."""
        self.path, self._resume = usable(path), resume
        self.config_file = self.path / "config.yaml"
        self.rounds_file = self.path / "rounds.jsonl"
        self.summary_file = self.path / "summary.json"
        self.checkpoints = self.path / "checkpoint"
        self.lock_file = self.path / ".lock"
        self._lock: os.stat_result | None = None
        self.keep = checkpoints.Keep()
        self.computed_by: dict[str, Any] | None = None
        """What computes the rounds that are added."""
        self._writer: Writer | None = None
        self._unsaved: tuple[State, str, Mapping[str, Any]] | None = None
        self._last_save = -math.inf

    # ------------------------------------------------------------------------------------------- writing

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process; the lock goes with the process, however it ends."""
        lock = FileLock(self.lock_file, timeout=0)
        try:
            add_folder(self.path)
            refuse_strangers((self.config_file, self.rounds_file, self.summary_file, self.lock_file), self.checkpoints)
            lock.acquire()
            self._lock = self.lock_file.stat()
            _HELD.add(self.lock_file.resolve())
        except Timeout:
            who = "another process is running in this folder; wait for it, or choose another folder"
            if self.lock_file.resolve() in _HELD:
                who = "a run that this process began is still open; play it to its end, or call close() on it"
            raise RunInUseError(f"{self.path}: {who}") from None
        except OSError as error:
            raise RunFolderError(
                f"{self.path}: it cannot be used as a folder ({error.strerror}); choose another one"
            ) from error
        try:
            yield
            self.save()
        except BaseException as reason:
            try:
                self.save()
            except Exception as error:  # what ended the run is to be raised
                if str(error) != str(reason):
                    log.warning("%s", error)
            raise
        finally:
            if self._writer is not None:
                self._writer.close()
            self._lock, self._writer, self._unsaved, self._last_save = None, None, None, -math.inf
            _HELD.discard(self.lock_file.resolve())
            lock.release()

    def has_run(self) -> bool:
        """Whether there is a run in the folder."""
        return self.config_file.exists()

    def clear(self) -> None:
        """Remove the run in the folder (and nothing else that may be there)."""
        with self._disk():
            for path in (self.summary_file, self.checkpoints, self.rounds_file, self.config_file):
                remove(path)
            for name in OF_TRACKERS:
                remove(self.path / name)

    def leave(self, *more: str) -> None:
        """Remove the lock of a run that is gone, and these files; the folder itself only if nothing else is there."""
        with self._disk():
            for name in (self.lock_file.name, *more):
                remove(self.path / name)
            remove_empty(self.path)

    def has_rounds(self) -> bool:
        """Whether a round was played in the folder."""
        return self.checkpoints.exists() or (self.rounds_file.exists() and self.rounds_file.stat().st_size > 0)

    def withdraw(self) -> None:
        """Remove a run without rounds, and nothing that may have been there before it."""
        with self.locked(), self._disk():
            for path in (self.rounds_file, self.config_file):
                remove(path)
        self.leave()

    def drop_checkpoints(self) -> None:
        """Remove the checkpoints of a finished run, which has no more use for them; its records and summary stay."""
        with self._disk():
            remove(self.checkpoints)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write the configuration; its time stays that of the first one, by which runs of a comparison are ordered."""
        with self._disk():
            before = self.config_file.stat() if self.has_run() else None
            write_whole(self.config_file, to_yaml(config))
            if before is not None:
                os.utime(self.config_file, ns=(before.st_atime_ns, before.st_mtime_ns))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the summary."""
        with self._disk():
            write_whole(self.summary_file, json.dumps(summary, indent=1) + "\n")

    def append(
        self, record: Mapping[str, Any], state: State, experiment: Mapping[str, Any], seconds_apart: float = 0.0
    ) -> None:
        """Add a round to what was restored: first its record, then its checkpoint, one on the disk before the next.

        Checkpoints are so many seconds apart at least. What is not due is written by ``save``, or when the folder is
        let go; whoever is killed before resumes from an earlier round.
        """
        assert self._writer is not None, "restore comes first"
        self._notice_a_lost_lock()
        with self._disk():
            self._unsaved = state, self._writer.append(record, self.computed_by), experiment
        if time.monotonic() >= self._last_save + seconds_apart:
            self.save()

    def save(self) -> None:
        """Write the checkpoint of the last round, if there is none yet."""
        if self._unsaved is not None:
            self._notice_a_lost_lock()
            with self._disk():
                checkpoints.save(self.checkpoints, *self._unsaved, self.keep)
            self._unsaved, self._last_save = None, time.monotonic()

    def _notice_a_lost_lock(self) -> None:
        try:
            if self._lock is None or os.path.samestat(self._lock, self.lock_file.lstat()):
                return
        except FileNotFoundError:
            pass
        raise RunFolderError(
            f"{self.lock_file}: it was deleted during the run, so another process may be writing here too. What was "
            f"saved before is safe; resume with: {self.resume}"
        )

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except (OSError, OutputError) as error:
            cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
            if not self.path.exists():
                raise RunFolderError(f"{self.path}: the folder was removed during the run") from error
            raise RunFolderError(
                f"{self.path}: it cannot be written ({why(cause) if isinstance(cause, OSError) else cause}). What "
                f"was saved before is safe; mend that, then resume with: {self.resume}"
            ) from error

    # ------------------------------------------------------------------------------------------- reading

    @property
    def resume(self) -> str:
        """The command that resumes the run; that of a federation is resumed by its cloud."""
        try:
            federation = read_config(self.config_file).get("runtime", {}).get("engine") == "federation"
        except (Error, AttributeError):
            federation = False
        return self._resume or ("fedbac cloud KIT" if federation else f"fedbac resume {self.path}")

    def read_config(self) -> dict[str, Any]:
        """Return the configuration."""
        if not self.has_run():
            raise RunFolderError(f"{self.path}: there is no run here (no config.yaml)")
        config = read_config(self.config_file)
        if config.get("format", FORMAT) != FORMAT:
            raise ConfigError(
                f"{self.config_file}: format {config['format']!r} of run folders is not known; use the version of "
                "fedbac that wrote it"
            )
        return config

    def finished(self, until: int | None = None) -> bool:
        """Whether the run was played to its end, or up to a round, and all of its records can be trusted."""
        try:
            config = self.read_config()
            check_experiment(config["experiment"], self.config_file)
            found = self._read_log(config)
        except (ConfigError, RunFolderError):
            return False
        rounds = config["experiment"]["task"]["rounds"]
        return found.trouble is None and len(found.records) >= min(rounds, until or rounds)

    def read(self) -> StoredRun:
        """Return the run for tables and reports; one whose records cannot be trusted is refused."""
        config = self.read_config()
        experiment = config["experiment"]
        check_experiment(experiment, self.config_file)
        # Before the records, as a run in progress goes on writing them.
        stated = max(checkpoints.newest(self.checkpoints), self._summed_up())
        found = self._trusted(config)
        records = found.records
        if len(records) < min(stated, experiment["task"]["rounds"]):
            raise RunFolderError(
                f"{self.rounds_file}: it holds {len(records)} rounds, but {stated} were played; {self._mend()}"
            )
        summary = summarize(experiment, records) if records else {}
        self._compare(summary)
        return StoredRun(self.path, config, records, summary, found.segments)

    @property
    def segments(self) -> list[Segment]:
        """Who computed the rounds that are in the folder while it is being written."""
        return [] if self._writer is None else self._writer.segments

    def read_records(self) -> list[Record]:
        """Return the records of complete rounds; if one cannot be trusted, all are refused."""
        return self._trusted(self.read_config()).records

    def _trusted(self, config: Mapping[str, Any]) -> Log:
        found = self._read_log(config)
        if found.trouble is not None:
            raise RunFolderError(f"{self.rounds_file}: {found.trouble}; {self._mend()}")
        return found

    def _mend(self) -> str:
        return (
            "it was changed after it was written. Restore it, or go back to the last checkpoint that matches with: "
            f"{self.resume}"
        )

    def _read_log(self, config: Mapping[str, Any]) -> Log:
        root = root_of(config, self.config_file)
        found = read_log(self.rounds_file, root, signed="format" in config)
        if found.records and not found.signed:
            _say_unsigned(self.path)
        return found

    def _summed_up(self) -> int:
        """Return how many rounds the summary is of; 0 if there is none, or none that says so."""
        try:
            rounds = read_json(self.summary_file).get("rounds")
        except (OSError, ValueError, AttributeError):
            return 0
        return rounds if isinstance(rounds, int) else 0

    def _compare(self, summary: Mapping[str, Any]) -> None:
        """Say so if the file of the summary, which people read, does not say what the records do."""
        if not summary or not os.path.lexists(self.summary_file):
            return
        try:
            stated = read_json(self.summary_file)
            older = stated["rounds"] < summary["rounds"]  # the run has gone on since
            known = summary.keys() - (NEWER if "accuracy_last" not in stated else set())
            same = older or all(json.dumps(stated[key]) == json.dumps(summary[key]) for key in known)
        except (OSError, ValueError, TypeError, KeyError):
            same = False
        if not same:
            log.warning("%s does not match the records; the numbers used are those of the records", self.summary_file)

    def snapshot(self, to: Path) -> int:
        """Copy the run up to its newest checkpoint, while it may be running, and return of which round that is."""
        if os.path.lexists(to) and (not to.is_dir() or any(to.iterdir())):
            raise ConfigError(f"--out {to}: there is something already; name a new folder for the snapshot")
        self.read_config()
        other, played = RunFolder(make_folder(to)), 0
        while not played and checkpoints.newest(self.checkpoints):  # they may all be replaced between two looks
            played = checkpoints.copy_all(self.checkpoints, make_folder(other.checkpoints))
        kept = itertools.islice(read_lines(self.rounds_file), played)  # on the disk before their checkpoint
        write_whole(other.rounds_file, b"".join(line + b"\n" for line in kept) if played else b"")
        for name in (self.config_file.name, "charter.json"):  # the one of a deployed run
            with suppress(FileNotFoundError), opened(self.path / name) as file:
                write_copy(to / name, file)
        other.read()  # refused unless all of it matches
        return played

    def restore(self, template: State, experiment: Mapping[str, Any]) -> tuple[State, list[Record]]:
        """Return the state after the last complete round and the records up to it; what lies beyond is removed."""
        found = self._read_log(self.read_config()) if self.has_run() else Log([], [], signed=True)
        manifests = checkpoints.found(self.checkpoints)
        if not manifests and len(found.records) > 1:
            if self.finished():
                problem = "the run is finished and its checkpoints were removed, so it cannot be resumed"
                raise RunFolderError(f"{self.path}: {problem}")
            problem = f"no checkpoint is there to resume from, though {len(found.records)} rounds were played"
            raise CheckpointError(f"{self.path}: {problem}. {START_OVER}")
        troubles = [] if found.trouble is None else [f"{self.rounds_file}: {found.trouble}"]
        troubles += [] if self.has_run() else [f"{self.config_file} is missing"] * bool(manifests)
        state, misfits = self._newest(manifests, template, experiment, found)
        troubles += misfits
        if state is not None:
            if troubles:
                log.warning("%s; resuming from round %d", "; ".join(troubles), state.round)
            return state, self._begin(found, state.round)
        played = max(len(found.records), checkpoints.newest(self.checkpoints))
        if troubles and (played > 1 or troubles != misfits):
            raise CheckpointError(f"{self.path}: no checkpoint can be used ({'; '.join(troubles)}). {START_OVER}")
        if troubles:  # as a crash of the system may leave the first round
            log.warning("%s; starting with round 1", "; ".join(troubles))
        return template, self._begin(found, 0)

    def last(self, template: State, experiment: Mapping[str, Any]) -> tuple[list[Record], State]:
        """Return the records up to the newest checkpoint that can be trusted, and its state; nothing is changed."""
        found = self._read_log(self.read_config())
        state, troubles = self._newest(checkpoints.found(self.checkpoints), template, experiment, found)
        if state is None:
            why_not = "; ".join(troubles) or "none was saved, or they were removed when it was finished"
            mend = f"fedbac run {self.config_file} --out NEW" if self.finished() else self.resume
            raise CheckpointError(
                f"{self.path}: there is no checkpoint to take a model from ({why_not}); play it: {mend}"
            )
        return found.records[: state.round], state

    def state_at(self, round_: int, template: State, experiment: Mapping[str, Any]) -> State:
        """Return the state of the checkpoint of a round; one that cannot be trusted is refused."""
        file = self.checkpoints / f"round-{round_:06d}.json"
        return self._state(file, template, experiment, self._trusted(self.read_config()))

    def _newest(
        self, manifests: Sequence[Path], template: State, experiment: Mapping[str, Any], found: Log
    ) -> tuple[State | None, list[str]]:
        """Return the state of the first checkpoint that can be used, if any, and what is wrong with those before it."""
        troubles: list[str] = []
        for file in manifests:
            try:
                return self._state(file, template, experiment, found), troubles
            except CheckpointError as error:
                troubles.append(str(error))
        return None, troubles

    def _state(self, file: Path, template: State, experiment: Mapping[str, Any], found: Log) -> State:
        manifest = checkpoints.read_manifest(file)
        changed = differences(manifest.experiment, experiment)
        if changed:
            raise RunFolderError(
                f"{self.path}: the configuration has changed since the run began ({', '.join(changed)}). "
                "A run resumes only as it began: restore config.yaml and the code it names, use the version of fedbac "
                "that it began with, or start a new run in another folder"
            )
        if not 0 < manifest.round <= len(found.records):
            raise CheckpointError(
                f"{self.rounds_file} can be trusted up to round {len(found.records)}, {file} is of {manifest.round}"
            )
        if manifest.records != found.checks[manifest.round - 1] or (found.signed and not manifest.signed):
            raise CheckpointError(f"{file}: the checkpoint is not one of these records")
        return checkpoints.load(manifest, template)

    def _begin(self, found: Log, count: int) -> list[Record]:
        """Make the folder one of so many rounds, ready for the next; return their records."""
        with self._disk():
            for name in (self.config_file.name, self.rounds_file.name, self.summary_file.name, "report.html"):
                remove_partial(self.path, f"*{name}*")
            checkpoints.tidy(self.checkpoints, count, self.keep)
            if self._summed_up() > count:
                remove(self.summary_file)
            there = self.rounds_file.stat().st_size if self.rounds_file.exists() else None
            lines = itertools.islice(read_lines(self.rounds_file), count) if there else ()
            if there != len(whole := b"".join(line + b"\n" for line in lines)):
                write_whole(self.rounds_file, whole)
            kept = found.up_to(count)
            root = lambda: root_of(self.read_config(), self.config_file)  # noqa: E731
            self._writer = Writer(self.rounds_file, kept, root, self.resume)
        return kept.records


@functools.cache
def _say_unsigned(folder: Path) -> None:
    """Say it once of each folder."""
    log.warning("%s: an earlier version wrote it without checksums, so its records cannot be checked", folder)


def read_config(path: Path) -> dict[str, Any]:
    """Return the configuration of a run, from its file."""
    config = read_yaml(path)
    if not isinstance(config.get("experiment"), dict):
        raise ConfigError(f"{path}: it has no 'experiment'; a run's config.yaml does, and a task file goes with --task")
    for name in ("data", "runtime"):
        if not isinstance(config.get(name, {}), dict):
            raise ConfigError(f"{path}: {name} is {config[name]!r}, not settings; restore it, or remove that line")
    return config


def runs_in(folder: Path) -> list[RunFolder]:
    """Return the run folders that this one is, or that are directly below it, in the order they were laid out in."""
    try:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: there is no such folder")
        inside = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
        here = [RunFolder(path) for path in inside if RunFolder(path).has_run()]
        here.sort(key=lambda place: place.config_file.stat().st_mtime_ns)
    except OSError as error:
        raise ConfigError(f"{error.filename}: it cannot be read ({error.strerror}); allow it, or move it") from error
    return here


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Return the paths at which two configuration trees differ, with both values."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = sorted({*old, *new})
        return [line for key in keys for line in differences(old.get(key), new.get(key), f"{path}.{key}".lstrip("."))]
    return [] if old == new else [f"{path}: {old!r} is now {new!r}"]


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
        with opened(self.file) as file:
            file.seek(self._end - len(seen))
            # A resumed run cuts off what lies beyond its last checkpoint and writes it again, longer or shorter. Each
            # line continues the checksum of the one before, so all lines are the same if the last one is.
            if file.read(len(seen)) != seen:
                self._start_over()
                file.seek(0)
            lines = list(lines_of(file))
        if lines:
            self.rounds, self.last = self.rounds + len(lines), lines[-1]
            self._end += sum(len(line) + 1 for line in lines)

    def record(self) -> Record | None:
        """Return the record of the last complete round that was seen; None if it cannot be read."""
        return record_in(self.last)
