"""One network whose layers have different owners, or learn at different times: a body and a head."""

from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

from torch import nn

from fedbac import models
from fedbac.core import trees
from fedbac.core.parts import Anatomy, Part, Parts, Personalization, Phase, Scope
from fedbac.core.settings import Epochs, NumLayers, Rounds, Settings


def _same_for_all(scheme: Personalization, network: nn.Module, owners: Mapping[Scope, int]) -> Parts:
    parts = Anatomy(scheme, network).split({"network": models.weights(network)})
    return {part: trees.stack([parts[part]] * owners[spec.scope]) for part, spec in scheme.parts.items()}


class PersonalHead(Settings):
    """The last layers belong to each edge, cluster or client, the others to the cloud (FedPer, FedRep)."""

    kind: Literal["personal_head"] = "personal_head"
    owner: Literal["edge", "cluster", "client"] = "edge"
    """Who owns the head: each edge, cluster or client."""
    head_layers: NumLayers = 1
    """How many of the last layers the head has; a network needs at least one more."""
    order: Literal["together", "head_first"] = "together"
    """All layers are trained at once; or first the head with the body frozen, then the body with the head frozen."""
    head_epochs: Epochs | None = None
    """Passes over the data for the head, if it comes first; default: the task's."""
    body_epochs: Epochs | None = None
    """Passes over the data for the body, if the head comes first; default: the task's."""
    terms: ClassVar[tuple[str, ...]] = ("network",)

    @property
    def parts(self) -> Mapping[str, Part]:
        """Body and head of one network."""
        return {
            "body": Part("cloud", "network", slice(None, -self.head_layers)),
            "head": Part(self.owner, "network", slice(-self.head_layers, None)),
        }

    def init(self, build: Callable[[int], nn.Module], owners: Mapping[Scope, int]) -> Parts:
        """Return the same network for all."""
        return _same_for_all(self, build(0), owners)

    def phases(self) -> tuple[Phase, ...]:
        """Train all layers at once, or the head and then the body."""
        if self.order == "together":
            return (Phase(moves=("body", "head")),)
        return Phase(moves=("head",), epochs=self.head_epochs), Phase(moves=("body",), epochs=self.body_epochs)


class LateHead(Settings):
    """One network per cluster, of which only the body learns under a head that stays random; at the end all layers.

    Where each edge is a cluster, and clusters share the mean of their networks until the head may learn, the body is
    trained for everybody and fine-tuned with the head by every edge alone (FedBABU).
    """

    kind: Literal["late_head"] = "late_head"
    head_layers: NumLayers = 1
    """How many of the last layers the head has; a network needs at least one more."""
    last: Rounds = 10
    """F: the head learns only in this many last rounds."""
    terms: ClassVar[tuple[str, ...]] = ("network",)

    @property
    def parts(self) -> Mapping[str, Part]:
        """Body and head of one network."""
        return {
            "body": Part("cluster", "network", slice(None, -self.head_layers)),
            "head": Part("cluster", "network", slice(-self.head_layers, None)),
        }

    def init(self, build: Callable[[int], nn.Module], owners: Mapping[Scope, int]) -> Parts:
        """Return the same network for all."""
        return _same_for_all(self, build(0), owners)

    def phases(self) -> tuple[Phase, ...]:
        """Train the body, and in the last rounds all layers at once."""
        return Phase(moves=("body",), until_last=self.last), Phase(moves=("body", "head"), last=self.last)
