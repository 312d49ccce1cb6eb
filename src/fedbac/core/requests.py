"""What an edge asks of its clients, and what comes back; all but local fields travel (``core.schema``)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, Protocol

import numpy as np
import torch

from fedbac.core import trees
from fedbac.core.codecs import Broadcast
from fedbac.core.liars import Lies
from fedbac.core.links import Link
from fedbac.core.parts import Params, Parts
from fedbac.core.policies import Aggregation
from fedbac.core.queries import Split
from fedbac.core.schema import LARGEST, AnyNumber, Local, NearShare, Some, Within
from fedbac.core.secret import Secret
from fedbac.core.settings import BoolArray, FloatArray, IntArray

Kept = Literal["square", "epochs"]
"""A statistic of local training beside the mean loss, for those who ask: ``square_C``, ``epoch_CE``."""


@dataclass(frozen=True)
class Teachers:
    """Networks whose predictions clients learn beside the labels, in the phases that are taught.

    A client's loss there is (1 − λ)·CE + λ·τ²·Σ_j β_j·KL(softmax(z_j/τ) ‖ softmax(z/τ)), where z are its own logits,
    z_j those of teacher j, who keeps still, and CE is the cross-entropy. The losses that trainers report are CE alone,
    so that they can be compared with those of clients without teachers.
    """

    bank: AnyNumber[Params]
    """Stacked whole networks."""
    weight_CT: AnyNumber[NearShare[FloatArray]]
    """β: by client, what each teacher counts. They sum to 1, or to 0 for a client without teachers, whose λ is 0."""
    share_C: NearShare[FloatArray]
    """λ."""
    temperature: Annotated[float, Within(1e-300, LARGEST)] = 1.0
    """τ."""

    @property
    def shares(self) -> FloatArray:
        """Every client's λ; 0 where it has no teachers."""
        return np.where((self.weight_CT > 0).any(1), self.share_C, 0.0)


@dataclass(frozen=True)
class Train:
    """Train these clients, each from its rows of a bank and on its own data."""

    clients: Local[tuple[int, ...]]
    bank: Parts
    """Stacked: every distinct start once."""
    row_C: Local[Mapping[str, IntArray]]
    """Per part, the row of the bank from which each client starts."""
    round: int
    edge_round: int
    learning_rate: float
    momentum: Local[Parts | None] = None
    """Stacked momentum buffers of the clients, when they persist between rounds."""
    keep: frozenset[Kept] = frozenset()
    """Which statistics to come back with; none of them changes what is learned."""
    rate_scale: Local[Mapping[int, FloatArray]] = field(default_factory=dict)
    """By the number of a phase, what the learning rate of each client is multiplied by; 1 where it is missing."""
    teachers: Teachers | None = None
    phases: Some[tuple[int, ...]] | None = None
    """The numbers of the phases to run, where some rest in this round; all when not given."""
    shift: Local[Parts] = field(default_factory=dict)
    """By part, what is added to every client's gradient after clipping, a row for each; nothing where it is missing."""
    edge_rounds: Local[int] = 1
    share: NearShare[float] = 1.0
    """As of ``LocalRun``."""

    def rates(self, phase: int) -> FloatArray:
        """Return every client's learning rate in a phase."""
        return self.learning_rate * np.asarray(self.rate_scale.get(phase, np.ones(len(self.clients))), dtype=np.float64)

    def part(self, clients: slice) -> "Train":
        """Return the request for some of its clients."""
        if clients == slice(0, len(self.clients)):
            return self
        teachers = self.teachers
        if teachers is not None:
            teachers = replace(teachers, weight_CT=teachers.weight_CT[clients], share_C=teachers.share_C[clients])
        return replace(
            self,
            clients=self.clients[clients],
            row_C={part: rows[clients] for part, rows in self.row_C.items()},
            momentum=None if self.momentum is None else trees.part_rows(self.momentum, clients),
            shift=trees.part_rows(self.shift, clients),
            rate_scale={phase: scale_C[clients] for phase, scale_C in self.rate_scale.items()},
            teachers=teachers,
        )


