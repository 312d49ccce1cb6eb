"""Clusters that teach each other by what they predict: several teachers (CFLHKD), or one that is trusted (Fed-CSAD)."""

from typing import Literal, NamedTuple

import numpy as np

from fedbac.core.policies import Exchange, Teaching
from fedbac.core.queries import Accuracy, Evidence, Gram, Loss, Query
from fedbac.core.settings import FloatArray, NonNegative, Positive, Rounds, RoundsOrNone
from fedbac.sharing.mean import (
    SameQueries,
    Share,
    also_judged,
    cluster_cosines,
    data_shares,
    latest_cosines,
    member_shares,
    towards_mean,
)

OCCUPIED, MEAN = Loss("occupied", "train"), Loss("mean", "train")


class DistillState(NamedTuple):
    """Who is alike, and whose networks fit whom."""

    cosine_NN: FloatArray
    """The cosine of members' updates in the last round in which both trained."""
    loss_NN: FloatArray
    """Row n: the loss on member n's data of the network of each member's cluster; NaN where it was not measured."""
    mean_N: FloatArray
    """The loss of the mean of all networks on each member's data."""


class Distill(SameQueries):
    """Members learn from labels, the mean of all clusters' networks, and the clusters most like theirs.

    Teacher t counts β_t ∝ exp(−F(t)), F being its loss on the member's training data after the last round.
    """

    kind: Literal["distill"] = "distill"
    share: Share = 0.3
    """λ: weight of the teachers in the loss; 0 teaches nothing."""
    ramp_rounds: RoundsOrNone = 10
    """Rounds over which λ rises from 0."""
    temperature: Positive = 3.0
    """τ, which softens teachers' and students' predictions."""
    neighbours: RoundsOrNone = 2
    """q: how many other clusters teach, beside the mean of all."""
    mean_share: Share = 0.1
    """ρ: how far networks move towards their mean, every ``mean_period`` rounds."""
    mean_period: Rounds = 5
    """τ_g."""

    @property
    def teaches(self) -> bool:
        """Whether anybody is ever taught."""
        return self.share > 0

    def _queries(self) -> tuple[Query, ...]:
        return (Gram(), OCCUPIED, MEAN) if self.teaches else ()

    def init(self, num_members: int) -> DistillState:
        """Nothing is known: all are equally good."""
        return DistillState(np.eye(num_members), np.zeros((num_members, num_members)), np.zeros(num_members))

    def act(self, state: DistillState, evidence: Evidence) -> Exchange:
        """Say who teaches whom, and draw networks towards their mean when due."""
        past = evidence.round - 1
        due = self.mean_share > 0 and past > 0 and past % self.mean_period == 0
        exchange = also_judged(towards_mean(self.mean_share, evidence)) if due else Exchange()
        share = self.share if past >= self.ramp_rounds else self.share * past / self.ramp_rounds
        return exchange._replace(teaching=self._teaching(state, evidence, share)) if share > 0 else exchange

    def _teaching(self, state: DistillState, evidence: Evidence, share: float) -> Teaching:
        """Teacher 0 is the mean of all, and 1 + j is cluster j; only those that teach somebody are kept."""
        weight_K, label_N = data_shares(evidence), evidence.labels
        loss_NT = np.column_stack([state.mean_N, _by_cluster(state.loss_NN, evidence)])
        chosen_NT = np.zeros(loss_NT.shape, dtype=bool)
        chosen_NT[:, 0] = True
        cosine_KK = cluster_cosines(state.cosine_NN, evidence)
        for n, k in enumerate(label_N.tolist()):
            others = np.flatnonzero((weight_K > 0) & (np.arange(weight_K.size) != k))
            nearest = others[np.argsort(-cosine_KK[k, others], kind="stable")[: self.neighbours]]
            chosen_NT[n, 1 + nearest] = True
        weight_NT = trust(np.where(chosen_NT, loss_NT, np.inf))
        used_T = weight_NT.any(0) | (np.arange(1 + weight_K.size) == 0)
        mix_TJ = np.vstack([weight_K, np.eye(weight_K.size)])[used_T]
        share_N = np.where(weight_NT.any(1), share, 0.0)
        return Teaching(mix_TJ, weight_NT[:, used_T], share_N, self.temperature)

    def learn(self, state: DistillState, evidence: Evidence) -> DistillState:
        """Remember the losses of those who measured, and the updates of those who trained."""
        if not self.teaches:
            return state
        loss_NN, mean_N = evidence[OCCUPIED][:, evidence.labels], evidence[MEAN]
        return DistillState(
            cosine_NN=latest_cosines(state.cosine_NN, evidence[Gram()]),
            loss_NN=np.where(np.isnan(loss_NN), state.loss_NN, loss_NN),
            mean_N=np.where(np.isnan(mean_N), state.mean_N, mean_N),
        )


