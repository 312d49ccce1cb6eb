"""The byte ledger: what travels, by tier, direction and purpose.

Tiers: ``client`` (between clients and their edge) and ``cloud`` (between edges and the cloud). Purposes: ``train``
(networks for training and their updates), ``evaluate`` (networks sent only to be measured), ``control`` (numbers and
policy states). Measuring the reported accuracy is not counted: it is the experimenter's instrument, not part of a
method.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fedbac.core import trees
from fedbac.core.parts import Params, Parts

Tier = Literal["client", "cloud"]
Direction = Literal["down", "up"]
Purpose = Literal["train", "evaluate", "control"]
BYTES_PER_NUMBER = 4
TIERS: tuple[Tier, ...] = ("client", "cloud")
DIRECTIONS: tuple[Direction, ...] = ("down", "up")
PURPOSES: tuple[Purpose, ...] = ("train", "evaluate", "control")


@dataclass
class Ledger:
    """Bytes per (tier, direction, purpose)."""

    entries: dict[tuple[Tier, Direction, Purpose], int] = field(default_factory=dict)

    def add(self, tier: Tier, direction: Direction, purpose: Purpose, num_bytes: int) -> None:
        """Count bytes."""
        key = (tier, direction, purpose)
        self.entries[key] = self.entries.get(key, 0) + num_bytes

    def merge(self, other: "Ledger") -> None:
        """Count everything another ledger counted."""
        for (tier, direction, purpose), num_bytes in other.entries.items():
            self.add(tier, direction, purpose, num_bytes)

    def nested(self) -> dict[str, dict[str, dict[str, int]]]:
        """Return all entries, zeros included, as tier → direction → purpose → bytes."""
        return {
            tier: {
                direction: {purpose: self.entries.get((tier, direction, purpose), 0) for purpose in PURPOSES}
                for direction in DIRECTIONS
            }
            for tier in TIERS
        }


def payload(models: Sequence[Parts]) -> int:
    """Return the bytes of the distinct networks in these models: one that several share is sent once."""
    seen: dict[int, Params] = {id(params): params for model in models for params in model.values()}
    return BYTES_PER_NUMBER * sum(trees.size(params) for params in seen.values())


def state_bytes(state: Iterable[Any]) -> int:
    """Return the bytes of a policy state."""
    return sum(int(array.nbytes) for array in state)


def client_numbers(num_selected: Sequence[int], part_sizes: Sequence[int]) -> int:
    """Eq. 4: C_client = 2 (d_g + d_k) Σ_m |S_m|, in numbers, both directions together."""
    return 2 * sum(part_sizes) * sum(num_selected)
