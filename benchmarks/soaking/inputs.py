"""Hostile inputs: texts of configurations, settings, grids, arguments, shards, commands, data files, result files."""

from collections.abc import Iterator
from pathlib import Path

from tests.inputs.hostile import Attacks


def trials(count: int, seed: int, folder: Path) -> Iterator[str | None]:
    attacks = Attacks(folder)
    for number in range(count):
        yield attacks.complaint(f"{seed} {number}")
