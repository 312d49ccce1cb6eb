"""Messages as bytes: tensors as safetensors, everything else as JSON in its head. No pickle, and no code travels.

Whoever decodes believes nothing: a message is one of a few known kinds, and every tensor in it must have the name, the
shape and the number type that the receiver expects.
"""

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedbac.core.parts import Params, Parts
from fedbac.errors import DeployError, quoted

PROTOCOL = 1
"""The version of what is said; sites of different versions do not talk."""
MOST_HEAD = 2**22
"""Bytes of the JSON of a message."""
MOST_TENSORS = 100_000
LENGTH = 8
"""Bytes of the number that a message begins with: the length of its JSON."""


class WireError(DeployError):
    """A message that is not what it should be; it is refused."""


@dataclass(frozen=True)
class Message:
    """What was said: a kind, plain values, and tensors by their paths (``bank/global/0.weight``)."""

    kind: str
    head: dict[str, Any]
    tensors: dict[str, Tensor]

    def parts(self, place: str) -> Parts:
        """Return the networks at a place, by part and weight, in the order in which they were sent."""
        found: Parts = {}
        for path, value in self.under(place).items():
            part, slash, name = path.partition("/")
            if not slash or not name:
                raise WireError(f"{self.kind}: {place}/{path} names no weight of a part")
            found.setdefault(part, {})[name] = value
        return found

    def under(self, place: str) -> dict[str, Tensor]:
        """Return all tensors at a place, by the rest of their paths."""
        prefix = f"{place}/"
        return {path.removeprefix(prefix): value for path, value in self.tensors.items() if path.startswith(prefix)}

    def array(self, path: str, dtype: type[Any], shape: tuple[int, ...]) -> Any:
        """Return an array that must be there, of this number type and shape."""
        value = self.tensors.get(path)
        if value is None:
            raise WireError(f"{self.kind}: {path} is missing")
        found = as_array(value, f"{self.kind}: {path}")
        if found.dtype != dtype or found.shape != shape:
            raise WireError(f"{self.kind}: {path} is {found.dtype} {found.shape}, not {np.dtype(dtype)} {shape}")
        return found

    def value(self, name: str, kind: type | tuple[type, ...]) -> Any:
        """Return a plain value that must be there, of this type."""
        found = self.head.get(name)
        good = isinstance(found, kind) and (not isinstance(found, bool) or kind is bool)
        if not good or (isinstance(found, float) and not math.isfinite(found)):
            raise WireError(f"{self.kind}: {name} is {quoted(found)}, which is not allowed")
        return found

    def whole(self, name: str, most: int) -> int:
        """Return a whole number from 0 to ``most`` that must be there."""
        found = self.value(name, int)
        if not 0 <= found <= most:
            raise WireError(f"{self.kind}: {name} is {found}; it must be from 0 to {most}")
        return int(found)

    def wholes(self, name: str, allowed: Collection[int]) -> tuple[int, ...]:
        """Return a list of different numbers, each of which must be allowed."""
        found = self.value(name, list)
        good = all(isinstance(one, int) and not isinstance(one, bool) and one in allowed for one in found)
        if not good or len(set(found)) != len(found):
            raise WireError(f"{self.kind}: {name} is {quoted(found)}; it must list some of {quoted(sorted(allowed))}")
        return tuple(found)


def encode(kind: str, head: Mapping[str, Any], tensors: Mapping[str, Tensor | np.ndarray[Any, Any]]) -> bytes:
    """Return a message as bytes."""
    ready: dict[str, Tensor] = {}
    taken: set[int] = set()
    for path, value in tensors.items():
        tensor = _ready(value)
        place = tensor.untyped_storage().data_ptr()
        ready[path] = tensor.clone() if place in taken else tensor  # each is saved as its own
        taken.add(place)
    text = json.dumps({"protocol": PROTOCOL, "kind": kind, "order": list(ready), "head": dict(head)}, allow_nan=False)
    return save(ready, metadata={"fedbac": text})


