"""Merging: a cluster for every edge, at once or after a time in one; join clusters that fit, part when it did not help.

All losses are counted in units of what an edge has learned so far or has still to learn, whichever is less:
λ_m = min(L_0 − L_m, L_m) with L_m = L_m^(k_m). So one tolerance serves the first rounds and the last, and any data.
"""

import math
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from fedbac.clustering.loss import OneClusterFirst, start_labels
from fedbac.core import bandits
from fedbac.core.policies import Assignment
from fedbac.core.queries import Ask, Evidence, Loss, Moment, Query, Split
from fedbac.core.rng import Rng
from fedbac.core.settings import FloatArray, IntArray, NonNegative, Positive, Rounds

OCCUPIED = Loss("occupied")
PRIOR_SLOPE = 0.25
"""Where loss is quadratic, the mean of two networks lies at half the way and so costs a quarter of the whole way."""
FIRST_SHARE = 0.1
"""Of the rounds, all edges that begin together stay so for at least this share."""
TRAINED, AVERAGED = Loss("unaveraged", "validation"), Loss("own", "validation")
"""What an edge has made of the network of all in a round, and what all have made of it together."""
LEAST_UNIT = 0.05
"""λ_m is not taken smaller than this."""


class MergingState(NamedTuple):
    """What is known of merging in general (A, b), of every edge, of pairs of edges, and when to look again."""

    A_FF: FloatArray
    b_F: FloatArray
    merger_N: IntArray
    """The number of the merger that made the cluster of each edge, until it is merged again; -1 where none did."""
    gap_N: FloatArray
    """The gap of that merger; NaN where there was none."""
    gain_N: FloatArray
    """What being averaged with others did for each edge, a running mean from 0; NaN for edges on their own."""
    blame_NN: FloatArray
    """Row m: what edge m lost with each edge it parted from, forgotten by and by."""
    due: IntArray
    """The next round to look, and how many periods that was after the last; 0 periods as long as all are together."""


