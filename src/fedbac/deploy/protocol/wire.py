"""Messages as bytes: tensors as safetensors, everything else as JSON in its head. No pickle, and no code travels.

Whoever decodes believes nothing: a message is one of a few known kinds, and ``protocol`` checks all that it holds.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save
from torch import Tensor

from fedbac.deploy.protocol.heads import PROTOCOL, said
from fedbac.deploy.protocol.heads import ROOM as ROOM
from fedbac.deploy.protocol.heads import WireError as WireError
from fedbac.deploy.spool import Payload
from fedbac.errors import quoted


@dataclass(frozen=True)
class Message:
    """What was said: a kind, plain values, and tensors by their paths (``bank/global/0.weight``)."""

    kind: str
    head: dict[str, Any]
    tensors: dict[str, Tensor]

    def under(self, place: str) -> dict[str, Tensor]:
        """Return all tensors at a place, by the rest of their paths."""
        prefix = f"{place}/"
        return {path.removeprefix(prefix): value for path, value in self.tensors.items() if path.startswith(prefix)}


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


def decode(data: Payload, kinds: Collection[str]) -> Message:
    """Return the message that bytes hold, if it is of one of these kinds; else raise a WireError."""
    protocol, kind, order, head = said(data)
    if protocol != PROTOCOL:
        raise WireError(f"a message is of protocol {quoted(protocol)}, and this is {PROTOCOL}; update the older site")
    if not isinstance(kind, str) or kind not in kinds or not isinstance(head, dict):
        raise WireError(f"a message is of kind {quoted(kind)}, and {' or '.join(sorted(kinds))} was expected")
    try:
        tensors = load(data) if isinstance(data, bytes) else load_file(data.path)
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError, OverflowError) as error:
        raise WireError(f"{kind}: its tensors cannot be read") from error
    named = isinstance(order, list) and all(isinstance(path, str) for path in order)
    if not named or set(order) != set(tensors) or len(order) != len(tensors):
        raise WireError(f"{kind}: it does not name its tensors")
    return Message(kind, head, {path: tensors[path] for path in order})


def _ready(value: Tensor | np.ndarray[Any, Any]) -> Tensor:
    tensor = value if isinstance(value, Tensor) else torch.from_numpy(np.array(value, order="C"))
    tensor = tensor.detach().cpu().contiguous()
    # A view of something larger would take all of it along.
    return tensor.clone() if tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size() else tensor
