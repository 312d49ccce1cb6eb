from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

from fedbac.data import Dataset
from fedbac.data.datasets import Array
from fedbac.errors import ConfigError


def make(x: Array, **changes: Any) -> Dataset:
    y = np.arange(len(x)) % 3
    return Dataset.from_arrays("mine", **{"x_train": x, "y_train": y, "x_test": x[:6], "y_test": y[:6], **changes})


def images(*shape: int) -> Array:
    return np.random.default_rng(1).integers(256, size=(9, *shape), dtype=np.uint8)


@pytest.mark.parametrize(
    ("given", "kept"), [((5, 4), (1, 5, 4)), ((5, 4, 3), (3, 5, 4)), ((5, 4, 1), (1, 5, 4)), ((3, 5, 4), (3, 5, 4))]
)
def test_images_end_up_channels_first(given: tuple[int, ...], kept: tuple[int, ...]) -> None:
    x = images(*given)
    data = make(x)
    assert data.x_train.shape == (9, *kept)
    assert data.x_train.flags.c_contiguous
    row, column = data.x_train[2, 0, 1, 3], (x[2, 0, 1, 3] if given == kept else x[2, 1, 3].flat[0])
    assert row == column


def test_floats_are_used_as_they_are_and_not_normalized() -> None:
    x = np.random.default_rng(0).normal(size=(9, 5, 3)).astype(np.float32)
    data = make(x)
    assert data.x_train is x
    assert data.normalization() is None
    assert data.num_classes == 3
    assert make(x, num_classes=7).num_classes == 7


def test_normalization_is_the_training_mean_and_deviation_per_channel() -> None:
    data = make(images(7, 6, 3))
    scaled = data.x_train.astype(np.float64) / 255
    result = data.normalization()
    assert result is not None
    np.testing.assert_allclose(result[0], scaled.mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(result[1], scaled.std((0, 2, 3)), rtol=1e-6)
    assert result[0].dtype == result[1].dtype == np.float32


def test_a_constant_channel_can_be_divided_by() -> None:
    result = make(np.full((9, 4, 4), 77, np.uint8)).normalization()
    assert result is not None
    np.testing.assert_array_equal(result[1], [1.0])


def test_read_only_arrays_are_copied_so_that_torch_can_share_them() -> None:
    x = images(4, 4)
    x.flags.writeable = False
    torch.from_numpy(make(x).x_train)  # a warning would be an error


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_train": np.arange(8)}, "9 examples and 8 labels"),
        ({"y_test": np.arange(6) - 1}, "labels run from -1"),
        ({"num_classes": 2}, "num_classes=2 they must be 0 to 1"),
        ({"y_train": np.zeros(9)}, r"a label is float32 \(1,\) in y_train but int64 \(\) in y_test"),
        (
            {"y_train": np.array(["cat"] * 9)},
            "y_train is text; labels must be classes.*return_inverse=True. numbers them",
        ),
        ({"x_train": np.array([["a"]] * 9)}, "train examples are text; give uint8"),
        ({"y_train": np.zeros((9, 1), int)}, "both must be alike"),
        ({"y_train": np.full(9, np.nan), "y_test": np.zeros(6)}, "labels must be 1 finite numbers each"),
        ({"x_test": images(5, 5)[:6]}, "both must be alike"),
        ({"x_test": images(4, 4)[:6].astype(np.float32)}, "both must be alike"),
        ({"x_test": images(4, 4)[:0], "y_test": np.arange(0)}, "at least one"),
        ({"x_train": images(4)}, r"must be \[N, C, H, W\]"),
        ({"x_train": images(4, 4).astype(bool)}, "uint8 images, floating-point numbers or int64 tokens"),
    ],
)
def test_wrong_arrays_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(images(4, 4), **changes)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_is_refused(bad: float) -> None:
    x = np.zeros((9, 2), np.float32)
    x[8, 1] = bad
    with pytest.raises(ConfigError, match="'mine': train examples hold NaN or infinite"):
        make(x)


def test_fingerprint_tells_data_apart() -> None:
    x = images(4, 4)
    other = x.copy()
    other[0, 0, 0] ^= 1
    same, flipped = make(x).fingerprint, make(other).fingerprint
    assert same == make(x.copy()).fingerprint
    assert len({same, flipped, make(x, num_classes=5).fingerprint, make(x, y_test=np.zeros(6, int)).fingerprint}) == 4


class Pairs(TorchDataset[Any]):
    def __init__(self, *pairs: tuple[Any, Any]) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.pairs[index]


def test_from_torch_takes_tensors_arrays_and_pil_images() -> None:
    colour, grey = images(5, 4, 3), images(5, 4)
    y = torch.arange(9) % 3
    tensors = TensorDataset(torch.from_numpy(colour).permute(0, 3, 1, 2), y)
    pictures = Pairs(*((Image.fromarray(x), int(label)) for x, label in zip(colour, y, strict=True)))
    np.testing.assert_array_equal(
        Dataset.from_torch("a", tensors, tensors).x_train, Dataset.from_torch("b", pictures, pictures).x_test
    )
    plain = Pairs(*((x, np.int32(label)) for x, label in zip(grey, y, strict=True)))
    data = Dataset.from_torch("c", plain, Pairs((Image.fromarray(grey[0]), 1)))
    assert data.x_train.shape == (9, 1, 5, 4)
    np.testing.assert_array_equal(data.x_test[0, 0], grey[0])
    np.testing.assert_array_equal(data.y_train, y)


def test_from_torch_says_what_does_not_fit() -> None:
    one = (np.zeros(3, np.float32), 0)
    with pytest.raises(ConfigError, match=r"shapes \[\(2,\), \(3,\)\]"):
        Dataset.from_torch("a", Pairs(one, (np.zeros(2, np.float32), 0)), Pairs(one))
    with pytest.raises(ConfigError, match="both must be alike"):
        Dataset.from_torch("a", Pairs(one), Pairs((one[0], 0.5)))
    with pytest.raises(ConfigError, match="train set is empty"):
        Dataset.from_torch("a", Pairs(), Pairs(one))


def test_a_sample_keeps_a_share_of_every_class() -> None:
    x, y = images(4, 4), np.repeat([0, 1, 2], 3)
    big = Dataset.from_arrays("a", np.concatenate([x] * 10), np.concatenate([y] * 10), x, y)
    small = big.sample(0.5, seed=1)
    np.testing.assert_array_equal(np.bincount(small.y_train), [15, 15, 15])
    np.testing.assert_array_equal(np.bincount(small.y_test), [2, 2, 2])
    assert small.fingerprint == big.sample(0.5, seed=1).fingerprint != big.sample(0.5, seed=2).fingerprint
    assert {tuple(image.ravel()) for image in small.x_train} <= {tuple(image.ravel()) for image in big.x_train}
    np.testing.assert_array_equal(np.bincount(big.sample(0.001, seed=0).y_train), [1, 1, 1])
