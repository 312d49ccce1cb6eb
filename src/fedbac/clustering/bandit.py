"""LinUCB at the cloud: one independent contextual bandit per edge, one arm per cluster (Eqs. 7 to 10)."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from fedbac.clustering.loss import ByLoss, Candidates, EmptyCluster, Start, inherited
from fedbac.core import bandits
from fedbac.core.policies import Assignment
from fedbac.core.queries import Evidence
from fedbac.core.rng import Rng
from fedbac.core.settings import Edges, FloatArray, IntArray, NonNegative, Rounds

NUM_FEATURES = 4
TIE_TOLERANCE = 1e-12

EPSILON = 1e-8
"""ε of Eqs. 7 and 9."""


WORST = 1e4
"""Stands for the infinite loss of a diverged model, so that contexts and rewards stay finite."""


def loss_log_ratio(current: float, alternative: float) -> float:
    """First feature of Eq. 7: ln((L_current + ε) / (L_alternative + ε)), negative when the current one fits better."""
    return math.log((min(current, WORST) + EPSILON) / (min(alternative, WORST) + EPSILON))


def balance(current: int, alternative: int) -> float:
    """Second feature of Eq. 7: (|C_current| − |C_alt|) / (|C_current| + |C_alt|), and 0 when both are empty."""
    total = current + alternative
    return (current - alternative) / total if total else 0.0


def stability(rounds_in_cluster: int, period: int) -> float:
    """Third feature of Eq. 7: min(τ_m / 2τ_re, 1)."""
    return min(rounds_in_cluster / (2 * period), 1.0)


def fit_reward(current: float, alternative: float) -> float:
    """Eq. 9: r = (L_alternative − L_current) / (L_alternative + L_current + ε), in [−1, 1]."""
    current, alternative = min(current, WORST), min(alternative, WORST)
    return (alternative - current) / (alternative + current + EPSILON)


class LinUCBState(NamedTuple):
    """Ridge statistics per (edge, arm), and what the features of Eq. 7 need to remember."""

    A_NKFF: FloatArray
    b_NKF: FloatArray
    entered_N: IntArray
    """The round after which each edge entered its current cluster."""
    context_NF: FloatArray
    """The context at the last decision; zero before the first."""


class LinUCB(ByLoss):
    """Every ``period`` rounds: context, reward, update of the current arm, then the arm with the highest bound,
    argmax_k θ̂_kᵀx + α √(xᵀ A_k⁻¹ x) (Eq. 8), where θ̂_k = A_k⁻¹ b_k, A_k = I + Σ x xᵀ and b_k = Σ r x (Eq. 10)."""

    kind: Literal["linucb"] = "linucb"
    num_clusters: Edges | None = None
    """K_max; one per edge when not given."""
    period: Rounds = 20
    """τ_re, rounds between assignments: 20 in the paper's text, 1 in its figures (C.21)."""
    tau_norm: Rounds = 20
    """The τ_re in the third feature of Eq. 7, apart from the period (C.21)."""
    candidates: Candidates | None = None
    """How many clusters an edge measures each time, its own and others at random; null: all."""
    ucb_alpha: NonNegative = 0.3
    """α_UCB of Eq. 8."""
    start_labels: Start = "round_robin"
    """The first labels: in turn, all in one cluster, or at random."""
    tie: Literal["random", "lowest", "stay"] = "random"
    """Which of equally good arms; untouched arms tie (C.20)."""
    alternatives: Literal["all", "trained"] = "all"
    """Which clusters can be the best alternative: all, or those that ever had a member (C.18)."""
    updates: Literal["snapshot", "sequential"] = "snapshot"
    """Whether edges decide on the same cluster sizes, or each after earlier edges' moves (C.25)."""
    context_time: Literal["observe", "decision"] = "observe"
    """Whether rewards pair with the context of their moment (paper) or of the decision (C.23)."""
    arm_features: Literal["shared", "per_arm"] = "shared"
    """One context for all arms (paper), or one with each arm's loss and size (C.23)."""
    discount: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Forgetting factor of the ridge statistics; 1 never forgets (C.27)."""

    empty_cluster: EmptyCluster = "keep"
    """What an edge finds in an empty cluster: the network left there, or a copy of its own (C.17)."""

    @model_validator(mode="after")
    def _features_of_all_arms(self) -> "LinUCB":
        if self.candidates is not None and self.arm_features == "per_arm":
            raise ValueError("arm_features=per_arm needs the loss of every arm; leave candidates out, or use shared")
        return self

    def init(self, num_members: int) -> LinUCBState:
        """A ← I, b ← 0 for every edge and arm."""
        arms = (num_members, self.clusters(num_members))
        return LinUCBState(
            A_NKFF=np.tile(np.eye(NUM_FEATURES), (*arms, 1, 1)),
            b_NKF=np.zeros((*arms, NUM_FEATURES)),
            entered_N=np.zeros(num_members, dtype=np.int64),
            context_NF=np.zeros((num_members, NUM_FEATURES)),
        )

    def learn(self, state: LinUCBState, evidence: Evidence) -> LinUCBState:
        """Eqs. 9 and 10 for the current arm of every edge; in turns, each edge learns right before it acts."""
        return state if self.updates == "sequential" else self._learn(state, evidence, self._answered(evidence))

    def _learn(self, state: LinUCBState, evidence: Evidence, members: Iterable[int]) -> LinUCBState:
        label_N, loss_NK = evidence.labels, evidence[self._losses]
        A, b = state.A_NKFF.copy(), state.b_NKF.copy()
        for m in members:
            k = int(label_N[m])
            alternative = self._alternative(m, k, evidence)
            if alternative is None:
                continue
            if self.context_time == "decision":
                x = state.context_NF[m]
            else:
                x = self._context(state, m, k, alternative, evidence)
            reward = fit_reward(float(loss_NK[m, k]), float(loss_NK[m, alternative]))
            A[m, k], b[m, k] = bandits.ridge_update(A[m, k], b[m, k], x, reward, self.discount)
        return state._replace(A_NKFF=A, b_NKF=b)

    def act(self, state: LinUCBState, evidence: Evidence, rng: Rng) -> tuple[LinUCBState, Assignment]:
        """Eq. 8: k* = argmax_k of the upper confidence bound."""
        before_N = after_N = evidence.labels
        if self.updates == "snapshot":
            state, after_N = self._act(state, evidence, self._answered(evidence), rng)
        else:
            for m in self._answered(evidence):
                seen = replace(evidence, label_N=after_N)
                state, after_N = self._act(self._learn(state, seen, [m]), seen, [m], rng)
        num_clusters = evidence[self._losses].shape[1]
        return state, Assignment(after_N, inherited(self.empty_cluster, before_N, after_N, num_clusters))

    def _act(
        self, state: LinUCBState, evidence: Evidence, members: Iterable[int], rng: Rng
    ) -> tuple[LinUCBState, IntArray]:
        label_N = evidence.labels
        after, entered, context = label_N.copy(), state.entered_N.copy(), state.context_NF.copy()
        for m in members:
            x_KF = self._contexts(state, m, evidence)
            score_K = bandits.upper_confidence(state.A_NKFF[m], state.b_NKF[m], x_KF, self.ucb_alpha)
            after[m] = _break_tie(score_K, int(label_N[m]), self.tie, rng)
            context[m] = x_KF[after[m]]
            if after[m] != label_N[m]:
                entered[m] = evidence.round
        return state._replace(entered_N=entered, context_NF=context), after

    def _contexts(self, state: LinUCBState, m: int, evidence: Evidence) -> FloatArray:
        """One context per arm: the edge's own, repeated, or each arm seen as if it were the current one."""
        label_N, loss_NK = evidence.labels, evidence[self._losses]
        num_clusters = loss_NK.shape[1]
        if self.arm_features == "shared":
            current = int(label_N[m])
            x = self._context(state, m, current, self._alternative(m, current, evidence), evidence)
            return np.tile(x, (num_clusters, 1))
        return np.stack(
            [self._context(state, m, k, self._alternative(m, k, evidence), evidence) for k in range(num_clusters)]
        )

    def _answered(self, evidence: Evidence) -> list[int]:
        """Return the members that were asked; the others learn nothing and stay."""
        return np.flatnonzero(~np.isnan(evidence[self._losses]).all(1)).tolist()

    def _alternative(self, m: int, k: int, evidence: Evidence) -> int | None:
        """k̄: the cluster other than k with the lowest loss for edge m, or None when none is eligible."""
        loss_NK = evidence[self._losses]
        eligible = ~np.isnan(loss_NK[m])
        if self.alternatives == "trained":
            assert evidence.used_K is not None
            eligible &= evidence.used_K
        eligible[k] = False
        if not eligible.any():
            return None
        return int(np.flatnonzero(eligible)[loss_NK[m, eligible].argmin()])

    def _context(self, state: LinUCBState, m: int, k: int, alternative: int | None, evidence: Evidence) -> FloatArray:
        """Eq. 7 for edge m in (or looked at as if in) cluster k; no alternative is as good as an empty one."""
        label_N, loss_NK = evidence.labels, evidence[self._losses]
        size_K = np.bincount(label_N, minlength=loss_NK.shape[1])
        loss = float(loss_NK[m, k])
        stay = evidence.round - int(state.entered_N[m]) if k == label_N[m] else 0
        return np.array(
            [
                loss_log_ratio(loss, loss if alternative is None else float(loss_NK[m, alternative])),
                balance(int(size_K[k]), 0 if alternative is None else int(size_K[alternative])),
                stability(stay, self.tau_norm),
                evidence.round / evidence.num_rounds,
            ]
        )


def _break_tie(score_K: FloatArray, current: int, rule: str, rng: Rng) -> int:
    best = np.flatnonzero(score_K >= score_K.max() - TIE_TOLERANCE)
    if rule == "lowest":
        return int(best[0])
    if rule == "stay" and current in best:
        return current
    return int(rng.choice(best))
