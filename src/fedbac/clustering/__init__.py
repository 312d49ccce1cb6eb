"""Column "Clustering" of Table I: one policy that gives every edge a cluster."""

from fedbac.clustering.bandit import LinUCB as LinUCB
from fedbac.clustering.drifting import Drifting as Drifting
from fedbac.clustering.drifting import DriftState as DriftState
from fedbac.clustering.loss import Fixed as Fixed
from fedbac.clustering.loss import LowestLoss as LowestLoss
from fedbac.clustering.merging import Merging as Merging
from fedbac.clustering.merging import MergingState as MergingState
from fedbac.clustering.splits import CosineSplits as CosineSplits
from fedbac.clustering.splits import GaussianRewards as GaussianRewards
from fedbac.clustering.splits import RewardsState as RewardsState
from fedbac.clustering.updates import Agglomerative as Agglomerative
from fedbac.clustering.updates import KMeans as KMeans
