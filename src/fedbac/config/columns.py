"""The columns of a method, and the kinds that each may be chosen from; the first is the default."""

from collections.abc import Collection

from fedbac.config.choices import Choice
from fedbac.core.codecs import Links
from fedbac.core.parts import Personalization
from fedbac.core.policies import ClusterPolicy, SelectionPolicy, Sharing, Topology

TOPOLOGY = Choice(Topology, "fedbac.topology", "Hierarchical Flat")
CLUSTERING = Choice(
    ClusterPolicy,
    "fedbac.clustering",
    "Fixed LowestLoss LinUCB Merging CosineSplits Agglomerative KMeans GaussianRewards",
)
SELECTION = Choice(
    SelectionPolicy,
    "fedbac.selection",
    "Random Thompson CreditThompson Sound PowerOfChoice LossUCB Oort LatencyUCB COCS ResourceScore Contextual",
)
SHARING = Choice(
    Sharing,
    "fedbac.sharing",
    "Apart TowardsMean OnceOverfitted PredictTowardsMean MeanThenApart LeaveOneOut Blend Similar Distill "
    "DistillAdaptive",
)
PERSONALIZATION = Choice(
    Personalization,
    "fedbac.personalization",
    "Shared PerCluster Additive Personal Interpolated PersonalHead LateHead TwoHeads AdaptiveStart "
    "ControlVariates GroupCorrections DynamicPull",
)

CHOSEN: dict[str, Collection[str]] = {
    "topology": TOPOLOGY,
    "clustering": CLUSTERING,
    "selection": SELECTION,
    "sharing": SHARING,
    "personalization": PERSONALIZATION,
    "network": ("lenet5", "mlp", "custom"),
    "optimizer": ("sgd", "adamw"),
    **dict.fromkeys(Links.model_fields, ("top_k", "eight_bits")),
}
"""The fields whose value is chosen by its kind."""
