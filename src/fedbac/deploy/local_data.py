"""The data of one site: read where they are, described in a few numbers, and never sent."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbac.core.rng import stream
from fedbac.data.datasets import (
    MOST_CLASSES,
    MOST_TOKENS,
    Array,
    as_examples,
    as_labels,
    channel_sums,
    check_arrays,
    kind_of,
    labels_of,
)
from fedbac.data.partition import validation_count
from fedbac.data.sources import arrays_of
from fedbac.errors import ConfigError, DataNotFoundError, DeployError, quoted
from fedbac.losses import Labels

SPLITS = ("train", "validation", "test")
NUMBERS = ("uint8", "int64", "float32", "float64", "float16")
"""Number types of examples."""


@dataclass(frozen=True, eq=False)
class LocalData:
    """Examples and labels by split; a client holds training data, an edge perhaps test data."""

    x: Mapping[str, Array]
    y: Mapping[str, Array]

    def __post_init__(self) -> None:
        for what, arrays in (("examples", self.x), ("labels", self.y)):
            kinds = {f"{array.dtype} {array.shape[1:]}" for array in arrays.values()}
            if len(kinds) != 1:
                raise DeployError(f"{what} differ from split to split: {' and '.join(sorted(kinds))}; make them alike")
        for split, y in self.y.items():
            x = self.x[split]
            if x.ndim < 2:
                raise DeployError(f"x_{split} has shape {x.shape}; it must hold an example in every row")
            if str(x.dtype) not in NUMBERS:
                raise DeployError(f"x_{split} is {kind_of(x)}; give one of {', '.join(NUMBERS)}")
            most = {"classes": MOST_CLASSES, "tokens": MOST_TOKENS, "numbers": y[0].size if len(y) else 1}
            check_arrays(split, x, y, num_classes=most[self.labels])

    @property
    def example(self) -> Array:
        """Any example, for its shape and number type."""
        return next(iter(self.x.values()))[:1]

    @property
    def labels(self) -> Labels:
        """What the labels are."""
        return labels_of(next(iter(self.y.values())))

    @property
    def label_shape(self) -> tuple[int, ...]:
        """Of one label."""
        return next(iter(self.y.values())).shape[1:]

    def size(self, split: str) -> int:
        """Return the number of examples."""
        return len(self.y[split]) if split in self.y else 0

    def with_validation(self, fraction: float, seed: int, client: int) -> "LocalData":
        """Return the data with this share of the training examples held out, unless some are already."""
        held = validation_count(fraction, self.size("train"))
        if "validation" in self.y or held == 0:
            return self
        order = stream(seed, "local-validation", client).permutation(self.size("train"))
        taken = {"validation": np.sort(order[:held]), "train": np.sort(order[held:])}
        x, y = dict(self.x), dict(self.y)
        for split, chosen in taken.items():
            x[split], y[split] = self.x["train"][chosen], self.y["train"][chosen]
        return LocalData(x, y)

    @property
    def fingerprint(self) -> str:
        """The sha256 of all arrays, by which a resumed run knows that it sees the same data."""
        digest = hashlib.sha256()
        for split in SPLITS:
            if split in self.y:
                for array in (self.x[split], self.y[split]):
                    digest.update(f"{split}{array.dtype.str}{array.shape}".encode())
                    digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def classes(self, *splits: str) -> list[int]:
        """Return how many examples of each class some splits have; where labels are no classes, all count as one."""
        if self.labels != "classes":
            return [sum(map(self.size, splits))]
        labels = [self.y[split] for split in splits if split in self.y]
        every = np.concatenate([np.zeros(0, dtype=np.int64), *labels])
        counts: list[int] = np.bincount(every, minlength=self.num_classes).tolist()
        return counts

    @property
    def num_classes(self) -> int:
        """One more than the largest label."""
        return 1 + int(max(y.max() for y in self.y.values()))

    def sums(self) -> list[list[int]] | None:
        """Return per channel the sum, the sum of squares and the number of pixels of the images to learn from."""
        learned = [self.x[split] for split in ("train", "validation") if split in self.x]
        if not learned or self.example.dtype != np.uint8:
            return None
        sums: list[list[int]] = np.sum([channel_sums(x) for x in learned], axis=0).tolist()
        return sums

    @property
    def largest_token(self) -> int | None:
        """The largest token; None where examples are no tokens."""
        if self.example.dtype != np.int64:
            return None
        return int(max(x.max(initial=0) for x in self.x.values()))


def read_local(source: str) -> LocalData:
    """Return the data in an .npz file, in a folder that holds ``data.npz`` or one .npy per array, or of a function.

    Arrays are x_train and y_train (a client must have them), x_validation and y_validation (held out by the task's
    fraction when missing), x_test and y_test. A function is named as ``package.module:function`` and returns such
    arrays by name.
    """
    try:
        return from_arrays(arrays_of(source, "--data"), source)
    except (ConfigError, DataNotFoundError) as error:
        raise DeployError(str(error)) from error


def from_arrays(arrays: Mapping[str, Any], source: str) -> LocalData:
    """Return data from arrays by name; what is missing or does not fit is named."""
    known = {f"{letter}_{split}" for letter in "xy" for split in SPLITS}
    found = {name: array for name, array in arrays.items() if name in known}
    splits = [split for split in SPLITS if f"x_{split}" in found or f"y_{split}" in found]
    if not splits:
        raise DeployError(
            f"{source}: it holds {quoted(sorted(arrays))}; give x_train and y_train, or x_test and y_test"
        )
    for split in splits:
        for letter in "xy":
            if f"{letter}_{split}" not in found:
                raise DeployError(f"{source}: {letter}_{split} is missing; give examples and labels")
    try:
        x = {split: as_examples(f"x_{split}", found[f"x_{split}"]) for split in splits}
        y = {split: as_labels(source, f"y_{split}", found[f"y_{split}"]) for split in splits}
        return LocalData(x, y)
    except (ConfigError, DeployError) as error:
        raise DeployError(f"{source}: {error}") from error
