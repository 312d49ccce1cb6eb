"""What networks learn by, and what counts as right: for classes, numbers, or the tokens that come next."""

from typing import Annotated, Literal, Protocol

from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedbac.core.settings import BareKind, Positive, Settings

Reduction = Literal["none", "mean", "sum"]
IGNORED = -100
"""A token that is not to be predicted, such as padding."""


class Loss(Protocol):
    """Judges the outputs of a network, example by example."""

    @property
    def kind(self) -> str:
        """The name by which configurations choose it."""

    def loss(self, output: Tensor, y: Tensor, reduction: Reduction = "mean") -> Tensor:
        """Return the loss of each example, their mean, or their sum."""

    def right(self, output: Tensor, y: Tensor) -> Tensor:
        """Return how right each example is, from 0 to 1; the mean is what a run calls accuracy."""


class CrossEntropy(Settings):
    """Of classes: −ln of the share that the softmax gives to the label."""

    kind: Literal["cross_entropy"] = "cross_entropy"

    def loss(self, output: Tensor, y: Tensor, reduction: Reduction = "mean") -> Tensor:
        """Return the cross-entropy."""
        return F.cross_entropy(output, y, reduction=reduction)

    def right(self, output: Tensor, y: Tensor) -> Tensor:
        """Return whether the largest logit is that of the label."""
        return output.argmax(-1) == y


class SquaredError(Settings):
    """Of numbers: the mean over outputs of (ŷ − y)²."""

    kind: Literal["squared_error"] = "squared_error"
    tolerance: Positive = 1.0
    """A prediction counts as right, in what a run calls accuracy, if no output is further from its target."""

    def loss(self, output: Tensor, y: Tensor, reduction: Reduction = "mean") -> Tensor:
        """Return the squared error."""
        return _reduced((output - y).square().mean(-1), reduction)

    def right(self, output: Tensor, y: Tensor) -> Tensor:
        """Return whether all outputs are near their targets."""
        return ((output - y).abs() <= self.tolerance).all(-1)


class NextToken(Settings):
    """Of sequences: the cross-entropy of every token's successor, by the mean over those of an example that count."""

    kind: Literal["next_token"] = "next_token"

    def loss(self, output: Tensor, y: Tensor, reduction: Reduction = "mean") -> Tensor:
        """Return the mean cross-entropy over tokens; an example of which none counts has no loss."""
        each = F.cross_entropy(output.transpose(1, -1), y, ignore_index=IGNORED, reduction="none")
        return _reduced(each.sum(-1) / (y != IGNORED).sum(-1).clamp(min=1), reduction)

    def right(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the share of tokens that are foretold."""
        counted = y != IGNORED
        return ((output.argmax(-1) == y) & counted).sum(-1) / counted.sum(-1).clamp(min=1)


LossChoice = Annotated[CrossEntropy | SquaredError | NextToken, Field(discriminator="kind"), BareKind]


def _reduced(each: Tensor, reduction: Reduction) -> Tensor:
    return each if reduction == "none" else each.mean() if reduction == "mean" else each.sum()


def fault(loss: Loss, labels: str) -> str | None:
    """Say why labels of a data set (see ``Dataset.labels``) cannot be learned by a loss, or None where they can."""
    learned = {"classes": "cross_entropy", "numbers": "squared_error", "tokens": "next_token"}
    if loss.kind == learned[labels]:
        return None
    return f"task.loss: {loss.kind} cannot learn the labels of this data set, which are {labels}; use {learned[labels]}"
