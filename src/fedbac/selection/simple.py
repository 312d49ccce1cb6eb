"""Selection by chance, by data, or by the largest loss of a few (power-of-choice: Cho, Wang, Joshi 2022)."""

import math
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from fedbac.core import bandits
from fedbac.core.policies import NoState
from fedbac.core.queries import Ask, Evidence, Loss, Query, Statistic
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


class _ByChance(Selection):
    adaptive: ClassVar[bool] = False

    def init(self, num_members: int) -> NoState:
        """Return the empty state."""
        return NoState()

    def learn(self, state: NoState, evidence: Evidence, mask_N: BoolArray) -> NoState:
        """Learn nothing."""
        return state


class Random(_ByChance):
    """B = max(1, ⌊p·N_m⌋) clients, drawn without replacement; p = 1 is full participation."""

    kind: Literal["random"] = "random"
    fraction: Fraction = 1.0
    weighting: Literal["uniform", "size"] = "uniform"
    """Draw uniformly, or by numbers of examples (as the public HierFAVG code does)."""

    def act(self, state: NoState, evidence: Evidence, rng: Rng) -> BoolArray:
        """Draw as many as the budget allows."""
        size_N = evidence.size_N
        if self.weighting == "uniform":
            return largest(rng.random(size_N.size), self.fraction, evidence, rng)
        return bandits.draw(size_N.astype(np.float64), bandits.budget(self.fraction, size_N.size), size_N > 0, rng)


class Poisson(_ByChance):
    """Every client by itself with probability p; perhaps nobody. What ``method.privacy`` counts as sampling."""

    kind: Literal["poisson"] = "poisson"
    fraction: Fraction = 1.0

    @property
    def sampling(self) -> float:
        """q: with which probability each client takes part, whatever the data are."""
        return self.fraction

    def act(self, state: NoState, evidence: Evidence, rng: Rng) -> BoolArray:
        """Toss a coin for every client."""
        return (rng.random(evidence.size_N.size) < self.fraction) & (evidence.size_N > 0)


CURRENT = Loss("received", each=True)
TRAINING = Statistic("loss")


class LastLosses(NamedTuple):
    """The loss with which each client trained last."""

    loss_N: FloatArray
    """Infinite before the client has trained."""


class PowerOfChoice(Settings):
    """Draw d candidates in proportion to their data, take the B with the largest loss."""

    kind: Literal["power_of_choice"] = "power_of_choice"
    fraction: Fraction = 0.8
    d_factor: Annotated[float, Field(ge=1, le=1_000_000)] = 2.0
    """d = ⌈d_factor · B⌉, at most all clients. 1 ignores losses."""
    variant: Literal["full", "last"] = "full"
    """``full``: by the model's loss, which candidates measure. ``last`` (rpow-d): by that of their last training,
    infinite before it."""

    @property
    def adaptive(self) -> bool:
        """Only last losses are remembered."""
        return self.variant == "last"

    def needs(self) -> frozenset[Query]:
        """Need the loss of every candidate, or that of training."""
        return frozenset({CURRENT if self.variant == "full" else TRAINING})

    def init(self, num_members: int) -> LastLosses:
        """Nobody has trained."""
        return LastLosses(np.full(num_members, np.inf))

    def ask(self, state: LastLosses, evidence: Evidence, rng: Rng) -> Ask:
        """Ask the candidates for their loss; or those that train, which send it anyway."""
        if self.variant == "last":
            return Ask(after=(TRAINING,))
        return Ask(before=(CURRENT,), among_N=self._candidates(evidence, rng))

    def act(self, state: LastLosses, evidence: Evidence, rng: Rng) -> BoolArray:
        """Take the largest losses among the candidates."""
        if self.variant == "last":
            loss_N = np.where(self._candidates(evidence, rng), state.loss_N, np.nan)
        else:
            loss_N = evidence[CURRENT]
        # Whoever was not asked, or is broken, comes after all others: the budget is spent all the same.
        score_N = np.where(np.isnan(loss_N), -np.inf, loss_N)
        return largest(score_N, self.fraction, evidence, rng)

    def _candidates(self, evidence: Evidence, rng: Rng) -> BoolArray:
        size_N = evidence.size_N
        count = math.ceil(self.d_factor * bandits.budget(self.fraction, size_N.size) - 1e-9)
        return bandits.draw(size_N.astype(np.float64), count, size_N > 0, rng)

    def learn(self, state: LastLosses, evidence: Evidence, mask_N: BoolArray) -> LastLosses:
        """Remember the losses of those that trained."""
        if self.variant == "full":
            return state
        return LastLosses(np.where(mask_N, evidence[TRAINING], state.loss_N))
