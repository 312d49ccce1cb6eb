"""Networks in messages, also as changes to others that the receiver has, where links compress.

A weight is sent as it arrives, or its change is packed. The pieces of all packed weights of a message lie one after
another in the same few tensors, in the order of the names of parts and weights. So a message takes what the ledger
counts, and a head that does not grow with the network.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedbac.core import trees
from fedbac.core.codecs import Broadcast, Changes, Codec, Packed, Sent
from fedbac.core.parts import Params, Parts
from fedbac.deploy.protocol.wire import Message, WireError
from fedbac.errors import DeployError, quoted


class ForgottenError(DeployError):
    """A message says how networks changed that the receiver does not have; it must be sent all of them."""


def pack(tensors: dict[str, Any], place: str, changes: Changes) -> None:
    """Replace those networks at a place whose changes can be packed."""
    pieces: dict[str, list[Tensor]] = {}
    for part, weights in sorted(changes.items()):
        for name, sent in sorted(weights.items()):
            path = f"{place}/{part}/{name}"
            if path in tensors and tensors[path].dtype == torch.float32 and bool(sent.sound_N.all()):
                del tensors[path]
                for piece, tensor in sent.packed.items():
                    pieces.setdefault(f"packed/{piece}", []).append(tensor.reshape(-1).cpu())
    tensors |= {path: torch.cat(each) for path, each in pieces.items()}


def unpacked(message: Message, place: str, codec: Codec | None, had: Parts) -> Message:
    """Return a message with the networks at a place: as they are there, or what they ``had`` with their changes."""
    pieces = message.under("packed")
    if codec is None or not pieces:
        return message
    paths = {f"{place}/{part}/{name}": value for part in sorted(had) for name, value in sorted(had[part].items())}
    missing = {
        path: value for path, value in paths.items() if path not in message.tensors and value.dtype == torch.float32
    }
    tensors = {path: value for path, value in message.tensors.items() if not path.startswith("packed/")}
    cut = _cut(pieces, codec, list(missing.values()), message)
    for (path, value), packed in zip(missing.items(), cut, strict=True):
        numbers = value[0].numel()
        fault = codec.fault(packed, numbers)
        if fault is not None:
            raise WireError(f"{message.kind}: {path} is packed badly: {fault}")
        tensors[path] = value + codec.unpack(packed, numbers).view_as(value)
    return replace(message, tensors=tensors)


def _cut(pieces: Mapping[str, Tensor], codec: Codec, values: Sequence[Tensor], message: Message) -> list[Packed]:
    """Return the pieces of each weight; all of them together must be just as many as there are."""
    layouts = [(len(value), codec.layout(value[0].numel())) for value in values]
    dtypes = {piece: dtype for _, layout in layouts for piece, (dtype, _) in layout.items()}
    counts = {
        piece: [rows * layout[piece][1] if piece in layout else 0 for rows, layout in layouts] for piece in dtypes
    }
    wanted = {piece: (dtypes[piece], (sum(each),)) for piece, each in counts.items()}
    got = {piece: (tensor.dtype, tuple(tensor.shape)) for piece, tensor in pieces.items()}
    if got != wanted:
        raise WireError(f"{message.kind}: its packed weights are {quoted(got)}, not {quoted(wanted)}")
    cut = {piece: torch.split(pieces[piece], each) for piece, each in counts.items()}
    return [{piece: cut[piece][at].view(rows, -1) for piece in layout} for at, (rows, layout) in enumerate(layouts)]


def stamp(params: Params, row: int) -> str:
    """Return the hash of a network of a stack, by which both ends know that they mean the same."""
    found = hashlib.blake2b(digest_size=16)
    for name in sorted(params):
        found.update(params[name][row].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def stamps(broadcast: Broadcast | None, rows: Mapping[str, Sequence[int]]) -> dict[str, tuple[str, ...]]:
    """Return the stamps of what receivers have of these rows, for the parts whose changes are sent."""
    if broadcast is None:
        return {}
    changed = [part for part in broadcast.changes if part in rows]
    return {part: tuple(stamp(broadcast.had[part], row) for row in rows[part]) for part in changed}


def of_row(changes: Changes, rows: Mapping[str, int]) -> Changes:
    """Return the changes of one network of each part."""
    return {
        part: {
            name: Sent({piece: t[rows[part]][None] for piece, t in sent.packed.items()}, sent.sound_N[rows[part]][None])
            for name, sent in weights.items()
        }
        for part, weights in changes.items()
        if part in rows
    }


@dataclass
class Shelf:
    """The networks that a site was sent last, and those of the beginning, which everybody can make."""

    first: Callable[[], Parts]
    last: dict[str, dict[str, Params]] = field(default_factory=dict)
    """By part and stamp, one row each."""
    _beginning: dict[str, dict[str, Params]] = field(default_factory=dict)

    def put(self, bank: Parts) -> None:
        """Keep what was sent, instead of what was sent before."""
        self.last = {part: _by_stamp(params) for part, params in bank.items()}

    def find(self, had: Mapping[str, Sequence[str]], passing: Collection[str]) -> Parts:
        """Return the networks of passing parts whose changes are sent, by their stamps."""
        for part, each in had.items():
            if part not in passing or not 0 < len(each) <= trees.count(self.first()[part]):
                raise WireError(f"had is {quoted(each)} for part {quoted(part)}, which has not so many networks")
        return {part: trees.join([self._one(part, one) for one in each]) for part, each in had.items()}

    def _one(self, part: str, wanted: str) -> Params:
        if part not in self._beginning:
            self._beginning[part] = _by_stamp(self.first()[part])
        known = self._beginning[part] | self.last.get(part, {})
        if wanted not in known:
            raise ForgottenError(f"the network {quoted(wanted)} of {quoted(part)} is not here")
        return known[wanted]


def _by_stamp(params: Params) -> dict[str, Params]:
    return {
        stamp(params, row): {name: value[row][None] for name, value in params.items()}
        for row in range(trees.count(params))
    }
