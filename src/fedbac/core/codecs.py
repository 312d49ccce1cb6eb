"""Transforms of links: change → clip → noise → + what was left → pack.

Alterations come first: they see a sender's whole change, and what they cut or add is for good. Codecs come last and
pack tensor by tensor; what they leave out is added the next time (error feedback).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from math import prod
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedbac.core import trees
from fedbac.core.answers import consult
from fedbac.core.parts import Params, Parts
from fedbac.core.rng import Rng, stream
from fedbac.core.settings import NonNegative, Positive, Settings
from fedbac.errors import PolicyError

FLOAT_BYTES = 4
LEVELS = 127
"""Steps of an 8-bit number on either side of zero."""

Packed = dict[str, Tensor]
"""The small tensors that are sent instead of the change of one tensor, by name; a row for each network."""
Streams = Callable[[int], Rng]
"""The random stream of a row's sender. It goes on from one tensor and transform of a message to the next."""
VALUES = "values"
"""The piece of what a codec sends, of float32, that another codec may pack further."""


class Transform(Settings, ABC):
    """One step of what becomes of a change on a link: an ``Alteration`` or a ``Codec``."""

    kind: str


class Alteration(Transform):
    """Alters a sender's whole change: all weights of all parts that pass the link."""

    needs_bound: ClassVar[bool] = False
    """Whether the norm of the change must have a bound, by an alteration before this one."""

    @abstractmethod
    def alter(self, change: Tensor, bound: float | None, rng: Rng) -> Tensor:
        """Return a finite, flat change as it is sent; ``bound`` is its largest norm, ``rng`` the sender's stream."""

    def bound(self, before: float | None) -> float | None:
        """Return the largest norm of what is sent, if that is known."""
        return None


class Clip(Alteration):
    """Scale down a change whose L2 norm, over all that the sender sends, is longer."""

    kind: Literal["clip"] = "clip"
    norm: Positive = 1.0
    """Largest norm of a change."""

    def alter(self, change: Tensor, bound: float | None, rng: Rng) -> Tensor:
        """Return Δ · min(1, norm / ‖Δ‖)."""
        length = float(torch.linalg.vector_norm(change, dtype=torch.float64))
        return change * (self.norm / length) if length > self.norm else change

    def bound(self, before: float | None) -> float | None:
        """Return the norm."""
        return self.norm if before is None else min(self.norm, before)


class GaussianNoise(Alteration):
    """Add Gaussian noise to every entry, of ``multiplier`` times the preceding clip's norm. It comes from the run's
    seed, so it gives no privacy."""

    kind: Literal["noise"] = "noise"
    needs_bound: ClassVar[bool] = True
    multiplier: NonNegative = 1.0
    """Of the clip's norm."""

    def alter(self, change: Tensor, bound: float | None, rng: Rng) -> Tensor:
        """Return Δ + N(0, (multiplier · norm)²)."""
        assert bound is not None
        noise = torch.from_numpy(rng.standard_normal(change.numel(), dtype=np.float32))
        return change + self.multiplier * bound * noise.to(change.device)


class Codec(Transform):
    """Makes a change of weights cheaper to send. What arrives is what can be unpacked, in a simulation too."""

    @abstractmethod
    def layout(self, numbers: int) -> dict[str, tuple[torch.dtype, int]]:
        """Return what is sent of a tensor of so many numbers: by name, the number type and how many."""

    @abstractmethod
    def pack(self, change_N: Tensor, streams: Streams) -> Packed:
        """Return what is sent of finite changes of one tensor, each of them flat; each row for itself."""

    @abstractmethod
    def unpack(self, packed: Packed, numbers: int) -> Tensor:
        """Return what arrives: changes of so many numbers, each of them flat."""

    @abstractmethod
    def fault(self, packed: Packed, numbers: int) -> str | None:
        """Say what is wrong with somebody else's well laid out tensors; None if they unpack to finite numbers."""

    def num_bytes(self, numbers: int) -> int:
        """Return what it costs to send a tensor of so many numbers once."""
        return sum(dtype.itemsize * count for dtype, count in self.layout(numbers).values())


