"""Convolutions, group normalization and linear layers of many clients at once."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedbac import gpu
from fedbac.gpu.convolution import Convolution, Layer, Mode, kernels_for
from fedbac.gpu.normalization import GroupNorm, norm_for

COLUMN_BYTES = 2**28
"""Memory for the patches of images that are spread out at once."""


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


Pair = tuple[int, int]


def filter_gradient(
    x: Tensor, gradient: Tensor, shape: torch.Size, stride: Pair, padding: Pair, dilation: Pair, groups: int
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
