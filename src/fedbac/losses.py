"""What networks learn by, and what counts as right: for classes, numbers, or the tokens that come next."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Protocol, cast

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedbac.core.settings import BareKind, Positive, Settings
from fedbac.errors import ConfigError
from fedbac.packages import Package

Reduction = Literal["none", "mean", "sum"]
Labels = Literal["classes", "numbers", "tokens"]
LEARNED = {"classes": "cross_entropy", "numbers": "squared_error", "tokens": "next_token"}
"""By what labels are, the loss that learns them."""
IGNORED = -100
"""A token that is not to be predicted, such as padding."""


class LossFunction(Protocol):
    """Judges the outputs of a network, example by example."""

    @property
    def kind(self) -> str:
        """The name by which configurations choose it."""

    @property
    def labels(self) -> Labels:
        """What it learns."""

    @property
    def limits(self) -> tuple[float, float]:
        """The least mean loss, but for rounding, and the most beyond which training broke down."""

    def loss(self, output: Tensor, y: Tensor, reduction: Reduction = "mean") -> Tensor:
        """Return the loss of each example, their mean, or their sum."""

    def right(self, output: Tensor, y: Tensor) -> Tensor:
        """Return how right each example is, from 0 to 1; the mean is what a run calls accuracy."""


class CrossEntropy(Settings):
    """Of classes: −ln of the share that the softmax gives to the label."""

    kind: Literal["cross_entropy"] = "cross_entropy"
    labels: ClassVar[Labels] = "classes"
    limits: ClassVar[tuple[float, float]] = (-1e-3, 1e4)

    def loss(self, output: Tensor, y: Tensor, reduction: Reduction = "mean") -> Tensor:
        """Return the cross-entropy."""
        return F.cross_entropy(output, y, reduction=reduction)

    def right(self, output: Tensor, y: Tensor) -> Tensor:
        """Return whether the largest logit is that of the label."""
        return output.argmax(-1) == y


class SquaredError(Settings):
    """Of numbers: the mean over outputs of (ŷ − y)²."""

    kind: Literal["squared_error"] = "squared_error"
    labels: ClassVar[Labels] = "numbers"
    limits: ClassVar[tuple[float, float]] = (0.0, 1e30)
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
    labels: ClassVar[Labels] = "tokens"
    limits: ClassVar[tuple[float, float]] = CrossEntropy.limits

    def loss(self, output: Tensor, y: Tensor, reduction: Reduction = "mean") -> Tensor:
        """Return the mean cross-entropy over tokens; an example of which none counts has no loss."""
        # A row for every token: with the words on an axis between others, a GPU takes ten times as long.
        each = F.cross_entropy(output.flatten(0, -2), y.flatten(), ignore_index=IGNORED, reduction="none").view(y.shape)
        return _reduced(each.sum(-1) / (y != IGNORED).sum(-1).clamp(min=1), reduction)

    def right(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the share of tokens that are foretold."""
        counted = y != IGNORED
        return ((output.argmax(-1) == y) & counted).sum(-1) / counted.sum(-1).clamp(min=1)


class OwnLoss(Package):
    """Of an installed package: an object with ``labels``, ``loss(output, y)`` and ``right(output, y)``.

    ``labels`` says what it learns: ``"classes"``, ``"numbers"`` or ``"tokens"``. Both functions return a number for
    each example; ``right`` is the metric of a run, from 0 to 1, and its mean is what a run calls accuracy.
    """

    field: ClassVar[str] = "task.loss"
    limits: ClassVar[tuple[float, float]] = (-1e30, 1e30)

    @property
    def labels(self) -> Labels:
        """What it learns."""
        return cast(Labels, _made(self.load()).labels)

    def loss(self, output: Tensor, y: Tensor, reduction: Reduction = "mean") -> Tensor:
        """Return what the package's loss makes of each example."""
        return _reduced(_made(self.load()).loss(output, y), reduction)

    def right(self, output: Tensor, y: Tensor) -> Tensor:
        """Return what the package calls right."""
        return cast(Tensor, _made(self.load()).right(output, y))


@cache
def _made(factory: Callable[[], Any]) -> Any:
    """Return the loss that a package makes, once."""
    try:
        made = factory()
    except Exception as error:
        raise ConfigError(f"task.loss: {factory}() failed with {type(error).__name__}: {error}") from error
    if getattr(made, "labels", None) not in LEARNED:
        raise ConfigError(f"task.loss: {factory} needs labels = one of {', '.join(LEARNED)}: what it learns")
    return made


LossChoice = Annotated[CrossEntropy | SquaredError | NextToken | OwnLoss, Field(discriminator="kind"), BareKind]


def _reduced(each: Tensor, reduction: Reduction) -> Tensor:
    return each if reduction == "none" else each.mean() if reduction == "mean" else each.sum()


def check(loss: LossFunction, labels: Labels, label_shape: Sequence[int], num_classes: int) -> None:
    """Refuse a loss that cannot learn the labels of a data set (see ``Dataset.labels``), or judge each example."""
    if loss.labels != labels:
        wrong = f"{loss.kind} cannot learn the labels of this data set, which are {labels}"
        hint = ", or give classes as whole numbers [N]" * (loss.labels == "classes" and len(label_shape) == 1)
        raise ConfigError(f"task.loss: {wrong}; use {LEARNED[labels]}{hint}")
    if not isinstance(loss, OwnLoss):
        return
    try:
        output = torch.zeros(2, *(label_shape if labels == "tokens" else ()), num_classes, requires_grad=True)
        y = torch.zeros(2, *label_shape, dtype=torch.float32 if labels == "numbers" else torch.int64)
        loss_B, right_B = loss.loss(output, y, "none"), loss.right(output, y)
        good = loss_B.shape == right_B.shape == (2,) and loss_B.requires_grad
    except Exception as error:  # whatever the user's code raises
        raise ConfigError(f"task.loss: {loss.name} failed with {type(error).__name__}: {error}") from error
    if not good:
        raise ConfigError(
            f"task.loss: of two examples, loss(output, y) and right(output, y) of {loss.name} must return two numbers "
            f"each, and the loss depend on the output; they return {list(loss_B.shape)} and {list(right_B.shape)}"
        )
