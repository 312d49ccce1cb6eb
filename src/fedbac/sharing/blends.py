"""Clusters that blend their own network with others': leave-one-out (PHE-FL), mean (CHPFL), alike (pFedGraph).

What a blend is worth is learned from the rounds.
"""

from typing import Literal, NamedTuple

import numpy as np

from fedbac.core.policies import Exchange
from fedbac.core.queries import Accuracy, Evidence, Gram, Query, Slope, Split
from fedbac.core.settings import FloatArray, NonNegative
from fedbac.sharing.mean import (
    SameQueries,
    Share,
    also_judged,
    cluster_cosines,
    data_shares,
    latest_cosines,
    member_shares,
)


class BlendState(NamedTuple):
    """How much members keep of their own cluster's network."""

    own_N: FloatArray
    """α, by member; that of a cluster is the mean over its members, by data."""


def _blended(own_K: FloatArray, rest_KJ: FloatArray, weight_K: FloatArray) -> FloatArray:
    """Return α_k of one's own and 1 − α_k of the rest; clusters that nobody is in keep their own."""
    own_K = np.where(weight_K > 0, own_K, 1.0)[:, None]
    return own_K * np.eye(weight_K.size) + (1 - own_K) * rest_KJ


class LeaveOneOut(SameQueries):
    """u_k = α_k Θ_k + (1 − α_k) c_k, with c_k the mean of all other clusters' networks, by data.

    After the cloud's average members measure α = acc(Θ_k) / (acc(Θ_k) + acc(c_k)), 1 if both are zero or unknown. They
    start from u_k and are evaluated with it.
    """

    kind: Literal["leave_one_out"] = "leave_one_out"
    blend: Share | Literal["measured", "by_data"] = "measured"
    """α_k: measured, a number, or the cluster's share of all data (u_k is the mean)."""
    split: Split = "validation"
    """The data to measure on."""

    def _queries(self) -> tuple[Query, ...]:
        return (Accuracy("own", self.split), Accuracy("others", self.split)) if self.blend == "measured" else ()

    def init(self, num_members: int) -> BlendState:
        """Nothing is measured."""
        return BlendState(np.ones(num_members))

    def act(self, state: BlendState, evidence: Evidence) -> Exchange:
        """Blend."""
        weight_K = data_shares(evidence)
        others_KJ = np.where(np.eye(weight_K.size, dtype=bool), 0.0, weight_K)
        total_K = others_KJ.sum(1, keepdims=True)
        rest_KJ = np.divide(others_KJ, total_K, out=np.eye(weight_K.size), where=total_K > 0)
        if self.blend == "measured":
            own_K = member_shares(evidence) @ state.own_N
        else:
            own_K = weight_K if self.blend == "by_data" else np.full(weight_K.size, self.blend)
        return also_judged(Exchange(_blended(own_K, rest_KJ, weight_K)))

    def learn(self, state: BlendState, evidence: Evidence) -> BlendState:
        """Compare the accuracies; who did not measure keeps what it had."""
        if self.blend != "measured":
            return state
        own_N, others_N = (evidence[query] for query in self._queries())
        total_N = own_N + others_N
        ratio_N = np.divide(own_N, total_N, out=np.ones_like(own_N), where=total_N > 0)
        return BlendState(np.where(np.isnan(total_N), state.own_N, ratio_N))


