"""A data set in memory, from arrays or from a torch ``Dataset``."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from fedbac.core.rng import stream
from fedbac.core.settings import plain_name
from fedbac.errors import ConfigError, quoted
from fedbac.losses import IGNORED, Labels

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
LARGEST_FLOAT = np.finfo(np.float32).max
MOST_CLASSES, MOST_TOKENS = 100_000, 10_000_000
"""Classes, and tokens or numbers to predict, that there may be: data are dealt class by class, and a network has
weights for each."""


@dataclass(frozen=True, eq=False)
class Tiers:
    """Who holds which examples of a data set by nature. Edges and clients are numbered through from 0; a client that
    comes later is at the same edge or a later one."""

    client_train: Array
    """The client of every training example."""
    edge_test: Array
    """The edge of every test example."""
    edge: Array
    """The edge of every client."""
    names: tuple[str, ...] = ()
    """What each edge is."""
    groups: tuple[str, ...] = ()
    """What each edge is known to belong to, such as the family of a language; no method is told."""

    def __post_init__(self) -> None:
        for field in ("client_train", "edge_test", "edge"):
            numbers = np.asarray(getattr(self, field))
            if numbers.ndim != 1 or numbers.size == 0 or not np.issubdtype(numbers.dtype, np.integer):
                raise ConfigError(f"{field} is {kind_of(numbers)} {numbers.shape}; it must be a row of whole numbers")
            object.__setattr__(self, field, numbers.astype(np.int64))
        num_edges = int(self.edge[-1]) + 1
        if self.edge[0] != 0 or not np.isin(np.diff(self.edge), (0, 1)).all():
            raise ConfigError("edge must begin with 0 and go up by one at a time: clients come edge by edge")
        for field, most in (("client_train", self.edge.size), ("edge_test", num_edges)):
            numbers = getattr(self, field)
            if numbers.min() < 0 or numbers.max() >= most:
                raise ConfigError(f"{field} runs from {numbers.min()} to {numbers.max()}; it must be 0 to {most - 1}")
        for field in ("names", "groups"):
            told = tuple(map(str, getattr(self, field)))
            if told and len(told) != num_edges:
                raise ConfigError(f"{field} tells of {len(told)} edges, but there are {num_edges}")
            object.__setattr__(self, field, told)

    @property
    def clients_per_edge(self) -> tuple[int, ...]:
        """How many clients each edge has."""
        return tuple(np.bincount(self.edge).tolist())


LABELS = "labels must be classes (whole numbers from 0), numbers to predict (floats), or rows of tokens (whole numbers)"


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A labelled training set and test set.

    Images are uint8 ``[N, C, H, W]``. Floating-point examples and int64 tokens have any shape ``[N, ...]`` and are used
    as they are. Labels are classes, int64 ``[N]``; numbers to predict, float32 ``[N, D]``; or for every token of an
    example the one that comes next, int64 ``[N, T]``, −100 where none is to be predicted.
    """

    name: str
    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    num_classes: int
    """Outputs of a network: classes, numbers to predict, or tokens that there are."""
    tiers: Tiers | None = None
    """Who holds which examples by nature, where the data have edges and clients of their own."""

    def __post_init__(self) -> None:
        try:
            plain_name(str(self.name))
        except ValueError as error:
            raise ConfigError(f"data set: {error}") from error
        most = MOST_CLASSES if self.labels == "classes" else MOST_TOKENS
        if not isinstance(self.num_classes, int | np.integer) or not 1 <= self.num_classes <= most:
            raise ConfigError(
                f"data set {self.name!r}: num_classes is {quoted(self.num_classes)}; it must be a whole number from 1 "
                f"to {most:,}, the largest label plus one"
            )
        if self.y_train.shape[1:] != self.y_test.shape[1:] or self.y_train.dtype != self.y_test.dtype:
            raise ConfigError(
                f"data set {self.name!r}: a label is {self.y_train.dtype} {self.y_train.shape[1:]} in y_train but "
                f"{self.y_test.dtype} {self.y_test.shape[1:]} in y_test; both must be alike"
            )
        for split, x, y in self._splits():
            check_arrays(f"data set {self.name!r}: {split}", x, y, self.num_classes)
        if self.tiers is not None:
            for split, y, tier in (("train", self.y_train, "client"), ("test", self.y_test, "edge")):
                if len(numbers := getattr(self.tiers, f"{tier}_{split}")) != len(y):
                    raise ConfigError(
                        f"data set {self.name!r}: {tier}_{split} tells the {tier} of {len(numbers)} examples; there "
                        f"are {len(y)}"
                    )
        if self.x_train.shape[1:] != self.x_test.shape[1:] or self.x_train.dtype != self.x_test.dtype:
            raise ConfigError(
                f"data set {self.name!r}: an example is {self.x_train.dtype} {self.x_train.shape[1:]} in x_train but "
                f"{self.x_test.dtype} {self.x_test.shape[1:]} in x_test; both must be alike"
            )

    @classmethod
    def from_arrays(
        cls, name: str, x_train: Array, y_train: Array, x_test: Array, y_test: Array, num_classes: int | None = None,
        tiers: Tiers | None = None,
    ) -> Self:  # fmt: skip
        """Make a data set from arrays; uint8 images may also be ``[N, H, W]`` or channels-last, tokens any integers.

        A uint8 array counts as channels-last when its last axis is 1 or 3 and its second axis is neither. Without
        ``num_classes`` it is the largest label plus one, or as many numbers as a label has.
        """
        y_train, y_test = as_labels(name, "y_train", y_train), as_labels(name, "y_test", y_test)
        if num_classes is None and y_train.dtype == np.float32:
            num_classes = y_train.shape[1]
        elif isinstance(num_classes, np.ndarray) and num_classes.ndim == 0:  # as a file holds it
            num_classes = num_classes.item()
        elif num_classes is None:
            num_classes = int(max(y_train.max(initial=-1), y_test.max(initial=-1))) + 1
        x_train, x_test = as_examples("x_train", x_train), as_examples("x_test", x_test)
        return cls(name, x_train, y_train, x_test, y_test, num_classes, tiers)

    @classmethod
    def from_torch(
        cls, name: str, train: TorchDataset[Any], test: TorchDataset[Any], num_classes: int | None = None
    ) -> Self:
        """Make a data set from two torch data sets of (example, label).

        An example is a tensor, an array or a PIL image. Each is read once, so a random transform would be frozen:
        leave augmentation to ``Augment``.
        """
        x_train, y_train = _materialize(name, "train", train)
        x_test, y_test = _materialize(name, "test", test)
        return cls.from_arrays(name, x_train, y_train, x_test, y_test, num_classes)

    def __repr__(self) -> str:
        """Say in one line what is in it."""
        shape, kind = "×".join(map(str, self.x_train.shape[1:])), self.x_train.dtype
        size = f"{len(self.y_train):,} training and {len(self.y_test):,} test examples"
        return f"Dataset({self.name!r}: {size} of {kind} {shape or 'numbers'}, {self.num_classes} classes)"

    @property
    def labels(self) -> Labels:
        """What the labels are."""
        return labels_of(self.y_train)

    @property
    def dealt_by(self) -> tuple[Array, Array, int]:
        """The class by which each training and test example is dealt, and how many; one where labels are no classes."""
        if self.labels == "classes":
            return self.y_train, self.y_test, self.num_classes
        return np.zeros(len(self.y_train), np.int64), np.zeros(len(self.y_test), np.int64), 1

    def sample(self, fraction: float, seed: int) -> Self:
        """Return a data set with this share of every class, at least one example of each, drawn at random."""
        parts: list[Array] = []
        keep: list[Array] = []
        for split, ((_, x, y), class_N) in enumerate(zip(self._splits(), self.dealt_by[:2], strict=True)):
            rng = stream(seed, "sample", split)
            classes = [rng.permutation(np.flatnonzero(class_N == c)) for c in np.unique(class_N)]
            kept = np.sort(np.concatenate([c[: max(1, round(fraction * c.size))] for c in classes]))
            parts += [x[kept], y[kept]]
            keep.append(kept)
        x_train, y_train, x_test, y_test = parts
        tiers = self.tiers
        if tiers is not None:
            tiers = replace(tiers, client_train=tiers.client_train[keep[0]], edge_test=tiers.edge_test[keep[1]])
        return type(self)(self.name, x_train, y_train, x_test, y_test, self.num_classes, tiers)

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of all arrays, by which a resumed run knows that it sees the same data."""
        digest = hashlib.sha256(str(self.num_classes).encode())
        for _, x, y in self._splits():
            for array in (x, y):
                digest.update(f"{array.dtype.str}{array.shape}".encode())
                digest.update(np.ascontiguousarray(array).data)
        if self.tiers is not None:
            for array in (self.tiers.client_train, self.tiers.edge_test, self.tiers.edge):
                digest.update(array.data)
        return digest.hexdigest()

    @property
    def largest_token(self) -> int | None:
        """The largest token; None where examples are no tokens."""
        if self.x_train.dtype != np.int64:
            return None
        return int(max(self.x_train.max(initial=0), self.x_test.max(initial=0)))

    def normalization(self) -> tuple[Floats, Floats] | None:
        """Return the mean and standard deviation per channel of ``x_train / 255``, or None where data are no images."""
        return normalization_of(channel_sums(self.x_train)) if self.x_train.dtype == np.uint8 else None

    def _splits(self) -> Iterator[tuple[str, Array, Array]]:
        yield "train", self.x_train, self.y_train
        yield "test", self.x_test, self.y_test


def channel_sums(images: Array) -> npt.NDArray[np.int64]:
    """Return per channel of uint8 images the sum, the sum of squares and the number of pixels.

    Whole-number sums are exact, so that those of several holders add up to those of all; one channel at a time keeps
    the squares of a large data set small.
    """
    return np.array(
        [
            (channel.sum(dtype=np.int64), np.square(channel, dtype=np.uint16).sum(dtype=np.int64), channel.size)
            for channel in np.moveaxis(images, 1, 0)
        ]
    )


def normalization_of(sums_C3: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return mean and standard deviation per channel, of pixels divided by 255; 1 where a channel is constant."""
    mean_C = sums_C3[:, 0] / sums_C3[:, 2]
    square_C = sums_C3[:, 1] / sums_C3[:, 2]
    std_C = np.sqrt(np.maximum(square_C - mean_C**2, 0.0)) / 255
    return (mean_C / 255).astype(np.float32), np.where(std_C > 0, std_C, 1.0).astype(np.float32)


