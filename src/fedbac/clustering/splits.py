"""One cluster that splits: where updates point apart (CFL), or where levels of loss differ (FedGWC)."""

from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from fedbac.clustering.loss import OneClusterFirst
from fedbac.core.geometry import cosines, distances
from fedbac.core.policies import Assignment
from fedbac.core.queries import Evidence, Gram, Query, Statistic
from fedbac.core.rng import Rng
from fedbac.core.settings import MAX_EDGES, Edges, FloatArray, IntArray, NonNegative, Positive, Rounds, RoundsOrNone

YARDSTICK_ROUNDS = 5
"""Rounds whose largest updates set the scale of relative thresholds."""


class CosineState(NamedTuple):
    """What thresholds are relative to."""

    norm_T: FloatArray
    """The largest norm of an update in each of the first rounds; NaN for those that are still to come."""


class CosineSplits(OneClusterFirst):
    """Start as one cluster; split one at rest whose members still pull apart.

    A cluster splits if ‖mean_i Δ_i‖ < ε1, members counting alike, and max_i ‖Δ_i‖ > ε2. Complete linkage on the cosine
    of updates makes the sides, so that the largest similarity across is small. Both continue from their parent's
    network.
    """

    kind: Literal["cosine_splits"] = "cosine_splits"
    asks: ClassVar[tuple[Query, ...]] = (Gram(),)
    epsilon_1: NonNegative = 0.4
    """ε1, above the mean update; 0 never splits."""
    epsilon_2: NonNegative = 1.6
    """ε2, below some member's update."""
    thresholds: Literal["relative", "absolute"] = "relative"
    """Whether ε1 and ε2 are in quarters of the first rounds' median largest update, since edges move less than clients,
    or plain norms, as in the original."""
    first_split: RoundsOrNone = 20
    """No split before this round."""
    min_members: Annotated[int, Field(ge=3, le=MAX_EDGES)] = 3
    """The smallest cluster that may split."""
    separation: NonNegative = 0.0
    """γ: split only if √((1 − α)/2) exceeds this, α being the largest cosine across; 0 accepts all."""
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
            leaving = self._leaving(evidence[Gram()][np.ix_(members, members)], unit)
            if free.size and leaving.size:
                after_N[members[leaving]] = free[0]
                origin_KJ[free[0]] = np.arange(num_clusters) == k
        return state, Assignment(after_N, origin_KJ)

    def _leaving(self, gram_NN: FloatArray, unit: float) -> IntArray:
        """Return the places of the members of a cluster that leave it; the side of its first member stays."""
        stays = np.zeros(0, dtype=np.int64)
        count = len(gram_NN)
        if count < self.min_members:
            return stays
        mean_norm, largest = np.sqrt(max(gram_NN.mean(), 0.0)), np.sqrt(np.diagonal(gram_NN).max())
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


EPOCHS = Statistic("epochs")
LEAST_VARIANCE = 1e-16
MOST_CHILDREN = 5


class RewardsState(NamedTuple):
    """What is known of members beside each other, and whether it still changes."""

    weight_NN: FloatArray
    """W: row i, the running share of member i in the rewards of the rounds in which j was there too."""
    change_N: FloatArray
    """The running mean square change of W in each member's cluster; NaN before the first."""
    calm_N: IntArray
    """For how many rounds in a row it was small."""
    enough_N: IntArray
    """How many such rounds are enough."""


