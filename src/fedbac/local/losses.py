"""The losses of clients in training: their mean, and the statistics that some ask for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedbac.core.parts import Parts
from fedbac.core.requests import Kept, Train, Trained
from fedbac.core.settings import FloatArray, IntArray


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

    @property
    def mean(self) -> float:
        """The mean loss."""
        return float(self.total) / max(self.seen, 1)

    @property
    def mean_square(self) -> float | None:
        """The mean of the squared losses."""
        return float(self.square) / max(self.seen, 1) if "square" in self.keep else None

    @property
    def means(self) -> FloatArray | None:
        """The mean loss of every epoch."""
        return self.epoch_E.double().numpy() / np.maximum(self.seen_E, 1) if "epochs" in self.keep else None


def kept(requests: Sequence[Train]) -> frozenset[Kept]:
    """Return all statistics that some request asks for."""
    return frozenset().union(*(request.keep for request in requests))