class Blend(SameQueries):
    """u_k = α_k Θ_k + (1 − α_k) w, with w the mean of all clusters' networks, by data; α_k descends the loss.

    α_k ← α_k − η_α⟨Θ_k − w, ∇F(u_k)⟩, between 0 and 1. A round's update Δ stands for −∇F, and the product is divided by
    ‖Δ‖² and kept within ±1, so α_k moves by at most η_α a round. Members start from u_k and are evaluated with it.
    """

    kind: Literal["blend"] = "blend"
    start: Share = 0.5
    """α_k before the first round."""
    rate: NonNegative = 0.1
    """η_α; 0 keeps α."""

    def _queries(self) -> tuple[Query, ...]:
        return (Gram(), Slope()) if self.rate else ()  # products that cost nothing

    def init(self, num_members: int) -> BlendState:
        """The same for all."""
        return BlendState(np.full(num_members, self.start))

    def act(self, state: BlendState, evidence: Evidence) -> Exchange:
        """Blend."""
        weight_K = data_shares(evidence)
        rest_KJ = np.tile(weight_K, (weight_K.size, 1))
        mix_KJ = _blended(member_shares(evidence) @ state.own_N, rest_KJ, weight_K)
        return Exchange(mix_KJ, judged_KJ=mix_KJ)

    def learn(self, state: BlendState, evidence: Evidence) -> BlendState:
        """Move α of every cluster that trained."""
        if not self.rate:
            return state
        gram_NN, slope_NK, label_N = evidence[Gram()], evidence[Slope()], evidence.labels
        weight_K, before_K, own_N = data_shares(evidence), member_shares(evidence) @ state.own_N, state.own_N.copy()
        for k in np.unique(label_N):
            trained = np.flatnonzero((label_N == k) & np.isfinite(slope_NK).all(1))
            if trained.size == 0:
                continue
            share_N = evidence.size_N[trained] / evidence.size_N[trained].sum()
            slope_K = share_N @ slope_NK[trained]
            square = float(share_N @ gram_NN[np.ix_(trained, trained)] @ share_N)
            step = np.clip((slope_K[k] - weight_K @ slope_K) / square, -1, 1) if square > 0 else 0.0
            own_N[label_N == k] = np.clip(before_K[k] + self.rate * step, 0, 1)
        return BlendState(own_N)


class SimilarState(NamedTuple):
    """How alike members are."""

    cosine_NN: FloatArray
    """The cosine of their updates in the last round in which both trained; 0 if there was none."""


class Similar(SameQueries):
    """Every cluster sends a mix of all networks, the more of those whose members' updates point its way.

    Row k of the mix minimises ‖w − p‖² − λ Σ_j w_j cos_kj over shares w (≥ 0, sum 1); p are the shares of data. Members
    start from their mix and are evaluated with it.
    """

    kind: Literal["similar"] = "similar"
    strength: NonNegative = 1.25
    """λ: 0 is the mean by data; the larger, the more each keeps to its like."""
    since: Literal["round", "start"] = "round"
    """Whether updates are a round's, or all since the first."""

    def _queries(self) -> tuple[Query, ...]:
        return (Gram(self.since),)  # which travels anyway

    def init(self, num_members: int) -> SimilarState:
        """Everybody is like itself."""
        return SimilarState(np.eye(num_members))

    def act(self, state: SimilarState, evidence: Evidence) -> Exchange:
        """Mix those clusters that have members."""
        weight_K = data_shares(evidence)
        cosine_KK = cluster_cosines(state.cosine_NN, evidence)
        occupied = np.flatnonzero(weight_K > 0)
        mix_KJ = np.eye(weight_K.size)
        for k in occupied:
            mix_KJ[k] = 0.0
            mix_KJ[k, occupied] = onto_simplex(weight_K[occupied] + self.strength / 2 * cosine_KK[k, occupied])
        return also_judged(Exchange(mix_KJ))

    def learn(self, state: SimilarState, evidence: Evidence) -> SimilarState:
        """Compare the updates of those that trained."""
        return SimilarState(latest_cosines(state.cosine_NN, evidence[Gram(self.since)]))


def onto_simplex(point_J: FloatArray) -> FloatArray:
    """Return the shares of at least 0 that sum to 1 and are nearest to a point: max(x_j − τ, 0) for the right τ."""
    falling_J = -np.sort(-point_J)
    excess_J = (np.cumsum(falling_J) - 1) / np.arange(1, point_J.size + 1)
    threshold = excess_J[np.flatnonzero(falling_J > excess_J)[-1]]
    above_J = np.maximum(point_J - threshold, 0.0)
    share_J: FloatArray = above_J / above_J.sum()
    return share_J
