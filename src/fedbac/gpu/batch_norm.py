"""Batch normalization of many clients by ``batch_norm.cu``."""

from collections.abc import Callable
from ctypes import c_float, c_int, c_void_p
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedbac.gpu.driver import Module, current_stream, header, pointers, text

LEAST_SIZE, MOST_WARPS, NUMBERS = 4, 8, 16
"""Pixels below which neighbours are of other channels, and reading one by one is slow; warps of a block at most; and
numbers that a thread has at least, if there may be fewer warps."""


class BatchNorm:
    """The kernels for images of so many pixels."""

    def __init__(self, size: int, half: bool, load: Callable[[str], Any] = Module) -> None:
        self.size, self.half, self.load = size, half, load
        self.modules: dict[int, Any] = {}

    @property
    def covered(self) -> bool:
        """Whether the kernels serve this size well."""
        return self.size >= LEAST_SIZE

    def forward(
        self, x: Tensor, share_BA: Tensor, scale: Tensor | None, shift: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Return ``x [batch, clients · channels, …]`` normalized, and mean, variance and factor of every channel."""
        out, moments = torch.empty_like(x), x.new_empty((3, x.shape[1]), dtype=torch.float32)
        self._launch("normalize_batch", share_BA, [x, share_BA, scale, shift, out, moments], c_float(eps))
        return out, moments

    def back(
        self, x: Tensor, share_BA: Tensor, scale: Tensor | None, moments: Tensor, gradient: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of the input, of the scale and of the shift."""
        out, both = torch.empty_like(x), x.new_empty((2, x.shape[1]), dtype=torch.float32)
        tensors = [x, share_BA, scale, moments, gradient, out, both[0], both[1]]
        self._launch("normalize_batch_back", share_BA, tensors)
        return out, both[0], both[1]

    def _launch(self, name: str, share_BA: Tensor, tensors: list[Tensor | None], *more: Any) -> None:
        (x, *_), (batch, clients) = tensors, share_BA.shape
        assert x is not None
        warps = 1
        while warps < MOST_WARPS and 2 * warps * 32 * NUMBERS <= batch * self.size:
            warps *= 2
        if warps not in self.modules:
            sizes = {"SIZE": self.size, "WARPS": warps, "HALF": int(self.half)}
            self.modules[warps] = self.load(
                "\n".join([header(sizes), text("intrinsics.cu", "sums.cu", "batch_norm.cu")])
            )
        values: list[Any] = [c_void_p(None if tensor is None else tensor.data_ptr()) for tensor in tensors]
        values += [*more, c_int(batch), c_int(clients)]
        module, stream = self.modules[warps], current_stream(x.device)
        module.launch(module.kernel(name), (x.shape[1], 1, 1), 32 * warps, 0, stream, pointers(values))


norm_for = cache(BatchNorm)
"""The kernels for a size, compiled once."""
