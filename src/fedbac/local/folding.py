"""Layers that run for many clients at once: what ``vmap`` does when it meets them.

``vmap`` knows a rule for most functions, which keeps clients in an axis of their own. Here are those of the layers that
take most of the time. Convolutions, pooling and group normalization fold the clients into the channels, so that all of
them are one grouped convolution, and nothing is moved in memory between layers. Linear layers are batched products.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedbac.local.layers import convolve, normalize, product
from fedbac.models import duplicate

Rule = Callable[..., Tensor | tuple[Tensor, ...]]
"""``rule(clients, dims, *tensors)`` computes for all clients; ``dims`` says which axis of a tensor is theirs, None if
they share it. It returns results with the clients in axis 1 for folded layers, in axis 0 for others."""


class _Together(torch.autograd.Function):
    """Runs ``alone`` on tensors of one client, and a rule on those of many, whose gradients autograd knows."""

    @staticmethod
    def forward(alone: Callable[..., Any], rule: Rule, axis: int, *tensors: Tensor | None) -> Any:
        return alone(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """There is nothing to keep."""

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError("gradients are taken where there are many clients only")

    @staticmethod
    def vmap(info: Any, in_dims: Any, alone: Any, rule: Rule, axis: int, *tensors: Tensor | None) -> Any:
        found = rule(info.batch_size, in_dims[3:], *tensors)
        return found, (axis if isinstance(found, Tensor) else (axis,) * len(found))


def _run(alone: Callable[..., Any], rule: Rule, axis: int, *tensors: Tensor | None) -> Any:
    return _Together.apply(alone, rule, axis, *tensors)  # type: ignore[no-untyped-call]


def for_many(network: nn.Module) -> nn.Module:
    """Return a copy of a network whose layers follow the rules above under ``vmap``; elsewhere it serves no gradients.

    Layers of other kinds, and functions that a network calls by itself, follow those of ``vmap``.
    """
    network = duplicate(network)
    for module in network.modules():
        forward = _FORWARDS.get(type(module))
        if forward is not None:
            module.forward = forward(module, module.forward)
    return network


Forward = Callable[..., Any]


def _convolution(layer: Any, plain: Forward) -> Forward:
    if layer.padding_mode != "zeros":
        return plain

    def rule(clients: int, dims: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        shared = dims[0] is None and layer.groups == 1  # then all clients' filters are those of one layer
        x = x if shared else _folded(x, dims[0], clients)
        weight = _first(weight, dims[1], clients).flatten(0, 1)
        bias = None if bias is None else _first(bias, dims[2], clients).flatten()
        groups = 1 if shared else clients * layer.groups
        return _apart(convolve(x, weight, bias, layer, groups), clients)

    def alone(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return convolve(x, weight, bias, layer, layer.groups)

    def forward(x: Tensor) -> Any:
        if x.dim() != layer.weight.dim():  # an example without a batch
            return plain(x)
        return _run(alone, rule, 1, x, layer.weight, layer.bias)

    return forward


def _linear(layer: Any, plain: Forward) -> Forward:
    def rule(clients: int, dims: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x, weight = _first(x, dims[0], clients), _first(weight, dims[1], clients)
        bias = None if bias is None else _first(bias, dims[2], clients)
        return product(x.flatten(1, -2) if x.dim() > 2 else x[:, None], weight, bias).reshape(*x.shape[:-1], -1)

    return lambda x: _run(F.linear, rule, 0, x, layer.weight, layer.bias)


def _group_norm(layer: Any, plain: Forward) -> Forward:
    def rule(clients: int, dims: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        scale, shift = (
            None if value is None else _first(value, dim, clients).flatten()
            for value, dim in ((weight, dims[1]), (bias, dims[2]))
        )
        normal = normalize(_folded(x, dims[0], clients), clients * layer.num_groups, scale, shift, layer.eps)
        return _apart(normal, clients)

    def alone(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return F.group_norm(x, layer.num_groups, weight, bias, layer.eps)

    return lambda x: _run(alone, rule, 1, x, layer.weight, layer.bias)


def _pooling(layer: Any, plain: Forward) -> Forward:
    def rule(clients: int, dims: Any, x: Tensor) -> Tensor:
        return _apart(plain(_folded(x, dims[0], clients)), clients)

    def forward(x: Tensor) -> Any:
        if x.dim() != 4 or getattr(layer, "return_indices", False):
            return plain(x)
        return _run(plain, rule, 1, x)

    return forward


def _lstm(layer: Any, plain: Forward) -> Forward:
    if layer.bidirectional or layer.proj_size:
        return plain
    kinds = ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if layer.bias else ()))
    names = [f"{kind}_l{level}" for level in range(layer.num_layers) for kind in kinds]

    def rule(clients: int, dims: Any, x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        x_ATBF = _first(x, dims[0], clients)
        x_ATBF = x_ATBF.transpose(1, 2) if layer.batch_first else x_ATBF
        stacked = [_first(weight, dim, clients) for weight, dim in zip(weights, dims[1:], strict=True)]
        hidden, cells = [], []
        for level in range(layer.num_layers):
            mine = stacked[level * len(kinds) : (level + 1) * len(kinds)]
            if level > 0 and layer.training and layer.dropout:
                x_ATBF = F.dropout(x_ATBF, layer.dropout)
            x_ATBF, cell = _recur(x_ATBF, mine[0], mine[1], mine[2] + mine[3] if layer.bias else None)
            hidden.append(x_ATBF[:, -1])
            cells.append(cell)
        out = x_ATBF.transpose(1, 2) if layer.batch_first else x_ATBF
        return out, torch.stack(hidden, 1), torch.stack(cells, 1)

    def alone(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        found = rule(1, [None] * (1 + len(weights)), x, *weights)
        return tuple(value[0] for value in found)

    def forward(x: Tensor, start: Any = None) -> Any:
        if start is not None or not isinstance(x, Tensor) or x.dim() != 3:
            return plain(x, start)
        out, hidden, cell = _run(alone, rule, 0, x, *(getattr(layer, name) for name in names))
        return out, (hidden, cell)

    return forward


def _recur(x_ATBF: Tensor, inner: Tensor, outer: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Run one level of an LSTM over its steps; what does not depend on the step before is one product for all."""
    gates_AT = product(x_ATBF.flatten(1, 2), inner, bias).reshape(*x_ATBF.shape[:3], -1)
    hidden, cell, seen = None, None, []
    for gates in gates_AT.unbind(1):
        if hidden is not None:
            gates = torch.baddbmm(gates, hidden, outer.transpose(1, 2))
        enter, forget, value, leave = gates.chunk(4, -1)
        new = enter.sigmoid() * value.tanh()
        cell = new if cell is None else forget.sigmoid() * cell + new
        hidden = leave.sigmoid() * cell.tanh()
        seen.append(hidden)
    assert cell is not None
    return torch.stack(seen, 1), cell


def _first(value: Tensor, dim: int | None, clients: int) -> Tensor:
    """Return a tensor with the clients in its first axis."""
    return value.expand(clients, *value.shape) if dim is None else value.movedim(dim, 0)


def _folded(x: Tensor, dim: int | None, clients: int) -> Tensor:
    """Return ``[batch, clients · channels, …]``."""
    value = x[:, None].expand(-1, clients, *x.shape[1:]) if dim is None else x.movedim(dim, 1)
    return value.flatten(1, 2)


def _apart(x: Tensor, clients: int) -> Tensor:
    """Undo the folding."""
    return x.reshape(len(x), clients, -1, *x.shape[2:])


_FORWARDS: dict[type[nn.Module], Callable[[Any, Forward], Forward]] = {
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Linear: _linear,
    nn.GroupNorm: _group_norm,
    nn.MaxPool2d: _pooling,
    nn.AvgPool2d: _pooling,
    nn.AdaptiveAvgPool2d: _pooling,
    nn.LSTM: _lstm,
}
