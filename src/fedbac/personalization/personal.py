"""A network for everybody beside personal ones: pulled to it (Ditto), mixed with it (APFL), or teaching it (pFedMe)."""

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedbac import models
from fedbac.core import trees
from fedbac.core.parts import LocalRun, LocalSteps, Part, Parts, Phase, Pull, Scope, Start
from fedbac.core.settings import Epochs, NonNegative, Positive, Settings


class Personal(Settings):
    """w is trained and averaged as if alone; v stays with its owner, learns L(v) + (λ/2)‖v − w^t‖² and predicts.

    w^t is what the client received. Both begin as the same network and see the same batches.
    """

    kind: Literal["personal"] = "personal"
    owner: Literal["client", "edge"] = "client"
    """Whose v is: each client's, or each edge's (averaged over the edge's clients)."""
    strength: NonNegative = 1.0
    """λ; 0 is purely local training. A step is stable as long as learning rate times λ stays well below 2."""
    epochs: Epochs | None = None
    """Passes over the data to train v; default: as many as for w."""
    unseen: Literal["global", "init"] = "global"
    """What an owner has for v until it first trains: the network for all as it is then, or the initial one."""
    terms: ClassVar[tuple[str, ...]] = ("personal",)

    @property
    def parts(self) -> Mapping[str, Part]:
        """The two networks."""
        follows = "global" if self.unseen == "global" else None
        return {"global": Part("cloud", "global"), "personal": Part(self.owner, "personal", follows=follows)}

    def init(self, build: Callable[[int], nn.Module], owners: Mapping[Scope, int]) -> Parts:
        """Return the same network for all."""
        network = models.weights(build(0))
        return {"global": trees.stack([network]), "personal": trees.stack([network] * owners[self.owner])}

    def phases(self) -> tuple[Phase, ...]:
        """Train w, then v."""
        pull = {"personal": Pull(self.strength, to="global")} if self.strength else {}
        return (
            Phase(moves=("global",), terms=("global",)),
            Phase(moves=("personal",), terms=("personal",), epochs=self.epochs, pull=pull),
        )


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
    """Passes over the data; default: the task's."""
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
        chained = {name: trees.column(alpha_C, slope) * slope for name, slope in through.items()}
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
                name: torch.lerp(parts["global"][name].expand_as(value), value, trees.column(alpha, value))
                for name, value in parts["personal"].items()
            }
        }

    def _alpha(self, parts: Parts) -> Tensor:
        if self.adaptive:
            return parts["alpha"]["alpha"]
        like = next(iter(parts["personal"].values()))
        return torch.full((len(like),), self.alpha, device=like.device)


class MoreauEnvelope(Settings):
    """On every batch, θ takes K steps of rate η_θ towards the minimum of L(θ) + (λ/2)‖θ − w‖², and then
    w ← w − η·λ·(w − θ). θ begins each training as w, goes on from batch to batch, and predicts; w is averaged.
    """

    kind: Literal["moreau_envelope"] = "moreau_envelope"
    owner: Literal["client", "edge"] = "client"
    """Whose θ is: each client's, or each edge's (averaged over the edge's clients)."""
    strength: Positive = 15.0
    """λ. Steps are stable as long as η_θ·λ stays below 2 and the learning rate times λ below 1."""
    inner_steps: Annotated[int, Field(ge=1, le=1000)] = 5
    """K, each with a gradient of its own on the same batch."""
    inner_rate: Positive = 0.09
    """η_θ."""
    mixing: Annotated[float, Field(gt=0, le=10)] = 1.0
    """β: the new w is (1 − β) times the one that clients received and β times the mean of what they made of it."""
    epochs: Epochs | None = None
    """Passes over the data; default: the task's."""
    terms: ClassVar[tuple[str, ...]] = ("personal",)

    @property
    def parts(self) -> Mapping[str, Part]:
        """The two networks."""
        return {"global": Part("cloud", "global"), "personal": Part(self.owner, "personal", follows="global")}

    def init(self, build: Callable[[int], nn.Module], owners: Mapping[Scope, int]) -> Parts:
        """Return the same network for all."""
        network = models.weights(build(0))
        return {"global": trees.stack([network]), "personal": trees.stack([network] * owners[self.owner])}

    def phases(self) -> tuple[Phase, ...]:
        """Train both in the same steps."""
        return (Phase(moves=("global", "personal"), terms=("global", "personal"), epochs=self.epochs),)

    def before(self, received_C: Parts, run: LocalRun) -> Start:
        """Let θ begin as w."""
        return Start({"personal": received_C["global"]})

    def step(self, now_C: Parts, received_C: Parts, local: LocalSteps) -> Parts:
        """Solve for θ approximately, then move w to it (Algorithm 1, lines 7 and 8)."""
        shared, own = now_C["global"], now_C["personal"]
        for _ in range(self.inner_steps):
            slope = local.clipped(local.gradient(own))
            own = {
                name: value - self.inner_rate * (slope[name] + self.strength * (value - shared[name]))
                for name, value in own.items()
            }
        moved = {
            name: value - trees.column(local.rate_C, value) * self.strength * (value - own[name])
            for name, value in shared.items()
        }
        return {"global": moved, "personal": own}

    def after(self, received_C: Parts, started_C: Parts, trained_C: Parts, run: LocalRun) -> Parts:
        """Mix w with what was received: the mean of such mixtures is the mixture of the mean."""
        if self.mixing == 1:
            return {}
        return {
            "global": {
                name: torch.lerp(received_C["global"][name], value, self.mixing)
                for name, value in trained_C["global"].items()
            }
        }
