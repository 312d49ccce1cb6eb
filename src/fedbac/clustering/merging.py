"""Merging: start with a cluster for every edge, join clusters that fit as well together, part when it did not help.

All losses are counted in units of what an edge has learned so far or has still to learn, whichever is less:
λ_m = min(L_0 − L_m, L_m) with L_m = L_m^(k_m). So one tolerance serves the first rounds and the last, and any data.
"""

import math
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from fedbac.clustering.fixed import start_labels
from fedbac.core import bandits
from fedbac.core.queries import Ask, Evidence, Split
from fedbac.core.rng import Rng
from fedbac.core.settings import BoolArray, FloatArray, IntArray, Settings

PRIOR_SLOPE = 0.25
"""Where loss is quadratic, the mean of two networks lies at half the way and so costs a quarter of the whole way."""
LEAST_UNIT = 0.05
"""λ_m is not taken smaller than this."""


class MergingState(NamedTuple):
    """What is known of merging in general (A, b), of every edge, of pairs of edges, and when to look again."""

    A_FF: FloatArray
    b_F: FloatArray
    gap_N: FloatArray
    """The gap at which the cluster of each edge was merged, until it is merged again; NaN where it never was."""
    gain_N: FloatArray
    """What being averaged with others did for each edge, a running mean from 0; NaN for edges on their own."""
    blame_NN: FloatArray
    """Row m: what edge m lost with each edge it parted from, forgotten by and by."""
    due: IntArray
    """The next round to look, and how many periods that was after the last."""


