"""Column "Clustering" of Table I: one policy that gives every edge a cluster."""

from fedbac.clustering.bandit import LinUCB, LinUCBState
from fedbac.clustering.cosine import CosineSplits, CosineState
from fedbac.clustering.fixed import Fixed
from fedbac.clustering.loss import LowestLoss
from fedbac.clustering.merging import Merging, MergingState
from fedbac.clustering.rewards import GaussianRewards, RewardsState
from fedbac.clustering.updates import Agglomerative, KMeans

__all__ = [
    "Agglomerative",
    "CosineSplits",
    "CosineState",
    "Fixed",
    "GaussianRewards",
    "KMeans",
    "LinUCB",
    "LinUCBState",
    "LowestLoss",
    "Merging",
    "MergingState",
    "RewardsState",
]
