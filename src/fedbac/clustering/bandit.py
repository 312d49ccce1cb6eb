"""LinUCB at the cloud: one independent contextual bandit per edge, one arm per cluster (Eqs. 7 to 10)."""

from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveInt

from fedbac.clustering.fixed import Start, start_labels
from fedbac.core import bandits
from fedbac.core.queries import Ask, Evidence
from fedbac.core.rng import Rng
from fedbac.core.settings import BoolArray, FloatArray, IntArray, Settings

NUM_FEATURES = 4
TIE_TOLERANCE = 1e-12


class LinUCBState(NamedTuple):
    """Ridge statistics per (edge, arm), and what the features of Eq. 7 need to remember."""

    A_NKFF: FloatArray
    b_NKF: FloatArray
    entered_N: IntArray
    """The round after which each edge entered its current cluster."""
    context_NF: FloatArray
    """The context at the last decision; zero before the first."""


class LinUCB(Settings):
    """Every ``period`` rounds: context, reward, update of the current arm, then the arm of the highest bound."""

    kind: Literal["linucb"] = "linucb"
    adaptive: ClassVar[bool] = True
    num_clusters: PositiveInt | None = None
    """K_max; one per edge when not given."""
    period: PositiveInt = 20
    """τ_re, rounds between assignments. The paper's text says 20, its figures show 1 (C.21)."""
    tau_norm: PositiveInt = 20
    """The τ_re inside the third feature of Eq. 7, kept apart from the period (C.21)."""
    ucb_alpha: NonNegativeFloat = 0.3
    """α_UCB of Eq. 8."""
    start_labels: Start = "round_robin"
    tie: Literal["random", "lowest", "stay"] = "random"
    """Which of several equally good arms; untouched arms tie, as the context does not depend on the arm (C.20)."""
    alternatives: Literal["all", "trained"] = "all"
    """Which clusters count as the best alternative: all, or those that ever had a member (C.18)."""
    updates: Literal["snapshot", "sequential"] = "snapshot"
    """Whether edges decide on the same cluster sizes, or each after the moves of those before it (C.25)."""
    context_time: Literal["observe", "decision"] = "observe"
    """Pair the reward with the context of the same moment (paper) or with the context of the decision (C.23)."""
    arm_features: Literal["shared", "per_arm"] = "shared"
    """One context for all arms (paper), or each arm's own loss and size in its context (C.23)."""
    discount: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Forgetting factor of the ridge statistics; 1 never forgets (C.27)."""

    def clusters(self, num_members: int) -> int:
        """Return K_max."""
        return self.num_clusters or num_members

    def start(self, num_members: int, rng: Rng) -> IntArray:
        """Return the labels before anything is known."""
        return start_labels(self.start_labels, num_members, self.clusters(num_members), rng)

    def init(self, num_members: int) -> LinUCBState:
        """A ← I, b ← 0 for every edge and arm."""
        arms = (num_members, self.clusters(num_members))
        return LinUCBState(
            A_NKFF=np.tile(np.eye(NUM_FEATURES), (*arms, 1, 1)),
            b_NKF=np.zeros((*arms, NUM_FEATURES)),
            entered_N=np.zeros(num_members, dtype=np.int64),
            context_NF=np.zeros((num_members, NUM_FEATURES)),
        )

    def ask(self, state: LinUCBState, round_: int) -> Ask | None:
        """Ask for all losses when due."""
        if round_ % self.period:
            return None
        return Ask(losses=True, one_by_one=self.updates == "sequential")

    def learn(self, state: LinUCBState, evidence: Evidence) -> LinUCBState:
        """Eqs. 9 and 10 for the current arm of every edge whose turn it is."""
        label_N, loss_NK, turn_N = _given(evidence)
        A, b = state.A_NKFF.copy(), state.b_NKF.copy()
        for m in np.flatnonzero(turn_N).tolist():
            k = int(label_N[m])
            alternative = self._alternative(m, k, evidence)
            if alternative is None:
                continue
            if self.context_time == "decision":
                x = state.context_NF[m]
            else:
                x = self._context(state, m, k, alternative, evidence)
            reward = bandits.fit_reward(float(loss_NK[m, k]), float(loss_NK[m, alternative]))
            A[m, k], b[m, k] = bandits.ridge_update(A[m, k], b[m, k], x, reward, self.discount)
        return state._replace(A_NKFF=A, b_NKF=b)

    def act(self, state: LinUCBState, evidence: Evidence, rng: Rng) -> tuple[LinUCBState, IntArray]:
        """Eq. 8: k* = argmax_k of the upper confidence bound."""
        label_N, _, turn_N = _given(evidence)
        after, entered, context = label_N.copy(), state.entered_N.copy(), state.context_NF.copy()
        for m in np.flatnonzero(turn_N).tolist():
            x_KF = self._contexts(state, m, evidence)
            score_K = bandits.upper_confidence(state.A_NKFF[m], state.b_NKF[m], x_KF, self.ucb_alpha)
            after[m] = _break_tie(score_K, int(label_N[m]), self.tie, rng)
            context[m] = x_KF[after[m]]
            if after[m] != label_N[m]:
                entered[m] = evidence.round
        return state._replace(entered_N=entered, context_NF=context), after

    def _contexts(self, state: LinUCBState, m: int, evidence: Evidence) -> FloatArray:
        """One context per arm: the edge's own, repeated, or each arm seen as if it were the current one."""
        label_N, loss_NK, _ = _given(evidence)
        num_clusters = loss_NK.shape[1]
        if self.arm_features == "shared":
            current = int(label_N[m])
            x = self._context(state, m, current, self._alternative(m, current, evidence), evidence)
            return np.tile(x, (num_clusters, 1))
        return np.stack(
            [self._context(state, m, k, self._alternative(m, k, evidence), evidence) for k in range(num_clusters)]
        )

    def _alternative(self, m: int, k: int, evidence: Evidence) -> int | None:
        """k̄: the cluster other than k with the lowest loss for edge m, or None when none is eligible."""
        _, loss_NK, _ = _given(evidence)
        eligible = np.ones(loss_NK.shape[1], dtype=bool)
        if self.alternatives == "trained":
            assert evidence.used_K is not None
            eligible = evidence.used_K.copy()
        eligible[k] = False
        if not eligible.any():
            return None
        return int(np.flatnonzero(eligible)[loss_NK[m, eligible].argmin()])

    def _context(self, state: LinUCBState, m: int, k: int, alternative: int | None, evidence: Evidence) -> FloatArray:
        """Eq. 7 for edge m in (or looked at as if in) cluster k; no alternative is as good as an empty one."""
        label_N, loss_NK, _ = _given(evidence)
        size_K = np.bincount(label_N, minlength=loss_NK.shape[1])
        loss = float(loss_NK[m, k])
        stay = evidence.round - int(state.entered_N[m]) if k == label_N[m] else 0
        return np.array(
            [
                bandits.loss_log_ratio(loss, loss if alternative is None else float(loss_NK[m, alternative])),
                bandits.balance(int(size_K[k]), 0 if alternative is None else int(size_K[alternative])),
                bandits.stability(stay, self.tau_norm),
                evidence.round / evidence.num_rounds,
            ]
        )


def _given(evidence: Evidence) -> tuple[IntArray, FloatArray, BoolArray]:
    assert evidence.label_N is not None
    assert evidence.loss_NK is not None
    assert evidence.turn_N is not None
    return evidence.label_N, evidence.loss_NK, evidence.turn_N


def _break_tie(score_K: FloatArray, current: int, rule: str, rng: Rng) -> int:
    best = np.flatnonzero(score_K >= score_K.max() - TIE_TOLERANCE)
    if rule == "lowest":
        return int(best[0])
    if rule == "stay" and current in best:
        return current
    return int(rng.choice(best))
