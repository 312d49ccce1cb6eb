"""Labels that never change: one cluster for all, one per edge, or any start kept for good."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from fedbac.core.policies import Assignment, NoState
from fedbac.core.queries import Ask, Evidence, Moment, Query
from fedbac.core.rng import Rng
from fedbac.core.settings import Edges, FloatArray, IntArray, Settings

Start = Literal["round_robin", "uniform", "random"]
"""How labels begin: member m in cluster m mod K, all members in cluster 0, or each drawn at random (C.28)."""


def start_labels(start: Start, num_members: int, num_clusters: int, rng: Rng) -> IntArray:
    """Return the labels before anything is known."""
    if start == "round_robin":
        return np.arange(num_members) % num_clusters
    if start == "uniform":
        return np.zeros(num_members, dtype=np.int64)
    return rng.integers(num_clusters, size=num_members)


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


class Asking(Settings):
    """A policy that begins with all members in one cluster, and asks for the same after every round."""

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


class Unlearned(Asking):
    """A policy that looks only at the present."""

    adaptive: ClassVar[bool] = False

    def init(self, num_members: int) -> NoState:
        """Return the empty state."""
        return NoState()

    def learn(self, state: NoState, evidence: Evidence) -> NoState:
        """Learn nothing."""
        return state


class Labelled(Asking):
    """A policy whose settings say how many clusters there are, and how labels begin."""

    if TYPE_CHECKING:
        num_clusters: int | None
        start_labels: Start

    def clusters(self, num_members: int) -> int:
        """Return K; one per member when not given."""
        return self.num_clusters or num_members

    def start(self, num_members: int, rng: Rng) -> IntArray:
        """Return the labels before anything is known."""
        return start_labels(self.start_labels, num_members, self.clusters(num_members), rng)


class Fixed(Labelled, Unlearned):
    """Labels chosen at the start and kept: no clustering (K = 1), or frozen singletons (K = M)."""

    kind: Literal["fixed"] = "fixed"
    num_clusters: Edges | None = None
    """Number of clusters; one per edge when not given."""
    start_labels: Start = "round_robin"
    """The first labels: one cluster after another, all in the first, or at random."""

    def ask(self, state: NoState, moment: Moment) -> Ask | None:
        """Never due."""
        return None

    def act(self, state: NoState, evidence: Evidence, rng: Rng) -> tuple[NoState, Assignment]:
        """Keep the labels."""
        return state, Assignment(evidence.labels)
