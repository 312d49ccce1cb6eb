"""A network for everybody that learns from personal ones, which are held near it (pFedMe)."""

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from fedbac import models
from fedbac.core import trees
from fedbac.core.parts import LocalRun, LocalSteps, Part, Parts, Phase, Scope, Start
from fedbac.core.settings import Epochs, Positive, Settings
from fedbac.personalization.arithmetic import column


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
    """Passes over the data; as many as the task says when not given."""
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
            name: value - column(local.rate_C, value) * self.strength * (value - own[name])
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
