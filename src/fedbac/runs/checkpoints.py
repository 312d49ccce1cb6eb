"""Checkpoints: the state after a round in two files, tensors and a manifest that vouches for them and for itself.

``round-000012.json`` is written last. It holds the round, the hash of ``round-000012.safetensors``, the check of the
record of that round, the configuration that decides the numbers, and the hash of all this.
"""

import errno
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fedbac.config.experiment import Experiment
from fedbac.core.state import State, flatten, unflatten
from fedbac.errors import CheckpointError
from fedbac.files import add_folder, opened, read_json, remove, remove_partial, replacing, write_copy, write_whole

NAME = re.compile(r"round-(\d{6,})\.(json|safetensors)")
ANOTHER = "was the network or a policy changed, or was it written by another version?"


@dataclass(frozen=True)
class Keep:
    """Which checkpoints stay: the newest few, and those of every so many rounds."""

    last: int = 2
    every: int | None = None

    def whole(self, round_: int) -> bool:
        """Whether the checkpoint of a round stays for good."""
        return self.every is not None and round_ % self.every == 0


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself."""

    file: Path
    round: int
    sha256: str
    """Of the tensors."""
    records: str
    """The check of the record of the round; empty where records have none."""
    experiment: dict[str, Any]
    signed: bool

    @property
    def tensors(self) -> Path:
        """The file of the tensors."""
        return self.file.with_suffix(".safetensors")


def save(folder: Path, state: State, check: str, experiment: Mapping[str, Any], keep: Keep) -> None:
    """Write the checkpoint of a state, and remove those that need not be kept."""
    add_folder(folder)
    file = folder / f"round-{state.round:06d}.json"
    with replacing(file.with_suffix(".safetensors"), sync_folder=False) as partial:
        try:
            save_file(flatten(state), partial)
        except SafetensorError as error:  # how the library reports a failed write
            raise OSError(errno.ENOSPC, str(error)) from error
        digest = _digest(partial)
    stated = {"round": state.round, "sha256": digest, "records": check, "experiment": experiment}
    write_whole(file, json.dumps(stated | {"check": _check(stated)}))
    tidy(folder, state.round, keep)


def found(folder: Path) -> list[Path]:
    """Return the manifests, the newest first; their names alone are looked at."""
    return [file for _, file in sorted(_files(folder), reverse=True) if file.suffix == ".json"]


def rounds_in(folder: Path) -> set[int]:
    """Return the rounds that have a manifest, by their names."""
    return {round_ for round_, file in _files(folder) if file.suffix == ".json"}


def newest(folder: Path) -> int:
    """Return the round of the newest manifest, by its name; 0 if there is none."""
    return max(rounds_in(folder), default=0)


def checked(folder: Path, round_: int) -> Manifest:
    """Return the manifest of a round, like ``read_manifest``."""
    return read_manifest(folder / f"round-{round_:06d}.json")


def sound_before_newest(folder: Path) -> int | None:
    """Return the round of the newest checkpoint but one whose networks are finite; 0 if only round 1 was played."""
    for file in found(folder)[1:]:
        try:
            tensors = load_file(read_manifest(file).tensors)
        except (CheckpointError, SafetensorError, OSError):
            continue
        if all(bool(torch.isfinite(value).all()) for name, value in tensors.items() if name.startswith("parts/")):
            return int(file.stem.removeprefix("round-"))
    return 0 if newest(folder) == 1 else None


def copy_all(folder: Path, to: Path) -> int:
    """Copy the checkpoints of a run that may be running, and return the round of the newest; 0 if all had vanished.

    Files are replaced, never changed: once both are open, a checkpoint can be copied whatever the run does.
    """
    done = 0
    for file in found(folder):
        with suppress(FileNotFoundError), opened(file) as stated, opened(file.with_suffix(".safetensors")) as tensors:
            write_copy(to / f"{file.stem}.safetensors", tensors)
            write_copy(to / file.name, stated)
            done = max(done, read_manifest(to / file.name).round)
    return done


def tidy(folder: Path, last: int, keep: Keep) -> None:
    """Remove the checkpoints beyond a round and those that need not be kept, and what processes that died left."""
    known = sorted(round_ for round_ in rounds_in(folder) if round_ <= last)
    kept = {*known[-keep.last :], *filter(keep.whole, known)}
    for round_, file in sorted(_files(folder)):  # manifests first: tensors without one are nothing
        if round_ not in kept:
            remove(file)
    remove_partial(folder)
    for file in folder.glob(".tmp*"):  # the library that saves tensors writes them under such a name first
        remove(file)


def read_manifest(file: Path) -> Manifest:
    """Return a manifest that agrees with itself, with its name and with its tensors."""
    try:
        stated = read_json(file)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: the checkpoint cannot be read ({error})") from error
    try:
        check = stated.pop("check", None)
        experiment, records = _completed(stated["experiment"]), stated.get("records", "")
        manifest = Manifest(file, stated["round"], stated["sha256"], records, experiment, signed=check is not None)
        whole = isinstance(manifest.round, int) and isinstance(manifest.experiment, dict)
    except (AttributeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file}: the checkpoint is damaged (it is no manifest)") from error
    if not whole or (check is not None and check != _check(stated)):
        raise CheckpointError(f"{file}: the checkpoint is damaged (what it says does not match its hash)")
    if file.stem != f"round-{manifest.round:06d}":
        raise CheckpointError(f"{file}: the checkpoint is damaged (it says that it is of round {manifest.round})")
    try:
        digest = _digest(manifest.tensors)
    except OSError as error:
        raise CheckpointError(f"{manifest.tensors}: the checkpoint cannot be read ({error.strerror})") from error
    if digest != manifest.sha256:
        raise CheckpointError(f"{manifest.tensors}: the checkpoint is damaged (its hash is not the one written down)")
    return manifest


def load(manifest: Manifest, template: State) -> State:
    """Return the state of a checkpoint, if it is one that the run could be in."""
    file = manifest.tensors
    try:
        unsaved = flatten(template.longest, "longest")  # by versions before
        state: State = unflatten(template, unsaved | load_file(file))
    except KeyError as error:
        raise CheckpointError(f"{file}: the checkpoint has no tensor {error}; {ANOTHER}") from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: the checkpoint cannot be read ({error})") from error
    misfit = state.misfit(template)
    if misfit is not None:
        raise CheckpointError(f"{file}: the checkpoint cannot be used ({misfit}); {ANOTHER}")
    return replace(state, round=manifest.round)


def _completed(frozen: Any) -> Any:
    """Return what must not change during a run with the settings that a version before did not have, at defaults."""
    try:
        began = Experiment.model_validate(frozen["experiment"])
    except (ValidationError, KeyError, TypeError):  # then it is compared as it is
        return frozen
    return frozen | {"experiment": began.model_dump(mode="json")}


def _files(folder: Path) -> Iterator[tuple[int, Path]]:
    for file in folder.glob("round-*"):
        name = NAME.fullmatch(file.name)
        if name is not None:
            yield int(name[1]), file


def _digest(path: Path) -> str:
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check(stated: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()
