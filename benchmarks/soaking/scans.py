"""Port scans of a parent with a hundred children, while its certificate is renewed: it lives, and they answer."""

from collections.abc import Iterator
from pathlib import Path

from tests.deploy.scanning import complaint

CHILDREN, CONNECTIONS, RENEWALS = 100, 2500, 10
"""Of one trial."""


def trials(count: int, seed: int, folder: Path) -> Iterator[str | None]:
    for number in range(count):
        found = complaint(folder / str(number), CHILDREN, CONNECTIONS, RENEWALS, seed * 1_000_000 + number)
        yield None if found is None else f"scans {seed} {number}: {found}"