def _by_cluster(loss_NN: FloatArray, evidence: Evidence) -> FloatArray:
    """Return the mean over each cluster's members, by data; of a network that has diverged it is infinite."""
    share_KN = member_shares(evidence)
    finite_NN = np.isfinite(loss_NN)
    mean_NK: FloatArray = np.where(finite_NN, loss_NN, 0.0) @ share_KN.T
    mean_NK[((~finite_NN).astype(np.float64) @ share_KN.T) > 0] = np.inf
    return mean_NK


def trust(loss_NT: FloatArray) -> FloatArray:
    """Return exp(−F) as shares of the teachers of each member; none where a loss is infinite."""
    finite_NT = np.isfinite(loss_NT)
    least_N = np.where(finite_NT, loss_NT, np.inf).min(1, keepdims=True)
    worse_NT = np.where(finite_NT, loss_NT, 0.0) - np.where(np.isfinite(least_N), least_N, 0.0)
    odds_NT = np.where(finite_NT, np.exp(-np.maximum(worse_NT, 0.0)), 0.0)
    total_N = odds_NT.sum(1, keepdims=True)
    weight_NT: FloatArray = np.divide(odds_NT, total_N, out=np.zeros_like(odds_NT), where=total_N > 0)
    return weight_NT


class DistillAdaptiveState(NamedTuple):
    """How good teachers are."""

    ahead_N: FloatArray
    """By how much a member's teacher is more accurate than its own network; NaN before it is measured."""


class DistillAdaptive(SameQueries):
    """Members learn from labels and one teacher, which counts more the better it is on held-out data.

    λ_n = λ_max·σ(κ(acc(teacher) − acc(own))), measured after the last round. Networks stay with their clusters.
    """

    kind: Literal["distill_adaptive"] = "distill_adaptive"
    teacher: Literal["mean", "others"] = "mean"
    """The mean of all clusters' networks, or of all others'; by data."""
    max_share: Share = 0.5
    """λ_max: the teacher's largest weight in the loss."""
    steepness: NonNegative = 10.0
    """κ; with 0 nothing is measured, and every teacher counts λ_max / 2."""
    temperature: Positive = 3.0
    """τ, which softens teachers' and students' predictions."""

    @property
    def adaptive(self) -> bool:  # type: ignore[override]
        """Whether anything is measured."""
        return bool(self._queries())

    @property
    def teaches(self) -> bool:
        """Whether anybody is ever taught."""
        return self.max_share > 0

    def _queries(self) -> tuple[Query, ...]:
        measures = self.teaches and self.steepness > 0
        return (Accuracy(self.teacher, "validation"), Accuracy("own", "validation")) if measures else ()

    def init(self, num_members: int) -> DistillAdaptiveState:
        """Nothing is measured."""
        return DistillAdaptiveState(np.full(num_members, np.nan))

    def act(self, state: DistillAdaptiveState, evidence: Evidence) -> Exchange:
        """Teach those who have measured; in the first round there is nothing to learn from others yet."""
        if not self.teaches or evidence.round == 1:
            return Exchange()
        weight_K, label_N = data_shares(evidence), evidence.labels
        ahead_N = state.ahead_N if self.steepness else np.zeros_like(state.ahead_N)
        with np.errstate(over="ignore"):  # a share of zero
            share_N = self.max_share / (1 + np.exp(-self.steepness * np.nan_to_num(ahead_N, nan=-np.inf)))
        if self.teacher == "mean":
            mix_TJ, column_N = weight_K[None], np.zeros(label_N.size, dtype=np.int64)
        else:
            taught, column_N = np.unique(label_N, return_inverse=True)
            others_TJ = np.where(np.equal.outer(taught, np.arange(weight_K.size)), 0.0, weight_K)
            if taught.size == 1:
                return Exchange()  # there are no others
            mix_TJ = others_TJ / others_TJ.sum(1, keepdims=True)
        weight_NT = np.equal.outer(column_N, np.arange(len(mix_TJ))).astype(np.float64)
        weight_NT[share_N == 0] = 0.0
        return (
            Exchange(teaching=Teaching(mix_TJ, weight_NT, share_N, self.temperature)) if share_N.any() else Exchange()
        )

    def learn(self, state: DistillAdaptiveState, evidence: Evidence) -> DistillAdaptiveState:
        """Compare the accuracies; who did not measure keeps what it knew."""
        if not self._queries():
            return state
        teacher_N, own_N = (evidence[query] for query in self._queries())
        ahead_N = teacher_N - own_N
        return DistillAdaptiveState(np.where(np.isnan(ahead_N), state.ahead_N, ahead_N))
