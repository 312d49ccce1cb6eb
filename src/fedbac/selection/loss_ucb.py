"""UCB-CS: a discounted upper confidence bound of each client's training loss (Cho, Gupta, Joshi, Yağan 2020)."""

from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from fedbac.core.queries import Ask, Evidence, Statistic
from fedbac.core.rng import Rng
from fedbac.core.settings import BoolArray, FloatArray
from fedbac.selection.simple import Fraction, Selection, largest

LOSS, SQUARE = Statistic("loss"), Statistic("square")


class LossUCBState(NamedTuple):
    """Discounted sums over the rounds so far."""

    loss_N: FloatArray
    """L_i: of the losses with which a client trained."""
    count_N: FloatArray
    """N_i: of the rounds for which it was selected."""
    total: FloatArray
    """T: of all rounds, in an array of one."""
    deviation: FloatArray
    """σ: the largest standard deviation of a client's losses in the latest round, in an array of one."""

    @property
    def means(self) -> FloatArray:
        """L_i / N_i; the mean of all others for clients that were never selected."""
        known_N = self.count_N > 0
        mean_N = np.divide(self.loss_N, self.count_N, out=np.zeros_like(self.loss_N), where=known_N)
        return np.where(known_N, mean_N, mean_N[known_N].mean() if known_N.any() else 0.0)


class LossUCB(Selection):
    """Take the B largest of n_i · (L_i / N_i + √(2 σ² ln T / N_i)); clients that were never selected come first."""

    kind: Literal["ucb_cs"] = "ucb_cs"
    asks: ClassVar[Ask] = Ask(after=(LOSS, SQUARE))
    fraction: Fraction = 0.8
    discount: Annotated[float, Field(gt=0, le=1)] = 0.7
    """γ: factor by which all sums shrink every round."""

    def init(self, num_members: int) -> LossUCBState:
        """Nobody has been selected."""
        return LossUCBState(np.zeros(num_members), np.zeros(num_members), np.zeros(1), np.zeros(1))

    def act(self, state: LossUCBState, evidence: Evidence, rng: Rng) -> BoolArray:
        """Take the largest indices."""
        return largest(self.index(state, evidence), self.fraction, evidence, rng)

    def index(self, state: LossUCBState, evidence: Evidence) -> FloatArray:
        """Return what each client is ranked by."""
        known_N = state.count_N > 0
        width = 2 * state.deviation[0] ** 2 * np.log(max(state.total[0], 1.0))
        bonus_N = np.sqrt(width / np.where(known_N, state.count_N, 1.0))
        return np.where(known_N, evidence.size_N * (state.means + bonus_N), np.inf)

    def learn(self, state: LossUCBState, evidence: Evidence, mask_N: BoolArray) -> LossUCBState:
        """Shrink the sums and add this round; of a client that brought nothing home, what was expected of it."""
        started_N, loss_N = evidence.started, evidence[LOSS]
        told_N = np.where(mask_N, loss_N, state.means)
        variance = np.max(evidence[SQUARE] - loss_N**2, where=mask_N, initial=0.0)
        return LossUCBState(
            self.discount * state.loss_N + np.where(started_N, told_N, 0.0),
            self.discount * state.count_N + started_N,
            self.discount * state.total + 1,
            np.sqrt([variance]) if mask_N.any() else state.deviation,
        )
