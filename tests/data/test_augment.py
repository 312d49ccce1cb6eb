from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fedbac.core.rng import stream
from fedbac.data import Augment


def one_by_one(x: torch.Tensor, offset: Any, flip: Any, padding: int) -> torch.Tensor:
    """The definition: pad, cut out, mirror, one image at a time."""
    result = torch.empty_like(x)
    height, width = x.shape[-2:]
    for i, image in enumerate(x):
        padded = torch.zeros(x.shape[1], height + 2 * padding, width + 2 * padding, dtype=x.dtype)
        padded[:, padding : padding + height, padding : padding + width] = image
        top, left = (int(value) for value in offset[i])
        crop = padded[:, top : top + height, left : left + width]
        result[i] = crop.flip(-1) if flip[i] else crop
    return result


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 5, 9)])
@pytest.mark.parametrize("padding", [0, 2, 4, 12])
def test_it_equals_the_plain_loop(dtype: torch.dtype, shape: tuple[int, ...], padding: int) -> None:
    augment = Augment(crop_padding=padding)
    x = torch.randint(1, 256, (64, *shape), generator=torch.Generator().manual_seed(0)).to(dtype)
    offset_N2, flip_N = augment.draw(stream(0, "augment"), 64)
    result = augment.apply(x, torch.from_numpy(offset_N2), torch.from_numpy(flip_N))
    assert result.dtype == dtype
    assert torch.equal(result, one_by_one(x, offset_N2, flip_N, padding))


def test_a_client_axis_in_front_changes_nothing() -> None:
    augment = Augment(crop_padding=2)
    x = torch.rand(3, 5, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    offset_N2, flip_N = (torch.from_numpy(array) for array in augment.draw(stream(1, "augment"), 15))
    apart = augment.apply(x.flatten(0, 1), offset_N2, flip_N).reshape(x.shape)
    stacked = augment.apply(x, offset_N2.reshape(3, 5, 2), flip_N.reshape(3, 5))
    assert torch.equal(stacked, apart)
    mapped = torch.func.vmap(augment.apply)(x, offset_N2.reshape(3, 5, 2), flip_N.reshape(3, 5))
    assert torch.equal(mapped, apart)


def test_the_middle_crop_without_flip_is_the_image() -> None:
    x = torch.rand(4, 1, 7, 7, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Augment().apply(x, torch.full((4, 2), 4), torch.zeros(4, dtype=torch.bool)), x)


def test_draws_cover_every_offset_and_half_the_flips() -> None:
    offset_N2, flip_N = Augment(crop_padding=2).draw(stream(0, "augment"), 5000)
    assert offset_N2.dtype == np.int64
    assert flip_N.dtype == np.bool_
    np.testing.assert_allclose(np.bincount(offset_N2[:, 0], minlength=5) / 5000, 0.2, atol=0.03)
    np.testing.assert_allclose(np.bincount(offset_N2[:, 1], minlength=5) / 5000, 0.2, atol=0.03)
    assert flip_N.mean() == pytest.approx(0.5, abs=0.03)
    still_N2, unflipped_N = Augment(crop_padding=2, flip=False).draw(stream(0, "augment"), 5000)
    assert not unflipped_N.any()
    np.testing.assert_array_equal(still_N2, offset_N2)


def test_the_configuration_is_checked() -> None:
    with pytest.raises(ValidationError, match="crop_padding"):
        Augment(crop_padding=-1)
