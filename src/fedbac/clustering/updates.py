"""Clusters from the updates of one round, found once or now and then: agglomerative (FL+HC), and k-means (CHPFL)."""

import warnings
from abc import abstractmethod
from typing import ClassVar, Literal

import numpy as np
from pydantic import model_validator

from fedbac.clustering.loss import OneClusterFirst
from fedbac.core.geometry import coordinates, cosines, distances, known
from fedbac.core.policies import Assignment, NoState, Unlearned
from fedbac.core.queries import Ask, Evidence, Gram, Moment, Query
from fedbac.core.rng import Rng
from fedbac.core.settings import Edges, FloatArray, IntArray, NonNegative, Rounds


def matched(group_N: IntArray, evidence: Evidence) -> Assignment:
    """Give every group the name of a cluster, so that as many members as possible keep theirs.

    Who has no group (−1) stays where it is. A cluster that none of its members was in before begins with the network of
    the cluster that most of them come from.
    """
    from scipy.optimize import linear_sum_assignment  # slow to import and seldom needed

    assert evidence.used_K is not None
    label_N, num_clusters = evidence.labels, evidence.used_K.size
    grouped_N = group_N >= 0
    overlap_GK = np.zeros((group_N.max() + 1, num_clusters))
    np.add.at(overlap_GK, (group_N[grouped_N], label_N[grouped_N]), 1.0)
    stayed_in_K = np.isin(np.arange(num_clusters), label_N[~grouped_N])
    # An empty cluster is a better name than one in which somebody stays who does not belong to the group.
    _, name_G = linear_sum_assignment(overlap_GK - 0.5 * stayed_in_K, maximize=True)
    after_N, origin_KJ = label_N.copy(), np.eye(num_clusters)
    after_N[grouped_N] = name_G[group_N[grouped_N]]
    for group, name in enumerate(name_G):
        if overlap_GK[group, name] == 0:
            origin_KJ[name] = np.arange(num_clusters) == overlap_GK[group].argmax()
    return Assignment(after_N, origin_KJ)


class _FromUpdates(Unlearned, OneClusterFirst):
    """All members begin in one cluster; after some rounds they are grouped by what each changed in the last one.

    Groups keep the names of the clusters that they overlap most, and begin with the network that their members had. Who
    did not train in that round has no update, and stays in its cluster.
    """

    asks: ClassVar[tuple[Query, ...]] = (Gram(),)
    warmup: Rounds
    period: Rounds | None = None
    """Rounds between groupings; null groups once."""

    def ask(self, state: NoState, moment: Moment) -> Ask | None:
        """Ask when due."""
        late = moment.round - self.warmup
        due = late == 0 or (late > 0 and self.period is not None and late % self.period == 0)
        return Ask(after=self.asks) if due else None

    def act(self, state: NoState, evidence: Evidence, rng: Rng) -> tuple[NoState, Assignment]:
        """Group those that trained."""
        known_N = known(evidence[Gram()])
        if known_N.sum() < 2:
            return state, Assignment(evidence.labels)
        group_N = np.full(known_N.size, -1)
        group_N[known_N] = self._groups(evidence[Gram()][np.ix_(known_N, known_N)], rng)
        return state, matched(group_N, evidence)

    @abstractmethod
    def _groups(self, gram_NN: FloatArray, rng: Rng) -> IntArray:
        """Return the group of each member, from the inner products of their updates."""


class Agglomerative(_FromUpdates):
    """Join the members whose updates are closest, then groups of them, until what is left is far apart. The tree of
    joins is cut into a number of clusters, at a distance, or at the largest relative step, into at least 2 clusters
    with a mean of at least 2 members.
    """

    kind: Literal["agglomerative"] = "agglomerative"
    warmup: Rounds = 10
    """n0: the rounds before members are grouped."""
    metric: Literal["l2", "cosine"] = "l2"
    """The distance of two updates: Euclidean, or 1 − cosine."""
    linkage: Literal["ward", "complete", "average", "single"] | None = None
    """The distance of two groups; default: ward for l2, which it needs, average for cosine."""
    num_clusters: Edges | None = None
    """Cut the tree into this many clusters."""
    threshold: NonNegative | None = None
    """Cut at this distance."""

    @model_validator(mode="after")
    def _makes_sense(self) -> "Agglomerative":
        if self.num_clusters is not None and self.threshold is not None:
            raise ValueError("num_clusters and threshold both say where to cut; give one of them, or none")
        if self.linkage == "ward" and self.metric != "l2":
            raise ValueError("linkage 'ward' needs metric 'l2'; choose another linkage, or none")
        return self

    def clusters(self, num_members: int) -> int:
        """Return the number of clusters, or one per member as long as it is not known."""
        return self.num_clusters or num_members

    def _groups(self, gram_NN: FloatArray, rng: Rng) -> IntArray:
        from scipy.cluster.hierarchy import cut_tree, fcluster, linkage  # slow to import and seldom needed
        from scipy.spatial.distance import squareform

        distance_NN = distances(gram_NN) if self.metric == "l2" else 1 - cosines(gram_NN)
        rule = self.linkage or ("ward" if self.metric == "l2" else "average")
        joins = linkage(squareform(distance_NN, checks=False), rule)
        if self.threshold is not None:
            return fcluster(joins, self.threshold, "distance").astype(np.int64) - 1
        count = widest_gap(joins[:, 2]) if self.num_clusters is None else min(self.num_clusters, len(gram_NN))
        return cut_tree(joins, [count])[:, 0].astype(np.int64)


def widest_gap(height_J: FloatArray) -> int:
    """Return the number of clusters at which the next join is the largest step relative to the last, 2 to N/2. One,
    where there are too few members or all updates are the same."""
    num = len(height_J) + 1
    best, widest = 1, 1.0
    for count in range(2, num // 2 + 1):
        last, following = float(height_J[num - count - 1]), float(height_J[num - count])
        gap = 1.0 if following == 0 else np.inf if last == 0 else following / last
        if gap > widest:
            best, widest = count, gap
    return best


class KMeans(_FromUpdates):
    """Group members by k-means++ on the directions of their updates: the best of 10 starts."""

    kind: Literal["kmeans"] = "kmeans"
    warmup: Rounds = 1
    """r0: the rounds before members are grouped."""
    num_clusters: Edges | None = 5
    """Number of clusters; one per edge when null."""

    def clusters(self, num_members: int) -> int:
        """Return K."""
        return self.num_clusters or num_members

    def _groups(self, gram_NN: FloatArray, rng: Rng) -> IntArray:
        from sklearn.cluster import KMeans as Means  # slow to import and seldom needed
        from sklearn.exceptions import ConvergenceWarning

        count = min(self.clusters(len(gram_NN)), len(gram_NN))
        means = Means(count, n_init=10, random_state=int(rng.integers(2**31)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different updates than clusters: fewer groups
            group_N = means.fit_predict(coordinates(cosines(gram_NN)))
        return np.unique(group_N, return_inverse=True)[1]
