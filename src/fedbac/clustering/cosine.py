"""Recursive splits by the angle between updates: clustered federated learning (CFL)."""

from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from fedbac.clustering.fixed import Asking
from fedbac.core.geometry import cosines
from fedbac.core.policies import Assignment
from fedbac.core.queries import Evidence, Gram, Query
from fedbac.core.rng import Rng
from fedbac.core.settings import MAX_EDGES, Edges, FloatArray, IntArray, NonNegative, RoundsOrNone

YARDSTICK_ROUNDS = 5
"""Rounds whose largest updates set the scale of relative thresholds."""


class CosineState(NamedTuple):
    """What thresholds are relative to."""

    norm_T: FloatArray
    """The largest norm of an update in each of the first rounds; NaN for those that are still to come."""


class CosineSplits(Asking):
    """Start as one cluster; split one in two when it has come to rest while its members still pull apart.

    A cluster splits if ‖mean_i Δ_i‖ < ε1, the mean by data as its network is averaged, and max_i ‖Δ_i‖ > ε2. The two
    sides are those of complete linkage on the cosine of updates, which makes the largest similarity across small. Both
    continue from the network of their parent.
    """

    kind: Literal["cosine_splits"] = "cosine_splits"
    adaptive: ClassVar[bool] = True
    asks: ClassVar[tuple[Query, ...]] = (Gram(),)
    epsilon_1: NonNegative = 0.4
    """ε1: the cluster's mean update is below this; 0 never splits."""
    epsilon_2: NonNegative = 1.6
    """ε2: some member's update is above this."""
    thresholds: Literal["relative", "absolute"] = "relative"
    """Whether ε1 and ε2 count in units of a quarter of the first rounds' largest update (their median), since edges
    move less than clients do, or in plain norms as in the original."""
    first_split: RoundsOrNone = 20
    """No split before this round."""
    min_members: Annotated[int, Field(ge=3, le=MAX_EDGES)] = 3
    """The smallest cluster that may split."""
    separation: NonNegative = 0.0
    """γ: accept a split only if √((1 − α)/2) is above this, α being the largest cosine across; 0 accepts all."""
    max_clusters: Edges | None = None
    """No more clusters than this; one per edge when not given."""

    def clusters(self, num_members: int) -> int:
        """Return the largest number of clusters."""
        return min(self.max_clusters or num_members, num_members)

    def init(self, num_members: int) -> CosineState:
        """No update was seen."""
        return CosineState(np.full(YARDSTICK_ROUNDS, np.nan))

    def learn(self, state: CosineState, evidence: Evidence) -> CosineState:
        """Remember the largest update of the first rounds."""
        unknown = np.flatnonzero(np.isnan(state.norm_T))
        norm_N = np.sqrt(np.diagonal(evidence[Gram()]))
        if unknown.size == 0 or np.isnan(norm_N).all():
            return state
        norm_T = state.norm_T.copy()
        norm_T[unknown[0]] = np.nanmax(norm_N)
        return CosineState(norm_T)

    def act(self, state: CosineState, evidence: Evidence, rng: Rng) -> tuple[CosineState, Assignment]:
        """Split every cluster that is due, once."""
        assert evidence.used_K is not None
        label_N, num_clusters = evidence.labels, evidence.used_K.size
        after_N, origin_KJ = label_N.copy(), np.eye(num_clusters)
        early, late = evidence.round < self.first_split, evidence.round >= evidence.num_rounds
        if early or late or np.isnan(state.norm_T).all():
            return state, Assignment(after_N)
        unit = float(np.nanmedian(state.norm_T)) / 4 if self.thresholds == "relative" else 1.0
        for k in np.unique(label_N).tolist():
            members = np.flatnonzero((label_N == k) & ~np.isnan(np.diagonal(evidence[Gram()])))
            free = np.setdiff1d(np.arange(num_clusters), after_N)
            leaving = self._leaving(evidence[Gram()][np.ix_(members, members)], evidence.size_N[members], unit)
            if free.size and leaving.size:
                after_N[members[leaving]] = free[0]
                origin_KJ[free[0]] = np.arange(num_clusters) == k
        return state, Assignment(after_N, origin_KJ)

    def _leaving(self, gram_NN: FloatArray, size_N: IntArray, unit: float) -> IntArray:
        """Return the places of the members of a cluster that leave it; the side of its first member stays."""
        stays = np.zeros(0, dtype=np.int64)
        count = len(gram_NN)
        if count < self.min_members:
            return stays
        share_N = size_N / size_N.sum()
        mean_norm, largest = np.sqrt(max(share_N @ gram_NN @ share_N, 0.0)), np.sqrt(np.diagonal(gram_NN).max())
        if not (mean_norm < self.epsilon_1 * unit and largest > self.epsilon_2 * unit):
            return stays
        from scipy.cluster.hierarchy import cut_tree, linkage  # slow to import and seldom needed
        from scipy.spatial.distance import squareform

        cosine_NN = cosines(gram_NN)
        side_N = cut_tree(linkage(squareform(1 - cosine_NN, checks=False), "complete"), [2])[:, 0]
        leaves_N = side_N != side_N[0]
        across = cosine_NN[np.ix_(leaves_N, ~leaves_N)]
        if np.sqrt((1 - across.max()) / 2) <= self.separation:
            return stays
        return np.flatnonzero(leaves_N)
