"""Differential privacy of a run (``method.privacy``): what is promised, what noise keeps it, and what has been spent.

Everything here is arithmetic on declared numbers. The noise itself is added where updates are summed
(``rounds/privacy.py``), at clients by their link, or within local training (``local/vmapped.py``).
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from fedbac.core.settings import MAX_CLIENTS, Examples, IntArray, NonNegative, Positive, Settings
from fedbac.errors import ConfigError

__all__ = ["Privacy", "Promise"]

Guarantee = Literal["client", "example"]
CLOSE = 1e-4
"""How near the noise for an ε comes to the least there is; each look at it takes a second or more."""
FAR = 200.0
"""An ε that promises nothing; from here on sampling is not counted, as its distribution would fill the memory."""


class Privacy(Settings):
    """(ε, δ)-differential privacy for a run's training and validation data.

    Neighbours differ in one client or example that contributes nothing.
    """

    guarantee: Guarantee = "client"
    """Whom it protects: a client with all its data, or an example (DP-SGD: Abadi et al., 2016)."""
    clip: Positive = 1.0
    """C: the largest L2 norm of a client's change over all parts, or of an example's gradient over all trained
    weights."""
    noise_multiplier: NonNegative | None = None
    """σ: noise in a sum has the standard deviation σ · C. Give it, or ``epsilon``."""
    epsilon: Positive | None = None
    """ε at the end of the run, from which σ follows."""
    delta: Annotated[float, Field(ge=1e-30, lt=1)] = 1e-5
    """δ, well below one over the number of protected."""
    where: Literal["edge", "clients"] = "edge"
    """Who adds the noise of ``client``: a trusted edge, once, or every client a share, σ · C / √fewest, for sums whose
    terms nobody sees."""
    fewest: Annotated[int, Field(ge=1, le=MAX_CLIENTS)] | None = None
    """The fewest clients of an edge whose sum is used; default: as many as it selects."""
    most_examples: Examples = 1
    """w: a client counts as min(n, w) examples, with w times the noise."""

    @model_validator(mode="after")
    def _one_of_two(self) -> "Privacy":
        if (self.noise_multiplier is None) == (self.epsilon is None):
            raise ValueError("give noise_multiplier, or epsilon for the noise that follows from it, and not both")
        if self.guarantee == "example" and (self.where, self.fewest, self.most_examples) != ("edge", None, 1):
            raise ValueError("where, fewest and most_examples are of guarantee=client; leave them out")
        if self.where == "edge" and self.fewest is not None:
            raise ValueError("fewest is of where=clients; a trusted edge adds all noise itself")
        return self

    @property
    def bounds_clients(self) -> bool:
        """Whether it is for whole clients."""
        return self.guarantee == "client"

    @property
    def keeps_secrets(self) -> bool:
        """Whether clients add noise themselves."""
        return not self.bounds_clients or self.where == "clients"

    def counted(self, size_N: IntArray) -> IntArray:
        """Return as how many examples clients count: min(n, w) if whole clients are protected."""
        return np.minimum(size_N, self.most_examples) if self.bounds_clients else size_N

    @property
    def bound(self) -> float:
        """w · C: how far one client can move a sum."""
        return self.most_examples * self.clip


@dataclass(frozen=True)
class Promise:
    """What a run promises: so many answers about the data in each round, all with the same noise."""

    privacy: Privacy
    rounds: int
    queries: tuple[int, ...]
    """In all rounds up to each, from 0."""
    sampling: float
    """q: with which probability a client takes part, if by chance alone; else 1."""
    noise_multiplier: float
    only_sums: bool = False
    """Whether an edge sees nothing but sums of its clients."""

    @classmethod
    def of(cls, privacy: Privacy, queries: tuple[int, ...], sampling: float, only_sums: bool = False) -> "Promise":
        """Return the promise, with σ solved for where ε is given."""
        sigma = privacy.noise_multiplier
        if sigma is None:
            assert privacy.epsilon is not None
            sigma = noise_for(privacy.epsilon, privacy.delta, queries[-1], sampling)
        return cls(privacy, len(queries) - 1, queries, sampling, sigma, only_sums)

    def spent(self, round_: int) -> float | None:
        """Return ε after a round; None where nothing bounds it."""
        return epsilon(self.noise_multiplier, self.privacy.delta, self.queries[round_], self.sampling)

    def spent_knowing(self, round_: int) -> float | None:
        """Return ε after a round to those who know who trained."""
        return epsilon(self.noise_multiplier, self.privacy.delta, self.queries[round_])

    def __str__(self) -> str:
        spent, knowing = self.spent(self.rounds), self.spent_knowing(self.rounds)
        whom = "every client" if self.privacy.bounds_clients else "every training example"
        if spent is None or knowing is None:
            return f"no privacy: method.privacy has no noise (noise_multiplier=0) for {whom}"
        text = f"privacy of {whom}: epsilon {spent:.4g} at delta {self.privacy.delta:g} after {self.rounds} rounds"
        if self.sampling < 1:
            text += f" ({knowing:.4g} to those who learn who trained, as the edges and this run's records do)"
        where = "each batch's sum" if not self.privacy.bounds_clients else "each edge's sum"
        text += f"; noise of {self.noise_multiplier:.4g} times clip={self.privacy.bound:g} in {where}"
        if self.privacy.bounds_clients and self.privacy.where == "clients":
            text += ", in shares by its clients: this holds for sums, "
            text += "and an edge sees no more" if self.only_sums else "and an edge that sees single updates learns more"
        return text


def epsilon(noise_multiplier: float, delta: float, count: int, sampling: float = 1.0) -> float | None:
    """Return ε of so many Gaussian answers, each about clients of whom every one is in it with a probability, by
    dp-accounting; None where there is no noise. Without sampling, k answers are one of noise σ/√k, exactly."""
    if count == 0:
        return 0.0
    if noise_multiplier == 0:
        return None
    whole: float = _accounting().get_epsilon_gaussian(noise_multiplier / math.sqrt(count), delta)
    if sampling == 1 or whole > FAR:
        return whole
    return _sampled_epsilon(noise_multiplier, delta, count, sampling)


@lru_cache(maxsize=100_000)
def noise_for(target: float, delta: float, count: int, sampling: float = 1.0) -> float:
    """Return the smallest σ for which ``epsilon`` is at most a target."""
    accounting = _accounting()
    most = float(accounting.get_sigma_gaussian(target, delta) * math.sqrt(count))
    if sampling == 1 or target > FAR:
        return most
    while (epsilon(most / 2, delta, count, sampling) or 0.0) <= target:
        most /= 2

    def event(sigma: float) -> Any:
        return _sampled(sigma, sampling, count)

    between, enough = accounting.ExplicitBracketInterval(most / 2, most), CLOSE * most
    fresh = accounting.pld.PLDAccountant
    return float(accounting.calibrate_dp_mechanism(fresh, event, target, delta, between, tol=enough))


@lru_cache(maxsize=100_000)
def _sampled_epsilon(noise_multiplier: float, delta: float, count: int, sampling: float) -> float:
    """Compose privacy loss distributions; that of a single answer is made once."""
    return float(_loss_distribution(noise_multiplier, sampling).self_compose(count).get_epsilon_for_delta(delta))


@lru_cache(maxsize=16)
def _loss_distribution(noise_multiplier: float, sampling: float) -> Any:
    accounting = _accounting()
    accountant = accounting.pld.PLDAccountant()
    accountant.compose(_sampled(noise_multiplier, sampling, 1))
    return accountant._pld


def _sampled(noise_multiplier: float, sampling: float, count: int) -> Any:
    accounting = _accounting()
    one = accounting.PoissonSampledDpEvent(sampling, accounting.GaussianDpEvent(noise_multiplier))
    return accounting.SelfComposedDpEvent(one, count)


def _accounting() -> Any:
    try:
        import dp_accounting
    except ImportError as error:
        raise ConfigError(
            "method.privacy needs dp-accounting, which is not installed; install it with: pip install 'fedbac[privacy]'"
        ) from error
    return dp_accounting
