"""Thompson sampling with credit of each client's own: is it sound, or are its labels noise?"""

import math
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field, PositiveFloat

from fedbac import bandits
from fedbac.rng import Rng
from fedbac.selection.simple import Fraction
from fedbac.types import Ask, BoolArray, Evidence, FloatArray, Settings

REFERENCE_QUANTILE = 0.25
"""The client that others are compared with learns better than three quarters: sound if a quarter of all are."""
LEAST_LEARNED = 0.5
"""No credit is given before the reference client has learned this much: until then all losses are alike."""


class CreditState(NamedTuple):
    """The Beta posterior of each client, and the loss it last trained with (NaN before it has)."""

    alpha_N: FloatArray
    beta_N: FloatArray
    loss_N: FloatArray


class CreditThompson(Settings):
    """Draw p̃_i ~ Beta(α_i, β_i), and choose uniformly among the clients of p̃_i > 1/2, the others only if they must.

    A client that trains passes if it learned at least ``least_share`` of what the reference client of its edge learned,
    L_0 − loss: wrong labels cannot be learned from five epochs, rare classes can. Among clients that pass the draw
    is uniform, so that without noise this is random selection: it avoids the bad, it does not seek the easy.
    """

    kind: Literal["credit_thompson"] = "credit_thompson"
    adaptive: ClassVar[bool] = True
    fraction: Fraction = 0.8
    least_share: Annotated[float, Field(ge=0, le=1)] = 0.25
    """Share of the reference client's learning that a sound client shows at least."""
    discount: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Forgetting factor of a client's credit, each time it trains."""
    untrained_loss: PositiveFloat = math.log(10)
    """L_0, the loss of a network that knows nothing: ln(number of classes)."""

    def init(self, num_members: int) -> CreditState:
        """Beta(1, 1) for every client."""
        return CreditState(np.ones(num_members), np.ones(num_members), np.full(num_members, np.nan))

    def ask(self, state: CreditState, round_: int) -> Ask:
        """Ask for the loss with which each client trained, which it sends anyway."""
        return Ask(training_losses=True)

    def act(self, state: CreditState, evidence: Evidence, rng: Rng) -> BoolArray:
        """Uniform among the clients believed sound in this draw; then the likeliest of the others."""
        belief_N = rng.beta(state.alpha_N, state.beta_N)
        score_N = np.where(belief_N > 0.5, 1.0, belief_N)  # ties are broken at random
        return bandits.top(score_N, bandits.budget(self.fraction, score_N.size), evidence.size_N > 0, rng)

    def learn(self, state: CreditState, evidence: Evidence, mask_N: BoolArray) -> CreditState:
        """Pass or fail everyone who trained, against all that is known of the edge's clients."""
        assert evidence.loss_N is not None
        loss_N = np.where(mask_N, evidence.loss_N, state.loss_N)
        state = state._replace(loss_N=loss_N)
        known_N = np.isfinite(loss_N)
        if not known_N.any():
            return state
        learned_N = self.untrained_loss - loss_N
        reference = float(np.quantile(learned_N[known_N], 1 - REFERENCE_QUANTILE))
        if reference < LEAST_LEARNED:
            return state
        pass_N = learned_N >= self.least_share * reference

        def update(count_N: FloatArray, hit_N: BoolArray) -> FloatArray:
            return np.where(mask_N, 1 + self.discount * (count_N - 1) + hit_N, count_N)

        return state._replace(alpha_N=update(state.alpha_N, pass_N), beta_N=update(state.beta_N, ~pass_N))
