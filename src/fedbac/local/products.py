"""Group normalization and linear layers of many clients at once on a GPU."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedbac import gpu
from fedbac.gpu.normalization import GroupNorm, norm_for


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
