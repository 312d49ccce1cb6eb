"""The run folder: configuration, one record per round, checkpoints, summary. No pickle anywhere.

    config.yaml         everything that decides the numbers; the run repeats from it alone
    rounds.jsonl        one JSON object per completed cloud round
    summary.json        the numbers of the final table
    checkpoint/         round-000012.safetensors and round-000012.json, the newest two

A record is on the disk before its checkpoint, and a checkpoint's JSON, written last, vouches for its tensors by their
hash: whenever a process dies, the folder holds a complete round to go on from.
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

import numpy as np
import torch
import yaml
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedbac.errors import CheckpointError, RunFolderError, RunInUseError
from fedbac.rounds.cloud import State
from fedbac.core.parts import Parts

KEEP_CHECKPOINTS = 2
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same, but many times as fast where it was built

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
        self.path = Path(path)
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
        """Remove the checkpoints of a finished run, which nothing goes on from; its records and summary stay."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)

    def finished(self) -> bool:
        """Whether the run in the folder was played to its end."""
        return self.summary_file.exists() and bool(json.loads(self.summary_file.read_text()).get("finished"))

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write the configuration."""
        text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
        self._replace(self.config_file, text.encode())

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the summary."""
        self._replace(self.summary_file, (json.dumps(summary, indent=1) + "\n").encode())

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
        with self._disk():
            self.checkpoints.mkdir(exist_ok=True)
            name = f"round-{state.round:06d}"
            tensors = self.checkpoints / f"{name}.safetensors"
            partial = tensors.with_suffix(".partial")
            try:
                save_file(flatten(state), partial)
            except SafetensorError as error:  # how the library reports a failed write
                partial.unlink(missing_ok=True)
                raise OSError(errno.ENOSPC, str(error)) from error
            _sync(partial)
            digest = hashlib.sha256(partial.read_bytes()).hexdigest()
            os.replace(partial, tensors)
        promise = {"round": state.round, "sha256": digest, "experiment": experiment}
        self._replace(self.checkpoints / f"{name}.json", json.dumps(promise).encode())
        for old in sorted(self.checkpoints.glob("round-*.json"))[:-KEEP_CHECKPOINTS]:
            old.unlink(missing_ok=True)
            old.with_suffix(".safetensors").unlink(missing_ok=True)

    def _replace(self, path: Path, content: bytes) -> None:
        """Write a file so that at any moment either the old or the new one is there, whole."""
        partial = path.with_name(path.name + ".partial")
        with self._disk():
            try:
                with partial.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(partial, path)
            except OSError:
                partial.unlink(missing_ok=True)
                raise

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = "the disk is full" if error.errno == errno.ENOSPC else f"it cannot be written ({error})"
            raise RunFolderError(
                f"{self.path}: {reason}. All complete rounds are safe; make room and go on with "
                f"fedbac resume {self.path}"
            ) from error

    # ------------------------------------------------------------------------------------------- reading

    def read_config(self) -> dict[str, Any]:
        """Return the configuration."""
        if not self.has_run():
            raise RunFolderError(f"{self.path}: there is no run here (no config.yaml)")
        try:
            config = yaml.load(self.config_file.read_text(encoding="utf-8"), Loader=_LOADER)
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise RunFolderError(f"{self.config_file}: it is not readable YAML: {error}") from error
        if not isinstance(config, dict) or "experiment" not in config:
            raise RunFolderError(f"{self.config_file}: it has no 'experiment', so it is not the configuration of a run")
        return config

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
        promises = sorted(self.checkpoints.glob("round-*.json"), reverse=True)
        if records and not promises and self.finished():
            raise RunFolderError(
                f"{self.path}: the run is finished and its checkpoints were removed, so there is nothing to go on from"
            )
        troubles = []
        for promise in promises:
            try:
                state = _load(promise, template, experiment)
            except CheckpointError as error:
                troubles.append(str(error))
                log.warning("%s; trying the checkpoint before it", error)
                continue
            if state.round > len(records):
                troubles.append(
                    f"{self.rounds_file} holds only {len(records)} readable rounds, {promise} stands at {state.round}"
                )
                continue
            if troubles:
                log.warning("going on from round %d", state.round)
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
            self._replace(self.rounds_file, kept.encode())


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _load(promise: Path, template: State, experiment: Mapping[str, Any]) -> State:
    tensors = promise.with_suffix(".safetensors")
    try:
        stated = json.loads(promise.read_text())
        content = tensors.read_bytes()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{promise}: the checkpoint cannot be read ({error})") from error
    if hashlib.sha256(content).hexdigest() != stated.get("sha256"):
        raise CheckpointError(f"{tensors}: the checkpoint is damaged (its hash is not the one written down)")
    changed = differences(stated["experiment"], experiment)
    if changed:
        raise RunFolderError(
            f"{promise.parent.parent}: the configuration has changed since the run began ({', '.join(changed)}). "
            "A run goes on only as it began; put config.yaml back, use the version of fedbac that it began with, or "
            "start a new run in another folder"
        )
    return unflatten(template, load_file(tensors), int(stated["round"]))


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Return the paths at which two configuration trees differ, with both values."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = sorted({*old, *new})
        return [line for key in keys for line in differences(old.get(key), new.get(key), f"{path}.{key}".lstrip("."))]
    return [] if old == new else [f"{path}: {old!r} is now {new!r}"]


