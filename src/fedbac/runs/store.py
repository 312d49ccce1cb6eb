"""The run folder: configuration, one record per round, checkpoints, summary. No pickle anywhere.

    config.yaml         everything that decides the numbers; the run repeats from it alone
    rounds.jsonl        one JSON object per completed cloud round
    summary.json        the numbers of the final table
    checkpoint/         round-000012.safetensors and round-000012.json, the newest two

A record is on the disk before its checkpoint, and the checkpoint's manifest (its JSON), written last, vouches for the
tensors by their hash: whenever a process dies, the folder holds a complete round to resume from.
"""

import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fedbac.config.text import read_yaml, to_yaml
from fedbac.core.state import State, flatten, unflatten
from fedbac.errors import CheckpointError, ConfigError, RunFolderError, RunInUseError
from fedbac.runs.files import replacing, write_whole
from fedbac.runs.naming import usable

KEEP_CHECKPOINTS = 2

log = logging.getLogger("fedbac")


@dataclass(frozen=True)
class Run:
    """A run to look at: its configuration, its records and its summary."""

    folder: Path | None
    config: dict[str, Any]
    records: list[dict[str, Any]]
    summary: dict[str, Any]

    @property
    def name(self) -> str:
        """The method's name, and the seed where it is not 0."""
        seed = self.config["experiment"]["seed"]
        return str(self.config["experiment"]["method"]["name"]) + (f" (seed {seed})" if seed else "")


class RunFolder:
    """Writes a run's folder, and reads it back."""

    def __init__(self, path: Path | str) -> None:
        self.path = usable(path)
        self.config_file = self.path / "config.yaml"
        self.rounds_file = self.path / "rounds.jsonl"
        self.summary_file = self.path / "summary.json"
        self.checkpoints = self.path / "checkpoint"

    # ------------------------------------------------------------------------------------------- writing

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process; the lock goes with the process, however it ends."""
        lock = FileLock(self.path / ".lock", timeout=0)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout:
            raise RunInUseError(
                f"{self.path}: another process is running in this folder; wait for it, or choose another --out"
            ) from None
        except OSError as error:
            raise RunFolderError(
                f"{self.path}: it cannot be used as a folder ({error.strerror}); choose another --out"
            ) from error
        try:
            yield
        finally:
            lock.release()

    def has_run(self) -> bool:
        """Whether there is a run in the folder."""
        return self.config_file.exists()

    def clear(self) -> None:
        """Remove the run in the folder (and nothing else that may be there)."""
        for file in (self.rounds_file, self.summary_file, self.config_file):
            file.unlink(missing_ok=True)
        shutil.rmtree(self.checkpoints, ignore_errors=True)

    def drop_checkpoints(self) -> None:
        """Remove the checkpoints of a finished run, which has no more use for them; its records and summary stay."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)

    def finished(self) -> bool:
        """Whether the run in the folder was played to its end."""
        return self.summary_file.exists() and bool(json.loads(self.summary_file.read_text()).get("finished"))

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

    def append(self, record: Mapping[str, Any], state: State, experiment: Mapping[str, Any]) -> None:
        """Add a round: first its record, then its checkpoint, each on the disk before the next begins."""
        line = (json.dumps(record, allow_nan=False) + "\n").encode()
        with self._disk(), self.rounds_file.open("ab") as file:
            end = file.tell()
            try:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                os.truncate(self.rounds_file, end)  # half a line helps nobody
                raise
        self._save_checkpoint(state, experiment)

    def _save_checkpoint(self, state: State, experiment: Mapping[str, Any]) -> None:
        manifest_file = self.checkpoints / f"round-{state.round:06d}.json"
        with self._disk():
            self.checkpoints.mkdir(exist_ok=True)
            with replacing(manifest_file.with_suffix(".safetensors")) as partial:
                try:
                    save_file(flatten(state), partial)
                except SafetensorError as error:  # how the library reports a failed write
                    raise OSError(errno.ENOSPC, str(error)) from error
                digest = _digest(partial)
            manifest = {"round": state.round, "sha256": digest, "experiment": experiment}
            write_whole(manifest_file, json.dumps(manifest))
        for old in sorted(self.checkpoints.glob("round-*.json"))[:-KEEP_CHECKPOINTS]:
            old.unlink(missing_ok=True)
            old.with_suffix(".safetensors").unlink(missing_ok=True)

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = "the disk is full" if error.errno == errno.ENOSPC else f"it cannot be written ({error})"
            raise RunFolderError(
                f"{self.path}: {reason}. All complete rounds are safe; make room, then resume with: "
                f"fedbac resume {self.path}"
            ) from error

    # ------------------------------------------------------------------------------------------- reading

    def read_config(self) -> dict[str, Any]:
        """Return the configuration."""
        if not self.has_run():
            raise RunFolderError(f"{self.path}: there is no run here (no config.yaml)")
        return read_config(self.config_file)

    def read_records(self) -> list[dict[str, Any]]:
        """Return the records of complete rounds, up to the first line that is not one."""
        if not self.rounds_file.exists():
            return []
        records: list[dict[str, Any]] = []
        for line in self.rounds_file.read_bytes().splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                break
            if not isinstance(record, dict) or record.get("round") != len(records) + 1:
                break
            records.append(record)
        return records

    def read(self) -> Run:
        """Return the run for tables and reports."""
        summary = json.loads(self.summary_file.read_text()) if self.summary_file.exists() else {}
        return Run(self.path, self.read_config(), self.read_records(), summary)

    def restore(self, template: State, experiment: Mapping[str, Any]) -> tuple[State, list[dict[str, Any]]]:
        """Return the state after the last complete round and the records up to it; what lies beyond is cut off."""
        records = self.read_records()
        manifests = sorted(self.checkpoints.glob("round-*.json"), reverse=True)
        if records and not manifests and self.finished():
            raise RunFolderError(
                f"{self.path}: the run is finished and its checkpoints were removed, so it cannot be resumed"
            )
        troubles = []
        for manifest in manifests:
            try:
                state = _load(manifest, template, experiment)
            except CheckpointError as error:
                troubles.append(str(error))
                log.warning("%s; trying the checkpoint before it", error)
                continue
            if state.round > len(records):
                troubles.append(
                    f"{self.rounds_file} holds only {len(records)} readable rounds, {manifest} stands at {state.round}"
                )
                continue
            if troubles:
                log.warning("resuming from round %d", state.round)
            self._cut(records[: state.round])
            return state, records[: state.round]
        if troubles:
            raise CheckpointError(
                f"{self.path}: no checkpoint can be used ({'; '.join(troubles)}). "
                "To start over, run again with --overwrite"
            )
        self._cut([])
        return template, []

    def _cut(self, records: Sequence[Mapping[str, Any]]) -> None:
        kept = "".join(json.dumps(record) + "\n" for record in records)
        if not self.rounds_file.exists() or self.rounds_file.read_bytes() != kept.encode():
            with self._disk():
                write_whole(self.rounds_file, kept)


