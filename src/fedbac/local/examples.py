"""What all trainers share: the examples, the order in which clients visit them, and the losses that come of it."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedbac.config.experiment import Training
from fedbac.core.parts import Parts
from fedbac.core.queries import Split
from fedbac.core.requests import Evaluate, Kept, Train, Trained
from fedbac.core.rng import stream
from fedbac.core.settings import FloatArray, IntArray
from fedbac.data import Augment, Dataset, Shards, class_counts, deal_test
from fedbac.losses import CrossEntropy, LossFunction

ONE = np.zeros(1, dtype=np.int64)
USUAL_BATCH = 1024
"""Up to this size batches have room for what was asked for, so that sums over them do not depend on who is there."""


@dataclass(frozen=True, eq=False)
class Examples:
    """The data set, who holds which examples, and how they are visited and seen."""

    dataset: Dataset
    shards: Shards
    training: Training
    augment: Augment | None
    seed: int
    normalization: tuple[NDArray[np.float32], NDArray[np.float32]] | None
    """Per-channel mean and deviation of all training images, whoever holds them; None for data used as they are."""
    loss: LossFunction = CrossEntropy()  # noqa: RUF009 (frozen)
    _statistics: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict, init=False, repr=False)
    """The same where it is needed: nothing may be copied to a GPU while a graph is captured."""
    _subsets: dict[tuple[int, Split, int], IntArray] = field(default_factory=dict, init=False, repr=False)
    """Examples of clients that are measured where there is a cap, which are always the same."""
    said: set[str | None] = field(default_factory=set, repr=False)
    """What a person was told of how they are trained."""

    def visits(self, client: int, round_: int, edge_round: int, epochs: int) -> IntArray:
        """Return the examples of a client in order of visit: one row per epoch, each a fresh permutation. Every phase
        of a training begins this stream anew: what a phase sees does not depend on those before and after."""
        mine = self.shards.train[client]
        rng = stream(self.seed, "batches", round_, edge_round, client)
        orders = [mine[rng.permutation(mine.size)] for _ in range(epochs)]
        return np.array(orders, dtype=np.int64).reshape(epochs, mine.size)

    def batches(self, size: int) -> list[slice]:
        """Return the batches of one epoch over ``size`` examples; only the last may be smaller."""
        step = self.training.batch_size
        starts = range(0, int(self.training.steps(np.array(size))) * step, step)
        return [slice(start, min(start + step, size)) for start in starts]

    @cached_property
    def epochs(self) -> IntArray:
        """By client: the examples it holds, the batches of an epoch over them, and the examples in these batches."""
        size_N = np.array([mine.size for mine in self.shards.train], dtype=np.int64)
        batches_N = self.training.steps(size_N)
        return np.stack([size_N, batches_N, np.minimum(batches_N * self.training.batch_size, size_N)])

    @cached_property
    def batch_room(self) -> int:
        """The examples that a batch needs room for: a size far beyond what anybody holds is not made room for."""
        largest = max((mine.size for mine in self.shards.train), default=1)
        return min(self.training.batch_size, max(largest, USUAL_BATCH))

    def distortions(
        self, client: int, round_: int, edge_round: int, visits: NDArray[Any]
    ) -> tuple[Tensor, Tensor] | None:
        """Return crop offsets and flips for every visit, or None without augmentation."""
        if self.augment is None:
            return None
        rng = stream(self.seed, "augment", round_, edge_round, client)
        offset, flip = self.augment.draw(rng, visits.size)
        return torch.from_numpy(offset).reshape(*visits.shape, 2), torch.from_numpy(flip).reshape(visits.shape)

    def crops_and_flips(
        self, at: Sequence[tuple[int, int, int]], visits: Sequence[NDArray[Any]]
    ) -> tuple[NDArray[np.int8] | None, NDArray[np.bool_] | None]:
        """Return for all visits of many clients by how much an image is shifted, and whether it is mirrored."""
        if self.augment is None:
            return None, None
        drawn = [self.distortions(*address, visit) for address, visit in zip(at, visits, strict=True)]
        offset_S2 = np.concatenate([one[0].reshape(-1, 2).numpy() for one in drawn if one is not None])
        flip_S = np.concatenate([one[1].reshape(-1).numpy() for one in drawn if one is not None])
        return (offset_S2 - self.augment.crop_padding).astype(np.int8), flip_S

    def groups(self, request: Evaluate) -> list[IntArray]:
        """Return the examples an Evaluate request speaks of, one group per owner; those of an edge are never capped."""
        if request.level == "edge":
            if request.split != "test":
                raise ValueError(f"edges own test data only, not {request.split!r}; ask their clients for that")
            return [self.shards.test[edge] for edge in request.owners]
        split, cap = request.split, request.max_samples
        held = {"train": self.shards.train, "validation": self.shards.validation}
        of = self.client_test if split == "test" else held[split]
        return [self._capped(of[client], client, split, cap) for client in request.owners]

    def _capped(self, mine: IntArray, client: int, split: Split, cap: int | None) -> IntArray:
        if cap is None or mine.size <= cap:
            return mine
        if (client, split, cap) not in self._subsets:
            drawn = stream(self.seed, "loss-subset", client).choice(mine, cap, replace=False)
            self._subsets[client, split, cap] = np.sort(drawn)
        return self._subsets[client, split, cap]

    def class_counts(self, clients: Iterable[int]) -> IntArray:
        """Return how many training examples of each class clients hold."""
        class_N, _, num_classes = self.dataset.dealt_by
        return class_counts(class_N, [self.shards.train[client] for client in clients], num_classes)

    @cached_property
    def client_test(self) -> tuple[IntArray, ...]:
        """Per client, its share of the test data of its edge, by its classes."""
        (_, test_N, _), shares = self.dataset.dealt_by, [mine[:0] for mine in self.shards.train]
        for edge, clients in enumerate(self.shards.clients):
            rng = stream(self.seed, "client-test", edge)
            dealt = deal_test(self.shards.test[edge], test_N, self.class_counts(clients), rng)
            for client, share in zip(clients, dealt, strict=True):
                shares[client] = share
        return tuple(shares)

    def of_edges(self, edges: Sequence[int]) -> "Examples":
        """Return only what some edges and their clients hold; indices point into what is left."""
        mine = {client for edge in edges for client in self.shards.clients[edge]}
        shares = [split[client] for split in (self.shards.train, self.shards.validation) for client in mine]
        tests = [self.shards.test[m] for m in edges]
        # Even where nobody holds any (now): a data set has one example at least.
        kept, tested = (np.unique(np.concatenate(held)) if any(map(len, held)) else ONE for held in (shares, tests))

        def local(groups: tuple[IntArray, ...], owners: Collection[int], among: IntArray) -> tuple[IntArray, ...]:
            # The order of indices is kept, so that everything drawn from them is the same as in the whole.
            return tuple(np.searchsorted(among, group) if i in owners else group[:0] for i, group in enumerate(groups))

        d = self.dataset
        return replace(
            self,
            dataset=replace(
                d, x_train=d.x_train[kept], y_train=d.y_train[kept], x_test=d.x_test[tested], y_test=d.y_test[tested]
            ),
            shards=replace(
                self.shards,
                train=local(self.shards.train, mine, kept),
                validation=local(self.shards.validation, mine, kept),
                test=local(self.shards.test, edges, tested),
            ),
        )

    def some(self, most: int = 2) -> Tensor:
        """Return so many examples, or as many as there are, as the network sees them."""
        return self.normalize(self.source("train")[0][:most])

    def source(self, split: Split, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
        """Return the images and labels that indices of a split point into, on a device."""
        d = self.dataset
        x, y = map(torch.from_numpy, (d.x_test, d.y_test) if split == "test" else (d.x_train, d.y_train))
        return x.to(device), y.to(device)

    def normalize(self, x: Tensor) -> Tensor:
        """Return examples as the network sees them: uint8 images per channel (x/255 − mean)/std, others as they are."""
        if self.normalization is None:
            return x.float() if x.is_floating_point() else x
        if x.device not in self._statistics:
            mean, std = (torch.from_numpy(value).reshape(-1, 1, 1).to(x.device) for value in self.normalization)
            self._statistics[x.device] = mean, std
        mean, std = self._statistics[x.device]
        return (x.float() / 255 - mean) / std


def rates(correct: ArrayLike, loss: ArrayLike, count: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return mean loss and accuracy per (model, group) from sums; a group without examples gives NaN."""
    count_G = np.asarray(count, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(loss, dtype=np.float64) / count_G, np.asarray(correct, dtype=np.float64) / count_G


def cells(request: Evaluate) -> IntArray:
    """Return which model meets which group in every cell of a measurement, ``[rows, groups, 2]``."""
    num_models, num_groups = request.num_models, len(request.owners)
    if not request.paired:
        return np.stack(np.meshgrid(np.arange(num_models), np.arange(num_groups), indexing="ij"), -1)
    if num_models != num_groups:
        raise ValueError(
            f"{num_models} models cannot be paired with {num_groups} groups; there must be as many of each"
        )
    return np.repeat(np.arange(num_groups)[None, :, None], 2, axis=2)


@dataclass(frozen=True)
class Losses:
    """Of all clients that were trained together."""

    mean_J: FloatArray
    square_J: FloatArray | None
    epoch_JE: FloatArray | None

    def of(self, request: Train, jobs: slice | IntArray, parts_C: Parts, momentum: Parts | None) -> Trained:
        """Return the answer to a request, the clients of which are these; with no statistic that it did not ask for."""
        square_C = None if self.square_J is None or "square" not in request.keep else self.square_J[jobs]
        epoch_CE = None if self.epoch_JE is None or "epochs" not in request.keep else self.epoch_JE[jobs]
        return Trained(parts_C, self.mean_J[jobs], momentum, square_C, epoch_CE)


class Tally:
    """Sums over the batches of one client."""

    def __init__(self, keep: frozenset[Kept], num_epochs: int, each: Callable[..., Tensor]) -> None:
        self.keep, self.each = keep, each
        self.total, self.seen = torch.zeros(()), 0
        self.square = torch.zeros(())
        self.epoch_E, self.seen_E = torch.zeros(num_epochs), np.zeros(num_epochs)

    def add(self, epoch: int, loss: Tensor, logits: Tensor, y: Tensor) -> None:
        """Count a batch, given its mean loss."""
        lost = loss.detach() * len(y)
        self.total += lost
        self.seen += len(y)
        if "square" in self.keep:
            self.square += self.each(logits.detach(), y, "none").square().sum()
        if "epochs" in self.keep:
            self.epoch_E[epoch] += lost
            self.seen_E[epoch] += len(y)

    def of(self, request: Train, parts_C: Parts, momentum: Parts | None) -> Trained:
        """Return the answer of the client, with the means of what was counted."""
        seen, epoch_CE = max(self.seen, 1), (self.epoch_E.double().numpy() / np.maximum(self.seen_E, 1))[None]
        found = Losses(np.array([float(self.total) / seen]), np.array([float(self.square) / seen]), epoch_CE)
        return found.of(request, slice(None), parts_C, momentum)


def shares(requests: Sequence[Train]) -> list[slice]:
    """Return which of the clients of all requests, one after another, are those of each."""
    ends = accumulate(len(request.clients) for request in requests)
    return [slice(end - len(request.clients), end) for request, end in zip(requests, ends, strict=True)]


def kept(requests: Sequence[Train]) -> frozenset[Kept]:
    """Return all statistics that some request asks for."""
    return frozenset().union(*(request.keep for request in requests))
