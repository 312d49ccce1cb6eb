"""A network of each client's or edge's own, and how much of it counts beside the network for everybody (APFL)."""

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedbac import models
from fedbac.core import trees
from fedbac.core.parts import LocalRun, Params, Part, Parts, Phase, Scope, Start
from fedbac.core.settings import Epochs, Positive, Settings
from fedbac.personalization.arithmetic import column, inverse, mean_gradient

ALONE, THROUGH = 0, 1
"""The phases: w by itself, v through the blend."""
ENOUGH = 0.1
"""Below such an α the blend, which moves by α² of a step, tells too little of its gradient; but it is nearly w then,
whose own gradient stands in for it."""


class Interpolated(Settings):
    """w is trained and averaged as if alone. v stays with its owner; α·v + (1 − α)·w predicts, and v learns through it:
    v ← v − η·α·∇L(α·v + (1 − α)·w).

    While clients train, w in the blend is the network that they received; when they are judged it is the newest.
    """

    kind: Literal["interpolated"] = "interpolated"
    owner: Literal["client", "edge"] = "client"
    """Whose v and α are: each client's, or each edge's (averaged over the edge's clients)."""
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    """α at the start: 0 predicts with w, 1 with v alone."""
    adaptive: bool = True
    """Whether α learns, once a round: α ← α − η_α·⟨v − w, g⟩ within 0 and 1, where g is the round's mean gradient."""
    alpha_rate: Positive | None = None
    """η_α; the learning rate of the round when not given."""
    epochs: Epochs | None = None
    """Passes over the data to train v; as many as for w when not given."""
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
        """Train w, then v."""
        return (
            Phase(moves=("global",), terms=("global",)),
            Phase(moves=("personal",), terms=("personal",), epochs=self.epochs),
        )

    def before(self, received_C: Parts, run: LocalRun) -> Start:
        """Start from the blend, which moves by α² where v moves by α."""
        scale_C = self._alpha(received_C).double().square().cpu().numpy()
        return Start(self.blended(received_C), {THROUGH: scale_C})

    def after(self, received_C: Parts, started_C: Parts, trained_C: Parts, run: LocalRun) -> Parts:
        """Return v by what the blend learned, and α by what it says of v and w."""
        alpha_C, start, end = self._alpha(received_C), started_C["personal"], trained_C["personal"]
        own = {
            name: value + (end[name] - start[name]) * column(inverse(alpha_C), value)
            for name, value in received_C["personal"].items()
        }
        return {"personal": own} | (
            {"alpha": self._learned(received_C, start, trained_C, run)} if self.adaptive else {}
        )

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

    def _learned(self, received_C: Parts, start: Params, trained_C: Parts, run: LocalRun) -> Params:
        alpha_C = received_C["alpha"]["alpha"]
        travel_C = torch.as_tensor(run.travel_FC[THROUGH], device=alpha_C.device) * alpha_C.double().square()
        through = mean_gradient(start, trained_C["personal"], travel_C)
        alone = mean_gradient(received_C["global"], trained_C["global"], run.travel_FC[ALONE])
        slope_C = torch.zeros_like(alpha_C, dtype=torch.float64)
        for name, value in received_C["personal"].items():
            gradient = torch.where(column(alpha_C, value) >= ENOUGH, through[name], alone[name])
            away = value - received_C["global"][name]
            slope_C += (away.double() * gradient.double()).flatten(1).sum(1)
        rate = run.rate if self.alpha_rate is None else self.alpha_rate
        return {"alpha": (alpha_C - rate * slope_C).clamp(0, 1).to(alpha_C.dtype)}