class Merging(OneClusterFirst):
    """The two clusters that should gain most by it merge, every so often; an edge that does not gain leaves.

    The gap g of clusters a and b is what a's edges would lose with b's network, and b's with a's, in units of min(L_0 −
    L, L) for an edge's loss L; a group's gap is the largest of any two in it. A gain is how much better the cluster's
    network later is for an edge than its own before averaging. It is expected to be (tolerance − g) / 4, or less where
    a ridge regression on (1, g) has learned so. Who merges starts from the mean by data, who leaves from a copy.
    """

    kind: Literal["merging"] = "merging"
    reward_splits: Annotated[tuple[Split, ...], Field(min_length=1)] = ("train", "validation")
    """Where gains are measured. Training data flatter an edge's own network, validation data are few: an edge leaves
    only if both say so."""
    period: Rounds = 5
    """Rounds between measurements; doubled whenever nobody moves."""
    tolerance: NonNegative = 0.25
    """The gap at which merging should neither help nor hurt."""
    move_cost: NonNegative = 0.01
    """Merge only if the expected gain is above this."""
    part_below: NonNegative = 0.05
    """An edge leaves when its running gain is below minus this, one per cluster at a time."""
    discount: Annotated[float, Field(gt=0, lt=1)] = 0.7
    """Forgetting factor of everything learned, per look."""
    alone_steps: Annotated[int, Field(gt=0, le=1_000_000_000)] | None = None
    """All edges begin in one cluster, and each continues in its own for as many last rounds as a client needs for this
    many batches, or later if averaging still serves them better. Null: every edge starts in its own."""
    sides: Literal["mean", "larger"] = "mean"
    """How the gaps that two clusters report about each other become one. With the larger, a lie about losses can only
    prevent mergers, and the median edge, not the sum over edges, decides when all part (``alone_steps``)."""
    untrained_loss: Positive | None = None
    """L_0, the loss of a network that knows nothing; default: ln(number of classes)."""

    def needs(self) -> frozenset[Query]:
        """Need the losses of the clusters in use, and of each edge's own network beside its cluster's."""
        return frozenset(self._queries() if self.alone_steps is None else (*self._queries(), TRAINED, AVERAGED))

    def _queries(self) -> tuple[Query, ...]:
        pairs = [(Loss("unaveraged", split), Loss("own", split)) for split in self.reward_splits]
        return (OCCUPIED, *(query for pair in pairs for query in pair))

    def start(self, num_members: int, rng: Rng) -> IntArray:
        """Every edge in its own, or all in one."""
        together = self.alone_steps is not None
        return start_labels("uniform" if together else "round_robin", num_members, num_members, rng)

    def init(self, num_members: int) -> MergingState:
        """Nothing merged, nothing learned, and a look as soon as possible."""
        return MergingState(
            A_FF=np.eye(2),
            b_F=np.zeros(2),
            merger_N=np.full(num_members, -1),
            gap_N=np.full(num_members, np.nan),
            gain_N=np.full(num_members, np.nan),
            blame_NN=np.zeros((num_members, num_members)),
            due=np.array([0, 1 if self.alone_steps is None else 0]),
        )

    def ask(self, state: MergingState, moment: Moment) -> Ask | None:
        """Ask when due; never after the last round, as no round is left in which a move could pay."""
        if moment.round >= moment.num_rounds:
            return None
        if _are_together(state):
            late = moment.round - self._parting(moment)
            return Ask(after=(TRAINED, AVERAGED)) if late >= 0 and late % self.period == 0 else None
        if moment.round % self.period or moment.round < state.due[0]:
            return None
        return Ask(after=self._queries())

    def learn(self, state: MergingState, evidence: Evidence) -> MergingState:
        """Pair the gap of every past merger with the gain that came of it."""
        if _are_together(state):
            return state
        gain_N = self._gains(evidence)
        known_N = ~np.isnan(gain_N)
        before_N = np.nan_to_num(state.gain_N, nan=0.0)  # a single measurement must be very bad to make an edge leave
        running_N = self.discount * before_N + (1 - self.discount) * gain_N
        A, b = state.A_FF, state.b_F
        told_N = known_N & (state.merger_N >= 0)
        for gap, merger in sorted(set(zip(state.gap_N[told_N].tolist(), state.merger_N[told_N].tolist(), strict=True))):
            x = np.array([1.0, gap])
            reward = float(gain_N[told_N & (state.merger_N == merger)].mean())
            A, b = bandits.ridge_update(A, b, x, reward - float(self._prior(gap)), self.discount)
        return state._replace(
            A_FF=A,
            b_F=b,
            merger_N=np.where(known_N, state.merger_N, -1),
            gap_N=np.where(known_N, state.gap_N, np.nan),
            gain_N=running_N,
            blame_NN=self.discount * state.blame_NN,
        )

    def _gains(self, evidence: Evidence) -> FloatArray:
        """Return what being averaged did for each edge, by the split that speaks best of it; NaN where nothing did."""
        label_N, unit_N = evidence.labels, self._unit(_own(evidence), evidence)
        pairs = [(evidence[Loss("unaveraged", s)], evidence[Loss("own", s)]) for s in self.reward_splits]
        with np.errstate(invalid="ignore"):
            gain_NS = np.stack([(alone_N - together_N) / unit_N for alone_N, together_N in pairs], axis=1)
        gain_N: FloatArray = np.where(np.isnan(gain_NS), -np.inf, gain_NS).max(axis=1)
        # On its own, if only because all others left; or its own network has diverged, and it had better stay.
        gain_N[~np.isfinite(gain_N) | (np.bincount(label_N)[label_N] == 1)] = np.nan
        return gain_N

    def act(self, state: MergingState, evidence: Evidence, rng: Rng) -> tuple[MergingState, Assignment]:
        """Let the worst served edges leave, then merge the best fitting clusters among those that nobody left."""
        label_N = evidence.labels
        if _are_together(state):
            return self._part(state, evidence)
        after_N = label_N.copy()
        merger_N, gap_N = state.merger_N.copy(), state.gap_N.copy()
        gain_N, blame_NN = state.gain_N.copy(), state.blame_NN.copy()
        for m in self._leavers(label_N, gain_N):
            others = np.flatnonzero((label_N == label_N[m]) & (np.arange(label_N.size) != m))
            blame_NN[m, others] += -gain_N[m] / PRIOR_SLOPE  # a gap that would have foretold its gain
            after_N[m] = np.setdiff1d(np.arange(label_N.size), after_N)[0]
            merger_N[m], gap_N[m], gain_N[m] = -1, np.nan, np.nan
        stirred = label_N[after_N != label_N]
        groups = [np.flatnonzero(label_N == k) for k in np.unique(label_N) if k not in stirred]
        first = int(state.merger_N.max()) + 1
        for number, (members, gap) in enumerate(self._mergers(state, groups, evidence), start=first):
            label_K, size_K = np.unique(label_N[members], return_counts=True)
            after_N[members] = label_K[size_K.argmax()]
            merger_N[members], gap_N[members], gain_N[members] = number, gap, np.nan
        wait = 1 if (after_N != label_N).any() else 2 * int(state.due[1])
        due = np.array([evidence.round + wait * self.period, wait])
        after = state._replace(merger_N=merger_N, gap_N=gap_N, gain_N=gain_N, blame_NN=blame_NN, due=due)
        return after, Assignment(after_N, _brought(label_N, after_N, evidence.size_N))

    def _parting(self, moment: Moment) -> int:
        """Return the first round after which edges may leave the cluster that they began in."""
        assert self.alone_steps is not None
        alone_rounds = math.ceil(self.alone_steps / moment.steps)
        return max(moment.num_rounds - alone_rounds, math.ceil(FIRST_SHARE * moment.num_rounds))

    def _part(self, state: MergingState, evidence: Evidence) -> tuple[MergingState, Assignment]:
        """Let every edge go on in its own cluster, with the network of all; look later, for at first all are alike. But
        not while being averaged with all others gives edges a better network than a round of their own training."""
        with np.errstate(invalid="ignore"):  # where both have diverged, nothing is told
            gain_N = evidence[TRAINED] - evidence[AVERAGED]
        told_N = np.isfinite(gain_N)
        larger, gain_N, size_N = self.sides == "larger", gain_N[told_N], evidence.size_N[told_N]
        if gain_N.size and (np.median(gain_N) if larger else gain_N @ size_N) > 0:
            return state, Assignment(evidence.labels)
        own_N = np.arange(evidence.labels.size)
        due = np.array([evidence.round + self.period, 1])
        return state._replace(due=due), Assignment(own_N, _brought(evidence.labels, own_N, evidence.size_N))

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

    def shown(self, state: MergingState, evidence: Evidence) -> dict[str, Any]:
        """Return the gaps between the clusters in use, and the largest at which merging is still expected to pay."""
        label_G = np.unique(evidence.labels)
        groups = [np.flatnonzero(evidence.labels == k) for k in label_G]
        gap_GG = np.zeros((1, 1)) if _are_together(state) else self._gaps(state, groups, evidence)
        short = [[round(gap, 4) if math.isfinite(gap) else None for gap in row] for row in gap_GG.tolist()]
        return {"gaps": {"clusters": label_G.tolist(), "gap": short, "limit": round(self._limit(state), 4)}}

    def _limit(self, state: MergingState) -> float:
        """Solve expected gain = move_cost for the gap; the gain is the lesser of two lines, and one falls."""
        prior = self.tolerance - self.move_cost / PRIOR_SLOPE
        constant, slope = np.linalg.solve(state.A_FF, state.b_F)
        if slope >= PRIOR_SLOPE:  # mergers of wide gaps turned out well, so what was learned sets no upper limit
            return prior
        return min(prior, float((PRIOR_SLOPE * self.tolerance + constant - self.move_cost) / (PRIOR_SLOPE - slope)))

    def _gaps(self, state: MergingState, groups: list[IntArray], evidence: Evidence) -> FloatArray:
        """g_ab: over both sides, what an edge would lose with the other side's network, and old blame."""
        label_N, loss_NK, own_N = evidence.labels, evidence[OCCUPIED], _own(evidence)
        with np.errstate(invalid="ignore"):
            gap_NK = (loss_NK - own_N[:, None]) / self._unit(own_N, evidence)[:, None]
        # A network that has diverged fits nobody, and is not averaged with anything.
        gap_NK = np.where(np.isfinite(gap_NK), gap_NK, np.inf)
        one_way_GG = np.array([[gap_NK[a, label_N[b[0]]].mean() for b in groups] for a in groups])
        blame_GG = np.array([[state.blame_NN[np.ix_(a, b)].max() for b in groups] for a in groups])
        both_GG = np.maximum(one_way_GG, one_way_GG.T) if self.sides == "larger" else (one_way_GG + one_way_GG.T) / 2
        gap_GG: FloatArray = np.maximum(both_GG, 0) + np.maximum(blame_GG, blame_GG.T)
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

    def _unit(self, loss_N: FloatArray, evidence: Evidence) -> FloatArray:
        """λ_m."""
        untrained = self.untrained_loss or math.log(evidence.num_classes)
        return np.maximum(np.minimum(untrained - loss_N, loss_N), LEAST_UNIT)


def _are_together(state: MergingState) -> bool:
    """Whether edges that begin in one cluster have not parted yet."""
    return not state.due[1]


def _own(evidence: Evidence) -> FloatArray:
    """L_m^(k_m)."""
    return np.take_along_axis(evidence[OCCUPIED], evidence.labels[:, None], axis=1)[:, 0]


def _brought(before_N: IntArray, after_N: IntArray, size_N: IntArray) -> FloatArray | None:
    """Every cluster that an edge enters goes on with the mean of what its members bring, weighted by their data."""
    entered = np.unique(after_N[after_N != before_N])
    if entered.size == 0:
        return None
    origin_KJ = np.eye(after_N.size)
    for k in entered.tolist():
        size_K = np.bincount(before_N[after_N == k], weights=size_N[after_N == k], minlength=after_N.size)
        origin_KJ[k] = size_K / size_K.sum()
    return origin_KJ