def fixed_normalization(channels: int) -> tuple[Floats, Floats]:
    """Return mean and standard deviation that tell nothing of the images: pixels come to lie between -1 and 1."""
    half_C = np.full(channels, 0.5, dtype=np.float32)
    return half_C, half_C


def labels_of(y: Array) -> Labels:
    """Return what labels are, as they are kept."""
    return "numbers" if y.dtype == np.float32 else "classes" if y.ndim == 1 else "tokens"


def check_arrays(where: str, x: Array, y: Array, num_classes: int) -> None:
    """Refuse examples and labels that no network learns from, in words that name them."""
    if (str(y.dtype), y.ndim) not in (("int64", 1), ("int64", 2), ("float32", 2)):
        raise ConfigError(f"{where} labels are {y.dtype} {y.shape}; {LABELS}")
    if len(x) == 0 or len(x) != len(y):
        raise ConfigError(
            f"{where} set has {len(x)} examples and {len(y)} labels; it needs as many of each, at least one"
        )
    if not x[0].size:
        raise ConfigError(f"{where} examples have shape {x.shape[1:]}, so nothing is in them")
    if y.dtype == np.float32:
        if y.shape[1] != num_classes or not np.isfinite(y).all():
            raise ConfigError(f"{where} labels must be {num_classes} finite numbers each")
    elif np.where(y == IGNORED, 0, y).min() < 0 or y.max() >= num_classes or (y.ndim == 1 and y.min() < 0):
        raise ConfigError(
            f"{where} labels run from {y.min()} to {y.max()}; with {num_classes=} they must be 0 to {num_classes - 1}"
        )
    if x.dtype == np.uint8:
        if x.ndim != 4:
            raise ConfigError(
                f"{where} images have shape {x.shape}; uint8 images must be [N, C, H, W] (give tokens as int64)"
            )
    elif x.dtype == np.int64:
        if x.min() < 0 or x.max() > MOST_TOKENS:
            raise ConfigError(f"{where} tokens run from {x.min()} to {x.max()}; they must be 0 to {MOST_TOKENS:,}")
    elif not np.issubdtype(x.dtype, np.floating):
        raise ConfigError(
            f"{where} examples are {kind_of(x)}; give uint8 images, floating-point numbers or int64 tokens"
        )
    elif not (x.min() >= -LARGEST_FLOAT and x.max() <= LARGEST_FLOAT):  # nor if it is NaN
        raise ConfigError(
            f"{where} examples hold NaN or infinite values, or numbers that float32 has not; remove or replace them"
        )