# ------------------------------------------------------------------------------------- states as named tensors


def flatten(state: State) -> dict[str, Tensor]:
    """Return a state as tensors named by their path."""
    flat: dict[str, Tensor] = {}
    _put_parts(flat, "parts", state.parts)
    for name in ("label_M", "moved_M", "used_K"):
        flat[name] = torch.from_numpy(np.ascontiguousarray(getattr(state, name)))
    flat["overfitting"] = torch.tensor(state.overfitting, dtype=torch.float64)
    flat["overfitted"] = torch.tensor(state.overfitted)
    for owner, policy in [("clustering", state.clustering), *_numbered("selection", state.selection_M)]:
        for field, array in policy._asdict().items():
            flat[f"{owner}/{field}"] = torch.from_numpy(np.array(array, order="C"))
    for owner, momentum in _numbered("momentum", state.momentum_M):
        if momentum is not None:
            _put_parts(flat, owner, momentum)
    return flat


def unflatten(template: State, flat: Mapping[str, Tensor], round_: int) -> State:
    """Return the state whose tensors these are; the template, a fresh start, says what there must be."""

    def policy(owner: str, like: Any) -> Any:
        return type(like)(**{field: flat[f"{owner}/{field}"].numpy() for field in like._fields})

    try:
        return replace(
            template,
            round=round_,
            parts=_take_parts(flat, "parts", template.parts),
            label_M=flat["label_M"].numpy(),
            moved_M=flat["moved_M"].numpy(),
            used_K=flat["used_K"].numpy(),
            overfitting=flat["overfitting"].item(),
            overfitted=bool(flat["overfitted"]),
            clustering=policy("clustering", template.clustering),
            selection_M=tuple(policy(owner, like) for owner, like in _numbered("selection", template.selection_M)),
            momentum_M=tuple(
                None if like is None else _take_parts(flat, owner, like)
                for owner, like in _numbered("momentum", template.momentum_M)
            ),
        )
    except KeyError as error:
        changed = "was the network or a policy changed, or was it written by another version?"
        raise CheckpointError(f"the checkpoint has no tensor {error}; {changed}") from error


def _numbered(name: str, items: Sequence[Any]) -> list[tuple[str, Any]]:
    return [(f"{name}/{index}", item) for index, item in enumerate(items)]


def _put_parts(flat: dict[str, Tensor], owner: str, parts: Parts) -> None:
    for part, params in parts.items():
        for name, value in params.items():
            flat[f"{owner}/{part}/{name}"] = value.detach().cpu().contiguous()


def _take_parts(flat: Mapping[str, Tensor], owner: str, like: Parts) -> Parts:
    return {
        part: {name: flat[f"{owner}/{part}/{name}"].to(value.device) for name, value in params.items()}
        for part, params in like.items()
    }
