"""Selection that learns nothing: uniform, or in proportion to data size."""

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedbac.core import bandits
from fedbac.core.policies import NoState
from fedbac.core.queries import Ask, Evidence, Query
from fedbac.core.rng import Rng
from fedbac.core.settings import BoolArray, FloatArray, Settings

Fraction = Annotated[float, Field(gt=0, le=1, description="p: the share of an edge's clients that train.")]
"""p, the share of an edge's clients that train in a round."""


class Selection(Settings):
    """A policy that asks the same in every round."""

    adaptive: ClassVar[bool] = True
    asks: ClassVar[Ask] = Ask()

    def needs(self) -> frozenset[Query]:
        """Need what it asks for."""
        return frozenset({*self.asks.before, *self.asks.after})

    def ask(self, state: Any, evidence: Evidence, rng: Rng) -> Ask:
        """Ask as ever."""
        return self.asks


def largest(score_N: FloatArray, fraction: float, evidence: Evidence, rng: Rng) -> BoolArray:
    """Return the B = max(1, ⌊p·N⌋) clients with the largest scores, of those with data."""
    return bandits.top(score_N, bandits.budget(fraction, score_N.size), evidence.size_N > 0, rng)


class Random(Selection):
    """B = max(1, ⌊p·N_m⌋) clients, drawn without replacement; p = 1 is full participation."""

    kind: Literal["random"] = "random"
    adaptive: ClassVar[bool] = False
    fraction: Fraction = 1.0
    weighting: Literal["uniform", "size"] = "uniform"
    """Draw uniformly, or with probability proportional to the number of examples (as the public HierFAVG code does)."""

    def init(self, num_members: int) -> NoState:
        """Return the empty state."""
        return NoState()

    def act(self, state: NoState, evidence: Evidence, rng: Rng) -> BoolArray:
        """Draw as many as the budget allows."""
        size_N = evidence.size_N
        if self.weighting == "uniform":
            return largest(rng.random(size_N.size), self.fraction, evidence, rng)
        return bandits.draw(size_N.astype(np.float64), bandits.budget(self.fraction, size_N.size), size_N > 0, rng)

    def learn(self, state: NoState, evidence: Evidence, mask_N: BoolArray) -> NoState:
        """Learn nothing."""
        return state
