"""Readers of the file formats in which the public data sets are handed out.

Each takes the files of one layout and returns ``(x_train, y_train, x_test, y_test)``. A file that is cut short or
damaged gives an error that names it. A file made to do harm runs no code, and is refused before it fills the memory.
"""

import gzip
import hashlib
import io
import math
import pickle
import pickletools
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedbac.data.datasets import Array, Tiers
from fedbac.errors import LONGEST_QUOTE, ConfigError, DataNotFoundError, NotEnoughMemoryError
from fedbac.files import opened, read_bytes

Arrays = tuple[Array, Array, Array, Array]
Natural = tuple[*Arrays, Tiers]
"""The same, and who holds which."""

NAMES = ("x_train", "y_train", "x_test", "y_test")
"""Of the arrays in an ``.npz`` file."""
TIERS = ("client_train", "edge_test", "edge")
"""Of those that tell who holds which examples."""
NAMED = ("names", "groups")
"""Of those that say more of edges."""
MAX_BYTES = 4 * 2**30
"""Of a data set, unpacked."""
MAX_MEMO = 1_000_000
"""Places of a pickle's memory; an official batch uses some ten thousand."""


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Turn whatever goes wrong while a file is read into one error that names the file."""
    try:
        yield
    except ConfigError as error:  # which says what is wrong with sound bytes
        raise DataNotFoundError(f"{path} cannot be used: {error}") from error
    except MemoryError as error:
        raise NotEnoughMemoryError(
            f"{path}: there is not enough memory to read it; free some, or take less data"
        ) from error
    except Exception as error:  # on damaged bytes a parser can raise nearly anything
        raise DataNotFoundError(
            f"{path} cannot be used: it is damaged, cut short, or not in the format of its name "
            f"({type(error).__name__}: {str(error)[:LONGEST_QUOTE]}). Delete it and get it again, point to another "
            "folder, or write plain numbers with numpy.savez, no Python objects."
        ) from error


def read_npz(paths: Sequence[Path]) -> Arrays | Natural:
    """Read one ``.npz`` file with the four arrays under their names, and who holds which if it says so."""
    (path,) = paths
    with reading(path), opened(path) as file, zipfile.ZipFile(file) as members:
        _refuse_beyond(MAX_BYTES, sum(member.file_size for member in members.infolist()))
    arrays = read_arrays(path)
    with reading(path):
        tiers = tiers_in(arrays)
        return in_order(arrays) if tiers is None else (*in_order(arrays), tiers)


def read_arrays(path: Path) -> dict[str, Array]:
    """Read the arrays of an ``.npz`` file by their names, or the one of an ``.npy`` file; no code in them is run."""
    # Opened here, because numpy leaves a file that it opened itself open when it is damaged.
    with reading(path), opened(path) as file:
        content = np.load(file, allow_pickle=False)
        if isinstance(content, np.ndarray):
            return {path.stem: content}
        with content:
            return {name: content[name] for name in content.files}


def in_order(arrays: Mapping[str, Any]) -> Arrays:
    """Return the four arrays of a data set as they are; which are missing, and what there is instead, is said."""
    missing = [name for name in NAMES if name not in arrays]
    if missing:
        found = ", ".join(f"{name} {list(np.shape(array))}" for name, array in arrays.items()) or "nothing"
        raise ConfigError(
            f"it lacks {', '.join(missing)}, and has {found[:LONGEST_QUOTE]}; give examples x_train and x_test [N, …] "
            "and their labels y_train and y_test [N]"
        )
    x_train, y_train, x_test, y_test = (arrays[name] for name in NAMES)
    return x_train, y_train, x_test, y_test


def tiers_in(arrays: Mapping[str, Any]) -> Tiers | None:
    """Return who holds which examples, if the arrays say so."""
    missing = [name for name in TIERS if name not in arrays]
    if len(missing) == len(TIERS):
        return None
    if missing:
        raise ConfigError(f"it lacks {', '.join(missing)}; who holds what is told by {', '.join(TIERS)} together")
    told: dict[str, Any] = {name: tuple(np.asarray(arrays[name]).tolist()) for name in NAMED if name in arrays}
    return Tiers(**told | {name: np.asarray(arrays[name]) for name in TIERS})


def read_idx(paths: Sequence[Path]) -> Arrays:
    """Read the four idx files of the MNIST family, plain or gzipped: training images and labels, then test."""
    x_train, y_train, x_test, y_test = map(_idx, paths)
    return x_train, y_train, x_test, y_test


def _idx(path: Path) -> Array:
    with reading(path), opened(path) as raw_file, gzip.open(raw_file) if path.suffix == ".gz" else raw_file as file:
        # Two zero bytes, the element type (8: unsigned byte), the number of axes, then each length, big-endian.
        start = file.read(4)
        if len(start) < 4 or start[:3] != b"\0\0\x08":
            raise ValueError("not an idx file of unsigned bytes")
        shape = struct.unpack(f">{start[3]}I", file.read(4 * start[3]))
        size = math.prod(shape)
        _refuse_beyond(MAX_BYTES, size)
        raw = file.read(size + 1)
        if len(raw) != size:
            raise ValueError(
                f"{'more' if len(raw) > size else len(raw)} bytes of data where the header promises {size}"
            )
        return np.frombuffer(raw, np.uint8).reshape(shape)


def _refuse_beyond(limit: int, size: int) -> None:
    if size > limit:
        raise ValueError(f"it would unpack to {size:,} bytes, and no data set here has more than {limit:,}")


def read_svhn(paths: Sequence[Path], official: frozenset[str] = frozenset()) -> Arrays:
    """Read SVHN's two MATLAB files of cropped digits; the digit zero is stored there as label 10. Files with an
    official checksum are read here. SciPy's reader can crash on others, so they are read in a process of their own."""
    x_train, y_train, x_test, y_test = (array for path in paths for array in _mat(path, official))
    return x_train, y_train, x_test, y_test