def decode(data: bytes, kinds: Collection[str], most_head: int = MOST_HEAD) -> Message:
    """Return the message that bytes hold, if it is of one of these kinds; else raise a WireError."""
    length = int.from_bytes(data[:LENGTH], "little")
    if len(data) < LENGTH or length > min(len(data) - LENGTH, most_head):
        raise WireError("a message is cut short, or says too much of itself")
    try:
        outer = json.loads(data[LENGTH : LENGTH + length])
        if not isinstance(outer, dict) or len(outer) > MOST_TENSORS:
            raise WireError("a message holds too many tensors")
        meta = outer.get("__metadata__", {})
        said = json.loads(meta["fedbac"], parse_constant=_refuse_constant)
        protocol, kind, order, head = (said[name] for name in ("protocol", "kind", "order", "head"))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise WireError("a message has no head that can be read") from error
    if protocol != PROTOCOL:
        raise WireError(f"a message is of protocol {quoted(protocol)}, and this is {PROTOCOL}; update the older site")
    if not isinstance(kind, str) or kind not in kinds or not isinstance(head, dict):
        raise WireError(f"a message is of kind {quoted(kind)}, and {' or '.join(sorted(kinds))} was expected")
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError, OverflowError) as error:
        raise WireError(f"{kind}: its tensors cannot be read") from error
    named = isinstance(order, list) and all(isinstance(path, str) for path in order)
    if not named or set(order) != set(tensors) or len(order) != len(tensors):
        raise WireError(f"{kind}: it does not name its tensors")
    return Message(kind, head, {path: tensors[path] for path in order})


def laid_out(parts: Parts, place: str) -> dict[str, Tensor]:
    """Return networks by their paths below a place."""
    return {f"{place}/{part}/{name}": value for part, params in parts.items() for name, value in params.items()}


def checked_parts(found: Parts, like: Parts, rows: int | None, what: str) -> Parts:
    """Return networks in the order of those that they must be like, in names, shapes and number types.

    ``rows`` is how many there must be of each; as many as in ``like`` when not given.
    """
    if set(found) != set(like):
        raise WireError(f"{what}: it holds the parts {quoted(sorted(found))}, not {quoted(sorted(like))}")
    return {part: _checked_params(found[part], params, rows, f"{what}: {part}") for part, params in like.items()}


def _checked_params(found: Params, like: Params, rows: int | None, what: str) -> Params:
    if set(found) != set(like):
        raise WireError(f"{what}: it holds the weights {quoted(sorted(found))}, not {quoted(sorted(like))}")
    for name, wanted in like.items():
        shape = (len(wanted) if rows is None else rows, *wanted.shape[1:])
        if tuple(found[name].shape) != shape or found[name].dtype != wanted.dtype:
            got = f"{found[name].dtype} {tuple(found[name].shape)}"
            raise WireError(f"{what}: {name} is {got}, not {wanted.dtype} {shape}")
    return {name: found[name] for name in like}


def checked_bank(found: Parts, like: Parts, what: str) -> Parts:
    """Return stacks of networks as above, each of any number of rows."""
    rows = {part: {value.shape[0] if value.dim() else 0 for value in params.values()} for part, params in found.items()}
    for part, counts in rows.items():
        if len(counts) != 1 or 0 in counts:
            raise WireError(f"{what}: {quoted(part)} must be a stack of as many rows of every weight")
    if not set(found) <= set(like):
        raise WireError(f"{what}: it holds the parts {quoted(sorted(found))}, of which only {sorted(like)} are known")
    return {part: _checked_params(found[part], like[part], rows[part].pop(), f"{what}: {part}") for part in found}


def as_array(value: Tensor, what: str) -> Any:
    """Return a tensor as an array of NumPy's, which knows fewer number types and shapes."""
    try:
        return value.numpy()
    except (TypeError, ValueError, RuntimeError) as error:
        raise WireError(f"{what} is {value.dtype} of {value.dim()} dimensions, which is not allowed") from error


def bytes_of(value: Tensor) -> bytes:
    """Return a message that another one carries."""
    if value.dtype != torch.uint8 or value.dim() != 1:
        raise WireError(f"a message within another is {value.dtype} of {value.dim()} dimensions, not bytes")
    return value.numpy().tobytes()


def all_finite(parts: Parts) -> bool:
    """Whether no weight is NaN or infinite."""
    return all(bool(torch.isfinite(value).all()) for params in parts.values() for value in params.values())


def _ready(value: Tensor | np.ndarray[Any, Any]) -> Tensor:
    tensor = value if isinstance(value, Tensor) else torch.from_numpy(np.array(value, order="C"))
    tensor = tensor.detach().cpu().contiguous()
    # A view of something larger would take all of it along.
    return tensor.clone() if tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size() else tensor


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON")
