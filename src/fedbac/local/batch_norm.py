"""Batch normalization of many clients at once: by the examples that count, since batches are padded."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedbac import gpu
from fedbac.core.parts import Params
from fedbac.gpu.batch_norm import BatchNorm, norm_for

_COUNTS: ContextVar[Tensor | None] = ContextVar("counts", default=None)


@contextmanager
def counting(weight_B: Tensor) -> Iterator[None]:
    """Tell layers that run meanwhile which examples of a batch count: 1, or 0 for padding."""
    before = _COUNTS.set(weight_B)
    try:
        yield
    finally:
        _COUNTS.reset(before)


def counts(x: Tensor) -> Tensor | None:
    """Return which examples count of those that a layer sees; None where all do."""
    weight_B = _COUNTS.get()
    if weight_B is not None and len(weight_B) != len(x):
        raise ValueError(f"batch normalization sees {len(x)} rows where a batch has {len(weight_B)} examples")
    return weight_B


def by_batches(module: nn.Module) -> bool:
    """Whether a layer is batch normalization, and computes it as torch's own."""
    return isinstance(module, _BatchNorm) and type(module).forward is _BatchNorm.forward


def _of_layers(network: nn.Module, kinds: Collection[str]) -> dict[str, tuple[Any, Tensor]]:
    """Return buffers of these names of layers that normalize by batches, each with its layer."""
    layers = {name: module for name, module in network.named_modules() if by_batches(module)}
    split = {name: name.rpartition(".") for name, _ in network.named_buffers()}
    held = dict(network.named_buffers())
    return {n: (layers[own], held[n]) for n, (own, _, kind) in split.items() if own in layers and kind in kinds}


def gathered(network: nn.Module) -> frozenset[str]:
    """Return the names of the statistics that batch normalization gathers in training."""
    return frozenset(_of_layers(network, ("running_mean", "running_var")))


def counters(network: nn.Module, needed: bool = True) -> Params:
    """Return how many batches each layer has seen; of those ``needed``, whose statistics are means over all of them."""
    found = _of_layers(network, ("num_batches_tracked",))
    return {name: value for name, (layer, value) in found.items() if not needed or layer.momentum is None}


def judges_by_batches(network: nn.Module) -> bool:
    """Whether a prediction depends on the others of its batch, as a layer has no statistics but those of batches."""
    return any(isinstance(module, _BatchNorm) and module.running_mean is None for module in network.modules())


class Moments(NamedTuple):
    """Of the batches of many clients, by client and channel: [A, C]."""

    mean: Tensor
    variance: Tensor
    """Without bias."""

    @torch.no_grad()
    def join(self, gathered: Sequence[Tensor], momentum: float | None, had_A: Tensor) -> None:
        """Move the statistics that clients with a batch have gathered, in place: mean, variance and, without a
        momentum, the number of batches."""
        share: Tensor | float = 0.0 if momentum is None else momentum
        if momentum is None:
            gathered[2].add_(had_A)
            share = 1 / gathered[2].clamp(min=1)[:, None]
        for before, now in zip(gathered, self, strict=False):
            before.lerp_(torch.where(had_A[:, None], now, before), share)


def normalize(
    x: Tensor, scale: Tensor | None, shift: Tensor | None, counts_BA: Tensor, eps: float
) -> tuple[Tensor, Moments]:
    """Normalize ``x [batch, clients · channels, …]`` by the examples that count; scale and shift are [clients ·
    channels]. Those that do not count are normalized as the others are."""
    number_A, size = counts_BA.sum(0), x.shape[2:].numel()
    kernels = norm_for(size, x.dtype == torch.bfloat16) if x.is_cuda and gpu.available() else None
    known = kernels is not None and kernels.covered and x.dtype in (torch.float32, torch.bfloat16)
    arithmetic = _ByKernels if known else _ByTorch
    share_BA = counts_BA / number_A.clamp(min=1)
    out, moments = arithmetic.apply(x, scale, shift, share_BA, eps, kernels)  # type: ignore[no-untyped-call]
    mean, variance = moments[:2].reshape(2, len(number_A), -1)
    unbiased = number_A * size / (number_A * size - 1).clamp(min=1)
    return out, Moments(mean, variance * unbiased[:, None])


class _ByTorch(torch.autograd.Function):
    """The moments of every image make those of batches, without a copy of the images that count."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor | None, shift: Tensor | None, share_BA: Tensor, eps: float, kernels: None
    ) -> tuple[Tensor, Tensor]:
        share_BD = _each(share_BA, x)
        variance_BD, mean_BD = torch.var_mean(x.float().reshape(*x.shape[:2], -1), -1, correction=0)
        mean = (share_BD * mean_BD).sum(0)
        variance = (share_BD * (variance_BD + (mean_BD - mean).square())).sum(0)
        moments = torch.stack([mean, variance, (variance + eps).rsqrt()])
        slope = moments[2] if scale is None else moments[2] * scale
        base = -mean * slope if shift is None else shift - mean * slope
        ctx.save_for_backward(x, scale, share_BA, moments)
        ctx.mark_non_differentiable(moments)
        return torch.addcmul(_over(base, x), x, _over(slope, x)).to(x.dtype), moments

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, scale, share_BA, (mean, _, factor) = ctx.saved_tensors
        gradient, axes = gradients[0].float(), [axis for axis in range(x.dim()) if axis != 1]
        normal = (x - _over(mean, x)) * _over(factor, x)
        level, along = gradient.sum(axes), (gradient * normal).sum(axes)
        share_BD = _each(share_BA, x) / x.shape[2:].numel()
        share = share_BD.reshape(*share_BD.shape, *[1] * (x.dim() - 2))
        slope = factor if scale is None else factor * scale
        to_x = _over(slope, x) * (gradient - share * (_over(level, x) + normal * _over(along, x)))
        return _returned(ctx, to_x.to(x.dtype), along, level)


class _ByKernels(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        scale: Tensor | None,
        shift: Tensor | None,
        share_BA: Tensor,
        eps: float,
        kernels: BatchNorm,
    ) -> tuple[Tensor, Tensor]:
        x, share_BA = x.contiguous(), share_BA.contiguous()
        slope, base = (None if value is None else value.contiguous() for value in (scale, shift))
        out, moments = kernels.forward(x, share_BA, slope, base, eps)
        ctx.save_for_backward(x, slope, share_BA, moments)
        ctx.kernels = kernels
        ctx.mark_non_differentiable(moments)
        return out, moments

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, scale, share_BA, moments = ctx.saved_tensors
        return _returned(ctx, *ctx.kernels.back(x, share_BA, scale, moments, gradients[0].contiguous()))


def _returned(ctx: Any, to_x: Tensor, to_scale: Tensor, to_shift: Tensor) -> tuple[Tensor | None, ...]:
    _, scaled, shifted, *_ = ctx.needs_input_grad
    return to_x, to_scale if scaled else None, to_shift if shifted else None, None, None, None


def _each(share_BA: Tensor, x: Tensor) -> Tensor:
    """Return the share of every channel of every client."""
    channels = x.shape[1] // share_BA.shape[1]
    return share_BA[:, :, None].expand(-1, -1, channels).flatten(1)


def _over(value_D: Tensor, x: Tensor) -> Tensor:
    return value_D.reshape(-1, *[1] * (x.dim() - 2))