def _mat(path: Path, official: frozenset[str]) -> tuple[Array, Array]:
    from scipy.io import loadmat  # slow to import, and needed for this one format

    with reading(path):
        with opened(path) as file:
            known = hashlib.file_digest(file, "sha256").hexdigest() in official
        content = loadmat(path, variable_names=("X", "y")) if known else _mat_elsewhere(path)
        return content["X"].transpose(3, 2, 0, 1), content["y"].reshape(-1) % 10


CHILD = """
import sys
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[3]),) * 2)
except (ImportError, OSError, ValueError):
    pass  # a system that has no such limit
import numpy, scipy.io
content = scipy.io.loadmat(sys.argv[1], variable_names=("X", "y"))
numpy.savez(sys.argv[2], X=content["X"], y=content["y"])
"""
CHILD_SECONDS, CHILD_BYTES = 300, 4 * MAX_BYTES


def _mat_elsewhere(path: Path) -> dict[str, Array]:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "content.npz")
        command = [sys.executable, "-c", CHILD, str(path), str(copy), str(CHILD_BYTES)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=CHILD_SECONDS)
        if done.returncode != 0:
            said = done.stderr.strip().splitlines() or [f"its reader crashed with status {done.returncode}"]
            raise ValueError(said[-1])
        with np.load(copy, allow_pickle=False) as content:
            return {name: content[name] for name in ("X", "y")}


def read_cifar(paths: Sequence[Path]) -> Arrays:
    """Read CIFAR-10's Python batches, the last of which is the test set, without running any code in them."""
    *train, (x_test, y_test) = map(_cifar_batch, paths)
    return np.concatenate([x for x, _ in train]), np.concatenate([y for _, y in train]), x_test, y_test


def _cifar_batch(path: Path) -> tuple[Array, Array]:
    with reading(path):
        raw = read_bytes(path, MAX_BYTES)
        for opcode, argument, _ in pickletools.genops(raw):
            if "PUT" in opcode.name and isinstance(argument, int) and argument > MAX_MEMO:
                raise ValueError("it asks for more memory than any batch needs")
        # The official batches were written by Python 2, whose strings arrive as bytes.
        batch = _PlainUnpickler(io.BytesIO(raw), encoding="bytes").load()
        content = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        labels = content["labels"]
        if not isinstance(labels, list) or not all(type(label) is int for label in labels):
            raise ValueError("its labels are no list of whole numbers")
        return _array(content["data"]).reshape(-1, 3, 32, 32), np.array(labels, np.int64)


class _Plain:
    """What a pickle says about a numpy object, kept as plain values."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that knows only plain containers and arrays, and calls nothing outside this file."""

    _KNOWN = {  # noqa: RUF012
        "numpy.ndarray": _Plain,
        "numpy.dtype": _Plain,
        "numpy.core.multiarray._reconstruct": _Plain,
        "numpy._core.multiarray._reconstruct": _Plain,  # its name since numpy 2
        "_codecs.encode": lambda text, encoding: text.encode("latin-1"),  # how Python 3 writes bytes for Python 2
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
