"""Convolutions of many clients at once, as grouped ones; gradients of their filters have an order of their own."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedbac import gpu
from fedbac.gpu.convolution import Convolution, Layer, Mode, kernels_for

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
    found = _Convolution.apply(x, weight, kernels, *how)  # type: ignore[no-untyped-call]
    return found if bias is None else found + bias[:, None, None]


def _kernels(x: Tensor, weight: Tensor, layer: Any, groups: int) -> Convolution | None:
    """Return our own kernels for a convolution, if there are any: on a GPU, where every client has its own filters."""
    alike = layer.dilation == (1, 1) and layer.stride[0] == layer.stride[1]
    if (
        not x.is_cuda
        or groups == 1
        or not alike
        or x.dtype not in (torch.float32, torch.bfloat16)
        or not gpu.available()
    ):
        return None
    outputs, channels, *kernel = weight.shape
    shape = channels, outputs // groups, *x.shape[2:], (kernel[0], kernel[1]), layer.stride[0], layer.padding
    exact: Mode = "tf32" if torch.backends.cudnn.allow_tf32 else "float32"
    found = kernels_for(Layer(*shape), "bf16" if x.dtype == torch.bfloat16 else exact)
    return found if found.covered else None


class _Convolution(torch.autograd.Function):
    """A grouped convolution; where bits must repeat, libraries have but slow gradients of many groups' filters."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        kernels: Convolution | None,
        stride: Any,
        padding: Any,
        dilation: Any,
        groups: int,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.kernels, ctx.how = kernels, (stride, padding, dilation, groups)
        if kernels is not None:
            return kernels.convolve(x, weight, groups)
        return F.conv2d(x, weight, None, stride, padding, dilation, groups)

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
        return to_x, to_weight, None, None, None, None, None


def filter_gradient(
    x: Tensor,
    gradient: Tensor,
    shape: torch.Size,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
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
