"""Bandits on what is seen of clients.

UCB-CS (Cho, Gupta, Joshi, Yağan 2020) has bounds of their losses, CS-UCB and CS-UCB-Q (Xia, Quek, Guo, Wen, Yang, Zhu
2020) of how quick they are; COCS (Qu, Duan, Chen, Xu, Lu, Liu 2022) counts in cells of devices; and a linear bandit.
"""

from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from fedbac.core import bandits
from fedbac.core.queries import Ask, Evidence, Loss, Seconds, Statistic
from fedbac.core.rng import Rng
from fedbac.core.settings import BoolArray, FloatArray, IntArray, NonNegative, Positive, Rounds
from fedbac.core.world import Share
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
    """Take the B largest of n_i · (L_i / N_i + √(2 σ² ln T / N_i)); new clients come first."""

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
    """τ_max in seconds; default: that expected of the edge's slowest client."""
    fairness: Annotated[float, Field(ge=0, le=1)] = 0.0
    """β: how much arrears count; 0 is CS-UCB."""
    target_share: Share = 0.5
    """Share of an equal turn, B / N, owed to every client, with fairness."""

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
        return (1 - self.fairness) * quick_N + self.fairness * state.queue_N

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


class COCSState(NamedTuple):
    """What is known of each client in each cell."""

    count_NL: FloatArray
    """C: how often the client was selected while it was in the cell."""
    success_NL: FloatArray
    """How often its update counted then."""
    played: FloatArray
    """Rounds so far, in an array of one."""


class COCS(Selection):
    """Explore clients seen too seldom in their cell, then take those whose updates arrive most often.

    A client's context is its downlink and speed, on its edge's scale. It is explored until selected more than K(t) =
    explore_scale · t^(2/5) · ln t times in its cell.
    """

    kind: Literal["cocs"] = "cocs"
    fraction: Fraction = 0.8
    cells_per_side: Rounds = 3
    """h, of h² cells. The analysis wants ⌈T^(1/5)⌉, 3 for 33 to 243 rounds."""
    explore_scale: NonNegative = 0.1
    """With the analysis' 1, 200 rounds would only explore."""

    def init(self, num_members: int) -> COCSState:
        """Nobody has been selected."""
        nothing = np.zeros((num_members, self.cells_per_side**2))
        return COCSState(nothing, nothing, np.zeros(1))

    def act(self, state: COCSState, evidence: Evidence, rng: Rng) -> BoolArray:
        """Take clients to explore as far as the budget goes, then the most reliable."""
        size_N = evidence.size_N
        at = np.arange(size_N.size), self.cells(evidence)
        count_N = state.count_NL[at]
        t = state.played[0] + 1
        unknown_N = count_N <= self.explore_scale * t**0.4 * np.log(t)
        reliable_N = state.success_NL[at] / np.maximum(count_N, 1)
        score_N = np.where(unknown_N, np.inf, reliable_N)
        return largest(score_N, self.fraction, evidence, rng)

    def cells(self, evidence: Evidence) -> IntArray:
        """Return the cell of each client."""
        everybody_N = np.ones(evidence.size_N.size, dtype=bool)
        side = self.cells_per_side
        down_N, speed_N = (
            np.minimum((bandits.spread(value_N, everybody_N) * side).astype(np.int64), side - 1)
            for value_N in (evidence.devices.down_N, evidence.devices.speed_N)
        )
        return down_N * side + speed_N

    def learn(self, state: COCSState, evidence: Evidence, mask_N: BoolArray) -> COCSState:
        """Count who was selected, and whose update arrived."""
        in_cell_NL = self.cells(evidence)[:, None] == np.arange(self.cells_per_side**2)
        return COCSState(
            state.count_NL + in_cell_NL * evidence.started[:, None],
            state.success_NL + in_cell_NL * mask_N[:, None],
            state.played + 1,
        )


BEFORE, AFTER = Loss("received", each=True), Loss("trained", each=True)
FEATURES = ("constant", "loss", "data", "rounds since selected", "speed")
LONG_AGO = 10.0
"""Rounds without being selected that count as 1."""


class ContextualState(NamedTuple):
    """The ridge regression of rewards on contexts, one for all clients of an edge."""

    A: FloatArray
    b: FloatArray
    since_N: FloatArray
    """Rounds since each client was selected."""


class Contextual(Selection):
    """Take the B largest of θ̂ᵀx_i + α √(x_iᵀ A⁻¹ x_i), with one θ̂ for all clients of an edge.

    Context: the client's loss with the model received, log of its data, rounds since its selection, speed. Reward: the
    share of its loss that the round removed, from −1 to 1.
    """

    kind: Literal["contextual"] = "contextual"
    asks: ClassVar[Ask] = Ask(before=(BEFORE,), after=(AFTER,))
    fraction: Fraction = 0.8
    alpha: NonNegative = 0.3
    """α: weight of the uncertainty, the second term."""

    def init(self, num_members: int) -> ContextualState:
        """Ridge 1."""
        num = len(FEATURES)
        return ContextualState(np.eye(num), np.zeros(num), np.zeros(num_members))

    def act(self, state: ContextualState, evidence: Evidence, rng: Rng) -> BoolArray:
        """Take the largest upper confidence bounds."""
        x_ND = self.contexts(state, evidence)
        b_ND = np.broadcast_to(state.b, x_ND.shape)
        bound_N = bandits.upper_confidence(state.A, b_ND, x_ND, self.alpha)
        return largest(bound_N, self.fraction, evidence, rng)

    def contexts(self, state: ContextualState, evidence: Evidence) -> FloatArray:
        """Return the context of each client: features from 0 to 1, on the scale of those that are there."""
        size_N, loss_N = evidence.size_N, evidence[BEFORE]
        there_N = size_N > 0
        return np.column_stack(
            (
                np.ones(size_N.size),
                bandits.spread(loss_N, there_N & np.isfinite(loss_N)),
                bandits.spread(np.log(np.maximum(size_N, 1)), there_N),
                np.minimum(state.since_N / LONG_AGO, 1.0),
                bandits.spread(evidence.devices.speed_N, there_N),
            )
        )

    def learn(self, state: ContextualState, evidence: Evidence, mask_N: BoolArray) -> ContextualState:
        """Regress the reward of each client that trained on its context."""
        x_ND, before_N, after_N = self.contexts(state, evidence), evidence[BEFORE], evidence[AFTER]
        A, b = state.A, state.b
        for i in np.flatnonzero(mask_N & (before_N > 0) & np.isfinite(before_N - after_N)):
            reward = float(np.clip((before_N[i] - after_N[i]) / before_N[i], -1, 1))
            A, b = bandits.ridge_update(A, b, x_ND[i], reward, discount=1.0)
        return ContextualState(A, b, np.where(evidence.started, 0.0, state.since_N + 1))