class GaussianRewards(OneClusterFirst):
    """Start as one cluster; split one whose members' shares in the rewards are at rest and fall apart.

    Epoch s has mean loss μ_s and variance σ_s² over a cluster's members, by data. Member i is rewarded by r_i = mean_s
    exp(−(ℓ_is − μ_s)² / 2σ_s²), and W_ij ← (1 − a) W_ij + a r_i / Σ_l r_l. With W scaled to [0, 1], the affinity of i
    and j is exp(−γ‖W_i − W_j‖²) over all other members. Spectral clustering into 2 to 5 children is judged by the score
    of Davies and Bouldin; children continue from their parent's network.
    """

    kind: Literal["gaussian_rewards"] = "gaussian_rewards"
    asks: ClassVar[tuple[Query, ...]] = (EPOCHS,)
    discount: Annotated[float, Field(gt=0, le=1)] | None = 0.2
    """a: weight of the newest round in W; null, as in the original: the share of members that reported."""
    gamma: Positive = 1.0
    """γ: how fast affinity falls with distance. The original's 0.1 is for a hundred clients."""
    epsilon: Positive = 1e-4
    """W is at rest while its running mean square change is below this."""
    patience: Rounds | None = 5
    """Rounds at rest before a split; null: as many as members need to report once."""
    separation: NonNegative = 1.0
    """Split only if the score of Davies and Bouldin is below this; 0 never splits."""

    def init(self, num_members: int) -> RewardsState:
        """All are alike."""
        return RewardsState(
            weight_NN=np.full((num_members, num_members), 1 / num_members**2),
            change_N=np.full(num_members, np.nan),
            calm_N=np.zeros(num_members, dtype=np.int64),
            enough_N=np.ones(num_members, dtype=np.int64),
        )

    def learn(self, state: RewardsState, evidence: Evidence) -> RewardsState:
        """Reward the members of each cluster that trained, if there are two."""
        label_N, trace_NE = evidence.labels, evidence[EPOCHS]
        finite_N = np.isfinite(trace_NE).all(1)
        weight_NN, change_N, calm_N = state.weight_NN.copy(), state.change_N.copy(), state.calm_N.copy()
        enough_N = state.enough_N.copy()
        for k in np.unique(label_N):
            members = np.flatnonzero((label_N == k) & finite_N)
            if members.size < 2:
                continue
            reward_N = self._rewards(trace_NE[members], evidence.size_N[members])
            pairs, share = np.ix_(members, members), members.size / (label_N == k).sum()
            discount = share if self.discount is None else self.discount
            step_NN = discount * ((reward_N / reward_N.sum())[:, None] - weight_NN[pairs])
            weight_NN[pairs] += step_NN
            now, before = float((step_NN**2).mean()), float(change_N[members[0]])
            running = now if np.isnan(before) else before + discount * (now - before)
            change_N[label_N == k] = running
            calm_N[label_N == k] = calm_N[members[0]] + 1 if running < self.epsilon else 0
            enough_N[label_N == k] = round(1 / share) if self.patience is None else self.patience
        return RewardsState(weight_NN, change_N, calm_N, enough_N)

    def act(self, state: RewardsState, evidence: Evidence, rng: Rng) -> tuple[RewardsState, Assignment]:
        """Try to split every cluster that has been at rest for long enough; whether it did or not, it starts anew."""
        assert evidence.used_K is not None
        label_N, num_clusters = evidence.labels, evidence.used_K.size
        after_N, origin_KJ = label_N.copy(), np.eye(num_clusters)
        change_N, calm_N = state.change_N.copy(), state.calm_N.copy()
        for k in np.unique(label_N).tolist():
            members = np.flatnonzero(label_N == k)
            if calm_N[members[0]] < state.enough_N[members[0]]:
                continue
            change_N[members], calm_N[members] = np.nan, 0
            child_N = self._children(state.weight_NN[np.ix_(members, members)], rng)
            for child in np.setdiff1d(child_N, child_N[0]):  # those with the first member stay
                free = np.setdiff1d(np.arange(num_clusters), after_N)[0]
                after_N[members[child_N == child]] = free
                origin_KJ[free] = np.arange(num_clusters) == k
        return state._replace(change_N=change_N, calm_N=calm_N), Assignment(after_N, origin_KJ)

    def _rewards(self, trace_NE: FloatArray, size_N: IntArray) -> FloatArray:
        return rewards(trace_NE, size_N)

    def _children(self, weight_NN: FloatArray, rng: Rng) -> IntArray:
        """Return the child of each member, for the number of children that scores best; one for all if none is good."""
        from sklearn.cluster import SpectralClustering  # slow to import and seldom needed
        from sklearn.metrics import davies_bouldin_score

        num = len(weight_NN)
        best, child_N = self.separation, np.zeros(num, dtype=np.int64)
        near_NN = affinity(weight_NN, self.gamma)
        seed = int(rng.integers(2**31))
        for count in range(2, min(MOST_CHILDREN, num - 1) + 1):
            split = SpectralClustering(count, affinity="precomputed", assign_labels="cluster_qr", random_state=seed)
            found_N = split.fit_predict(near_NN).astype(np.int64)
            parts = np.unique(found_N).size
            score = davies_bouldin_score(embedding(near_NN)[:, :count], found_N) if parts > 1 else np.inf
            if score < best:
                best, child_N = score, found_N
        return child_N


def embedding(near_NN: FloatArray) -> FloatArray:
    """Return the coordinates of members by the normalized Laplacian, smoothest first; without the constant one."""
    root_N = np.sqrt(near_NN.sum(1))
    _, vector_NF = np.linalg.eigh(np.eye(root_N.size) - near_NN / np.outer(root_N, root_N))
    place_NF: FloatArray = vector_NF[:, 1:] / root_N[:, None]
    return place_NF


def rewards(trace_NE: FloatArray, size_N: IntArray) -> FloatArray:
    """Return r: near 1 for who loses as much as the mean in every epoch, less for who does not."""
    share_N = size_N / size_N.sum()
    from_mean_NE = trace_NE - share_N @ trace_NE
    variance_E = share_N @ from_mean_NE**2 + LEAST_VARIANCE
    reward_N: FloatArray = np.exp(-(from_mean_NE**2) / (2 * variance_E)).mean(1)
    return reward_N


def affinity(weight_NN: FloatArray, gamma: float) -> FloatArray:
    """Return exp(−γ‖W_i − W_j‖²) for all pairs, without the coordinates i and j, and with 0 for each with itself."""
    low, high = weight_NN.min(), weight_NN.max()
    scaled_NN = (weight_NN - low) / max(high - low, 1e-8)
    own_N = np.diagonal(scaled_NN)
    square_NN = distances(scaled_NN @ scaled_NN.T) ** 2 - (own_N[:, None] - scaled_NN.T) ** 2 - (scaled_NN - own_N) ** 2
    near_NN: FloatArray = np.exp(-gamma * np.maximum(square_NN, 0))
    np.fill_diagonal(near_NN, 0)
    return near_NN