def read_config(path: Path) -> dict[str, Any]:
    """Return the configuration of a run, from its file."""
    config = read_yaml(path)
    if not isinstance(config.get("experiment"), dict):
        raise ConfigError(f"{path}: it has no 'experiment'; a run's config.yaml does, and a task file goes with --task")
    return config


class Tail:
    """The rounds in a folder as they are written by whomever; reads only what is new."""

    def __init__(self, folder: RunFolder) -> None:
        self.file = folder.rounds_file
        self.rounds, self.last, self._end = 0, b"", 0

    def refresh(self) -> int:
        """Return how many rounds are complete now."""
        size = self.file.stat().st_size if self.file.exists() else 0
        if size < self._end:  # what lay beyond the last checkpoint was cut off
            self.rounds, self.last, self._end = 0, b"", 0
        if size > self._end:
            with self.file.open("rb") as file:
                file.seek(self._end)
                *lines, _ = file.read().split(b"\n")
            if lines:
                self.rounds, self.last = self.rounds + len(lines), lines[-1]
                self._end += sum(len(line) + 1 for line in lines)
        return self.rounds

    def record(self) -> dict[str, Any] | None:
        """Return the record of the last complete round that was seen."""
        return json.loads(self.last) if self.last else None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _load(manifest: Path, template: State, experiment: Mapping[str, Any]) -> State:
    tensors = manifest.with_suffix(".safetensors")
    try:
        stated = json.loads(manifest.read_text())
        digest = _digest(tensors)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{manifest}: the checkpoint cannot be read ({error})") from error
    if digest != stated.get("sha256"):
        raise CheckpointError(f"{tensors}: the checkpoint is damaged (its hash is not the one written down)")
    changed = differences(stated["experiment"], experiment)
    if changed:
        raise RunFolderError(
            f"{manifest.parent.parent}: the configuration has changed since the run began ({', '.join(changed)}). "
            "A run resumes only as it began: restore config.yaml, use the version of fedbac that it began with, or "
            "start a new run in another folder"
        )
    try:
        state: State = unflatten(template, load_file(tensors))
    except KeyError as error:
        hint = "was the network or a policy changed, or was it written by another version?"
        raise CheckpointError(f"{tensors}: the checkpoint has no tensor {error}; {hint}") from error
    return replace(state, round=int(stated["round"]))


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Return the paths at which two configuration trees differ, with both values."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = sorted({*old, *new})
        return [line for key in keys for line in differences(old.get(key), new.get(key), f"{path}.{key}".lstrip("."))]
    return [] if old == new else [f"{path}: {old!r} is now {new!r}"]
