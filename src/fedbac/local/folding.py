"""Layers that run for many clients at once: what ``vmap`` does when it meets them.

``vmap`` knows a rule for most functions, which keeps clients in an axis of their own. Here are those of the layers that
take most of the time. Convolutions, pooling and group normalization fold the clients into the channels, so that all of
them are one grouped convolution, and nothing is moved in memory between layers. Linear layers are batched products.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from fedbac import gpu
from fedbac.core.parts import Params
from fedbac.core.runtime import seeded
from fedbac.gpu.convolution import Convolution, Layer, Mode, kernels_for
from fedbac.gpu.normalization import GroupNorm, norm_for
from fedbac.local import batch_norm
from fedbac.local.examples import Examples
from fedbac.models import duplicate, weights

COLUMN_BYTES = 2**28
"""Memory for the patches of images that are spread out at once."""
LOOKED_AT, PADDING, SAME = 8, 3, 1e-2
"""Examples, and others beside them, by which it is tried out whether padding matters; and by how much what comes out
may differ by rounding. Fewer examples can be so much alike that a network amplifies rounding far more."""


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, layer: Any, groups: int) -> Tensor:
    """Run a layer's convolution on ``x [batch, groups · channels, …]``."""
    plain = F.conv2d if weight.dim() == 4 else F.conv1d
    numbered = weight.dim() == 4 and not isinstance(layer.padding, str)
    kernels = _kernels(x, weight, layer, groups) if numbered else None
    if not numbered or (kernels is None and not torch.backends.cudnn.deterministic):
        found: Tensor = plain(x, weight, bias, layer.stride, layer.padding, layer.dilation, groups)
        return found
    how = layer.stride, layer.padding, layer.dilation, groups
    found = _Convolution.apply(x, weight, kernels, how)  # type: ignore[no-untyped-call]
    return found if bias is None else found + bias[:, None, None]


def _kernels(x: Tensor, weight: Tensor, layer: Any, groups: int) -> Convolution | None:
    """Return our own kernels for a convolution, if there are any: on a GPU, where every client has its own filters."""
    alike = layer.dilation == (1, 1) and layer.stride[0] == layer.stride[1]
    known = x.is_cuda and groups > 1 and alike and x.dtype in (torch.float32, torch.bfloat16)
    if not known or not gpu.available():
        return None
    outputs, channels, *kernel = weight.shape
    shape = channels, outputs // groups, *x.shape[2:], (kernel[0], kernel[1]), layer.stride[0], layer.padding
    exact: Mode = "tf32" if torch.backends.cudnn.allow_tf32 else "float32"
    found = kernels_for(Layer(*shape), "bf16" if x.dtype == torch.bfloat16 else exact)
    return found if found.covered else None


