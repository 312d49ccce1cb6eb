"""The embedded data set, and the full ones where they are at hand."""

import hashlib
import os
from functools import cache
from importlib import resources

import numpy as np
import pytest

from fedbac.data import Dataset, fetch, load
from fedbac.errors import DataNotFoundError


def test_the_embedded_data_is_small_balanced_and_licensed() -> None:
    data = load("fashion-mnist-mini")
    np.testing.assert_array_equal(np.bincount(data.y_train), [1000] * 10)
    np.testing.assert_array_equal(np.bincount(data.y_test), [300] * 10)
    assert data.x_train.shape == (10_000, 1, 28, 28)
    assert len(np.unique(data.x_train, axis=0)) > 9_990
    folder = resources.files("fedbac.data").joinpath("embedded")
    assert len(folder.joinpath("fashion_mnist_mini.npz").read_bytes()) <= 5_000_000
    assert "Copyright (c) 2017 Zalando SE" in folder.joinpath("LICENSE").read_text()
    assert fetch("fashion-mnist-mini").is_dir()


@cache
def full(name: str) -> Dataset:
    folder = os.environ.get("FEDBAC_DATA")
    if not folder:
        pytest.skip(f"FEDBAC_DATA is not set: set it to a folder with {name} to test the full data set")
    try:
        return load(name, folder)
    except DataNotFoundError as error:
        if "damaged" in str(error):
            raise
        pytest.skip(f"FEDBAC_DATA={folder} holds no {name}: put it there to test the full data set")


@pytest.mark.parametrize(
    ("name", "shape", "num_train", "num_test", "mean", "std"),
    [
        ("fashion-mnist", (1, 28, 28), 60_000, 10_000, [0.2860], [0.3530]),
        ("cifar10", (3, 32, 32), 50_000, 10_000, [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
        ("svhn", (3, 32, 32), 73_257, 26_032, [0.4377, 0.4438, 0.4728], [0.1980, 0.2010, 0.1970]),
    ],
)
def test_full_data_has_the_published_sizes_and_statistics(
    name: str, shape: tuple[int, ...], num_train: int, num_test: int, mean: list[float], std: list[float]
) -> None:
    data = full(name)
    assert data.x_train.shape == (num_train, *shape)
    assert data.x_test.shape == (num_test, *shape)
    result = data.normalization()
    assert result is not None
    np.testing.assert_allclose(result[0], mean, atol=1e-4)
    np.testing.assert_allclose(result[1], std, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "images", "labels"),
    [
        (
            "fashion-mnist",
            "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
            "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
        ),
        (
            "cifar10",
            "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
            "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
        ),
        (
            "svhn",
            None,
            "c2488ef300c629f4bd90a3d2a7b4141589e5b5a4f9046845dfc1a9021319e31a",
        ),  # SVHN is also handed out rebuilt from its full images, a few grey levels apart
    ],
)
def test_full_test_sets_are_the_published_ones(name: str, images: str | None, labels: str) -> None:
    data = full(name)
    assert hashlib.sha256(data.y_test.astype(np.uint8).tobytes()).hexdigest() == labels
    if images:
        assert hashlib.sha256(data.x_test.transpose(0, 2, 3, 1).tobytes()).hexdigest() == images


def test_the_embedded_images_come_from_the_full_set() -> None:
    mini, data = load("fashion-mnist-mini"), full("fashion-mnist")
    for x, y, x_full, y_full in (
        (mini.x_train, mini.y_train, data.x_train, data.y_train),
        (mini.x_test, mini.y_test, data.x_test, data.y_test),
    ):
        pairs = {(image.tobytes(), int(label)) for image, label in zip(x_full, y_full, strict=True)}
        assert all((image.tobytes(), int(label)) in pairs for image, label in zip(x, y, strict=True))
