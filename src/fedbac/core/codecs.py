"""Compression of links: what is sent of a change, what it costs, and what is left for the next time."""

from math import prod
from typing import Annotated, Literal, Protocol, runtime_checkable

import torch
from pydantic import Field
from torch import Tensor

from fedbac.core import trees
from fedbac.core.parts import Params, Parts
from fedbac.core.settings import BareKind, Settings

FLOAT_BYTES, INDEX_BYTES = 4, 4
LEVELS = 127
"""Steps of an 8-bit number on either side of zero."""


@runtime_checkable
class Codec(Protocol):
    """Makes a change of weights cheaper to send."""

    @property
    def kind(self) -> str:
        """The name by which configurations choose it."""

    def encode(self, change_N: Tensor) -> Tensor:
        """Return what arrives of changes of one tensor, a row for each sender."""

    def num_bytes(self, numbers: int) -> int:
        """Return what it costs to send a tensor of so many numbers once."""


class TopK(Settings):
    """Send the largest entries of each tensor, with their places; at least one."""

    kind: Literal["top_k"] = "top_k"
    keep: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share of the entries that are sent."""

    def count(self, numbers: int) -> int:
        """Return how many entries of a tensor are sent."""
        return max(1, round(self.keep * numbers))

    def encode(self, change_N: Tensor) -> Tensor:
        """Keep the largest by magnitude, zero the rest."""
        flat_N = change_N.reshape(len(change_N), -1)
        count = self.count(flat_N.shape[1])
        if count == flat_N.shape[1]:
            return change_N
        largest = flat_N.abs().topk(count, dim=1, sorted=False).indices
        kept = torch.zeros_like(flat_N).scatter_(1, largest, flat_N.gather(1, largest))
        return kept.view_as(change_N)

    def num_bytes(self, numbers: int) -> int:
        """Return the bytes of values and places; all entries need no places."""
        count = self.count(numbers)
        return numbers * FLOAT_BYTES if count == numbers else count * (FLOAT_BYTES + INDEX_BYTES)


class EightBits(Settings):
    """Send each entry in 8 bits, as a multiple of the tensor's largest magnitude."""

    kind: Literal["eight_bits"] = "eight_bits"

    def encode(self, change_N: Tensor) -> Tensor:
        """Round to the nearest of 255 levels."""
        flat_N = change_N.reshape(len(change_N), -1)
        step_N = flat_N.abs().amax(1, keepdim=True) / LEVELS
        levels_N = torch.where(step_N > 0, flat_N / step_N, 0.0).round()
        return (levels_N * step_N).view_as(change_N)

    def num_bytes(self, numbers: int) -> int:
        """Return a byte for each number, and the scale."""
        return numbers + FLOAT_BYTES


CodecChoice = Annotated[TopK | EightBits, Field(discriminator="kind"), BareKind]


class Links(Settings):
    """How the four links of a method compress what is sent for training; none does by default.

    Down, the difference to what the receivers already have is sent; up, the change by training. What is left out
    is not lost: it is part of the next difference, or is added to the next change (error feedback).
    """

    client_up: CodecChoice | None = None
    """What clients send to their edge."""
    client_down: CodecChoice | None = None
    """What edges send to their clients."""
    cloud_up: CodecChoice | None = None
    """What edges send to the cloud."""
    cloud_down: CodecChoice | None = None
    """What the cloud sends to the edges."""

    def codec(self, tier: Literal["client", "cloud"], direction: Literal["down", "up"]) -> Codec | None:
        """Return the codec of a link."""
        found: Codec | None = getattr(self, f"{tier}_{direction}")
        return found

    @property
    def active(self) -> tuple[str, ...]:
        """The names of the links that compress."""
        return tuple(name for name in type(self).model_fields if getattr(self, name) is not None)


def passed(codec: Codec, value_N: Params, start_N: Params, left_N: Params) -> tuple[Params, Params]:
    """Return what arrives of networks that began as ``start_N``, and what is left: sent + left = change + left before.

    A row that is not finite arrives as it is, so that the receiver sees that it is broken, and changes nothing.
    """
    arrived, left = {}, {}
    for name, value in value_N.items():
        if not value.is_floating_point():
            arrived[name], left[name] = value, left_N[name]
            continue
        start, before = start_N[name].to(value.device), left_N[name].to(value.device)  # memories may be elsewhere
        change = value - start + before
        sound = torch.isfinite(change).reshape(len(change), -1).all(1)
        sound = sound.view(-1, *[1] * (change.dim() - 1))
        sent = codec.encode(torch.where(sound, change, 0.0))
        arrived[name] = torch.where(sound, start + sent, value)
        left[name] = torch.where(sound, change - sent, before)
    return arrived, left


def nothing_left(parts: Parts) -> Parts:
    """Return zeros of the shapes of stacked parts."""
    return {part: trees.zeros(params) for part, params in parts.items()}


def cost(codec: Codec | None, params: Params, rows: int | None = None) -> int:
    """Return the bytes of so many networks of a stack; of all when not given."""
    rows = trees.count(params) if rows is None else rows
    each = [prod(value.shape[1:]) for value in params.values()]
    return rows * sum(FLOAT_BYTES * n if codec is None else codec.num_bytes(n) for n in each)
