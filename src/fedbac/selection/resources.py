"""Selection by a score of resources and performance: our reading of Trindade and da Fonseca (2024)."""

from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from fedbac.core import bandits
from fedbac.core.queries import Ask, Evidence, Statistic
from fedbac.core.rng import Rng
from fedbac.core.settings import BoolArray, FloatArray, NonNegative, Positive
from fedbac.selection.simple import Fraction, Selection, largest

LOSS = Statistic("loss")


class ResourceState(NamedTuple):
    """Running means of what clients achieved; NaN before there is anything."""

    loss_N: FloatArray
    success_N: FloatArray
    """How often the update of a selected client counted."""


class ResourceScore(Selection):
    """Take the B clients with the largest weighted sum of features.

    Each feature is scaled to 0 to 1 over the clients that are available. A value that is not known yet counts as the
    mean of the known ones.
    """

    kind: Literal["resource_score"] = "resource_score"
    asks: ClassVar[Ask] = Ask(after=(LOSS,))
    fraction: Fraction = 0.8
    speed_weight: NonNegative = 1.0
    """Weight of how fast a client trains."""
    link_weight: NonNegative = 1.0
    """Weight of how fast a client receives a model and sends its update."""
    data_weight: NonNegative = 1.0
    """Weight of a client's number of examples."""
    performance_weight: NonNegative = 1.0
    """Weight of a low training loss."""
    success_weight: NonNegative = 1.0
    """Weight of how often a client's update counted when it was selected."""
    deadline: Positive | None = None
    """In seconds. Clients expected to take longer are passed over, as long as enough others remain."""
    memory: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """ρ: weight of the past in the running means of losses and successes."""

    def init(self, num_members: int) -> ResourceState:
        """Nothing is known."""
        unknown = np.full(num_members, np.nan)
        return ResourceState(unknown, unknown)

    def act(self, state: ResourceState, evidence: Evidence, rng: Rng) -> BoolArray:
        """Take the best of those that will be in time; if they are too few, the fastest of the others."""
        seconds_N = evidence.durations
        score_N = self.score(state, evidence)
        if self.deadline is not None:
            score_N = np.where(seconds_N <= self.deadline, score_N, -seconds_N)
        return largest(score_N, self.fraction, evidence, rng)

    def score(self, state: ResourceState, evidence: Evidence) -> FloatArray:
        """Return what each client is ranked by."""
        devices, there_N = evidence.devices, evidence.size_N > 0
        features = (
            (self.speed_weight, devices.speed_N),
            (self.link_weight, 1 / (1 / devices.down_N + 1 / devices.up_N)),
            (self.data_weight, evidence.size_N.astype(np.float64)),
            (self.performance_weight, -state.loss_N),
            (self.success_weight, state.success_N),
        )
        total_N = np.zeros(there_N.size)
        for weight, value_N in features:
            total_N += weight * bandits.spread(value_N, there_N & ~np.isnan(value_N))
        return total_N

    def learn(self, state: ResourceState, evidence: Evidence, mask_N: BoolArray) -> ResourceState:
        """Update the running means of those that have news."""
        success_N = self._mean(state.success_N, mask_N.astype(np.float64), evidence.started)
        return ResourceState(self._mean(state.loss_N, evidence[LOSS], mask_N), success_N)

    def _mean(self, before_N: FloatArray, news_N: FloatArray, has_news_N: BoolArray) -> FloatArray:
        known_N = np.where(np.isnan(before_N), news_N, before_N)
        return np.where(has_news_N, self.memory * known_N + (1 - self.memory) * news_N, before_N)
