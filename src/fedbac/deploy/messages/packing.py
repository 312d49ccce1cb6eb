"""Networks in messages, also as changes to others that the receiver has, where links compress.

A weight is sent as it arrives, or its change is packed. The pieces of all packed weights of a message lie one after
another in the same few tensors, in the order of the names of parts and weights. So a message takes what the ledger
counts, and a head that does not grow with the network.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedbac.core import trees
from fedbac.core.codecs import Broadcast, Changes, Codec, Packed, Sent
from fedbac.core.parts import Params, Parts
from fedbac.deploy.wire import Message, WireError
from fedbac.errors import DeployError, quoted


class ForgottenError(DeployError):
    """A message says how networks changed that the receiver does not have; it must be sent all of them."""


def packed_out(bank: Parts, changes: Changes, place: str) -> dict[str, Tensor]:
    """Return networks by their paths, and the changes of those weights that can be packed."""
    whole: dict[str, Tensor] = {}
    pieces: dict[str, list[Tensor]] = {}
    for part, params in sorted(bank.items()):
        for name, value in sorted(params.items()):
            sent = changes.get(part, {}).get(name)
            if sent is None or value.dtype != torch.float32 or not bool(sent.sound_N.all()):
                whole[f"{place}/{part}/{name}"] = value
                continue
            for piece, tensor in sent.packed.items():
                pieces.setdefault(f"packed/{place}/{piece}", []).append(tensor.reshape(-1).cpu())
    return whole | {path: torch.cat(tensors) for path, tensors in pieces.items()}


def packed_in(message: Message, place: str, codec: Codec | None, had: Parts) -> Parts:
    """Return the networks at a place: as they are there, or what they ``had`` with the changes that are packed.

    Names and shapes of what is there as it is remain to be checked.
    """
    found = message.parts(place)
    pieces = message.under(f"packed/{place}")
    if codec is None or not pieces:
        return found
    missing = [
        (part, name, value)
        for part, params in sorted(had.items())
        for name, value in sorted(params.items())
        if name not in found.get(part, {}) and value.dtype == torch.float32
    ]
    for (part, name, value), packed in zip(missing, _cut(pieces, codec, [m[2] for m in missing], message), strict=True):
        numbers = value[0].numel()
        fault = codec.fault(packed, numbers)
        if fault is not None:
            raise WireError(f"{message.kind}: {place}/{part}/{name} is packed badly: {fault}")
        found.setdefault(part, {})[name] = value + codec.unpack(packed, numbers).view_as(value)
    return found


def _cut(pieces: Mapping[str, Tensor], codec: Codec, values: Sequence[Tensor], message: Message) -> list[Packed]:
    """Return the pieces of each weight; all of them together must be just as many as there are."""
    layouts = [codec.layout(value[0].numel()) for value in values]
    wanted: dict[str, tuple[torch.dtype, int]] = {}
    for value, layout in zip(values, layouts, strict=True):
        for piece, (dtype, count) in layout.items():
            wanted[piece] = dtype, wanted.get(piece, (dtype, 0))[1] + len(value) * count
    got = {piece: (tensor.dtype, tensor.numel()) for piece, tensor in pieces.items()}
    if got != wanted or any(tensor.dim() != 1 for tensor in pieces.values()):
        raise WireError(f"{message.kind}: its packed weights are {quoted(got)}, not {quoted(wanted)}")
    at = dict.fromkeys(wanted, 0)
    found: list[Packed] = []
    for value, layout in zip(values, layouts, strict=True):
        packed: Packed = {}
        for piece, (_, count) in layout.items():
            end = at[piece] + len(value) * count
            packed[piece] = pieces[piece][at[piece] : end].view(len(value), count)
            at[piece] = end
        found.append(packed)
    return found


def stamp(params: Params, row: int) -> str:
    """Return the hash of a network of a stack, by which both ends know that they mean the same."""
    found = hashlib.blake2b(digest_size=16)
    for name in sorted(params):
        found.update(params[name][row].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def stamps(broadcast: Broadcast, rows: Mapping[str, Sequence[int]]) -> dict[str, list[str]]:
    """Return the stamps of what receivers have of these rows, for the parts whose changes are sent."""
    return {part: [stamp(broadcast.had[part], row) for row in rows[part]] for part in broadcast.changes if part in rows}


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

    def find(self, message: Message, like: Parts) -> Parts:
        """Return the networks whose changes a message tells."""
        said = message.head.get("had", {})
        if not isinstance(said, dict) or not set(said) <= set(like):
            raise WireError(f"{message.kind}: had is {quoted(said)}; it must name networks by part")
        for part, each in said.items():
            if not isinstance(each, list) or not 0 < len(each) <= trees.count(self.first()[part]):
                raise WireError(
                    f"{message.kind}: had is {quoted(each)} for {quoted(part)}, of which there are not so many"
                )
        return {part: trees.join([self._one(part, one) for one in each]) for part, each in said.items()}

    def _one(self, part: str, wanted: Any) -> Params:
        if part not in self._beginning:
            self._beginning[part] = _by_stamp(self.first()[part])
        known = self._beginning[part] | self.last.get(part, {})
        if not isinstance(wanted, str) or wanted not in known:
            raise ForgottenError(f"the network {quoted(wanted)} of {quoted(part)} is not here")
        return known[wanted]


def _by_stamp(params: Params) -> dict[str, Params]:
    return {
        stamp(params, row): {name: value[row][None] for name, value in params.items()}
        for row in range(trees.count(params))
    }
