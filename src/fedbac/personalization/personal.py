"""Two networks side by side: one for everybody, and one of each client's or edge's own that is pulled to it (Ditto)."""

from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

from torch import nn

from fedbac import models
from fedbac.core import trees
from fedbac.core.parts import Part, Parts, Phase, Pull, Scope
from fedbac.core.settings import Epochs, NonNegative, Settings


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
    """Passes over the data to train v; as many as for w when not given."""
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