class TopK(Codec):
    """Send each tensor's largest entries, at least one, with their places."""

    kind: Literal["top_k"] = "top_k"
    keep: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share of entries sent."""

    def count(self, numbers: int) -> int:
        """Return how many entries of a tensor are sent."""
        return max(1, round(self.keep * numbers))

    def layout(self, numbers: int) -> dict[str, tuple[torch.dtype, int]]:
        """Return values and places; all entries need no places."""
        count = self.count(numbers)
        values = {VALUES: (torch.float32, count)}
        return values if count == numbers else values | {"places": (torch.int32, count)}

    def pack(self, change_N: Tensor, streams: Streams) -> Packed:
        """Keep the largest by magnitude."""
        count = self.count(change_N.shape[1])
        if count == change_N.shape[1]:
            return {VALUES: change_N}
        largest = change_N.abs().topk(count, dim=1, sorted=False).indices
        return {VALUES: change_N.gather(1, largest), "places": largest.to(torch.int32)}

    def unpack(self, packed: Packed, numbers: int) -> Tensor:
        """Put the values in their places, and zeros elsewhere."""
        values_N = packed[VALUES]
        if "places" not in packed:
            return values_N
        return values_N.new_zeros(len(values_N), numbers).scatter_(1, packed["places"].long(), values_N)

    def fault(self, packed: Packed, numbers: int) -> str | None:
        """Values must be finite; places must be there, and different."""
        if not torch.isfinite(packed[VALUES]).all():
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

    def pack(self, change_N: Tensor, streams: Streams) -> Packed:
        """Round to the nearest of 255 levels."""
        step_N = change_N.abs().amax(1, keepdim=True) / LEVELS
        levels_N = torch.where(step_N > 0, change_N / step_N, 0.0).round()
        # A step that is next to the smallest of all numbers is rounded so much that more of them would be needed.
        return {"levels": levels_N.clamp(-LEVELS, LEVELS).to(torch.int8), "step": step_N}

    def unpack(self, packed: Packed, numbers: int) -> Tensor:
        """Return as many steps as there are levels."""
        return packed["levels"].to(packed["step"].dtype) * packed["step"]

    def fault(self, packed: Packed, numbers: int) -> str | None:
        """Levels must be as many below zero as above; the largest of them must be finite."""
        if packed["levels"].min() < -LEVELS:
            return f"levels must be from -{LEVELS} to {LEVELS}"
        if not torch.isfinite(packed["step"] * LEVELS).all() or packed["step"].min() < 0:
            return "a step must be a number that is not below zero"
        return None


class Both(Codec):
    """Two codecs, one after another: the second packs the values that the first sends."""

    kind: Literal["both"] = "both"
    first: Codec
    second: Codec

    def layout(self, numbers: int) -> dict[str, tuple[torch.dtype, int]]:
        """Return the pieces of the first, with those of the second instead of its values."""
        pieces = self.first.layout(numbers)
        _, count = pieces.pop(VALUES)
        return pieces | {f"{VALUES}.{name}": piece for name, piece in self.second.layout(count).items()}

    def pack(self, change_N: Tensor, streams: Streams) -> Packed:
        """Pack twice."""
        packed = dict(self.first.pack(change_N, streams))
        inner = self.second.pack(packed.pop(VALUES), streams)
        return packed | {f"{VALUES}.{name}": piece for name, piece in inner.items()}

    def unpack(self, packed: Packed, numbers: int) -> Tensor:
        """Unpack twice."""
        inner, count = self._inner(packed, numbers)
        return self.first.unpack(packed | {VALUES: self.second.unpack(inner, count)}, numbers)

    def fault(self, packed: Packed, numbers: int) -> str | None:
        """Ask the second, and then the first."""
        inner, count = self._inner(packed, numbers)
        found = self.second.fault(inner, count)
        return found or self.first.fault(packed | {VALUES: self.second.unpack(inner, count)}, numbers)

    def _inner(self, packed: Packed, numbers: int) -> tuple[Packed, int]:
        count = self.first.layout(numbers)[VALUES][1]
        return {name: packed[f"{VALUES}.{name}"] for name in self.second.layout(count)}, count


@dataclass(frozen=True)
class Chain:
    """The transforms of a link; one without any sends changes as they are."""

    alterations: tuple[Alteration, ...] = ()
    codec: Codec | None = None
    """All codecs as one. Without any, nothing is packed and nothing need be remembered."""

    @classmethod
    def of(cls, transforms: Sequence[Transform]) -> "Chain":
        """Return the chain of some transforms, in whose order there is no fault."""
        codecs = [one for one in transforms if isinstance(one, Codec)]
        codec = reduce(lambda after, first: Both(first=first, second=after), reversed(codecs)) if codecs else None
        return cls(tuple(one for one in transforms if isinstance(one, Alteration)), codec)

    def __bool__(self) -> bool:
        return bool(self.alterations) or self.codec is not None


Chains = Mapping[str, Chain]
"""By the name of a link (``client_up``); those that send as it is are missing."""


def remembering(chains: Chains) -> tuple[str, ...]:
    """Return the names of the links that remember networks: those with a codec."""
    return tuple(name for name, chain in chains.items() if chain.codec is not None)


def order_fault(transforms: Sequence[Transform]) -> str | None:
    """Say why transforms cannot follow each other in this order, and what to do; None if they can."""
    bound: float | None = None
    last: Codec | None = None
    kinds = [one.kind for one in transforms]
    for one in transforms:
        if kinds.count(one.kind) > 1:
            return f"{one.kind!r} is there twice; leave one of them out"
        if isinstance(one, Alteration):
            if last is not None:
                return f"{one.kind!r} comes after {last.kind!r}, which packs the change; put it before"
            if one.needs_bound and bound is None:
                return f"{one.kind!r} is a multiple of a norm; put one before it, such as {{kind: clip, norm: 1.0}}"
            bound = one.bound(bound)
        elif not isinstance(one, Codec):
            return f"{one.kind!r} is neither an Alteration nor a Codec; derive it from one of them"
        elif last is not None and last.layout(1).get(VALUES, (None,))[0] != torch.float32:
            return f"{one.kind!r} comes after {last.kind!r}, which leaves nothing to pack; put it before"
        else:
            last = one
    return None


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


class Senders(NamedTuple):
    """Who sends over a link, and when: the address of random numbers, which are then the same wherever it is done."""

    seed: int
    link: str
    round: int
    edge_round: int
    numbers: Sequence[int]
    """Of the one who sends all rows, or else of each row's sender."""

    def streams(self) -> Streams:
        """Return the streams of one message."""

        @cache
        def of(number: int) -> Rng:
            return stream(self.seed, self.link, self.round, self.edge_round, number)

        return lambda row: of(self.numbers[row if len(self.numbers) > 1 else 0])