class _Convolution(torch.autograd.Function):
    """A grouped convolution; where bits must repeat, libraries have but slow gradients of many groups' filters."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, kernels: Convolution | None, how: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.kernels, ctx.how = kernels, how
        return F.conv2d(x, weight, None, *how) if kernels is None else kernels.convolve(x, weight, how[-1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (x, weight), (gradient,), (stride, padding, dilation, groups) = ctx.saved_tensors, gradients, ctx.how
        kernels: Convolution | None = ctx.kernels
        to_x = to_weight = None
        if ctx.needs_input_grad[0] and kernels is not None:
            to_x = kernels.to_input(gradient, weight, groups)
        elif ctx.needs_input_grad[0]:
            which = (True, False, False)
            to_x = torch.ops.aten.convolution_backward(
                gradient, x, weight, None, stride, padding, dilation, False, (0, 0), groups, which
            )[0]
        if ctx.needs_input_grad[1] and kernels is not None:
            to_weight = kernels.to_filters(x, gradient, groups)
        elif ctx.needs_input_grad[1]:
            to_weight = filter_gradient(x, gradient, weight.shape, *ctx.how)
        return to_x, to_weight, None, None


Two = tuple[int, int]


def filter_gradient(
    x: Tensor, gradient: Tensor, shape: torch.Size, stride: Two, padding: Two, dilation: Two, groups: int
) -> Tensor:
    """Return the gradient of filters: batched products with the patches of images, summed over them in their order."""
    x = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    x = x.reshape(len(x), groups, -1, *x.shape[2:])
    batch, (rows, columns) = len(x), gradient.shape[2:]
    steps = x.stride()
    patches = x.as_strided(
        (batch, groups, *shape[1:], rows, columns),
        (*steps[:3], steps[3] * dilation[0], steps[4] * dilation[1], steps[3] * stride[0], steps[4] * stride[1]),
    )
    taps = shape[1:].numel()
    at_once = max(1, COLUMN_BYTES // (groups * taps * rows * columns * x.element_size()))
    total = x.new_zeros((groups, shape[0] // groups, taps))
    for start in range(0, batch, at_once):
        some = slice(start, start + at_once)
        spread = patches[some].reshape(-1, taps, rows * columns)
        each = torch.bmm(gradient[some].reshape(len(spread), -1, rows * columns), spread.transpose(1, 2))
        total += each.reshape(-1, *total.shape).sum(0)
    return total.reshape(shape)


def normalize(x: Tensor, groups: int, scale: Tensor | None, shift: Tensor | None, eps: float) -> Tensor:
    """Normalize ``x [batch, groups · channels, …]``."""
    channels, size = x.shape[1] // groups, x.shape[2:].numel()
    if x.is_cuda and x.dtype in (torch.float32, torch.bfloat16) and size > 0 and gpu.available():
        kernels = norm_for(channels, size, x.dtype == torch.bfloat16)
        if kernels.covered:
            found: Tensor = _Normalized.apply(x, scale, shift, kernels, eps)  # type: ignore[no-untyped-call]
            return found
    return F.group_norm(x, groups, scale, shift, eps)


class _Normalized(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor | None, shift: Tensor | None, kernels: GroupNorm, eps: float
    ) -> Tensor:
        x = x.contiguous()
        slope, base = (None if value is None else value.float().contiguous() for value in (scale, shift))
        out, moments = kernels.forward(x, slope, base, eps)
        ctx.save_for_backward(x, slope, moments)
        ctx.kernels, ctx.kind = kernels, x.dtype
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, slope, moments = ctx.saved_tensors
        to_x, to_scale, to_shift = ctx.kernels.back(x, slope, moments, gradients[0].contiguous())
        wanted = ctx.needs_input_grad
        return (
            to_x, to_scale.to(ctx.kind) if wanted[1] else None, to_shift.to(ctx.kind) if wanted[2] else None, None, None
        )  # fmt: skip


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``x [clients, rows, in] · weight [clients, out, in]ᵀ + bias``."""
    if x.is_cuda:
        found: Tensor = _Product.apply(x, weight)  # type: ignore[no-untyped-call]
        return found if bias is None else found + bias[:, None]
    if bias is None:
        return torch.bmm(x, weight.transpose(1, 2))
    return torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))


class _Product(torch.autograd.Function):
    """The gradient of its weights lies as they do, so that nobody has to turn it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.bmm(x, weight.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (x, weight), (gradient,) = ctx.saved_tensors, gradients
        to_x = torch.bmm(gradient, weight) if ctx.needs_input_grad[0] else None
        to_weight = torch.bmm(gradient.transpose(1, 2), x) if ctx.needs_input_grad[1] else None
        return to_x, to_weight


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
    Layers of other kinds, and functions that a network calls by itself, follow those of ``vmap``."""
    network = duplicate(network)
    for module in network.modules():
        forward = _batch_norm if batch_norm.by_batches(module) else _FORWARDS.get(type(module))
        if forward is not None:
            module.forward = forward(module, module.forward)
    return network


def why_alone(network: nn.Module, examples: Examples) -> str | None:
    """Return why clients cannot train a network at once, in padded batches, found by a look at some examples; None
    where they can. Only layers that gather statistics, or normalize by batches, are in the way."""
    known, some = any(True for _ in network.buffers()), examples.some(LOOKED_AT)
    if not len(some) or not (known or any(isinstance(module, _BatchNorm) for module in network.modules())):
        return None
    some = some[torch.arange(LOOKED_AT) % len(some)]
    alone = duplicate(network).train()
    own = batch_norm.gathered(alone) | batch_norm.counters(alone, needed=False).keys()
    before = {name: value.clone() for name, value in alone.named_buffers()}
    with torch.no_grad():
        try:
            with seeded(0):
                alone(some)
            after = dict(alone.named_buffers())
            changed = [n for n in after if n not in own and (n not in before or not _equal(after[n], before[n]))]
            if changed:
                return f"buffers {', '.join(changed)} change in training, and not as those of batch normalization do"
            for module in alone.modules():
                module.training = module.training and batch_norm.by_batches(module)  # draws nothing
            return None if _padded(alone, some) else "examples of a batch depend on those that only fill it"
        except (RuntimeError, ValueError) as error:
            return f"torch cannot run it for many clients at once ({error})"


