"""Thompson sampling at each edge, with soft updates (Eqs. 11 and 12)."""

from typing import ClassVar, Literal, NamedTuple

import numpy as np

from fedbac.core.queries import Accuracy, Ask, Evidence, Query, Split
from fedbac.core.rng import Rng
from fedbac.core.settings import BoolArray, FloatArray, NonNegative, Positive, RoundsOrNone, Settings
from fedbac.selection.simple import Fraction, largest


def soft_step(reward: float, scale: float = 10.0, cap: float = 2.0) -> float:
    """Eq. 11: Δ = min(10 · |r|, 2)."""
    return min(scale * abs(reward), cap)


def beta_update(
    alpha_N: FloatArray, beta_N: FloatArray, mask_N: BoolArray | FloatArray, reward: float, step: float
) -> tuple[FloatArray, FloatArray]:
    """Eq. 12: every selected member gains Δ in α when r > 0, else in β; of Δ the share that is in the mask."""
    gain = step * mask_N
    return (alpha_N + gain, beta_N) if reward > 0 else (alpha_N, beta_N + gain)


class ThompsonState(NamedTuple):
    """The Beta posterior of each client and the edge's accuracy of the round before."""

    alpha_N: FloatArray
    beta_N: FloatArray
    accuracy: FloatArray
    """a_m^(t−1) in an array of one; NaN before there is one."""


class Thompson(Settings):
    """Draw p̃_i ~ Beta(α_i, β_i), take the top B; all selected share the reward a_m^(t) − a_m^(t−1)."""

    kind: Literal["thompson"] = "thompson"
    adaptive: ClassVar[bool] = True
    fraction: Fraction = 0.8
    warmup: RoundsOrNone = 10
    """τ_TS: selection is uniform in the first rounds."""
    update_in_warmup: bool = True
    """Posteriors learn during the warm-up too, as Algorithm 2 is written (C.30)."""
    reward_split: Split = "validation"
    """Data on which a_m is measured; the paper's test data leak into training (C.29)."""
    initial_accuracy: Literal["evaluate", "zero", "skip"] = "evaluate"
    """a_m^(0): measured, taken as 0, or the first reward skipped (C.30)."""
    skip_after_move: bool = True
    """No reward right after the edge changed its cluster (C.30)."""
    prior_alpha: Positive = 1.0
    """α_i of a client that has not trained yet."""
    prior_beta: Positive = 1.0
    """β_i of a client that has not trained yet."""
    step_scale: NonNegative = 10.0
    """Factor from reward to step; the 10 in Eq. 11."""
    step_cap: NonNegative = 2.0
    """Largest step; the 2.0 in Eq. 11."""

    def needs(self) -> frozenset[Query]:
        """Need the accuracy of the edge's model after training, and perhaps of the initial one."""
        first = {self._before} if self.initial_accuracy == "evaluate" else set()
        return frozenset({self._after, *first})

    @property
    def _before(self) -> Accuracy:
        return Accuracy("received", self.reward_split)

    @property
    def _after(self) -> Accuracy:
        return Accuracy("trained", self.reward_split)

    def init(self, num_members: int) -> ThompsonState:
        """Beta(1, 1) for every client."""
        before = 0.0 if self.initial_accuracy == "zero" else np.nan
        return ThompsonState(
            alpha_N=np.full(num_members, self.prior_alpha),
            beta_N=np.full(num_members, self.prior_beta),
            accuracy=np.array([before]),
        )

    def ask(self, state: ThompsonState, evidence: Evidence, rng: Rng) -> Ask:
        """Ask for the edge's accuracy after training, and once for that of the initial model."""
        first = self.initial_accuracy == "evaluate" and bool(np.isnan(state.accuracy[0]))
        return Ask(before=(self._before,) if first else (), after=(self._after,))

    def act(self, state: ThompsonState, evidence: Evidence, rng: Rng) -> BoolArray:
        """Top B of one draw per client; uniform draws during the warm-up."""
        return largest(self.draw(state, evidence, rng), self.fraction, evidence, rng)

    def draw(self, state: ThompsonState, evidence: Evidence, rng: Rng) -> FloatArray:
        """p̃_i."""
        if evidence.round <= self.warmup:
            return rng.random(state.alpha_N.size)
        return rng.beta(state.alpha_N, state.beta_N)

    def learn(self, state: ThompsonState, evidence: Evidence, mask_N: BoolArray) -> ThompsonState:
        """Eqs. 11 and 12 with r = a_m^(t) − a_m^(t−1)."""
        accuracy = float(evidence[self._after])
        before = float(evidence.readings.get(self._before, state.accuracy[0]))
        state = state._replace(accuracy=np.array([accuracy]))
        ignored = (
            np.isnan(before)
            or (evidence.round <= self.warmup and not self.update_in_warmup)
            or (evidence.moved and self.skip_after_move)
        )
        if ignored:
            return state
        reward = accuracy - before
        step = soft_step(reward, self.step_scale, self.step_cap)
        # Who had a smaller part in the average, since it came late, has a smaller part in its praise or blame.
        part_N = mask_N if evidence.share_N is None else mask_N * evidence.share_N
        alpha_N, beta_N = beta_update(state.alpha_N, state.beta_N, part_N, reward, step)
        return state._replace(alpha_N=alpha_N, beta_N=beta_N)

    def beliefs(self, state: ThompsonState) -> FloatArray:
        """Return the mean of each posterior, α / (α + β)."""
        return state.alpha_N / (state.alpha_N + state.beta_N)
