"""Writers of small files in every layout that ``load`` reads."""

import gzip
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import savemat

from fedbac.data.catalog import SOURCES
from fedbac.data.datasets import Array
from fedbac.data.readers import Arrays


def arrays(*shape: int, num_train: int = 30, num_test: int = 20) -> Arrays:
    rng = np.random.default_rng(0)
    x_train, x_test = (rng.integers(256, size=(num, *shape), dtype=np.uint8) for num in (num_train, num_test))
    y_train, y_test = (rng.permutation(np.arange(num, dtype=np.uint8) % 10) for num in (num_train, num_test))
    return x_train, y_train, x_test, y_test


def write_npz(path: Path, data: Arrays) -> None:
    names = ("x_train", "y_train", "x_test", "y_test")
    np.savez(path, **dict(zip(names, data, strict=True)))  # type: ignore[arg-type]


def write_idx(folder: Path, data: Arrays, suffix: str) -> None:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(names, data, strict=True):
        raw = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
        (folder / f"{name}-ubyte{suffix}").write_bytes(gzip.compress(raw) if suffix else raw)


def write_svhn(folder: Path, data: Arrays) -> None:
    x_train, y_train, x_test, y_test = data
    for name, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        labels = np.where(y == 0, 10, y)[:, None]
        savemat(folder / f"{name}_32x32.mat", {"X": x.transpose(1, 2, 3, 0), "y": labels}, do_compression=True)


def write_cifar(folder: Path, data: Arrays, dump: Any = None) -> None:
    x_train, y_train, x_test, y_test = data
    (folder / "cifar-10-batches-py").mkdir()
    parts = [*zip(np.split(x_train, 5), np.split(y_train, 5), strict=True), (x_test, y_test)]
    for file, (x, y) in zip(SOURCES["cifar10"].layouts[1].files, parts, strict=True):
        flat = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
        (folder / file).write_bytes((dump or python2_pickle)(flat, y.tolist()))


def python2_pickle(x: Array, labels: list[int]) -> bytes:
    """Write a batch opcode by opcode as Python 2 and its numpy did for the official files."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\0K\1\x87R(K\3" + text(b"|") + b"NNN" + 2 * number(-1) + b"K\0tb"
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85" + text(b"b") + b"\x87R"
    raw = b"T" + struct.pack("<i", x.size) + x.tobytes()
    array = empty + b"(K\1" + number(x.shape[0]) + number(x.shape[1]) + b"\x86" + dtype + b"\x89" + raw + b"tb"
    values = b"](" + b"".join(map(number, labels)) + b"e"
    return b"\x80\2}(" + text(b"labels") + values + text(b"data") + array + b"u."


def python3_pickle(x: Array, labels: list[int], protocol: int = 2, fortran: bool = False) -> bytes:
    return pickle.dumps({"data": np.asfortranarray(x) if fortran else x, "labels": labels}, protocol)
