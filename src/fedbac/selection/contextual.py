"""A linear bandit on the contexts of clients, with a reward of each client's own."""

from typing import ClassVar, Literal, NamedTuple

import numpy as np

from fedbac.core import bandits
from fedbac.core.queries import Ask, Evidence, Loss
from fedbac.core.rng import Rng
from fedbac.core.settings import BoolArray, FloatArray, NonNegative
from fedbac.selection.simple import Fraction, Selection, largest

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

    The context of a client is its loss on the model received, the logarithm of its data, the rounds since it was
    selected and its speed. Its reward is the share of its loss that the round took away, from −1 to 1.
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
