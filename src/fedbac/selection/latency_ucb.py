"""CS-UCB and CS-UCB-Q: upper confidence bounds of how quick clients are (Xia, Quek, Guo, Wen, Yang, Zhu 2020)."""

from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from fedbac.core import bandits
from fedbac.core.queries import Ask, Evidence, Seconds
from fedbac.core.rng import Rng
from fedbac.core.settings import BoolArray, FloatArray, Positive
from fedbac.core.world import Share
from fedbac.selection.simple import Fraction, Selection, largest

SECONDS = Seconds()


class LatencyUCBState(NamedTuple):
    """What each client earned, and how far it lags behind its share."""

    reward_N: FloatArray
    """The sum of its rewards."""
    count_N: FloatArray
    """z_i: the rounds for which it was selected."""
    queue_N: FloatArray
    """D_i: the rounds that it is owed."""
    played: FloatArray
    """Rounds so far, in an array of one."""


class LatencyUCB(Selection):
    """Take the B largest of ȳ_i + √((B + 1) ln t / z_i), where the reward of a client is 1 − min(τ, τ_max) / τ_max.

    With fairness β above 0 it is CS-UCB-Q: the B largest of (1 − β) · min(ȳ_i + √(2 ln t / z_i), 1) + β · D_i.
    """

    kind: Literal["cs_ucb"] = "cs_ucb"
    asks: ClassVar[Ask] = Ask(after=(SECONDS,))
    fraction: Fraction = 0.8
    longest: Positive | None = None
    """τ_max in seconds; what the slowest client of the edge is expected to take when not given."""
    fairness: Annotated[float, Field(ge=0, le=1)] = 0.0
    """β: how much a client's arrears count beside its quickness; 0 is CS-UCB, without queues."""
    target_share: Share = 0.5
    """Share of an equal turn, B / N, that every client is owed in a round; used where fairness is above 0."""

    def init(self, num_members: int) -> LatencyUCBState:
        """Nobody has been selected."""
        nothing = np.zeros(num_members)
        return LatencyUCBState(nothing, nothing, nothing, np.zeros(1))

    def act(self, state: LatencyUCBState, evidence: Evidence, rng: Rng) -> BoolArray:
        """Take the largest indices."""
        return largest(self.index(state), self.fraction, evidence, rng)

    def index(self, state: LatencyUCBState) -> FloatArray:
        """Return what each client is ranked by; those that were never selected come first, or count as quickest."""
        tried_N = state.count_N > 0
        tries_N = np.where(tried_N, state.count_N, 1.0)
        factor = 2 if self.fairness > 0 else bandits.budget(self.fraction, tries_N.size) + 1
        bound_N = state.reward_N / tries_N + np.sqrt(factor * np.log(state.played[0] + 1) / tries_N)
        if self.fairness == 0:
            return np.where(tried_N, bound_N, np.inf)
        quick_N = np.where(tried_N, np.minimum(bound_N, 1.0), 1.0)
        arrears_N: FloatArray = (1 - self.fairness) * quick_N + self.fairness * state.queue_N
        return arrears_N

    def learn(self, state: LatencyUCBState, evidence: Evidence, mask_N: BoolArray) -> LatencyUCBState:
        """Reward quickness. Who never answers takes for ever."""
        started_N, num = evidence.started, mask_N.size
        longest = self.longest or float(evidence.durations.max())
        seconds_N = np.nan_to_num(evidence[SECONDS], nan=np.inf)
        reward_N = np.where(started_N, 1 - np.minimum(seconds_N, longest) / longest, 0.0)
        owed = self.target_share * bandits.budget(self.fraction, num) / num if self.fairness > 0 else 0.0
        return LatencyUCBState(
            state.reward_N + reward_N,
            state.count_N + started_N,
            np.maximum(state.queue_N + owed - started_N, 0.0),
            state.played + 1,
        )
