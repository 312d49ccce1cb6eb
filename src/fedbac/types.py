"""Value types and protocols that the columns, the round loop and the engines share.

Axes, as suffixes of array names: M edges, K clusters, N members (the edges of a clustering policy, the clients of a
selection policy), C clients in a request, V models, S splits, G groups of examples, B batch, F features.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from fedbac.rng import Rng

Params = dict[str, Tensor]
"""The weights of one network, or of many stacked on a leading axis."""
Parts = dict[str, Params]
"""The named networks that one client uses together."""
Scope = Literal["cloud", "cluster"]
"""Where a part is averaged: over all edges, or over the edges of one cluster."""
Split = Literal["train", "validation", "test"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


class Settings(BaseModel):
    """A frozen model of hyperparameters: a policy or scheme is its own configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


# ---------------------------------------------------------------------------------------------- policies


@dataclass(frozen=True)
class Ask:
    """What a policy wants measured. Nothing else is measured, so the byte ledger is right by construction."""

    losses: bool = False
    """The loss of every cluster's model on every member (clustering)."""
    occupied: bool = False
    """Only of clusters that have members; the loss of the others is infinite (clustering)."""
    alone: tuple[Split, ...] = ()
    """Also the losses on these splits that each member of a shared cluster has with its own network, as it was before
    it was averaged with the others', and with the average (clustering). Each split is measured by itself, and the
    networks are sent and counted anew."""
    accuracy: Split | None = None
    """The accuracy of the edge's new model on this split, after training (selection)."""
    training_losses: bool = False
    """The mean loss with which each selected member trained (selection). Members send it anyway."""
    baseline: bool = False
    """Also the accuracy of the model the edge received, on the same split, before training (selection)."""
    one_by_one: bool = False
    """Members learn and act in turn, each seeing the moves of those before it (clustering)."""


@dataclass(frozen=True)
class Evidence:
    """What a policy may look at when it acts and learns; fields it did not ask for are None."""

    round: int
    num_rounds: int
    size_N: IntArray
    """Training examples of each member."""
    label_N: IntArray | None = None
    """The current cluster of each member."""
    turn_N: BoolArray | None = None
    """Whose turn it is to learn and act (all members, unless the policy asked to go one by one)."""
    used_K: BoolArray | None = None
    """Which clusters have ever had a member."""
    loss_NK: FloatArray | None = None
    alone_NS: FloatArray | None = None
    """The losses with a member's own network; NaN for one that has its cluster for itself, here and below."""
    together_NS: FloatArray | None = None
    """The losses with the average of the networks of a member's cluster, on the same splits."""
    loss_N: FloatArray | None = None
    """NaN for a member that did not train, or failed."""
    moved: bool = False
    """The edge changed its cluster since its last round (selection)."""
    baseline: float | None = None
    accuracy: float | None = None


PolicyState = NamedTuple
"""A named tuple of numpy arrays: explicit, so that it can be saved, replayed and compared."""


class NoState(NamedTuple):
    """The state of a policy that remembers nothing."""


@runtime_checkable
class ClusterPolicy(Protocol):
    """Assigns every member (edge) a cluster. State goes in, a new one comes out."""

    adaptive: ClassVar[bool]

    @property
    def kind(self) -> str:
        """The name by which configurations choose it."""

    def clusters(self, num_members: int) -> int:
        """Return the number of cluster models for this many members."""

    def start(self, num_members: int, rng: Rng) -> IntArray:
        """Return the labels before anything is known."""

    def init(self, num_members: int) -> Any:
        """Return the state before the first round."""

    def ask(self, state: Any, round_: int) -> Ask | None:
        """Say what must be measured after this round, or None when assignments are not due."""

    def learn(self, state: Any, evidence: Evidence) -> Any:
        """Return the state after seeing how the current labels did."""

    def act(self, state: Any, evidence: Evidence, rng: Rng) -> tuple[Any, IntArray]:
        """Return the state and the new labels; members whose turn it is not keep theirs."""


@runtime_checkable
class SelectionPolicy(Protocol):
    """Picks the clients of one edge that train this round."""

    adaptive: ClassVar[bool]

    @property
    def kind(self) -> str:
        """The name by which configurations choose it."""

    @property
    def fraction(self) -> float:
        """p, the share of the members to select."""

    def init(self, num_members: int) -> Any:
        """Return the state before the first round."""

    def ask(self, state: Any, round_: int) -> Ask:
        """Say what must be measured in this round."""

    def act(self, state: Any, evidence: Evidence, rng: Rng) -> BoolArray:
        """Return the mask of selected members."""

    def learn(self, state: Any, evidence: Evidence, mask_N: BoolArray) -> Any:
        """Return the state after seeing what the selected members achieved."""


@runtime_checkable
class Trusting(Protocol):
    """A selection policy that can say whose data to believe."""

    def trusted(self, state: Any) -> BoolArray:
        """Return the mask of members that nothing speaks against."""


# --------------------------------------------------------------------------------------- personalization

Apply = Callable[[str, Tensor], Tensor]
"""Run the network with the weights of the named part on a batch."""


@dataclass(frozen=True)
class Phase:
    """One stretch of local training: which parts move and how strongly each is pulled towards zero."""

    moves: tuple[str, ...]
    decay: Mapping[str, float]
    """Added to the optimizer's weight decay of that part (not clipped)."""
    penalty: Mapping[str, float]
    """Added to that part's gradient as part of the loss (clipped with it)."""


@runtime_checkable
class Personalization(Protocol):
    """Names the parts of a client's model, where each is averaged, and how they make a prediction together."""

    scopes: ClassVar[Mapping[str, Scope]]
    sums_logits: ClassVar[bool]
    """Whether the prediction is the sum of all parts' logits, which is all that the native kernel knows."""

    @property
    def kind(self) -> str:
        """The name by which configurations choose it."""

    def init(self, build: Callable[[int], nn.Module], num_clusters: int) -> Parts:
        """Return the initial parts, stacked per scope; ``build(i)`` makes the i-th independent network."""

    def predict(self, apply: Apply, x: Tensor) -> Tensor:
        """Return the logits."""

    def phases(self) -> tuple[Phase, ...]:
        """Return how the parts are trained."""


# --------------------------------------------------------------------- requests of an edge to its clients


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
