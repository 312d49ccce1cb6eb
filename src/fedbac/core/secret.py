"""Secret sums: an edge learns of its clients only the sum of at least so many (Bonawitz et al., 2017).

Clients tell n_i Δ_i and n_i as whole numbers, which are added modulo a power of two. So the sum is exact in whatever
order they come, and the same bits with masks, in a federation, as without, in a simulation. Here is all of it but the
masks: those are in ``deploy.secret``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from fedbac.core.links import Ledger
from fedbac.core.parts import Parts
from fedbac.core.rng import Rng, stream
from fedbac.core.schema import Within
from fedbac.core.settings import FloatArray, IntArray

WORD, LONG = 32, 64
"""Bits of a weight and of any other number in a sum."""
MOST = 1e6
"""A loss beyond this counts as this, as does one that is not finite: its sum must have a bound."""
MANY = 2**20
"""Examples for which a sum of losses has room in any case: a site may hold more to measure on than to learn from."""
NEIGHBOURS = 128
"""Clients with whom each masks and shares its secrets: all others of its sum, or in a larger one so many (Bell et al.,
2020), which is even."""
KEY_BYTES, SEALED_BYTES, PROOF_BYTES, SHARE_BYTES = 64 + 74 + 470, 50, 16, 17
"""What a client sends: public keys, their signature and a certificate of the federation's authority, which differ in
length by a few bytes; for each neighbour sealed shares of two secrets, and a proof of what it was told; and in the end
a share of one secret of each."""


class Words(NamedTuple):
    """What a client adds to a sum, or the sum: whole numbers modulo 2^32 and 2^64."""

    network: NDArray[np.uint32]
    numbers: NDArray[np.uint64]

    @classmethod
    def zeros(cls, weights: int, numbers: int) -> Self:
        """Return a sum of nobody."""
        return cls(np.zeros(weights, dtype=np.uint32), np.zeros(numbers, dtype=np.uint64))

    @classmethod
    def decoded(cls, data: bytes, weights: int, numbers: int) -> Self:
        """Return what was encoded, of so many weights and other numbers."""
        at = weights * WORD // 8
        if len(data) != at + numbers * LONG // 8:
            raise ValueError(f"{len(data)} bytes are not {weights} weights and {numbers} numbers")
        return cls(np.frombuffer(data[:at], dtype=np.uint32).copy(), np.frombuffer(data[at:], dtype=np.uint64).copy())

    def encoded(self) -> bytes:
        """Return it as bytes."""
        return self.network.tobytes() + self.numbers.tobytes()

    def add(self, other: "Words") -> None:
        """Add another in place."""
        np.add(self.network, other.network, out=self.network)
        np.add(self.numbers, other.numbers, out=self.numbers)


Exponent = Annotated[int, Within(-64, 1100)]


@dataclass(frozen=True)
class Scale:
    """How numbers become whole ones: x is told as ⌊n 2^e x + u⌋, with u uniform for weights and 1/2 for the rest.

    ``of`` chooses e so that no sum of a site's clients passes the largest whole number. It tells clients no more of how
    many examples the others hold than the next power of two.
    """

    weights: Exponent
    numbers: Exponent

    @classmethod
    def of(cls, bound: float, examples: int) -> Self:
        """Return it for changes of weights up to a bound, at a site with so many examples."""
        most, many = (math.ceil(math.log2(max(count, least))) for count, least in ((examples, 1), (examples, MANY)))
        return cls(WORD - 2 - most - math.ceil(math.log2(bound)), LONG - 2 - many - math.ceil(math.log2(MOST)))

    def words(self, change: FloatArray, told: FloatArray, weight: int, bound: float, rng: Rng | None) -> Words:
        """Return what a client of so many examples adds; one whose numbers are not finite adds nothing."""
        if weight == 0 or not (np.isfinite(change).all() and np.isfinite(told).all()):
            return Words.zeros(change.size, 1 + told.size)
        scaled = np.clip(change.astype(np.float64), -bound, bound) * weight * 2.0**self.weights
        rounded = np.floor(scaled if rng is None else scaled + rng.random(change.size))
        numbers = np.rint(np.clip(told, -MOST, MOST) * weight * 2.0**self.numbers)
        return Words(
            rounded.astype(np.int64).astype(np.uint32),
            np.concatenate([[weight], numbers]).astype(np.int64).view(np.uint64),
        )

    def change(self, network: NDArray[np.uint32], weight: int) -> FloatArray:
        """Return Σ n_i Δ_i / Σ n_i of a sum."""
        return network.view(np.int32) / (weight * 2.0**self.weights)

    def told(self, numbers: NDArray[np.uint64], weight: int) -> FloatArray:
        """Return the means of the other numbers."""
        return numbers.view(np.int64) / (weight * 2.0**self.numbers)


@dataclass(frozen=True)
class Secret:
    """What a site wants to know of its clients' answers: only their sum."""

    fixed: Scale
    threshold: int
    """The fewest clients whose sum may be known."""
    bound: float = 1.0
    """The largest change of a weight; more is cut."""
    sends: tuple[str, ...] = ()
    """The parts that clients send back, and below those that are taken from another one of them."""
    twins: Mapping[str, str] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    """The parts that clients keep."""
    seed: int = 0
    size_C: IntArray | None = None
    """The examples by which clients count when they measure; as many as they measure on when not given."""


def flat(parts: Parts, names: Sequence[str]) -> torch.Tensor:
    """Return stacks of parts as a matrix, a row for each client, in an order that follows from names alone."""
    pieces = [parts[part][name] for part in sorted(names) for name in sorted(parts[part])]
    return torch.cat([piece.reshape(len(piece), -1) for piece in pieces], 1)


def told_in_training(loss: float, epochs: FloatArray | None) -> FloatArray:
    """Return the numbers that a client tells of its training, besides its weights."""
    return np.array([loss, *(() if epochs is None else epochs)], dtype=np.float64)


def rounding(seed: int, round_: int, edge_round: int, client: int) -> Rng:
    """Return the stream by which a client rounds its weights. It is no secret: rounding only must not lean one way."""
    return stream(seed, "secret-sums", round_, edge_round, client)


def neighbours(count: int) -> int:
    """Return with how many others each of so many clients masks and shares."""
    return min(count - 1, NEIGHBOURS)


def around(ring: Sequence[int], place: int) -> list[int]:
    """Return with whom one client masks and shares: those nearest to it on the ring of all clients."""
    at, reach = ring.index(place), neighbours(len(ring))
    sides = [*range(1, reach // 2 + 1), *range(-(reach - reach // 2), 0)]
    return sorted(ring[(at + side) % len(ring)] for side in sides)


def count_protocol(traffic: Ledger, clients: int, numbers: int) -> None:
    """Count what secrecy costs a sum of so many clients and numbers, beside the weights, which take as much as ever:
    keys up, those of neighbours down, shares and proofs for each of them up, and in the end down and some of the shares
    up."""
    others = neighbours(clients)
    down = clients * (KEY_BYTES + SEALED_BYTES + PROOF_BYTES) * others
    shares = (SEALED_BYTES + PROOF_BYTES) * others + SHARE_BYTES * (others + 1)
    up = clients * (KEY_BYTES + shares + numbers * LONG // 8)
    traffic.add("client", "down", "control", down)
    traffic.add("client", "up", "control", up)
