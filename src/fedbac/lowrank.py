"""Low-rank adapters: what is trained beside the linear layers of a frozen network, and for many clients at once."""

import fnmatch
import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from fedbac.errors import ConfigError, quoted

SLOT = "adapter_"
"""What names of adapters begin with; the name of their owner follows."""


class Slot(nn.Module):
    """The product BA of one owner: A starts random, B at zero, so that nothing is added before it is trained."""

    def __init__(self, inputs: int, outputs: int, rank: int, trains_a: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.empty(rank, inputs), trains_a), nn.Parameter(torch.zeros(outputs, rank))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))


class LowRank(nn.Linear):
    """A linear layer and low-rank products beside it: Wx + c + (α/r)·Σ_o B_o A_o x, a slot for each owner o.

    Weights may be stacked, ``[clients, …]``: the rows of a batch are then those of the clients one after another, as
    many of each. What all have in common, such as W, is multiplied once with the rows of all.
    """

    def __init__(self, base: nn.Linear, owners: Sequence[str], rank: int, scale: float, trains_a: bool) -> None:
        nn.Module.__init__(self)  # the weights are those of the layer
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias, self.scale = base.weight, base.bias, scale
        for owner in owners:
            self.add_module(SLOT + owner, Slot(self.in_features, self.out_features, rank, trains_a))

    def forward(self, x: Tensor) -> Tensor:
        """Return W x + c and what the slots add."""
        out, slots = _product(x, self.weight, self.bias), [slot for slot in self.children() if isinstance(slot, Slot)]
        if not slots:
            return out
        # Σ_o B_o A_o is one product of the B side by side with the A above each other.
        seen = x if torch.is_autocast_enabled(x.device.type) else x.to(slots[0].a.dtype)
        low = _product(seen, torch.cat([slot.a for slot in slots], -2))
        return out + _product(self.scale * low, torch.cat([slot.b for slot in slots], -1)).to(out.dtype)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return a linear layer's output; if its weight is stacked, equal shares of the rows meet each client's own."""
    if weight.dim() == 2:
        return F.linear(x, weight, bias)
    rows_C = x.reshape(len(weight), -1, x.shape[-1])
    weight_C = weight.transpose(1, 2)
    out_C = torch.bmm(rows_C, weight_C) if bias is None else torch.baddbmm(_each(bias, weight), rows_C, weight_C)
    return out_C.reshape(*x.shape[:-1], weight.shape[1])


def _each(bias: Tensor, weight: Tensor) -> Tensor:
    return bias[:, None] if bias.dim() == 2 else bias.expand(len(weight), 1, -1)


def adapt(
    network: nn.Module,
    target: Sequence[str],
    owners: Sequence[str],
    rank: int,
    alpha: float,
    trains_a: bool,
    whole: Iterable[Sequence[str]],
) -> nn.Module:
    """Freeze a network, in place, but for the weights that match a pattern of ``whole``, and give its linear layers
    that match ``target`` a slot for every owner."""
    _still(network)
    layers = {name: module for name, module in network.named_modules() if type(module) is nn.Linear and name}
    patterns = list(chain.from_iterable(whole))
    trained = _matching(patterns, [name for name, _ in network.named_parameters()], "whole", "weights")
    slotted = _matching(target if owners else (), list(layers), "target", "linear layers (nn.Linear)")
    for name in trained:
        network.get_parameter(name).requires_grad_(True)
    for name in dict.fromkeys([*slotted, *(name.rpartition(".")[0] for name in trained)]):
        if name in layers:  # another that is trained as a whole stays what it is
            adapted = LowRank(layers[name], owners if name in slotted else (), rank, alpha / rank, trains_a)
            parent, _, own = name.rpartition(".")
            setattr(network.get_submodule(parent), own, adapted)
    return network


def _matching(patterns: Sequence[str], names: Sequence[str], field: str, what: str) -> list[str]:
    """Return the names that match; a pattern that matches none is a mistake."""
    found: dict[str, None] = {}
    for pattern in patterns:
        if not (matching := fnmatch.filter(names, pattern)):
            shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
            raise ConfigError(
                f"method.personalization.{field}: {quoted(pattern)} matches none of the {what} of the network"
                + (f": {shown}" if shown else ", which has none")
            )
        found |= dict.fromkeys(matching)
    return list(found)


def _still(network: nn.Module) -> None:
    """Freeze every weight, and with them what layers gather while they run: batch normalization goes by what it has."""
    network.requires_grad_(False)
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            _always_evaluating(module)
        for name, value in list(module.named_buffers(recurse=False)):
            delattr(module, name)
            module.register_parameter(name, nn.Parameter(value, requires_grad=False))


def _always_evaluating(module: nn.Module) -> None:
    kind: Any = type(module)
    module.__class__ = type(kind.__name__, (kind,), {"train": lambda self, mode=True: kind.train(self, False)})
    module.eval()


def stackable(network: nn.Module) -> bool:
    """Whether all weights that are trained are in layers that may be stacked; it may be that there are none."""
    inside = {id(value) for module in network.modules() if isinstance(module, LowRank) for value in module.parameters()}
    return all(id(value) in inside for value in network.parameters() if value.requires_grad)
