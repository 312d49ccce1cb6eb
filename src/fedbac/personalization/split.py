"""One network whose layers have different owners: a body for everybody, a head of one's own (FedPer)."""

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import nn

from fedbac import models
from fedbac.core import trees
from fedbac.core.parts import Anatomy, Part, Parts, Phase, Scope
from fedbac.core.settings import Settings


class PersonalHead(Settings):
    """The last layers belong to each edge, cluster or client, the others to the cloud; all train together."""

    kind: Literal["personal_head"] = "personal_head"
    owner: Literal["edge", "cluster", "client"] = "edge"
    """Whose the head is."""
    head_layers: Annotated[int, Field(gt=0, le=1000)] = 1
    """How many of the last layers the head has; a network needs at least one more."""
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
        network = build(0)
        parts = Anatomy(self, network).split({"network": models.weights(network)})
        return {part: trees.stack([parts[part]] * owners[spec.scope]) for part, spec in self.parts.items()}

    def phases(self) -> tuple[Phase, ...]:
        """Train all layers at once."""
        return (Phase(moves=("body", "head")),)
