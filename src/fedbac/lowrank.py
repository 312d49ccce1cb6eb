"""Low-rank adapters: what is trained beside the linear layers of a frozen network, and for many clients at once."""

import copy
import fnmatch
import math
import re
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
THAWED = "as_it_was_thawed"
"""Under this name a frozen layer that changed keeps its class, and whether each buffer belongs to what it saves."""


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
        out, slots = _product(x, self.weight, self.bias), self.slots
        if not slots:
            return out
        a, b = _joined(slots)
        low = _product(x if torch.is_autocast_enabled(x.device.type) else x.to(a.dtype), a)
        return out + _product(self.scale * low, b).to(out.dtype)

    @property
    def slots(self) -> list[Slot]:
        """The products, one for each owner."""
        return [slot for slot in self.children() if isinstance(slot, Slot)]

    def product(self) -> tuple[Tensor, Tensor]:
        """Return A and B of all owners as one product."""
        return _joined(self.slots)


def _joined(slots: Sequence[Slot]) -> tuple[Tensor, Tensor]:
    """Return Σ_o B_o A_o as one product, of the sum of their ranks: the A above each other, the B side by side."""
    return torch.cat([slot.a for slot in slots], -2), torch.cat([slot.b for slot in slots], -1)


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


def merged(network: nn.Module) -> nn.Module:
    """Return a copy of a network as it was before it was adapted, with the products added to the weights."""
    own = dict(network.named_parameters(remove_duplicate=False))
    for name, layer in _adapted(network).items():
        others = [n for n, value in own.items() if value is layer.weight and n != f"{name}.weight"]
        if others:
            raise ConfigError(
                f"model: {name} has adapters and shares its weight with {', '.join(others)}, which would change too if "
                "they were added; leave it out of method.personalization.target, or save a folder for peft (.peft)"
            )
    network = copy.deepcopy(network)
    for module in network.modules():
        if isinstance(module, LowRank):
            if module.slots:
                a, b = module.product()
                more = module.scale * (b @ a)
                module.weight = nn.Parameter((module.weight + more).detach().to(module.weight.dtype), False)
            for name, _ in list(module.named_children()):
                delattr(module, name)
            module.__class__ = nn.Linear  # type: ignore[assignment]
        elif (thawed := module.__dict__.pop(THAWED, None)) is not None:
            module.__class__, saved = thawed
            for name, is_saved in saved.items():
                value = getattr(module, name)
                delattr(module, name)
                module.register_buffer(name, value.detach(), persistent=is_saved)
    return network


def for_peft(network: nn.Module) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the configuration and the weights by which ``peft`` puts the adapters into the network that they were made
    for: those of all owners as one, of the sum of their ranks."""
    layers = _adapted(network)
    if not layers:
        raise ConfigError("model: it has no low-rank products, so nothing for peft; save it as .safetensors or .pt2")
    products = {f"{name}.{SLOT}" for name in layers}
    for name, value in network.named_parameters():
        if value.requires_grad and not any(name.startswith(product) for product in products):
            raise ConfigError(
                f"model: {name} is trained as a whole (method.personalization.whole), which is no adapter of peft; "
                "save it as .safetensors"
            )
    found = {}
    for name, layer in layers.items():
        for half, joined in zip("AB", layer.product(), strict=True):
            found[f"base_model.model.{name}.lora_{half}.weight"] = joined.detach().clone()
    layer = next(iter(layers.values()))  # all are alike
    rank = len(layer.product()[0])
    return {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": layer.scale * rank,
        "target_modules": "|".join(re.escape(name) for name in layers),  # as a whole: a list would be of endings
        "inference_mode": True,
    }, found


def _adapted(network: nn.Module) -> dict[str, LowRank]:
    """Return the layers that have products."""
    return {name: m for name, m in network.named_modules() if isinstance(m, LowRank) and m.slots}


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
    saved = network.state_dict().keys()
    for path, module in network.named_modules():
        buffers = list(module.named_buffers(recurse=False))
        if buffers or isinstance(module, _BatchNorm):
            thawed = type(module), {name: f"{path}.{name}".lstrip(".") in saved for name, _ in buffers}
            setattr(module, THAWED, thawed)
        if isinstance(module, _BatchNorm):
            _always_evaluating(module)
        for name, value in buffers:
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
