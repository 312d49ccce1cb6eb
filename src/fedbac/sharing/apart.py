"""Clusters that share nothing but what the cloud owns; and what all policies have in common that learn nothing."""

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedbac.core.geometry import cosines, known
from fedbac.core.policies import Exchange, NoState
from fedbac.core.queries import Evidence, Gram, Moment, Query
from fedbac.core.settings import FloatArray, Settings


class Asking(Settings):
    """A sharing policy that asks for the same in every round, by default for nothing."""

    def _queries(self) -> tuple[Query, ...]:
        return ()

    def needs(self) -> frozenset[Query]:
        """Need what it asks for."""
        return frozenset(self._queries())

    def ask(self, state: Any, moment: Moment) -> tuple[Query, ...]:
        """Ask as ever."""
        return self._queries()


class Unlearned(Asking):
    """A sharing policy that measures nothing and remembers nothing."""

    adaptive: ClassVar[bool] = False

    def init(self, num_members: int) -> NoState:
        """Return the empty state."""
        return NoState()

    def learn(self, state: NoState, evidence: Evidence) -> NoState:
        """Learn nothing."""
        return state


class Apart(Unlearned):
    """Every cluster sends its own network."""

    kind: Literal["apart"] = "apart"
    active: ClassVar[bool] = False

    def act(self, state: NoState, evidence: Evidence) -> Exchange:
        """Exchange nothing."""
        return Exchange()


Share = Annotated[float, Field(ge=0, le=1)]
"""A part of the whole: 0 is nothing, 1 is all."""


def data_shares(evidence: Evidence) -> FloatArray:
    """Return the share of all data that the members of each cluster hold."""
    assert evidence.used_K is not None
    size_K = np.bincount(evidence.labels, weights=evidence.size_N, minlength=evidence.used_K.size)
    share_K: FloatArray = size_K / size_K.sum()
    return share_K


def member_shares(evidence: Evidence) -> FloatArray:
    """Return a row for each cluster: the shares of its members in its data; zeros where it has none."""
    assert evidence.used_K is not None
    member_KN = np.equal.outer(np.arange(evidence.used_K.size), evidence.labels) * evidence.size_N.astype(np.float64)
    total_K = member_KN.sum(1, keepdims=True)
    share_KN: FloatArray = np.divide(member_KN, total_K, out=np.zeros_like(member_KN), where=total_K > 0)
    return share_KN


def latest_cosines(cosine_NN: FloatArray, evidence: Evidence) -> FloatArray:
    """Return the cosines of members' updates, each as of the last round in which both trained."""
    known_N = known(evidence[Gram()])
    pairs = np.ix_(known_N, known_N)
    after_NN = cosine_NN.copy()
    after_NN[pairs] = cosines(evidence[Gram()][pairs])
    return after_NN


def cluster_cosines(cosine_NN: FloatArray, evidence: Evidence) -> FloatArray:
    """Return the mean cosine of all pairs of members of two clusters, by data; 1 for each cluster with itself."""
    share_KN = member_shares(evidence)
    cosine_KK: FloatArray = share_KN @ cosine_NN @ share_KN.T
    np.fill_diagonal(cosine_KK, 1.0)
    return cosine_KK
