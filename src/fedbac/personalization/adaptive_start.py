"""Clients start from a mix of their owner's network and the one for everybody, weight by weight (FedALA)."""

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedbac import models
from fedbac.core import trees
from fedbac.core.parts import LocalRun, Params, Part, Parts, Phase, Scope, Start, held_by
from fedbac.core.settings import NonNegative, NumLayers, Settings
from fedbac.errors import ConfigError

LOOK_BACK = 10
"""Passes whose losses are compared."""
ROUNDING = 1e-6
"""So near to 1 is a mean of ones: a W that has not learned yet."""


class AdaptiveStart(Settings):
    """v is what its owner trained last, w the mean of all. Training starts from v + W ⊙ (w − v) in the top layers and
    from w in the others, and so does the prediction; what is trained becomes the new v, and its mean the new w.

    W begins at 1 and stays between 0 and 1. Before training, clients go through a share of their examples, and on every
    batch W ← W − η_W · ∇L ⊙ (w − v): one pass each time, and the first time until the losses settle.
    """

    kind: Literal["adaptive_start"] = "adaptive_start"
    owner: Literal["client", "edge"] = "edge"
    """Whose v and W are: each client's, or each edge's (averaged over the edge's clients)."""
    top_layers: NumLayers = 1
    """How many of the last layers have a W."""
    mix_rate: NonNegative = 1.0
    """η_W; with 0 all start from w."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.8
    """s: how many of a client's examples W learns from, another random choice in every round."""
    settled: NonNegative = 0.1
    """The first time W learns until its last ten passes ended with losses of a smaller standard deviation."""
    first_passes: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Most passes of the first time."""
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
