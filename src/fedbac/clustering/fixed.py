"""Labels that never change: one cluster for all, one per edge, or any start kept for good."""

from typing import ClassVar, Literal

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


class Fixed(Settings):
    """Labels chosen at the start and kept: no clustering (K = 1), or frozen singletons (K = M)."""

    kind: Literal["fixed"] = "fixed"
    adaptive: ClassVar[bool] = False
    num_clusters: Edges | None = None
    """Number of clusters; one per edge when not given."""
    start_labels: Start = "round_robin"
    """The first labels: one cluster after another, all in the first, or at random."""

    def needs(self) -> frozenset[Query]:
        """Need nothing."""
        return frozenset()

    def clusters(self, num_members: int) -> int:
        """Return K."""
        return self.num_clusters or num_members

    def start(self, num_members: int, rng: Rng) -> IntArray:
        """Return the labels for good."""
        return start_labels(self.start_labels, num_members, self.clusters(num_members), rng)

    def init(self, num_members: int) -> NoState:
        """Return the empty state."""
        return NoState()

    def ask(self, state: NoState, moment: Moment) -> Ask | None:
        """Never due."""
        return None

    def learn(self, state: NoState, evidence: Evidence) -> NoState:
        """Learn nothing."""
        return state

    def act(self, state: NoState, evidence: Evidence, rng: Rng) -> tuple[NoState, Assignment]:
        """Keep the labels."""
        return state, Assignment(evidence.labels)