def _padded(network: nn.Module, some: Tensor) -> bool:
    """Whether examples of a client come out of a padded batch as out of their own, and the statistics too."""
    start = weights(network) | batch_norm.counters(network)
    one = {name: value.clone() for name, value in start.items()}
    many = {name: value.clone()[None] for name, value in start.items()}
    together = for_many(network)

    def padded(params: Params, x: Tensor, counts: Tensor) -> Any:
        with batch_norm.counting(counts):
            return functional_call(together, params, (x,))

    counts = (torch.arange(LOOKED_AT + PADDING) < LOOKED_AT).float()
    right = functional_call(network, one, (some,))
    found = vmap(padded)(many, torch.cat([some, some[:PADDING]])[None], counts[None])[0, :LOOKED_AT]
    pairs = [(found, right), *((many[name][0], value) for name, value in one.items())]
    return all(torch.allclose(mine, theirs, SAME, SAME, equal_nan=True) for mine, theirs in pairs)


def _equal(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.nan_to_num(), other.nan_to_num())


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
        x = _first(x, dims[0], clients)
        if dims[1] is None and dims[2] is None:  # frozen: one product for all
            return F.linear(x, weight, bias)
        weight = _first(weight, dims[1], clients)
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


def _batch_norm(layer: Any, plain: Forward) -> Forward:
    def flat(value: Tensor | None, dim: int | None, clients: int) -> Tensor | None:
        return None if value is None else _first(value, dim, clients).flatten().float()

    def at_rest(clients: int, dims: Any, x: Tensor, *own: Tensor | None) -> Tensor:
        scale, shift, mean, variance = map(flat, own, dims[1:], [clients] * len(own))
        x = _folded(x, dims[0], clients)
        return _apart(F.batch_norm(x, mean, variance, scale, shift, False, 0.0, layer.eps), clients)

    def alone_at_rest(x: Tensor, scale: Tensor | None, shift: Tensor | None, mean: Tensor, variance: Tensor) -> Tensor:
        return F.batch_norm(x, mean, variance, scale, shift, False, 0.0, layer.eps)

    def by_batch(
        clients: int, dims: Any, x: Tensor, scale: Tensor | None, shift: Tensor | None, counts: Tensor | None,
        *gathered: Tensor,
    ) -> Tensor:  # fmt: skip
        x = _folded(x, dims[0], clients)
        counts_BA = (
            torch.ones((len(x), clients), device=x.device) if counts is None else _first(counts, dims[3], clients).T
        )
        normal, moments = batch_norm.normalize(
            x, flat(scale, dims[1], clients), flat(shift, dims[2], clients), counts_BA, layer.eps
        )
        if gathered:
            own = [_first(value, dim, clients) for value, dim in zip(gathered, dims[4:], strict=True)]
            moments.join(own, layer.momentum, counts_BA.any(0))
        return _apart(normal, clients)

    def alone_by_batch(x: Tensor, scale: Tensor | None, shift: Tensor | None, *other: Any) -> Tensor:
        return F.batch_norm(x, None, None, scale, shift, True, 0.0, layer.eps)

    def forward(x: Tensor) -> Any:
        layer._check_input_dim(x)
        if not layer.training and layer.running_mean is not None:
            known = layer.running_mean, layer.running_var
            return _run(alone_at_rest, at_rest, 1, x, layer.weight, layer.bias, *known)
        gathered = [layer.running_mean, layer.running_var] if layer.training and layer.track_running_stats else []
        gathered += [layer.num_batches_tracked] if gathered and layer.momentum is None else []
        given = x, layer.weight, layer.bias, batch_norm.counts(x), *gathered
        return _run(alone_by_batch, by_batch, 1, *given)

    return forward


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