def kind_of(array: Array) -> str:
    """Return what an array holds, in words where its type has no plain name."""
    return {"U": "text", "S": "text", "O": "Python objects"}.get(array.dtype.kind, str(array.dtype))


def as_labels(name: str, field: str, y: Array) -> Array:
    """Return labels as they are kept: whole numbers as int64, others as float32 with a row for each example."""
    y = _plain(field, y)
    if np.issubdtype(y.dtype, np.floating):
        with np.errstate(over="ignore"):  # infinite labels are refused
            return y.astype(np.float32).reshape(len(y), -1)
    if not np.issubdtype(y.dtype, np.integer):
        number = " (numpy.unique(labels, return_inverse=True) numbers them)" * (kind_of(y) == "text")
        raise ConfigError(f"data set {name!r}: {field} is {kind_of(y)}; {LABELS}{number}")
    return y.astype(np.int64)


def as_examples(field: str, x: Array) -> Array:
    """Return examples as they are kept: images channels first, whole numbers as int64 tokens."""
    x = _plain(field, x)
    if x.dtype == np.uint8 and x.ndim == 3:
        x = x[:, np.newaxis]
    elif x.dtype == np.uint8 and x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        x = np.moveaxis(x, 3, 1)
    if np.issubdtype(x.dtype, np.integer) and x.dtype != np.uint8:
        x = x.astype(np.int64)
    # torch warns about sharing the memory of a read-only array, so such an array is copied.
    return np.require(x, requirements=("C", "W"))


