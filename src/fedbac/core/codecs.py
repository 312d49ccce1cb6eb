"""Compression of links: what is sent of a change, what it costs, and what is left for the next time."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedbac.core import trees
from fedbac.core.parts import Params, Parts
from fedbac.core.settings import BareKind, Settings

FLOAT_BYTES = 4
LEVELS = 127
"""Steps of an 8-bit number on either side of zero."""

Packed = dict[str, Tensor]
"""The small tensors that are sent instead of the change of one tensor, by name; a row for each sender."""


class Codec(Settings, ABC):
    """Makes a change of weights cheaper to send. What arrives is what can be unpacked, in a simulation too."""

    @abstractmethod
    def layout(self, numbers: int) -> dict[str, tuple[torch.dtype, int]]:
        """Return what is sent of a tensor of so many numbers: by name, the number type and how many."""

    @abstractmethod
    def pack(self, change_N: Tensor) -> Packed:
        """Return what is sent of finite changes of one tensor, each of them flat."""

    @abstractmethod
    def unpack(self, packed: Packed, numbers: int) -> Tensor:
        """Return what arrives: changes of so many numbers, each of them flat."""

    @abstractmethod
    def fault(self, packed: Packed, numbers: int) -> str | None:
        """Say what is wrong with tensors that are laid out well but were made by somebody else; None if nothing is."""

    def encode(self, change_N: Tensor) -> Tensor:
        """Return what arrives of changes of one tensor, a row for each sender."""
        flat_N = change_N.reshape(len(change_N), -1)
        return self.unpack(self.pack(flat_N), flat_N.shape[1]).view_as(change_N)

    def num_bytes(self, numbers: int) -> int:
        """Return what it costs to send a tensor of so many numbers once."""
        return sum(dtype.itemsize * count for dtype, count in self.layout(numbers).values())


class TopK(Codec):
    """Send the largest entries of each tensor, with their places; at least one."""

    kind: Literal["top_k"] = "top_k"
    keep: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share of the entries that are sent."""

    def count(self, numbers: int) -> int:
        """Return how many entries of a tensor are sent."""
        return max(1, round(self.keep * numbers))

    def layout(self, numbers: int) -> dict[str, tuple[torch.dtype, int]]:
        """Return values and places; all entries need no places."""
        count = self.count(numbers)
        values = {"values": (torch.float32, count)}
        return values if count == numbers else values | {"places": (torch.int32, count)}

    def pack(self, change_N: Tensor) -> Packed:
        """Keep the largest by magnitude."""
        count = self.count(change_N.shape[1])
        if count == change_N.shape[1]:
            return {"values": change_N}
        largest = change_N.abs().topk(count, dim=1, sorted=False).indices
        return {"values": change_N.gather(1, largest), "places": largest.to(torch.int32)}

    def unpack(self, packed: Packed, numbers: int) -> Tensor:
        """Put the values in their places, and zeros elsewhere."""
        values_N = packed["values"]
        if "places" not in packed:
            return values_N
        return values_N.new_zeros(len(values_N), numbers).scatter_(1, packed["places"].long(), values_N)

    def fault(self, packed: Packed, numbers: int) -> str | None:
        """Values must be finite; places must be there, and different."""
        if not torch.isfinite(packed["values"]).all():
            return "values are not finite"
        if "places" in packed:
            places_N = packed["places"].sort(1).values
            if places_N.min() < 0 or places_N.max() >= numbers or (places_N.diff(dim=1) == 0).any():
                return f"places must be different numbers below {numbers}"
        return None


class EightBits(Codec):
    """Send each entry in 8 bits, as a multiple of the tensor's largest magnitude."""

    kind: Literal["eight_bits"] = "eight_bits"

    def layout(self, numbers: int) -> dict[str, tuple[torch.dtype, int]]:
        """Return a byte for each number, and the size of a step."""
        return {"levels": (torch.int8, numbers), "step": (torch.float32, 1)}

    def pack(self, change_N: Tensor) -> Packed:
        """Round to the nearest of 255 levels."""
        step_N = change_N.abs().amax(1, keepdim=True) / LEVELS
        levels_N = torch.where(step_N > 0, change_N / step_N, 0.0).round()
        # A step that is next to the smallest of all numbers is rounded so much that more of them would be needed.
        return {"levels": levels_N.clamp(-LEVELS, LEVELS).to(torch.int8), "step": step_N}

    def unpack(self, packed: Packed, numbers: int) -> Tensor:
        """Return as many steps as there are levels."""
        return packed["levels"].to(packed["step"].dtype) * packed["step"]

    def fault(self, packed: Packed, numbers: int) -> str | None:
        """Levels must be as many below zero as above; a step must be finite."""
        if packed["levels"].min() < -LEVELS:
            return f"levels must be from -{LEVELS} to {LEVELS}"
        if not torch.isfinite(packed["step"]).all() or packed["step"].min() < 0:
            return "a step must be a number that is not below zero"
        return None


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


class Sent(NamedTuple):
    """What is sent of the changes of one tensor."""

    packed: Packed
    sound_N: Tensor
    """Whose change is finite. Of the others nothing is packed: they arrive as they are."""


Changes = Mapping[str, Mapping[str, Sent]]
"""By part and weight."""


@dataclass(frozen=True)
class Broadcast:
    """How a bank is sent to those who have networks already."""

    had: Parts
    changes: Changes
    """What is sent instead of the parts and weights that are here: their changes from what receivers had."""


class Passed(NamedTuple):
    """What became of networks on a link that compresses."""

    arrived: Params
    left: Params
    """What was not sent: sent + left = change + left before."""
    sent: dict[str, Sent]
    """By weight; those that are not here are sent as they are."""


def passed(codec: Codec, value_N: Params, start_N: Params, left_N: Params) -> Passed:
    """Send networks that began as ``start_N``, by their changes.

    A row that is not finite arrives as it is, so that the receiver sees that it is broken, and changes nothing.
    """
    arrived, left, packed = {}, {}, {}
    for name, value in value_N.items():
        if not value.is_floating_point():
            arrived[name], left[name] = value, left_N[name]
            continue
        start, before = start_N[name].to(value.device), left_N[name].to(value.device)  # memories may be elsewhere
        change = value - start + before
        sound_N = torch.isfinite(change).reshape(len(change), -1).all(1)
        sound = sound_N.view(-1, *[1] * (change.dim() - 1))
        flat_N = torch.where(sound, change, 0.0).reshape(len(change), -1)
        packed[name] = Sent(codec.pack(flat_N), sound_N)
        sent = codec.unpack(packed[name].packed, flat_N.shape[1]).view_as(change)
        arrived[name] = torch.where(sound, start + sent, value)
        left[name] = torch.where(sound, change - sent, before)
    return Passed(arrived, left, packed)


def nothing_left(parts: Parts) -> Parts:
    """Return zeros of the shapes of stacked parts."""
    return {part: trees.zeros(params) for part, params in parts.items()}


def cost(codec: Codec | None, params: Params) -> int:
    """Return the bytes of one network of a stack."""
    each = [prod(value.shape[1:]) for value in params.values()]
    return sum(FLOAT_BYTES * n if codec is None else codec.num_bytes(n) for n in each)