class Passed(NamedTuple):
    """What became of networks on a link."""

    arrived: Parts
    left: Parts
    """What codecs did not send: sent + left = change as altered + left before."""
    sent: dict[str, dict[str, Sent]]
    """By part and weight; those that are not here are sent as they are."""


def passed(chain: Chain, value_N: Parts, start_N: Parts, left_N: Parts, senders: Senders) -> Passed:
    """Send networks that began as ``start_N``, by their changes. A row that is not finite arrives as it is, so that the
    receiver sees that it is broken, and changes nothing. Where changes are altered, all of a broken sender's arrives as
    NaN: nothing of it may leave as it is."""
    streams = senders.streams()
    altered = _altered(chain, value_N, start_N, senders, streams) if chain.alterations else None
    arrived = {part: dict(params) for part, params in value_N.items()}
    left = {} if chain.codec is None else {part: dict(left_N[part]) for part in value_N}
    sent: dict[str, dict[str, Sent]] = {part: {} for part in left}
    for part, params in sorted(value_N.items()):
        for name, value in sorted(params.items()):
            if not value.is_floating_point():
                continue
            start = start_N[part][name].to(value.device)
            change = value - start if altered is None else altered[part][name]
            whole = value if altered is None else start + change
            if chain.codec is None:
                arrived[part][name] = whole
                continue
            before = left[part][name].to(value.device)  # memories may be elsewhere
            change = change + before
            sound_N = torch.isfinite(change).reshape(len(change), -1).all(1)
            sound = sound_N.view(-1, *[1] * (change.dim() - 1))
            flat_N = torch.where(sound, change, 0.0).reshape(len(change), -1)
            packed = consult("links", f"round {senders.round} on {senders.link}", chain.codec.pack, flat_N, streams)
            unpacked = chain.codec.unpack(packed, flat_N.shape[1]).view_as(change)
            sent[part][name] = Sent(packed, sound_N)
            arrived[part][name] = torch.where(sound, start + unpacked, whole)
            left[part][name] = torch.where(sound, change - unpacked, before)
    return Passed(arrived, left, sent)


def _altered(chain: Chain, value_N: Parts, start_N: Parts, senders: Senders, streams: Streams) -> Parts:
    """Return the changes of networks as their senders alter them, each sender's all at once."""
    change_N = {
        part: {name: v - start_N[part][name].to(v.device) for name, v in params.items() if v.is_floating_point()}
        for part, params in value_N.items()
    }
    pieces = [value for _, params in sorted(change_N.items()) for _, value in sorted(params.items())]
    for row in range(len(senders.numbers) if pieces else 0):
        mine = [piece[row] for piece in pieces] if len(senders.numbers) > 1 else pieces
        change = torch.cat([piece.reshape(-1) for piece in mine])
        if not torch.isfinite(change).all():
            change = torch.full_like(change, torch.nan)
        else:
            bound, when = None, f"round {senders.round} on {senders.link}"
            for one in chain.alterations:
                after = consult("links", when, one.alter, change, bound, streams(row))
                if not isinstance(after, Tensor) or after.shape != change.shape:
                    raise PolicyError(f"method.links {one.kind!r}: alter() must return a change of the same shape")
                change, bound = after, one.bound(bound)
        for piece, new in zip(mine, change.split_with_sizes([piece.numel() for piece in mine]), strict=True):
            piece.copy_(new.view_as(piece))
    return change_N


def nothing_left(parts: Parts) -> Parts:
    """Return zeros of the shapes of stacked parts."""
    return {part: trees.zeros(params) for part, params in parts.items()}


def cost(codec: Codec | None, params: Params) -> int:
    """Return the bytes of one network of a stack."""
    each = [prod(value.shape[1:]) for value in params.values()]
    return sum(FLOAT_BYTES * n if codec is None else codec.num_bytes(n) for n in each)
