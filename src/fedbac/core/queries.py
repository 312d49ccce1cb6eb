"""What policies ask to have measured, and what they may look at."""

from dataclasses import dataclass
from typing import Literal

from fedbac.core.settings import BoolArray, FloatArray, IntArray

Split = Literal["train", "validation", "test"]


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
