"""Clients start from a mix of their owner's network and the one for everybody, weight by weight (FedALA)."""

from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

import torch
from torch import nn

from fedbac import models
from fedbac.core import trees
from fedbac.core.parts import LocalRun, Params, Part, Parts, Phase, Scope, Start, held_by
from fedbac.core.settings import NonNegative, NumLayers, Settings
from fedbac.errors import ConfigError
from fedbac.personalization.arithmetic import column, mean_gradient


class AdaptiveStart(Settings):
    """v is what its owner trained last, w the mean of all. Training starts from v + W ⊙ (w − v) in the top layers and
    from w in the others, and so does the prediction; what is trained becomes the new v, and its mean the new w.

    W begins at 1 and stays between 0 and 1. For each SGD step of the round it changes by −η_W · g ⊙ (w − v), where g is
    the round's mean gradient.
    """

    kind: Literal["adaptive_start"] = "adaptive_start"
    owner: Literal["client", "edge"] = "edge"
    """Whose v and W are: each client's, or each edge's (averaged over the edge's clients)."""
    top_layers: NumLayers = 1
    """How many of the last layers have a W."""
    mix_rate: NonNegative = 1.0
    """η_W; with 0 everybody always starts from w."""
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
        """Start from the mix."""
        return Start(self.blended(received_C))

    def after(self, received_C: Parts, started_C: Parts, trained_C: Parts, run: LocalRun) -> Parts:
        """Return what was trained as both networks, and what W has learned."""
        gradient = mean_gradient(started_C["personal"], trained_C["personal"], run.travel_FC[0])
        mix: Params = {}
        for name, value in received_C["mix"].items():
            away = received_C["global"][name] - received_C["personal"][name]
            step = self.mix_rate * column(run.steps_FC[0].astype(float), value)
            mix[name] = (value - step * gradient[name] * away).clamp(0, 1)
        return {"global": trained_C["personal"], "mix": mix}

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
