"""Random damage to run folders: load, report and resume raise an error of ours or show what they showed before."""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tests.store.damage import complaint, damage, play_examples

PAGE_EVERY = 10
"""A page takes as long as all else; it is a function of what was loaded."""


def trials(count: int, seed: int, folder: Path) -> Iterator[str | None]:
    logging.getLogger("fedbac").setLevel(logging.ERROR)
    examples = play_examples(folder / "examples")
    for number in range(count):
        rng = Random(f"{seed} {number}")
        name = rng.choice(sorted(examples.folders))
        damaged = folder / str(number)
        shutil.copytree(examples.folders[name], damaged)
        how = damage(damaged, rng)
        found = complaint(examples, name, damaged, page=number % PAGE_EVERY == 0)
        shutil.rmtree(damaged)
        yield None if found is None else f"damage {seed} {number} ({how}, {name} run): {found}"
