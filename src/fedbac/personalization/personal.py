"""Personal networks beside one for all: pulled to it (Ditto), mixed with it (APFL, FedALA), or teaching it (pFedMe)."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedbac import models
from fedbac.core import trees
from fedbac.core.parts import LocalRun, LocalSteps, Params, Part, Parts, Phase, Pull, Scope, Start, held_by
from fedbac.core.settings import Epochs, NonNegative, NumLayers, Positive, Settings
from fedbac.errors import ConfigError
from fedbac.personalization.joint import SameForAll


class _Beside(SameForAll):
    """A network for all, and one for each owner that predicts."""

    if TYPE_CHECKING:
        owner: Scope
        epochs: int | None
    terms: ClassVar[tuple[str, ...]] = ("personal",)

    @property
    def parts(self) -> Mapping[str, Part]:
        """The two networks."""
        return {"global": Part("cloud", "global"), "personal": Part(self.owner, "personal", follows="global")}

    def phases(self) -> tuple[Phase, ...]:
        """Train both in the same steps."""
        return (Phase(moves=("global", "personal"), terms=("global", "personal"), epochs=self.epochs),)


class Personal(_Beside):
    """w is trained and averaged as if alone; v stays with its owner, learns L(v) + (λ/2)‖v − w^t‖² and predicts.

    w^t is what the client received. Both start equal and see the same batches; the pull is not clipped.
    """

    kind: Literal["personal"] = "personal"
    owner: Literal["client", "edge", "region", "country"] = "client"
    """Whose v is; an edge's is averaged over its clients."""
    strength: NonNegative = 1.0
    """λ; 0 is purely local training. Steps are stable while learning rate times λ is well below 2."""
    epochs: Epochs | None = None
    """Passes over the data for v; default: w's."""
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Of SGD on v; default: the task's. The original's is 0."""
    unseen: Literal["global", "init"] = "global"
    """v until its owner first trains: the network for all, or the first."""

    @property
    def parts(self) -> Mapping[str, Part]:
        """The two networks."""
        follows = "global" if self.unseen == "global" else None
        return {"global": Part("cloud", "global"), "personal": Part(self.owner, "personal", follows=follows)}

    def phases(self) -> tuple[Phase, ...]:
        """Train w, then v."""
        pull = {"personal": Pull(self.strength, to="global", clipped=False)} if self.strength else {}
        personal = Phase(("personal",), terms=("personal",), epochs=self.epochs, pull=pull, momentum=self.momentum)
        return Phase(moves=("global",), terms=("global",)), personal


ALPHA_PULL = 0.02
"""Of α to 0."""


class Interpolated(_Beside):
    """w is trained and averaged as if alone. v stays with its owner; v̄ = α·v + (1 − α)·w predicts, and in every local
    step v learns through it, from w's batch: w ← w − η·∇L(w), v ← v − η·α·∇L(v̄).

    When models are judged, w in the blend is the newest.
    """

    kind: Literal["interpolated"] = "interpolated"
    owner: Literal["client", "edge"] = "client"
    """Whose v and α are; an edge's are averages of its clients'."""
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    """α at the start: 0 predicts with w, 1 with v."""
    adaptive: bool = True
    """Whether α learns, in a training's first step, as in the authors' code: α ← α − η_α·(⟨v − w, ∇L(v̄)⟩ + 0.02·α)
    within 0 and 1."""
    alpha_rate: Positive | None = None
    """η_α; default: the round's learning rate."""
    epochs: Epochs | None = None
    """Passes over the data; default: the task's."""

    @property
    def parts(self) -> Mapping[str, Part]:
        """The two networks, and α where it learns."""
        return {**super().parts, **({"alpha": Part(self.owner, ())} if self.adaptive else {})}

    def init(self, build: Callable[[int], nn.Module], owners: Mapping[Scope, int]) -> Parts:
        """Return the same network for all, and α."""
        alpha = {"alpha": {"alpha": torch.full((owners[self.owner],), self.alpha)}}
        return super().init(build, owners) | (alpha if self.adaptive else {})

    def step(self, now_C: Parts, received_C: Parts, local: LocalSteps) -> Parts:
        """Move w by its own gradient, and v and at first α by that of the blend (Algorithm 1)."""
        shared, own, alpha_C = now_C["global"], now_C["personal"], self._alpha(now_C)
        alone = local.gradient(shared)
        through = local.gradient(self.blended(now_C)["personal"])
        chained = {name: trees.column(alpha_C, slope) * slope for name, slope in through.items()}
        moved = {"global": local.descend("global", shared, alone), "personal": local.descend("personal", own, chained)}
        if not self.adaptive or local.step > 0:
            return moved
        slopes = [((own[name] - shared[name]) * slope).flatten(1).sum(1) for name, slope in through.items()]
        rate = local.rate_C if self.alpha_rate is None else self.alpha_rate
        slope_C = torch.stack(slopes).sum(0) + ALPHA_PULL * alpha_C
        return moved | {"alpha": {"alpha": (alpha_C - rate * slope_C).clamp(0, 1)}}

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