def _plain(field: str, data: Any) -> Array:
    """Return an array in the byte order of this machine; one with masked entries is refused, as these are no data."""
    if np.ma.is_masked(data):
        raise ConfigError(f"{field} is masked in places; remove these examples, or replace the entries (filled)")
    array = _array(field, data)
    if array.ndim == 0:
        raise ConfigError(f"{field} is {quoted(array.item())}; give an array with an example in every row")
    if array.dtype == np.longdouble:  # which torch has not
        with np.errstate(over="ignore"):  # infinite numbers are refused
            return array.astype(np.float64)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _array(field: str, data: Any) -> Array:
    """Return data as an array, also if they are a tensor that numpy does not read by itself."""
    try:
        if isinstance(data, Tensor):
            return (data.float() if data.dtype == torch.bfloat16 else data).numpy(force=True)
        return np.asarray(data)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{field} is no array ({str(error).splitlines()[0]}); give numbers in rows of one length, or images of one "
            "size"
        ) from error


def _materialize(name: str, split: str, data: TorchDataset[Any]) -> tuple[Array, Array]:
    num = len(data)  # type: ignore[arg-type]  # torch declares no length, though every map-style data set has one
    if num == 0:
        raise ConfigError(f"data set {name!r}: the {split} set is empty; it needs at least one example")
    examples, labels = [], []
    for index in range(num):
        x, y = data[index]
        examples.append(_array(f"x_{split}", x))
        labels.append(_array(f"y_{split}", y))
    for what, found in (("examples", examples), ("labels", labels)):
        shapes = {one.shape for one in found}
        if len(shapes) != 1:
            raise ConfigError(
                f"data set {name!r}: {split} {what} have shapes {sorted(shapes)}; they must all have one shape"
            )
    return np.stack(examples), np.stack(labels)
