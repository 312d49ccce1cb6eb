"""Mutated messages to every receiver of a federation: each is taken or refused, and nothing else happens."""

from collections.abc import Iterator
from pathlib import Path

from tests.deploy.fuzzing import bench

MESSAGES = 100
"""Of one trial."""


def trials(count: int, seed: int, folder: Path) -> Iterator[str | None]:
    with bench() as found:
        for number in range(count):
            try:
                found.try_mutants(MESSAGES, seed * 1_000_000 + number)
            except AssertionError as error:
                yield f"messages {seed} {number}: {error}"
            else:
                yield None
