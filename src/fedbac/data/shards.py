"""Who holds which examples, whether that can be, and whose labels are noisy for a selection to find."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from fedbac.core.rng import stream
from fedbac.core.settings import MAX_CLIENTS, MAX_EDGES, BoolArray, IntArray, Settings
from fedbac.data.datasets import Dataset
from fedbac.errors import ConfigError, quoted


@dataclass(frozen=True, eq=False)
class Shards:
    """Who holds which examples; clients are numbered through, edge by edge."""

    train: tuple[IntArray, ...]
    """Per client: indices into ``x_train``, without those for validation."""
    validation: tuple[IntArray, ...]
    """Per client: indices into ``x_train``."""
    test: tuple[IntArray, ...]
    """Per edge: indices into ``x_test``."""
    clients: tuple[Sequence[int], ...]
    """Per edge: the numbers of its clients."""
    noisy: tuple[int, ...] = ()
    """The clients whose labels were made noisy (see ``Noise``)."""

    def checked(self, num_train: int | None = None, num_test: int | None = None) -> "Shards":
        """Return the same with all indices as int64 arrays, or raise a ConfigError that names the field. Indices are
        also held to the sizes of the data, where these are given. A client is at one edge, and holds an example for
        training or for validation, once; different clients may hold the same."""
        train, validation = (_groups(name, getattr(self, name), num_train) for name in ("train", "validation"))
        test = _groups("test", self.test, num_test)
        clients = _groups("clients", self.clients, len(train))
        if len(validation) != len(train):
            raise ConfigError(f"shards.validation lists {len(validation)} clients, shards.train {len(train)}")
        if len(test) != len(clients):
            raise ConfigError(f"shards.test lists {len(test)} edges, shards.clients {len(clients)}")
        for name, count, most in (("clients", len(clients), MAX_EDGES), ("train", len(train), MAX_CLIENTS)):
            if not 0 < count <= most:
                raise ConfigError(f"shards.{name} lists {count:,}; there must be at least 1 and at most {most:,}")
        for edge, members in enumerate(clients):
            if members.size == 0:
                raise ConfigError(f"shards.clients[{edge}] is empty; every edge needs a client")
        _refuse_repeats("shards.clients: a client", [np.concatenate(clients)])
        both = [np.concatenate(pair) for pair in zip(train, validation, strict=True)]
        _refuse_repeats("shards.train[{0}] and shards.validation[{0}]: an example", both)
        (noisy,) = _groups("noisy", (self.noisy,), len(train))
        return replace(self, train=train, validation=validation, test=test, noisy=tuple(noisy.tolist()))

    def dealt(self, there_N: BoolArray, data_N: IntArray, test_M: IntArray) -> "Shards":
        """Return who holds what when some clients have others' data, edges others' test data, and some are not there;
        nor is an edge whose clients are all away."""
        nothing = np.zeros(0, dtype=np.int64)
        train, validation = (
            tuple(split[data_N[c]] if there else nothing for c, there in enumerate(there_N))
            for split in (self.train, self.validation)
        )
        test = tuple(
            self.test[test_M[m]] if there_N[np.array(clients)].any() else nothing
            for m, clients in enumerate(self.clients)
        )
        noisy = np.flatnonzero(there_N & np.isin(data_N, self.noisy))
        return replace(self, train=train, validation=validation, test=test, noisy=tuple(noisy.tolist()))


def _groups(name: str, groups: Any, limit: int | None) -> tuple[IntArray, ...]:
    """Return groups of indices as arrays, each index a whole number from 0 to below the limit."""
    if not isinstance(groups, Sequence):
        raise ConfigError(f"shards.{name} is {quoted(groups)}; it must be a tuple with an entry for each")
    out = []
    for place, group in enumerate(groups):
        try:
            indices = np.asarray(group)
        except (ValueError, TypeError, OverflowError) as error:
            raise ConfigError(f"shards.{name}[{place}] is no list of whole numbers ({error})") from error
        if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
            found = f"{indices.dtype} of shape {indices.shape}"
            raise ConfigError(f"shards.{name}[{place}] is {found}; it must be one row of whole numbers")
        if indices.dtype == np.uint64:  # which may hold larger ones than those that are kept here
            _refuse_beyond(name, place, indices, limit)
        out.append(indices.astype(np.int64))
    all_R = _joined(out)
    if all_R.size and (all_R.min() < 0 or (limit is not None and all_R.max() >= limit)):
        for place, indices in enumerate(out):
            _refuse_beyond(name, place, indices, limit)
    return tuple(out)


def _refuse_beyond(name: str, place: int, indices: IntArray, limit: int | None) -> None:
    first, last = (int(indices.min()), int(indices.max())) if indices.size else (0, 0)
    if first < 0 or last >= (2**63 if limit is None else limit):
        allowed = "0 or more" if limit is None else f"from 0 to {limit - 1}"
        raise ConfigError(f"shards.{name}[{place}] runs from {first} to {last}; indices here are {allowed}")


def _refuse_repeats(what: str, groups: Sequence[IntArray]) -> None:
    """Refuse a number that is twice in a group."""
    all_R, group_R = _joined(groups), np.repeat(np.arange(len(groups)), [group.size for group in groups])
    order = np.lexsort((all_R, group_R))
    all_R, group_R = all_R[order], group_R[order]
    twice = np.flatnonzero((all_R[1:] == all_R[:-1]) & (group_R[1:] == group_R[:-1]))
    if twice.size:
        who = what.format(group_R[twice[0]])
        raise ConfigError(f"{who} may be listed once, but {all_R[twice[0]]} is listed twice")


def _joined(groups: Sequence[IntArray]) -> IntArray:
    return np.concatenate(groups) if groups else np.zeros(0, dtype=np.int64)


Share = Annotated[float, Field(gt=0, le=1)]


class Noise(Settings):
    """Labels drawn anew, uniformly from all classes, at a share of every edge's clients. Validation labels are hit too,
    test data not."""

    clients: Share = 0.4
    """Share of every edge's clients that are noisy, rounded."""
    labels: Share = 1.0
    """Chance that a noisy client's label is drawn anew, perhaps the true one."""


