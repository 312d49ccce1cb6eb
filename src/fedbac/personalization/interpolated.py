"""A network of each client's or edge's own, and how much of it counts beside the network for everybody (APFL)."""

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedbac import models
from fedbac.core import trees
from fedbac.core.parts import LocalSteps, Part, Parts, Phase, Scope
from fedbac.core.settings import Epochs, Positive, Settings
from fedbac.personalization.arithmetic import column


class Interpolated(Settings):
    """w is trained and averaged as if alone. v stays with its owner; v̄ = α·v + (1 − α)·w predicts, and in every local
    step v learns through it, from the batch that w sees: w ← w − η·∇L(w), v ← v − η·α·∇L(v̄).

    When models are judged, w in the blend is the newest.
    """

    kind: Literal["interpolated"] = "interpolated"
    owner: Literal["client", "edge"] = "client"
    """Whose v and α are: each client's, or each edge's (averaged over the edge's clients)."""
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    """α at the start: 0 predicts with w, 1 with v alone."""
    adaptive: bool = True
    """Whether α learns, in every step: α ← α − η_α·⟨v − w, ∇L(v̄)⟩ within 0 and 1."""
    alpha_rate: Positive | None = None
    """η_α; the learning rate of the round when not given."""
    epochs: Epochs | None = None
    """Passes over the data; as many as the task says when not given."""
    terms: ClassVar[tuple[str, ...]] = ("personal",)

    @property
    def parts(self) -> Mapping[str, Part]:
        """The two networks, and α where it learns."""
        parts = {"global": Part("cloud", "global"), "personal": Part(self.owner, "personal", follows="global")}
        return parts | ({"alpha": Part(self.owner, ())} if self.adaptive else {})

    def init(self, build: Callable[[int], nn.Module], owners: Mapping[Scope, int]) -> Parts:
        """Return the same network for all."""
        network, count = models.weights(build(0)), owners[self.owner]
        parts = {"global": trees.stack([network]), "personal": trees.stack([network] * count)}
        return parts | ({"alpha": {"alpha": torch.full((count,), self.alpha)}} if self.adaptive else {})

    def phases(self) -> tuple[Phase, ...]:
        """Train both in the same steps."""
        return (Phase(moves=("global", "personal"), terms=("global", "personal"), epochs=self.epochs),)

    def step(self, now_C: Parts, received_C: Parts, local: LocalSteps) -> Parts:
        """Move w by its own gradient, and v and α by that of the blend (Algorithm 1)."""
        shared, own, alpha_C = now_C["global"], now_C["personal"], self._alpha(now_C)
        alone = local.gradient(shared)
        through = local.gradient(self.blended(now_C)["personal"])
        chained = {name: column(alpha_C, slope) * slope for name, slope in through.items()}
        moved = {
            "global": local.descend("global", shared, alone),
            "personal": local.descend("personal", own, chained),
        }
        if not self.adaptive:
            return moved
        slopes = [((own[name] - shared[name]) * slope).flatten(1).sum(1) for name, slope in through.items()]
        rate = local.rate_C if self.alpha_rate is None else self.alpha_rate
        return moved | {"alpha": {"alpha": (alpha_C - rate * torch.stack(slopes).sum(0)).clamp(0, 1)}}

    def blended(self, parts: Parts) -> Parts:
        """Return α·v + (1 − α)·w as the network that predicts; exactly w where α is 0, and v where it is 1."""
        alpha = self._alpha(parts)
        return {
            "personal": {
                name: torch.lerp(parts["global"][name].expand_as(value), value, column(alpha, value))
                for name, value in parts["personal"].items()
            }
        }

    def _alpha(self, parts: Parts) -> Tensor:
        if self.adaptive:
            return parts["alpha"]["alpha"]
        like = next(iter(parts["personal"].values()))
        return torch.full((len(like),), self.alpha, device=like.device)
