"""SIGKILL to the command at random moments and at each of its disk operations: the same command resumes to the bit."""

import hashlib
import json
import multiprocessing as mp
import os
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

COMMON = (
    "run", "fed-bac", "--workers", "1", "--set", "task.num_edges=5", "--set", "task.training.momentum_state=persist",
    "--set", "method.clustering.period=2",
)  # fmt: skip
WORDS = {
    "cpu": (*COMMON, "--device", "cpu", "--rounds", "6", "--set", "task.clients_per_edge=2",
            "--set", "task.network={kind: mlp, hidden: [8]}", "--set", "task.training.epochs=1"),
    "cuda": (*COMMON, "--device", "cuda", "--rounds", "40"),
}  # fmt: skip
"""On a GPU rounds take milliseconds: there are many, with kernels and graphs of a real network."""
EVENTS = {"open", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree"}
LIMIT = 120
"""Seconds after which a command hangs."""


def trials(count: int, seed: int, folder: Path, device: str = "cpu") -> Iterator[str | None]:
    """Every other trial dies at the next disk operation in turn, the others at one or two random moments."""
    processes = mp.get_context("forkserver")  # each starts with everything imported, so that most of its life is a run
    processes.set_forkserver_preload(["fedbac.cli.main", "fedbac.report", "soaking.kills"])
    command = partial(_command, processes, device)
    command(folder / "warm-up")
    started = time.monotonic()
    trouble, operations = command(folder / "whole", count_into=folder / "operations")
    lasts = time.monotonic() - started
    assert trouble is None, trouble
    whole = _shown(folder / "whole")
    for number in range(count):
        rng = Random(f"{seed} {number}")
        place = folder / str(number)
        if number % 2:
            moment = f"operation {(number // 2) % operations + 1} of {operations}"
            command(place, die_at=(number // 2) % operations + 1)
        else:
            moments = [rng.uniform(0, lasts) for _ in range(rng.choice([1, 2]))]
            moment = " and ".join(f"{after:.3f} s" for after in moments)
            for after in moments:
                command(place, kill_after=after)
        trouble, _ = command(place)
        if trouble is None:
            changed = {what: value for what, value in _shown(place).items() if value != whole[what]}
            said = place.with_name(f"{place.name}.errors").read_text().strip()
            trouble = "; ".join(_difference(what, whole[what], value) for what, value in changed.items())
            trouble = f"{trouble}; it said {said!r}" if trouble else None
        yield None if trouble is None else f"kill {seed} {number} (at {moment}): {trouble}"


def _command(
    processes: Any,
    device: str,
    place: Path,
    kill_after: float | None = None,
    die_at: int | None = None,
    count_into: Path | None = None,
) -> tuple[str | None, int]:
    """Run the command to its end, or until it is killed; return what it did wrong, and its disk operations."""
    errors = place.with_name(f"{place.name}.errors")
    child = processes.Process(target=_play, args=(device, str(place), str(errors), die_at, count_into))
    child.start()
    child.join(LIMIT if kill_after is None else kill_after)
    if child.exitcode is None:
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        if kill_after is None:
            return f"it hung for {LIMIT} s", 0
    if kill_after is not None or die_at is not None:
        return None, 0
    said = errors.read_text().strip()
    trouble = None if child.exitcode == 0 else f"exit status {child.exitcode}: {said[-300:]!r}"
    return trouble, int(count_into.read_text()) if count_into else 0


def _play(device: str, place: str, errors: str, die_at: int | None, count_into: Path | None) -> None:
    """Run the command in this process, which dies before one of its disk operations."""
    for number, file in enumerate((os.devnull, errors), start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["fedbac", *WORDS[device], "--out", place]
    operations = 0

    def operation() -> None:
        nonlocal operations
        operations += 1
        if operations == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(event: str, details: tuple[Any, ...]) -> None:
        if event in EVENTS and isinstance(details[0], str | os.PathLike) and str(details[0]).startswith(place):
            operation()

    for name in ("fsync", "write"):  # these have no event
        setattr(os, name, _counted(getattr(os, name), operation))
    sys.addaudithook(watch)
    from fedbac.cli.main import main

    try:
        main()
    finally:
        if count_into is not None:
            count_into.write_text(str(operations))


def _counted(function: Any, operation: Any) -> Any:
    def counted(*words: Any) -> Any:
        operation()
        return function(*words)

    return counted


def _difference(what: str, wanted: Any, found: Any) -> str:
    if what != "records":
        return f"other {what}: {sorted(set(wanted) ^ set(found)) or 'the same names'}"
    for old, new in zip(wanted, found, strict=False):
        for key in old:
            if old[key] != new.get(key):
                return f"other records: round {old.get('round')}, {key} is {new.get(key)}, not {old[key]}"
    return f"other records: {len(found)}, not {len(wanted)}"


def _shown(place: Path) -> dict[str, Any]:
    """Return what a run has come to: records and summary without times, its last weights, and which files there are.

    Which older checkpoint is still there depends on how long rounds took.
    """
    records = [json.loads(line) for line in (place / "rounds.jsonl").read_text().splitlines()]
    records.append(json.loads((place / "summary.json").read_text()))
    timeless = [{key: value for key, value in item.items() if key not in {"seconds", "check"}} for item in records]
    last = max(place.glob("checkpoint/*.safetensors"))
    weights = {last.name: hashlib.sha256(last.read_bytes()).hexdigest()}
    files = sorted(path.name for path in place.rglob("*") if not path.name.startswith("round-"))
    return {"records": timeless, "weights": weights, "files": files}
