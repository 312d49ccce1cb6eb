"""Random crops with zero padding and horizontal flips, for many images at once."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedbac.core.rng import Rng
from fedbac.core.settings import BoolArray, IntArray, Settings


class Augment(Settings):
    """Shift every image by up to ``crop_padding`` pixels each way, and mirror half of them."""

    crop_padding: Annotated[int, Field(ge=0, le=127)] = 4
    """Zero pixels added on each side before a random cut."""
    flip: bool = True
    """Mirror an image left to right with probability 1/2."""

    def draw(self, rng: Rng, num: int) -> tuple[IntArray, BoolArray]:
        """Draw for each of ``num`` images the (row, column) at which its crop starts, and whether it is mirrored."""
        offset_N2 = rng.integers(0, 2 * self.crop_padding, size=(num, 2), endpoint=True)
        flip_N = rng.random(num) < (0.5 if self.flip else 0.0)
        return offset_N2, flip_N

    def apply(self, x: Tensor, offset_B2: Tensor, flip_B: Tensor) -> Tensor:
        """Crop and mirror ``x [..., C, H, W]`` by ``offset_B2 [..., 2]`` and ``flip_B [...]``; any leading axes."""
        height, width = x.shape[-2:]
        row_BH = _window(offset_B2[..., 0], height, self.crop_padding)
        column_BW = _window(offset_B2[..., 1], width, self.crop_padding)
        column_BW = torch.where(flip_B[..., None], column_BW.flip(-1), column_BW)
        # Pixels of the padding are fetched from the nearest real one and then cleared: no padded copy is made.
        outside_BHW = _outside(row_BH, height)[..., :, None] | _outside(column_BW, width)[..., None, :]
        pixel_BHW = row_BH.clamp(0, height - 1)[..., :, None] * width + column_BW.clamp(0, width - 1)[..., None, :]
        index = pixel_BHW.flatten(-2)[..., None, :].expand(*x.shape[:-2], height * width)
        moved = x.flatten(-2).gather(-1, index).reshape(x.shape)
        return moved.masked_fill(outside_BHW[..., None, :, :], 0)


def _window(offset_B: Tensor, size: int, padding: int) -> Tensor:
    return torch.arange(size, device=offset_B.device) + offset_B[..., None] - padding


def _outside(position: Tensor, size: int) -> Tensor:
    return (position < 0) | (position >= size)