def add_noise(dataset: Dataset, shards: Shards, noise: Noise, seed: int) -> tuple[Dataset, Shards]:
    """Return the data with noisy labels, and the shards with a note of whose they are."""
    _check_relabelling("task.noise", dataset, shards)
    noisy: list[int] = []
    for edge, clients in enumerate(shards.clients):
        count = round(noise.clients * len(clients))
        noisy += np.sort(stream(seed, "noisy-clients", edge).permutation(clients)[:count]).tolist()
    y_train = dataset.y_train.copy()
    for client in noisy:
        mine = np.concatenate([shards.train[client], shards.validation[client]])
        rng = stream(seed, "noisy-labels", client)
        hit = mine[rng.random(mine.size) < noise.labels]
        y_train[hit] = rng.integers(dataset.num_classes, size=hit.size)
    return replace(dataset, y_train=y_train), replace(shards, noisy=tuple(noisy))


def flip_labels(dataset: Dataset, shards: Shards, liars: Sequence[int]) -> Dataset:
    """Return the data with labels K − 1 − y at some clients, on which they train, and measure too."""
    _check_relabelling("task.world.liars", dataset, shards)
    y_train = dataset.y_train.copy()
    for client in liars:
        for mine in (shards.train[client], shards.validation[client]):
            y_train[mine] = dataset.num_classes - 1 - y_train[mine]
    return replace(dataset, y_train=y_train)


def _check_relabelling(field: str, dataset: Dataset, shards: Shards) -> None:
    """Refuse labels that are no classes, or that belong to several clients."""
    if dataset.labels != "classes":
        kind = dataset.labels
        raise ConfigError(f"{field}: it changes classes, and the labels of {dataset.name!r} are {kind}; set null")
    held = np.concatenate([*shards.train, *shards.validation])
    if np.unique(held).size < held.size:
        raise ConfigError(f"{field}: clients share examples, so a wrong label of one would be another's too; set null")
