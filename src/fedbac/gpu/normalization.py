"""Group normalization of many clients by ``normalization.cu``."""

from collections.abc import Callable
from ctypes import c_float, c_void_p
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from fedbac.gpu.driver import Module, current_stream, header, pointers, text

MOST_HELD, MOST_WARPS = 32, 32
"""Numbers of an image that a thread holds, and warps of a block."""


class GroupNorm:
    """The kernels for groups of so many channels of this size."""

    def __init__(self, channels: int, size: int, half: bool, load: Callable[[str], Any] = Module) -> None:
        self.channels, self.size, self.half, self.load = channels, size, half, load
        self.warps = next((w for w in (4, 8, 16, 32) if self._held(w) <= MOST_HELD), MOST_WARPS)

    def _held(self, warps: int) -> int:
        own = -(-self.channels // (warps // self._sharing(warps)))
        at_once = 4 if self.size % 4 == 0 else 2 if self.size % 2 == 0 else 1
        lanes = 32 * self._sharing(warps) * at_once
        return own * -(-self.size // lanes) * at_once

    def _sharing(self, warps: int) -> int:
        """Return how many warps share a channel."""
        sharing = 1
        while 2 * sharing * self.channels <= warps:
            sharing *= 2
        return sharing

    @property
    def covered(self) -> bool:
        """Whether a group fits a block."""
        return self._held(self.warps) <= MOST_HELD and self.channels <= 1024

    @cached_property
    def module(self) -> Any:
        """The compiled kernels."""
        sizes = {"CHANNELS": self.channels, "SIZE": self.size, "WARPS": self.warps, "HALF": int(self.half)}
        sizes["SHARING"] = self._sharing(self.warps)
        return self.load("\n".join([header(sizes), text("intrinsics.cu", "sums.cu", "normalization.cu")]))

    def forward(self, x: Tensor, scale: Tensor | None, shift: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
        """Return ``x [batch, groups · channels, …]`` normalized, and mean and factor of every group."""
        out = torch.empty_like(x)
        moments = x.new_empty((len(x), x.shape[1] // self.channels, 2), dtype=torch.float32)
        self._launch("normalize", x, [x, scale, shift, out, moments], c_float(eps))
        return out, moments

    def back(self, x: Tensor, scale: Tensor | None, moments: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of the input, of the scale and of the shift."""
        out = torch.empty_like(x)
        both = x.new_empty((2, *x.shape[:2]), dtype=torch.float32)
        self._launch("normalize_back", x, [x, scale, moments, gradient, out, both[0], both[1]])
        to_scale, to_shift = both.sum(1)
        return out, to_scale, to_shift

    def _launch(self, name: str, x: Tensor, tensors: list[Tensor | None], *more: Any) -> None:
        values = [c_void_p(None if tensor is None else tensor.data_ptr()) for tensor in tensors]
        stream = current_stream(x.device)
        grid = (x.shape[1] // self.channels, len(x), 1)
        self.module.launch(self.module.kernel(name), grid, 32 * self.warps, 0, stream, pointers([*values, *more]))


norm_for = cache(GroupNorm)
"""The kernels for groups of a shape, compiled once."""
