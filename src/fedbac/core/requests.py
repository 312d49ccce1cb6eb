"""What an edge asks of its clients, and what comes back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from fedbac.core.parts import Parts
from fedbac.core.queries import Split
from fedbac.core.settings import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class Train:
    """Train these clients from one start, each on its own data."""

    clients: tuple[int, ...]
    start: Parts
    round: int
    edge_round: int
    learning_rate: float
    momentum: Parts | None = None
    """Stacked momentum buffers of the clients, when they persist between rounds."""


@dataclass(frozen=True)
class Trained:
    """What the clients of a Train request send back, stacked on a leading client axis."""

    parts_C: Parts
    loss_C: FloatArray
    """Mean loss over the examples visited; not finite where training broke down."""
    momentum: Parts | None = None


@dataclass(frozen=True)
class Average:
    """Train clients and average what they come back with by their number of examples (Eq. 1)."""

    train: Train
    size_C: IntArray


@dataclass(frozen=True)
class Averaged:
    """What an edge hears of its clients: their average, and how each one fared."""

    parts: Parts | None
    """None when every client failed."""
    healthy_C: BoolArray
    """Whose loss and weights are finite; the others do not count in the average."""
    loss_C: FloatArray
    momentum: Parts | None = None
    """Stacked on a leading client axis."""


@dataclass(frozen=True)
class Evaluate:
    """Measure these models on the examples of one split."""

    models: tuple[Parts, ...]
    split: Split
    edge: int
    clients: tuple[int, ...]
    """Whose examples (train, validation); the test split belongs to the edge as a whole."""
    max_samples: int | None = None
    """Cap per client, by a fixed subset."""


@dataclass(frozen=True)
class Measured:
    """Mean loss and accuracy of V models on G groups (one per client; one for the edge's test data)."""

    loss_VG: FloatArray
    accuracy_VG: FloatArray
    count_G: IntArray


Request = Average | Evaluate
Result = Averaged | Measured


class Trainer(Protocol):
    """Does the numerical work of many requests at once."""

    path: str
    """Which implementation this is, for the record."""
    device: torch.device
    """Where the networks of a run are kept between rounds."""

    def train(self, requests: Sequence[Train]) -> list[Trained]:
        """Train the clients of all requests."""

    def evaluate(self, requests: Sequence[Evaluate]) -> list[Measured]:
        """Evaluate the models of all requests."""

    def close(self) -> None:
        """Release workers and memory."""
