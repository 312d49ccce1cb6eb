"""The parts of a client's model: whose they are, how they predict together, how they are trained."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

from torch import Tensor, nn

Params = dict[str, Tensor]
"""The weights of one network, or of many stacked on a leading axis."""
Parts = dict[str, Params]
"""The named networks that one client uses together."""
Scope = Literal["cloud", "cluster"]
"""Where a part is averaged: over all edges, or over the edges of one cluster."""

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
