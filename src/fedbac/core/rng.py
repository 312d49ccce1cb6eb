"""Random streams derived from (seed, purpose, round, member), never from a global generator.

Because a stream depends only on its own address, the same numbers appear after a resume, on every engine, and in
whatever order clients finish; and drawing more for one purpose never shifts another.
"""

import zlib

import numpy as np

Rng = np.random.Generator


def stream(seed: int, purpose: str, *address: int) -> Rng:
    """Return the generator for a purpose (``"batches"``, ``"selection"``, ...) at an address (round, member, ...)."""
    return np.random.Generator(np.random.PCG64(_sequence(seed, purpose, address)))


def torch_seed(seed: int, purpose: str, *address: int) -> int:
    """Return the integer that seeds a torch generator for the same kind of address."""
    return int(_sequence(seed, purpose, address).generate_state(1, np.uint64)[0] >> 1)


def _sequence(seed: int, purpose: str, address: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(zlib.crc32(purpose.encode()), *address))
