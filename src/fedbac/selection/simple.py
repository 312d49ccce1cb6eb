"""Selection that learns nothing: uniform, or in proportion to data size."""

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedbac.core import bandits
from fedbac.core.policies import NoState
from fedbac.core.queries import Ask, Evidence, Query
from fedbac.core.rng import Rng
from fedbac.core.settings import BoolArray, Settings

Fraction = Annotated[float, Field(gt=0, le=1, description="p: the share of an edge's clients that train.")]
"""p, the share of an edge's clients that train in a round."""


class Random(Settings):
    """B = max(1, ⌊p·N_m⌋) clients, drawn without replacement; p = 1 is full participation."""

    kind: Literal["random"] = "random"
    adaptive: ClassVar[bool] = False
    fraction: Fraction = 1.0
    weighting: Literal["uniform", "size"] = "uniform"
    """Draw uniformly, or with probability proportional to the number of examples (as the public HierFAVG code does)."""

    def needs(self) -> frozenset[Query]:
        """Need nothing."""
        return frozenset()

    def init(self, num_members: int) -> NoState:
        """Return the empty state."""
        return NoState()

    def ask(self, state: NoState, evidence: Evidence, rng: Rng) -> Ask:
        """Need nothing."""
        return Ask()

    def act(self, state: NoState, evidence: Evidence, rng: Rng) -> BoolArray:
        """Draw as many as the budget allows."""
        size_N = evidence.size_N
        count = bandits.budget(self.fraction, size_N.size)
        if self.weighting == "size":
            return bandits.draw(size_N.astype(np.float64), count, size_N > 0, rng)
        return bandits.top(rng.random(size_N.size), count, size_N > 0, rng)

    def learn(self, state: NoState, evidence: Evidence, mask_N: BoolArray) -> NoState:
        """Learn nothing."""
        return state
