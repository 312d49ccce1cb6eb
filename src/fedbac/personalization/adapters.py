"""Low-rank adapters beside the layers of a frozen network, each owner's added to the others': Eq. 2 on weights."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from torch import nn

from fedbac.core.parts import Part, Phase, Scope
from fedbac.core.settings import Positive
from fedbac.lowrank import SLOT, adapt
from fedbac.personalization.joint import SameForAll

Patterns = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=1000)], ...], Field(max_length=1000)]
"""Of names, with ``*`` for anything."""


class Adapters(SameForAll):
    """W = W0 + (α/r)·Σ_o B_o A_o in chosen linear layers: W0 is frozen, each owner o trains its product from zero."""

    kind: Literal["adapters"] = "adapters"
    owners: Annotated[tuple[Scope, ...], Field(max_length=6)] = ("cloud", "cluster")
    """Any of ``cloud``, ``cluster``, ``country``, ``region``, ``edge`` and ``client``."""
    target: Patterns = ("*",)
    """The linear layers that have adapters: patterns of names, such as ``*.q_proj``."""
    rank: Annotated[int, Field(ge=1, le=10_000)] = 8
    """r: rows of A and columns of B."""
    alpha: Positive = 16.0
    """α."""
    train: Literal["both", "b"] = "both"
    """A and B; or B under one frozen A, so that means of products are exact (FFA-LoRA)."""
    whole: Annotated[Mapping[Scope, Patterns], Field(max_length=6)] = Field(default_factory=dict)
    """Weights of the network that are trained too, by owner: patterns of names, such as ``head.*``."""
    taught: bool = False
    """Whether clients also learn from the teachers of a sharing policy."""
    terms: ClassVar[tuple[str, ...]] = ("model",)

    @model_validator(mode="after")
    def _trains_something(self) -> "Adapters":
        if len(set(self.owners)) < len(self.owners):
            raise ValueError(f"owners: {', '.join(self.owners)} names one twice; give each once")
        if not self.owners and not any(self.whole.values()):
            raise ValueError("owners and whole are both empty, so nothing is trained; name an owner, such as cloud")
        return self

    @property
    def parts(self) -> Mapping[str, Part]:
        """For every owner its adapters and its weights of the network itself."""
        owners = dict.fromkeys((*self.owners, *(owner for owner, patterns in self.whole.items() if patterns)))
        held = {owner: (f"*.{SLOT}{owner}.*",) * (owner in self.owners) + self.whole.get(owner, ()) for owner in owners}
        # Who owns all that is trained has a whole network, which may be taught.
        return {o: Part(o, "model", matching=patterns if len(held) > 1 else ()) for o, patterns in held.items()}

    def phases(self) -> tuple[Phase, ...]:
        """Train them all at once."""
        return (Phase(moves=tuple(self.parts), taught=self.taught),)

    def extend(self, network: nn.Module) -> nn.Module:
        """Return the network, frozen and with adapters."""
        return adapt(
            network, self.target, self.owners, self.rank, self.alpha, self.train == "both", self.whole.values()
        )
