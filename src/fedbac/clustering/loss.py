"""Labels that never change, and the lowest loss: the rule of IFCA and, with additive parts, of Fed-CAM."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedbac.core.policies import Assignment, NoState, Unlearned
from fedbac.core.queries import Ask, Evidence, Loss, Moment, Query
from fedbac.core.rng import Rng
from fedbac.core.settings import MAX_EDGES, Edges, FloatArray, IntArray, Rounds, Settings

Start = Literal["round_robin", "uniform", "random"]
"""How labels begin: member m in cluster m mod K, all members in cluster 0, or each drawn at random (C.28)."""


FirstLabels = Literal["round_robin", "uniform", "random", "lowest_loss"]
"""The same, or in the cluster whose initial network has the lowest loss: of equal losses the first cluster's."""


def start_labels(start: FirstLabels, num_members: int, num_clusters: int, rng: Rng) -> IntArray:
    """Return the labels before anything is known."""
    if start == "round_robin":
        return np.arange(num_members) % num_clusters
    if start == "random":
        return rng.integers(num_clusters, size=num_members)
    return np.zeros(num_members, dtype=np.int64)


EmptyCluster = Literal["keep", "clone"]
"""The network that a member finds in an empty cluster: what was left there, or a copy of its own (C.17)."""


def inherited(rule: EmptyCluster, before_N: IntArray, after_N: IntArray, num_clusters: int) -> FloatArray | None:
    """Return where the networks of clusters come from that were empty and are entered: from their first new member."""
    entered = np.setdiff1d(after_N, before_N)
    if rule == "keep" or entered.size == 0:
        return None
    origin_KJ = np.eye(num_clusters)
    for k in entered.tolist():
        origin_KJ[k] = np.arange(num_clusters) == before_N[np.flatnonzero(after_N == k)[0]]
    return origin_KJ


class OneClusterFirst(Settings):
    """A policy that begins with all members in one cluster, and asks for the same after every round."""

    adaptive: ClassVar[bool] = True
    asks: ClassVar[tuple[Query, ...]] = ()

    def needs(self) -> frozenset[Query]:
        """Need what it asks for."""
        return frozenset(self.asks)

    def clusters(self, num_members: int) -> int:
        """One per member, at most."""
        return num_members

    def start(self, num_members: int, rng: Rng) -> IntArray:
        """All in one."""
        return np.zeros(num_members, dtype=np.int64)

    def ask(self, state: Any, moment: Moment) -> Ask | None:
        """Ask as ever."""
        return Ask(after=self.asks)


class Labelled(OneClusterFirst):
    """A policy whose settings say how many clusters there are, and how labels begin."""

    if TYPE_CHECKING:
        num_clusters: int | None
        start_labels: FirstLabels

    def clusters(self, num_members: int) -> int:
        """Return K; one per member when not given."""
        return self.num_clusters or num_members

    def start(self, num_members: int, rng: Rng) -> IntArray:
        """Return the labels before anything is known."""
        return start_labels(self.start_labels, num_members, self.clusters(num_members), rng)


class Fixed(Unlearned, Labelled):
    """Labels kept from the start: no clustering (K = 1), or frozen singletons (K = M)."""

    kind: Literal["fixed"] = "fixed"
    num_clusters: Edges | None = None
    """Number of clusters; one per edge when not given."""
    start_labels: Start = "round_robin"
    """The first labels: in turn, all in one cluster, or at random."""

    def ask(self, state: NoState, moment: Moment) -> Ask | None:
        """Never due."""
        return None

    def act(self, state: NoState, evidence: Evidence, rng: Rng) -> tuple[NoState, Assignment]:
        """Keep the labels."""
        return state, Assignment(evidence.labels)


Candidates = Annotated[int, Field(ge=2, le=MAX_EDGES)]
"""How many clusters an edge measures: its own, and at least one to compare it with."""


def lowest_loss(loss_NK: FloatArray, label_N: IntArray, threshold: float) -> IntArray:
    """Return argmin_k L^(k) where it is below ``threshold`` times the current loss, else the current label. What was
    not measured (NaN) is never the lowest. A tie keeps the current label, else the lowest index wins."""
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


class LowestLoss(Unlearned, ByLoss):
    """Every ``period`` rounds each member moves to the cluster whose model has the lowest loss on its data."""

    kind: Literal["lowest_loss"] = "lowest_loss"
    num_clusters: Edges | None = 5
    """Number of clusters; one per edge when null."""
    period: Rounds = 20
    """Rounds between assignments; 1 is the original IFCA."""
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.95
    """Move only if the best loss is below this share of the current one; 1 is the original IFCA, 0 never moves."""
    candidates: Candidates | None = None
    """How many clusters an edge measures each time, its own and others at random; null: all. With few, edges that
    belong together meet later, or never."""
    start_labels: FirstLabels = "round_robin"
    """The first labels: in turn, all in one cluster, at random, or by the lowest loss of initial networks, which must
    start apart."""
    empty_cluster: EmptyCluster = "keep"
    """What an edge finds in an empty cluster: the network left there, or a copy of its own (C.17)."""

    def first(self) -> Ask | None:
        """Ask for the losses of the initial networks if labels begin with them."""
        return Ask(after=(self._losses,)) if self.start_labels == "lowest_loss" else None

    def act(self, state: NoState, evidence: Evidence, rng: Rng) -> tuple[NoState, Assignment]:
        """Return the lowest-loss labels."""
        label_N, loss_NK = evidence.labels, evidence[self._losses]
        if evidence.round == 0:  # nobody has been anywhere yet
            return state, Assignment(lowest_loss(loss_NK, label_N, threshold=1.0))
        best_N = lowest_loss(loss_NK, label_N, self.threshold)
        return state, Assignment(best_N, inherited(self.empty_cluster, label_N, best_N, loss_NK.shape[1]))