class Merging(Settings):
    """Every so often: who fits whom (cross-losses), did merging help (later gains), who merges, who leaves.

    The context of a merger of clusters a and b is x = (1, g), where the gap g is what a's edges would lose with the
    network of b and b's with that of a. Its reward comes later: how much better the cluster's network then is for an
    edge than that edge's own, before averaging. One ridge regression, shared by all pairs, learns rewards from contexts
    and can only make mergers rarer than the prior (tolerance − g) / 4 does.
    """

    kind: Literal["merging"] = "merging"
    adaptive: ClassVar[bool] = True
    reward_splits: Annotated[tuple[Split, ...], Field(min_length=1)] = ("train", "validation")
    """Where gains are measured. Training data flatter an edge's own network, which was just trained on them, and
    validation data are few, so an edge leaves only if all of them speak for it."""
    period: PositiveInt = 5
    """Rounds from one look to the next; doubles for as long as nobody moves."""
    tolerance: NonNegativeFloat = 0.25
    """The gap at which merging is expected to neither help nor hurt."""
    move_cost: NonNegativeFloat = 0.01
    """Merge only if the expected gain is above this."""
    part_below: NonNegativeFloat = 0.05
    """An edge leaves its cluster when its running gain falls below minus this; at most one edge of a cluster a time."""
    discount: Annotated[float, Field(gt=0, lt=1)] = 0.7
    """Forgetting factor of everything learned, per look."""
    untrained_loss: PositiveFloat = math.log(10)
    """L_0, the loss of a network that knows nothing: ln(number of classes)."""

    def clusters(self, num_members: int) -> int:
        """One per edge."""
        return num_members

    def start(self, num_members: int, rng: Rng) -> IntArray:
        """Every edge in its own."""
        return start_labels("round_robin", num_members, num_members, rng)

    def init(self, num_members: int) -> MergingState:
        """Nothing merged, nothing learned, and a look as soon as possible."""
        return MergingState(
            A_FF=np.eye(2),
            b_F=np.zeros(2),
            gap_N=np.full(num_members, np.nan),
            gain_N=np.full(num_members, np.nan),
            blame_NN=np.zeros((num_members, num_members)),
            due=np.array([0, 1]),
        )

    def ask(self, state: MergingState, round_: int) -> Ask | None:
        """Ask for the losses of the clusters in use, and of each edge's own network beside its cluster's."""
        if round_ % self.period or round_ < state.due[0]:
            return None
        return Ask(losses=True, occupied=True, alone=self.reward_splits)

    def learn(self, state: MergingState, evidence: Evidence) -> MergingState:
        """Pair the gap of every past merger with the gain that came of it."""
        assert evidence.alone_NS is not None
        assert evidence.together_NS is not None
        label_N, loss_NK, turn_N = _given(evidence)
        with np.errstate(invalid="ignore"):
            gain_NS = (evidence.alone_NS - evidence.together_NS) / self._unit(_own(loss_NK, label_N))[:, None]
        gain_N = np.where(np.isnan(gain_NS), -np.inf, gain_NS).max(axis=1)
        # On its own, if only because all others left; or its own network has diverged, and it had better stay.
        gain_N[~np.isfinite(gain_N)] = np.nan
        known_N = turn_N & ~np.isnan(gain_N)
        before_N = np.nan_to_num(state.gain_N, nan=0.0)  # a single measurement must be very bad to make an edge leave
        running_N = self.discount * before_N + (1 - self.discount) * gain_N
        A, b = state.A_FF, state.b_F
        for gap in np.unique(state.gap_N[known_N & np.isfinite(state.gap_N)]):
            x = np.array([1.0, gap])
            reward = float(gain_N[known_N & (state.gap_N == gap)].mean())
            A, b = bandits.ridge_update(A, b, x, reward - float(self._prior(gap)), self.discount)
        return state._replace(
            A_FF=A,
            b_F=b,
            gap_N=np.where(turn_N & ~known_N, np.nan, state.gap_N),
            gain_N=np.where(turn_N, running_N, state.gain_N),
            blame_NN=np.where(turn_N[:, None], self.discount * state.blame_NN, state.blame_NN),
        )

    def act(self, state: MergingState, evidence: Evidence, rng: Rng) -> tuple[MergingState, IntArray]:
        """Let the worst served edges leave, then merge the best fitting clusters among those that nobody left."""
        label_N, _, turn_N = _given(evidence)
        if evidence.round >= evidence.num_rounds:
            return state, label_N  # no round is left in which a move could pay
        after_N = label_N.copy()
        gap_N, gain_N, blame_NN = state.gap_N.copy(), state.gain_N.copy(), state.blame_NN.copy()
        for m in self._leavers(label_N, np.where(turn_N, gain_N, np.nan)):
            others = np.flatnonzero((label_N == label_N[m]) & (np.arange(label_N.size) != m))
            blame_NN[m, others] += -gain_N[m] / PRIOR_SLOPE  # a gap that would have foretold its gain
            after_N[m] = np.setdiff1d(np.arange(label_N.size), after_N)[0]
            gap_N[m] = gain_N[m] = np.nan
        stirred = label_N[after_N != label_N]
        groups = [
            np.flatnonzero(label_N == k)
            for k in np.unique(label_N)
            if k not in stirred and turn_N[label_N == k].all()
        ]  # fmt: skip
        for members, gap in self._mergers(state, groups, evidence):
            label_K, size_K = np.unique(label_N[members], return_counts=True)
            after_N[members] = label_K[size_K.argmax()]
            gap_N[members], gain_N[members] = gap, np.nan
        wait = 1 if (after_N != label_N).any() else 2 * int(state.due[1])
        due = np.array([evidence.round + wait * self.period, wait])
        return state._replace(gap_N=gap_N, gain_N=gain_N, blame_NN=blame_NN, due=due), after_N

    def _leavers(self, label_N: IntArray, gain_N: FloatArray) -> list[int]:
        """Return the edge of each cluster that lost most by it, if that is too much."""
        hurt_N = (gain_N < -self.part_below) & (np.bincount(label_N)[label_N] > 1)
        hurt = [m for m in np.argsort(gain_N, kind="stable").tolist() if hurt_N[m]]
        return [m for i, m in enumerate(hurt) if label_N[m] not in label_N[hurt[:i]]]

    def _mergers(self, state: MergingState, groups: list[IntArray], evidence: Evidence) -> list[tuple[IntArray, float]]:
        """Merge the two groups of the highest expected gain while there is one; return what came of it with its gap.

        The gap of a group of clusters is the largest between any two of them, so that a chain of look-alikes does not
        end in one cluster.
        """
        gap_GG = self._gaps(state, groups, evidence)
        merged: dict[int, float] = {}
        while len(groups) > 1:
            gain_GG = self._expected(state, gap_GG)
            np.fill_diagonal(gain_GG, -np.inf)
            a, b = sorted(divmod(int(gain_GG.argmax()), len(groups)))
            if gain_GG[a, b] <= self.move_cost:
                break
            merged[a] = max(merged.get(a, 0.0), merged.pop(b, 0.0), float(gap_GG[a, b]))
            merged = {g - (g > b): gap for g, gap in merged.items()}
            gap_GG[a] = gap_GG[:, a] = np.maximum(gap_GG[a], gap_GG[b])
            gap_GG = np.delete(np.delete(gap_GG, b, 0), b, 1)
            groups = [*groups[:a], np.concatenate([groups[a], groups[b]]), *groups[a + 1 : b], *groups[b + 1 :]]
        return [(groups[g], gap) for g, gap in merged.items()]

    def _gaps(self, state: MergingState, groups: list[IntArray], evidence: Evidence) -> FloatArray:
        """g_ab: the mean over both sides of what an edge would lose with the other side's network, and old blame."""
        label_N, loss_NK, _ = _given(evidence)
        own_N = _own(loss_NK, label_N)
        with np.errstate(invalid="ignore"):
            gap_NK = (loss_NK - own_N[:, None]) / self._unit(own_N)[:, None]
        # A network that has diverged fits nobody, and is not averaged with anything.
        gap_NK = np.where(np.isfinite(gap_NK), gap_NK, np.inf)
        one_way_GG = np.array([[gap_NK[a, label_N[b[0]]].mean() for b in groups] for a in groups])
        blame_GG = np.array([[state.blame_NN[np.ix_(a, b)].max() for b in groups] for a in groups])
        gap_GG: FloatArray = np.maximum((one_way_GG + one_way_GG.T) / 2, 0) + np.maximum(blame_GG, blame_GG.T)
        return gap_GG

    def _expected(self, state: MergingState, gap_GG: FloatArray) -> FloatArray:
        """The prior, or what was learned where that is less."""
        weights = np.linalg.solve(state.A_FF, state.b_F)
        with np.errstate(invalid="ignore"):
            correction_GG = np.nan_to_num(weights[0] + weights[1] * gap_GG, nan=0.0)
        gain_GG: FloatArray = self._prior(gap_GG) + np.minimum(correction_GG, 0)
        return gain_GG

    def _prior(self, gap: FloatArray | float) -> FloatArray | float:
        return PRIOR_SLOPE * (self.tolerance - gap)

    def _unit(self, loss_N: FloatArray) -> FloatArray:
        """λ_m."""
        unit_N: FloatArray = np.maximum(np.minimum(self.untrained_loss - loss_N, loss_N), LEAST_UNIT)
        return unit_N


def _own(loss_NK: FloatArray, label_N: IntArray) -> FloatArray:
    """L_m^(k_m)."""
    own_N: FloatArray = np.take_along_axis(loss_NK, label_N[:, None], axis=1)[:, 0]
    return own_N


def _given(evidence: Evidence) -> tuple[IntArray, FloatArray, BoolArray]:
    assert evidence.label_N is not None
    assert evidence.loss_NK is not None
    assert evidence.turn_N is not None
    return evidence.label_N, evidence.loss_NK, evidence.turn_N
