"""Readers of the file formats in which the public data sets are handed out.

Each takes the files of one layout and returns ``(x_train, y_train, x_test, y_test)``. A file that is cut short or
damaged gives an error that names it.
"""

import gzip
import math
import pickle
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedbac.data.datasets import Array
from fedbac.errors import DataNotFoundError

Arrays = tuple[Array, Array, Array, Array]


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong while a file is read into one error that names the file."""
    try:
        yield
    except Exception as error:  # on damaged bytes a parser can raise nearly anything
        raise DataNotFoundError(
            f"{path} cannot be used: it is damaged, cut short, or not in the format of its name "
            f"({type(error).__name__}: {error}). Delete it and get it again, or point to another folder."
        ) from error


def read_npz(paths: Sequence[Path]) -> Arrays:
    """Read one ``.npz`` file with the arrays ``x_train``, ``y_train``, ``x_test`` and ``y_test``."""
    (path,) = paths
    # Opened here, because numpy leaves a file that it opened itself open when it is damaged.
    with reading(path), path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        return archive["x_train"], archive["y_train"], archive["x_test"], archive["y_test"]


def read_idx(paths: Sequence[Path]) -> Arrays:
    """Read the four idx files of the MNIST family, plain or gzipped: training images and labels, then test."""
    x_train, y_train, x_test, y_test = map(_idx, paths)
    return x_train, y_train, x_test, y_test


def _idx(path: Path) -> Array:
    with reading(path):
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        # Two zero bytes, the element type (8: unsigned byte), the number of axes, then each length, big-endian.
        if raw[:3] != b"\0\0\x08":
            raise ValueError("not an idx file of unsigned bytes")
        header = 4 + 4 * raw[3]
        shape = struct.unpack(f">{raw[3]}I", raw[4:header])
        if len(raw) - header != math.prod(shape):
            raise ValueError(f"{len(raw) - header} bytes of data where the header promises {math.prod(shape)}")
        return np.frombuffer(raw, np.uint8, offset=header).reshape(shape)


def read_svhn(paths: Sequence[Path]) -> Arrays:
    """Read SVHN's two MATLAB files of cropped digits; the digit zero is stored there as label 10."""
    x_train, y_train, x_test, y_test = (array for path in paths for array in _mat(path))
    return x_train, y_train, x_test, y_test


def _mat(path: Path) -> tuple[Array, Array]:
    from scipy.io import loadmat  # slow to import, and needed for this one format

    with reading(path):
        content = loadmat(path, variable_names=("X", "y"))
        return content["X"].transpose(3, 2, 0, 1), content["y"].reshape(-1) % 10


def read_cifar(paths: Sequence[Path]) -> Arrays:
    """Read CIFAR-10's Python batches, the last of which is the test set, without running any code in them."""
    *train, (x_test, y_test) = map(_cifar_batch, paths)
    return np.concatenate([x for x, _ in train]), np.concatenate([y for _, y in train]), x_test, y_test


def _cifar_batch(path: Path) -> tuple[Array, Array]:
    with reading(path), path.open("rb") as file:
        # The official batches were written by Python 2, whose strings arrive as bytes.
        batch = _PlainUnpickler(file, encoding="bytes").load()
        content = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        return _array(content["data"]).reshape(-1, 3, 32, 32), np.array(content["labels"], np.int64)


class _Plain:
    """What a pickle says about a numpy object, kept as plain values."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _encode(text: str, encoding: str) -> bytes:
    return text.encode("latin-1")


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that knows only plain containers and arrays, and calls nothing outside this file."""

    _KNOWN = {  # noqa: RUF012
        "numpy.ndarray": _Plain,
        "numpy.dtype": _Plain,
        "numpy.core.multiarray._reconstruct": _Plain,
        "numpy._core.multiarray._reconstruct": _Plain,  # its name since numpy 2
        "_codecs.encode": _encode,  # how Python 3 writes bytes in the old protocol
    }

    def find_class(self, module: str, name: str) -> Any:
        """Return the harmless stand-in for a known name and refuse every other."""
        try:
            return self._KNOWN[f"{module}.{name}"]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks to run {module}.{name}, which no data file needs") from None


def _array(pickled: _Plain) -> Array:
    _, shape, dtype, fortran_order, raw = pickled.state
    if dtype.arguments[0] not in ("u1", b"u1"):
        raise ValueError(f"pixels of type {dtype.arguments[0]!r} where bytes belong")
    return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran_order else "C")