class MoreauEnvelope(_Beside):
    """On every batch, θ takes K steps of rate η_θ down L(θ) + (λ/2)‖θ − w‖², then w ← w − η·λ·(w − θ). θ begins each
    training as w, continues from batch to batch, and predicts; w is averaged.
    """

    kind: Literal["moreau_envelope"] = "moreau_envelope"
    owner: Literal["client", "edge"] = "client"
    """Whose θ is; an edge's is the average of its clients'."""
    strength: Positive = 15.0
    """λ. Steps are stable while η_θ·λ is below 2 and the learning rate times λ below 1."""
    inner_steps: Annotated[int, Field(ge=1, le=1000)] = 5
    """K, each with its own gradient on the same batch."""
    inner_rate: Positive = 0.09
    """η_θ."""
    mixing: Annotated[float, Field(gt=0, le=10)] = 1.0
    """β: the new w is (1 − β) times the old one plus β times clients' mean."""
    epochs: Epochs | None = None
    """Passes over the data; default: the task's."""

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


LOOK_BACK = 10
"""Passes whose losses are compared."""
ROUNDING = 1e-6
"""So near to 1 is a mean of ones: a W that has not learned yet."""


class AdaptiveStart(Settings):
    """v is what its owner trained last, w the mean of all. Training and prediction start from v + W ⊙ (w − v) in the
    top layers, from w in the others; what is trained becomes the new v, and its mean the new w.

    W begins at 1 and stays between 0 and 1. Before training, clients go through a share of their examples with W ← W −
    η_W · ∇L ⊙ (w − v) on every batch: one pass, the first time until losses settle.
    """

    kind: Literal["adaptive_start"] = "adaptive_start"
    owner: Literal["client", "edge"] = "edge"
    """Whose v and W are; an edge's are averages of its clients'."""
    top_layers: NumLayers = 1
    """How many of the last layers have a W."""
    mix_rate: NonNegative = 1.0
    """η_W; with 0 all start from w."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.8
    """s: share of examples, drawn every round, from which W learns."""
    settled: NonNegative = 0.1
    """The first time, W learns until ten passes' losses have a smaller standard deviation."""
    first_passes: Annotated[int, Field(ge=1, le=10_000)] = 100
    """At most this many passes then."""
    terms: ClassVar[tuple[str, ...]] = ("network",)

    @property
    def parts(self) -> Mapping[str, Part]:
        """The network v, which is trained; w and W."""
        return {
            "global": Part("cloud", (), returns_as="personal"),
            "personal": Part(self.owner, "network"),
            "mix": Part(self.owner, ()),
        }

    def init(self, build: Callable[[int], nn.Module], owners: Mapping[Scope, int]) -> Parts:
        """Return the same network for all, and W = 1."""
        network, count = build(0), owners[self.owner]
        whole = models.weights(network)
        layers = {name.rpartition(".")[0] for name in whole}
        if self.top_layers > len(layers):
            raise ConfigError(
                f"method.personalization.top_layers is {self.top_layers} but the network has {len(layers)} layers; "
                "choose at most as many"
            )
        top = held_by(network, tuple(whole), slice(-self.top_layers, None))
        return {
            "global": trees.stack([whole]),
            "personal": trees.stack([whole] * count),
            "mix": {name: torch.ones((count, *whole[name].shape)) for name in top},
        }

    def phases(self) -> tuple[Phase, ...]:
        """Train the network."""
        return (Phase(moves=("personal",)),)

    def before(self, received_C: Parts, run: LocalRun) -> Start:
        """Learn W, and start from the mix (Algorithm 1, lines 6 to 16)."""
        away = {name: received_C["global"][name] - received_C["personal"][name] for name in received_C["mix"]}
        mix, local, losses = received_C["mix"], run.local(), []
        going_C = _every(mix, lambda value: (1 - value).abs() < ROUNDING) & ~_every(away, lambda value: value == 0)
        for number in range(self.first_passes if self.mix_rate else 0):
            for _ in local.batches(self.share):
                slope = local.gradient(self.blended(received_C | {"mix": mix})["personal"], mix)
                for name, value in mix.items():
                    learned = (value - self.mix_rate * slope[name] * away[name]).clamp(0, 1)
                    mix = mix | {
                        name: torch.where(trees.column(going_C, value) > 0, learned, value) if number else learned
                    }
            losses.append(local.loss_C)
            if len(losses) > LOOK_BACK:
                going_C = going_C & (torch.stack(losses[-LOOK_BACK:]).std(0, correction=0) >= self.settled)
            if not going_C.any():
                break
        return Start(self.blended(received_C | {"mix": mix}) | {"mix": mix})

    def after(self, received_C: Parts, started_C: Parts, trained_C: Parts, run: LocalRun) -> Parts:
        """Return what was trained as both networks, and W."""
        return {"global": trained_C["personal"], "mix": started_C["mix"]}

    def blended(self, parts: Parts) -> Parts:
        """Return v + W ⊙ (w − v), exactly w where W is 1; and w in the lower layers."""
        own, shared, mix = parts["personal"], parts["global"], parts["mix"]
        return {
            "personal": {
                name: torch.lerp(value, shared[name].expand_as(value), mix[name])
                if name in mix
                else shared[name].expand_as(value)
                for name, value in own.items()
            }
        }


def _every(params: Params, holds: Callable[[Tensor], Tensor]) -> Tensor:
    """Return by row whether something holds for all numbers."""
    return torch.stack([holds(value).flatten(1).all(1) for value in params.values()]).all(0)
