"""Lowest-loss assignment: the rule of IFCA and, with additive personalization, of Fed-CAM."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from fedbac.clustering.fixed import EmptyCluster, Labelled, Start, Unlearned, inherited
from fedbac.core.policies import Assignment, NoState
from fedbac.core.queries import Ask, Evidence, Loss, Moment, Query
from fedbac.core.rng import Rng
from fedbac.core.settings import MAX_EDGES, Edges, FloatArray, IntArray, Rounds

Candidates = Annotated[int, Field(ge=2, le=MAX_EDGES)]
"""How many clusters an edge measures: its own, and at least one to compare it with."""


def lowest_loss(loss_NK: FloatArray, label_N: IntArray, threshold: float) -> IntArray:
    """Return argmin_k L^(k) where it is below ``threshold`` times the current loss, else the current label.

    What was not measured (NaN) is never the lowest. A tie keeps the current label, else the lowest index wins.
    """
    current = np.take_along_axis(loss_NK, label_N[:, None], axis=1)[:, 0]
    loss_NK = np.where(np.isnan(loss_NK), np.inf, loss_NK)
    best = loss_NK.argmin(axis=1)
    limit = threshold * current if threshold > 0 else np.zeros_like(current)  # 0 · ∞ is no limit
    return np.where(loss_NK.min(axis=1) < limit, best, label_N)


class ByLoss(Labelled):
    """A policy that asks members now and then for the losses of clusters."""

    if TYPE_CHECKING:
        candidates: int | None
        period: int

    @property
    def _losses(self) -> Loss:
        return Loss("clusters", candidates=self.candidates)

    def needs(self) -> frozenset[Query]:
        """Need the losses of clusters."""
        return frozenset({self._losses})

    def ask(self, state: Any, moment: Moment) -> Ask | None:
        """Ask for the losses when due."""
        return Ask(after=(self._losses,)) if moment.round % self.period == 0 else None


class LowestLoss(ByLoss, Unlearned):
    """Every ``period`` rounds each edge moves to the cluster whose model has the lowest loss on its data."""

    kind: Literal["lowest_loss"] = "lowest_loss"
    num_clusters: Edges | None = 5
    """Number of clusters; one per edge when null."""
    period: Rounds = 20
    """Rounds between assignments; 1 is the original IFCA."""
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.95
    """Move only if the best loss is below this share of the current one; 1 is the original IFCA, 0 never moves."""
    candidates: Candidates | None = None
    """How many clusters an edge measures each time: its own, and others drawn at random; all when null. With few of
    many, edges that belong together meet later, or never."""
    start_labels: Start = "round_robin"
    """The first labels: one cluster after another, all in the first, or at random."""
    empty_cluster: EmptyCluster = "keep"
    """The network that an edge finds in an empty cluster: what was left there, or a copy of its own (C.17)."""

    def act(self, state: NoState, evidence: Evidence, rng: Rng) -> tuple[NoState, Assignment]:
        """Return the lowest-loss labels."""
        label_N, loss_NK = evidence.labels, evidence[self._losses]
        best_N = lowest_loss(loss_NK, label_N, self.threshold)
        return state, Assignment(best_N, inherited(self.empty_cluster, label_N, best_N, loss_NK.shape[1]))
