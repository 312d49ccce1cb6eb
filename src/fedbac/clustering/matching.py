"""New groups of members under the names of old clusters."""

import numpy as np

from fedbac.core.policies import Assignment
from fedbac.core.queries import Evidence
from fedbac.core.settings import IntArray


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
