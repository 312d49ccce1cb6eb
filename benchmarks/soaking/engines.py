"""SIGKILL to the processes of engines: workers of a sweep and their parent, of the torch trainer, actors of Ray."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tests.processes import commands, descendants

from fedbac.runs.store import RunFolder

SMALL = [
    "--device", "cpu", "--set", "task.num_edges=4", "--set", "task.clients_per_edge=2",
    "--set", "task.network={kind: mlp, hidden: [64]}", "--set", "task.training.epochs=1",
]  # fmt: skip
LIMIT = 300
"""Seconds after which a command hangs."""


@dataclass(frozen=True)
class Fault:
    """A command, and what is killed of it."""

    words: tuple[str, ...]
    victim: bytes | None
    """A part of its command line; None: the command itself, which is then given again."""


FAULTS = {
    "a sweep's worker": Fault(("sweep", "hierfavg", "--seed", "0", "--seed", "1", "--jobs", "2"), b"LokyProcess"),
    "a sweep's parent": Fault(("sweep", "hierfavg", "--seed", "0", "--seed", "1", "--jobs", "2"), None),
    "a worker of the torch trainer": Fault(("run", "hierfavg", "--trainer", "torch", "--workers", "2"), b"LokyProcess"),
    "an actor of Ray": Fault(("run", "hierfavg", "--engine", "ray"), b"ray::EdgeActor"),
}
ROUNDS = 12


def trials(count: int, seed: int, folder: Path) -> Iterator[str | None]:
    """Kill at a random moment, each kind of process in turn; what comes out must be what comes out undisturbed."""
    whole: dict[str, Any] = {}
    for number in range(count):
        rng = Random(f"{seed} {number}")
        name = list(FAULTS)[number % len(FAULTS)]
        fault = FAULTS[name]
        if name not in whole:
            trouble = _command(fault.words, folder / name / "whole")
            assert trouble is None, trouble
            whole[name] = _shown(folder / name / "whole")
        place = folder / name / str(number)
        after = rng.uniform(0, 0.7)  # late enough to have begun, early enough not to be over
        trouble = _command(fault.words, place, partial(_kill, fault, rng), after)
        if trouble is None and fault.victim is None:
            trouble = _command(fault.words, place)
        if trouble is None and _shown(place) != whole[name]:
            trouble = "other records"
        yield None if trouble is None else f"{name} {seed} {number} (killed after {after:.2f} of a run): {trouble}"


def _command(
    words: tuple[str, ...], place: Path, disturb: Callable[[int], bool] | None = None, after: float = 0
) -> str | None:
    """Run a command, disturbed after a share of its rounds; return what it did wrong."""
    place.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with Path(place, "said").open("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "fedbac", *words, *SMALL, "--rounds", str(ROUNDS), "--out", str(place / "runs")],
            stdout=said, stderr=said,
        )  # fmt: skip
        disturbed = False
        while process.poll() is None and time.monotonic() < started + LIMIT:
            if disturb is not None and not disturbed and _rounds(place) >= after * ROUNDS:
                disturbed = disturb(process.pid)
            time.sleep(0.02)
        if process.poll() is None:
            process.kill()
            process.wait()
            return f"it hung for {LIMIT} s"
        said.seek(0)
        text = said.read()
    if "Traceback" in text:
        return f"a traceback: {text[-300:]!r}"
    return (
        None
        if process.returncode in ({0, -signal.SIGKILL} if disturb else {0})
        else (f"exit status {process.returncode}: {text[-300:]!r}")
    )


def _kill(fault: Fault, rng: Random, pid: int) -> bool:
    """Kill what the fault names, if it is there already."""
    if fault.victim is None:
        os.kill(pid, signal.SIGKILL)
        return True
    found = sorted(child for child, words in commands(descendants(pid)).items() if fault.victim in words)
    if found:
        os.kill(rng.choice(found), signal.SIGKILL)
    return bool(found)


def _folders(place: Path) -> list[RunFolder]:
    return [RunFolder(file.parent) for file in sorted(place.glob("runs/**/config.yaml"))]


def _rounds(place: Path) -> int:
    return max((file.read_bytes().count(b"\n") for file in place.glob("runs/**/rounds.jsonl")), default=0)


def _shown(place: Path) -> list[Any]:
    """Return the records of all runs, without their times."""
    return [
        [{key: value for key, value in record.items() if key != "seconds"} for record in folder.read_records()]
        for folder in _folders(place)
    ]