@dataclass(frozen=True)
class Trained:
    """What the clients of a Train request come back with, stacked on a leading client axis."""

    parts_C: Parts
    loss_C: FloatArray
    """Mean loss over the examples visited; not finite where training broke down."""
    momentum: Local[Parts | None] = None
    square_C: FloatArray | None = None
    """Mean of their squared losses, where it was asked for."""
    epoch_CE: FloatArray | None = None
    """Mean loss of every epoch, where it was asked for: those of all phases, one after another."""


def gathered(pieces: Sequence[Trained]) -> Trained:
    """Return what all clients of a request come back with, given what some of them do each."""
    momenta = [one.momentum for one in pieces if one.momentum is not None]
    squares = [one.square_C for one in pieces if one.square_C is not None]
    epochs = [one.epoch_CE for one in pieces if one.epoch_CE is not None]
    return Trained(
        parts_C=trees.join_parts([one.parts_C for one in pieces]),
        loss_C=np.concatenate([one.loss_C for one in pieces]),
        momentum=trees.join_parts(momenta) if momenta else None,
        square_C=np.concatenate(squares) if squares else None,
        epoch_CE=np.concatenate(epochs) if epochs else None,
    )


@dataclass(frozen=True)
class Average:
    """Train clients and average what they come back with by their number of examples (Eq. 1)."""

    train: Train
    size_C: IntArray
    keep: frozenset[str] = frozenset()
    """Parts of which the clients' own weights come back too, besides their average."""
    link: Link | None = None
    """What transforms the clients' updates on their way; None where they arrive as they are."""
    left: Parts = field(default_factory=dict)
    """What every client left out of its last update, stacked, where they compress."""
    broadcast: Broadcast | None = None
    """How the bank is sent to clients, where that link compresses."""
    rules: Mapping[str, Aggregation] = field(default_factory=dict)
    """By part, how the clients' rows are combined where it is not by their mean."""
    lies: Lies | None = None
    """What some clients make of their updates before they send them, where a simulation has liars."""
    secret: Secret | None = None
    """How clients are added up where only their sum may be known; None where each is seen."""


@dataclass(frozen=True)
class Averaged:
    """What an edge hears of its clients: for every row of the bank the average of those who started from it."""

    bank: Parts
    """A row that nobody healthy started from is as it was."""
    weight: Mapping[str, IntArray]
    """Per part, the examples behind each row; 0 where nobody counts."""
    healthy_C: BoolArray
    """Whose loss and weights are finite; the others do not count in the average."""
    loss_C: FloatArray
    momentum: Parts | None = None
    """Stacked on a leading client axis, as are the parts that were to be kept."""
    square_C: FloatArray | None = None
    epoch_CE: FloatArray | None = None
    """As the clients came back with them."""
    kept: Parts = field(default_factory=dict)
    left: Parts = field(default_factory=dict)
    """What every client leaves out now."""


@dataclass(frozen=True)
class Evaluate:
    """Measure models on examples of one split."""

    bank: Some[AnyNumber[Parts]]
    """Stacked; parts that make no prediction may be missing."""
    row_V: Some[AnyNumber[Mapping[str, IntArray]]]
    """Per part, the row of the bank that each model uses."""
    split: Split
    owners: Local[tuple[int, ...]]
    """Whose examples: one group for each of these."""
    level: Literal["client", "edge"] = "client"
    """Whether owners are clients or edges. Edges own test data only; of those, a client has a share by its classes."""
    paired: Local[bool] = False
    """Every model on the group of the same place only, instead of each on each."""
    max_samples: Annotated[int, Within(1, LARGEST)] | None = None
    """Cap per group, by a fixed subset."""
    secret: Local[Secret | None] = None
    """As of ``Average``."""

    @property
    def num_models(self) -> int:
        """V."""
        return len(next(iter(self.row_V.values())))


@dataclass(frozen=True)
class Measured:
    """Mean loss and accuracy of V models on G groups; of paired ones V is 1: each group's own model."""

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
        """Train the clients of all requests, each at the moment and the rate of its own request."""

    def evaluate(self, requests: Sequence[Evaluate]) -> list[Measured]:
        """Evaluate the models of all requests."""

    def close(self) -> None:
        """Release workers and memory."""
