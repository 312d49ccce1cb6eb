"""Make the embedded data set fashion-mnist-mini: a class-balanced subset of Fashion-MNIST.

    python tools/make_mini.py [FOLDER]

FOLDER holds the full data set in any layout that ``fedbac.data.load`` reads; without it FEDBAC_DATA is used. The same
input gives the same file. LZMA inside the zip holds about a fifth more images than numpy's own deflate, and
``numpy.load`` reads it all the same.
"""

import sys
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedbac.core.rng import Rng, stream
from fedbac.data import Dataset, load

PER_CLASS = {"train": 1000, "test": 300}
MAX_BYTES = 4_900_000
TARGET = Path(__file__).parents[1] / "src/fedbac/data/embedded/fashion_mnist_mini.npz"


def choose(rng: Rng, y: NDArray[np.int64], per_class: int) -> NDArray[np.int64]:
    """Choose examples class by class: alike images next to each other compress better."""
    return np.concatenate(
        [np.sort(rng.choice(np.flatnonzero(y == label), per_class, replace=False)) for label in np.unique(y)]
    )


def subset(full: Dataset) -> dict[str, NDArray[np.uint8]]:
    """Return the arrays to store, images as [N, H, W]."""
    rng = stream(0, "mini")
    train = choose(rng, full.y_train, PER_CLASS["train"])
    test = choose(rng, full.y_test, PER_CLASS["test"])
    return {
        "x_train": full.x_train[train, 0],
        "y_train": full.y_train[train].astype(np.uint8),
        "x_test": full.x_test[test, 0],
        "y_test": full.y_test[test].astype(np.uint8),
    }


def main() -> None:
    """Write the file and say how large it is."""
    arrays = subset(load("fashion-mnist", sys.argv[1] if len(sys.argv) > 1 else None))
    with zipfile.ZipFile(TARGET, "w", zipfile.ZIP_LZMA) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
    size = TARGET.stat().st_size
    sys.stdout.write(f"{TARGET.name}: {size:,} bytes\n")
    if size > MAX_BYTES:
        raise SystemExit(f"larger than {MAX_BYTES:,} bytes: choose fewer images")


if __name__ == "__main__":
    main()
