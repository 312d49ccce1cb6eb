"""Clusters of data that drift: who finds no network as good as its last one begins anew, and those that fit merge."""

from typing import Literal, NamedTuple

import numpy as np

from fedbac.clustering.loss import OneClusterFirst
from fedbac.clustering.merging import OCCUPIED
from fedbac.core.policies import Assignment
from fedbac.core.queries import Accuracy, Ask, Evidence, Loss, Moment, Query
from fedbac.core.rng import Rng
from fedbac.core.settings import FloatArray, IntArray, NonNegative, Rounds


class DriftState(NamedTuple):
    """What losses were at the last look."""

    loss_N: FloatArray
    """The lowest of each member; NaN before the first."""
    rise_N: FloatArray
    """What it had risen by since the look before; NaN where one of them is not known."""


class Drifting(OneClusterFirst):
    """A member whose lowest loss rises by more than δ has data that drifted: it begins a cluster of its own, from the
    network that it had. The others join the cluster of lowest loss, and clusters that fit merge (FedDrift).

    A loss is the share of errors, as in the authors' code, or the mean loss, as in their paper. Let L_ab be that of a's
    network on the data of b's members. The two clusters of the least D_ab = max(L_ab −
    L_bb, L_ba − L_aa, 0) merge into their mean by data while it is below δ; from others they are then as far as the
    further of the two. Who begins a cluster has no network of it to compare yet, and waits for the next look.
    """

    kind: Literal["drifting"] = "drifting"
    compares: Literal["accuracies", "losses"] = "accuracies"
    """What a network is good by."""
    period: Rounds = 5
    """Rounds between looks."""
    delta: NonNegative = 0.06
    """δ: how much accuracies, or losses, may differ."""

    @property
    def _asked(self) -> Loss | Accuracy:
        return OCCUPIED if self.compares == "losses" else Accuracy("occupied")

    def needs(self) -> frozenset[Query]:
        """Need what networks are good by."""
        return frozenset({self._asked})

    def start(self, num_members: int, rng: Rng) -> IntArray:
        """Every member in its own, as if all had drifted."""
        return np.arange(num_members)

    def init(self, num_members: int) -> DriftState:
        """Nothing was measured."""
        return DriftState(np.full(num_members, np.nan), np.full(num_members, np.nan))

    def ask(self, state: DriftState, moment: Moment) -> Ask | None:
        """Ask when due."""
        return Ask(after=(self._asked,)) if moment.round % self.period == 0 else None

    def learn(self, state: DriftState, evidence: Evidence) -> DriftState:
        """Compare lowest losses with the last ones."""
        least_N = self._losses(evidence).min(1)
        least_N[np.isinf(least_N)] = np.nan
        return DriftState(np.where(np.isnan(least_N), state.loss_N, least_N), least_N - state.loss_N)

    def act(self, state: DriftState, evidence: Evidence, rng: Rng) -> tuple[DriftState, Assignment]:
        """Part those that drifted, move the others to the lowest loss, and merge."""
        label_N, loss_NK = evidence.labels, self._losses(evidence)
        drifted_N = state.rise_N > self.delta
        settled_N = np.isfinite(loss_NK.min(1)) & ~drifted_N
        after_N = np.where(settled_N, loss_NK.argmin(1), np.where(drifted_N, -1, label_N))
        origin_KJ = np.eye(loss_NK.shape[1])
        size_K = np.bincount(after_N[settled_N], evidence.size_N[settled_N], len(origin_KJ))
        for names in self._merged(loss_NK[settled_N], after_N[settled_N], evidence.size_N[settled_N]):
            after_N[settled_N & np.isin(after_N, names)] = names[0]
            origin_KJ[names[0]] = np.where(np.isin(np.arange(size_K.size), names), size_K, 0) / size_K[names].sum()
        for m in np.flatnonzero(drifted_N).tolist():
            after_N[m] = np.setdiff1d(np.arange(size_K.size), after_N)[0]
            origin_KJ[after_N[m]] = np.arange(size_K.size) == label_N[m]
        return state, Assignment(after_N, origin_KJ)

    def _merged(self, loss_NK: FloatArray, label_N: IntArray, size_N: IntArray) -> list[list[int]]:
        """Return the clusters that merge, by groups."""
        groups = [[k] for k in np.unique(label_N).tolist()]
        if not groups:
            return []
        members = [label_N == k for (k,) in groups]
        loss_GK = np.array([np.average(loss_NK[own_N], axis=0, weights=size_N[own_N]) for own_N in members])
        loss_GG = loss_GK[:, [k for (k,) in groups]]
        apart_GG = loss_GG - np.diagonal(loss_GG)[:, None]
        apart_GG = np.maximum(np.maximum(apart_GG, apart_GG.T), 0)
        np.fill_diagonal(apart_GG, np.inf)
        while len(groups) > 1 and apart_GG.min() < self.delta:
            a, b = sorted(divmod(int(apart_GG.argmin()), len(groups)))
            apart_GG[a] = apart_GG[:, a] = np.maximum(apart_GG[a], apart_GG[b])
            apart_GG = np.delete(np.delete(apart_GG, b, 0), b, 1)
            groups[a] += groups.pop(b)
        return [names for names in groups if len(names) > 1]

    def _losses(self, evidence: Evidence) -> FloatArray:
        """Return losses, infinite where there is none: nobody who is never right may join an empty cluster."""
        loss_NK = evidence[self._asked] if self.compares == "losses" else 1 - evidence[self._asked]
        empty_K = ~np.isin(np.arange(loss_NK.shape[1]), evidence.labels)
        return np.where(np.isnan(loss_NK) | empty_K, np.inf, loss_NK)
