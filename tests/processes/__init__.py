"""Processes that tests look at and kill, as Linux tells of them."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

LINUX = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux tells of other processes")


def descendants(pid: int) -> set[int]:
    """Return the processes that a process started, and those that they did."""
    parents: dict[int, int] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = file.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # ended meanwhile
            continue
        if state != "Z":
            parents[int(file.parent.name)] = int(parent)
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= more
    return found


def commands(pids: set[int]) -> dict[int, bytes]:
    """Return the command lines of those processes that are still there."""
    found = {}
    for pid in pids:
        with suppress(OSError):
            found[pid] = Path("/proc", str(pid), "cmdline").read_bytes()
    return found


def workers(pid: int = os.getpid()) -> set[int]:
    """Return the worker processes among the descendants of a process."""
    return {child for child, words in commands(descendants(pid)).items() if b"LokyProcess" in words}
