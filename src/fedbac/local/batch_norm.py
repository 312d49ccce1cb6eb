"""Batch normalization of many clients at once: by the examples that count, since batches are padded."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedbac.core.parts import Params

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
        share_A: Tensor | float = 0.0 if momentum is None else momentum
        if momentum is None:
            gathered[2].add_(had_A)
            share_A = 1 / gathered[2].clamp(min=1)[:, None]
        for before, now in zip(gathered, self, strict=False):
            before.copy_(torch.where(had_A[:, None], (1 - share_A) * before + share_A * now, before))


def normalize(
    x: Tensor, scale: Tensor | None, shift: Tensor | None, counts_BA: Tensor, eps: float
) -> tuple[Tensor, Moments]:
    """Normalize ``x [batch, clients · channels, …]`` by the examples that count; scale and shift are [clients ·
    channels]. Those that do not count are normalized as the others are."""
    out, mean, variance = _Normalized.apply(x, scale, shift, counts_BA, eps)  # type: ignore[no-untyped-call]
    size_A = counts_BA.sum(0) * x.shape[2:].numel()
    shape = size_A.numel(), -1
    unbiased = size_A / (size_A - 1).clamp(min=1)
    return out, Moments(mean.view(shape), variance.view(shape) * unbiased[:, None])


class _Normalized(torch.autograd.Function):
    """One pass for the moments of every image, which make those of batches; one pass to normalize."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor | None, shift: Tensor | None, counts_BA: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        share_BD = _shares(x, counts_BA)
        variance_BD, mean_BD = (
            torch.var_mean(x.float().flatten(2), -1, correction=0) if x.dim() > 2 else (0.0, x.float())
        )
        mean = (share_BD * mean_BD).sum(0)
        variance = (share_BD * (variance_BD + (mean_BD - mean).square())).sum(0)
        factor = (variance + eps).rsqrt()
        slope = factor if scale is None else factor * scale
        base = -mean * slope if shift is None else shift - mean * slope
        ctx.save_for_backward(x, scale, mean, factor, share_BD)
        ctx.mark_non_differentiable(mean, variance)
        return torch.addcmul(_over(base, x), x, _over(slope, x)).to(x.dtype), mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, scale, mean, factor, share_BD = ctx.saved_tensors
        gradient = gradients[0].float()
        axes = [axis for axis in range(x.dim()) if axis != 1]
        normal = (x - _over(mean, x)) * _over(factor, x)
        level, along = gradient.sum(axes), (gradient * normal).sum(axes)
        share = (share_BD / x.shape[2:].numel()).reshape(*share_BD.shape, *[1] * (x.dim() - 2))
        slope = factor if scale is None else factor * scale
        to_x = _over(slope, x) * (gradient - share * (_over(level, x) + normal * _over(along, x)))
        wanted = ctx.needs_input_grad
        return to_x.to(x.dtype), along if wanted[1] else None, level if wanted[2] else None, None, None


def _shares(x: Tensor, counts_BA: Tensor) -> Tensor:
    """Return which share of the mean of each channel of each client an example has."""
    share_BA = counts_BA / counts_BA.sum(0).clamp(min=1)
    return share_BA.repeat_interleave(x.shape[1] // counts_BA.shape[1], 1)


def _over(value_D: Tensor, x: Tensor) -> Tensor:
    return value_D.reshape(-1, *[1] * (x.dim() - 2))
