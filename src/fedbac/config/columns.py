"""The columns of a method, and the kinds that each may be chosen from."""

from collections.abc import Collection

from fedbac.aggregation import GeometricMedian, Krum, Mean, Median, TrimmedMean
from fedbac.clustering import (
    Agglomerative,
    CosineSplits,
    Fixed,
    GaussianRewards,
    KMeans,
    LinUCB,
    LowestLoss,
    Merging,
)
from fedbac.config.choices import Choice
from fedbac.core.codecs import Links
from fedbac.core.parts import Personalization
from fedbac.core.policies import Aggregation, ClusterPolicy, SelectionPolicy, Sharing, Step, Topology
from fedbac.personalization import (
    AdaptiveStart,
    Additive,
    Interpolated,
    LateHead,
    PerCluster,
    Personal,
    PersonalHead,
    Shared,
    TwoHeads,
)
from fedbac.selection import (
    COCS,
    Contextual,
    CreditThompson,
    LatencyUCB,
    LossUCB,
    Oort,
    PowerOfChoice,
    Random,
    ResourceScore,
    Sound,
    Thompson,
)
from fedbac.sharing import (
    Apart,
    Blend,
    Distill,
    DistillAdaptive,
    LeaveOneOut,
    MeanThenApart,
    OnceOverfitted,
    PredictTowardsMean,
    Similar,
    TowardsMean,
)
from fedbac.steps import Adam, Dynamic, Momentum, Take, Yogi
from fedbac.topology import Flat, Hierarchical

TOPOLOGY = Choice(Topology, Hierarchical, Flat)
CLUSTERING = Choice(
    ClusterPolicy, Fixed, LowestLoss, LinUCB, Merging, CosineSplits, Agglomerative, KMeans, GaussianRewards
)
SELECTION = Choice(
    SelectionPolicy,
    Random,
    Thompson,
    CreditThompson,
    Sound,
    PowerOfChoice,
    LossUCB,
    Oort,
    LatencyUCB,
    COCS,
    ResourceScore,
    Contextual,
)
SHARING = Choice(
    Sharing,
    Apart,
    TowardsMean,
    OnceOverfitted,
    PredictTowardsMean,
    MeanThenApart,
    LeaveOneOut,
    Blend,
    Similar,
    Distill,
    DistillAdaptive,
)
PERSONALIZATION = Choice(
    Personalization,
    Shared,
    PerCluster,
    Additive,
    Personal,
    Interpolated,
    PersonalHead,
    LateHead,
    TwoHeads,
    AdaptiveStart,
)
AGGREGATION = Choice(Aggregation, Mean, Median, TrimmedMean, Krum, GeometricMedian)
STEP = Choice(Step, Take, Momentum, Adam, Yogi, Dynamic)

CHOSEN: dict[str, Collection[str]] = {
    "topology": TOPOLOGY.kinds,
    "clustering": CLUSTERING.kinds,
    "selection": SELECTION.kinds,
    "sharing": SHARING.kinds,
    "personalization": PERSONALIZATION.kinds,
    "aggregation": AGGREGATION.kinds,
    "cloud_aggregation": AGGREGATION.kinds,
    "step": STEP.kinds,
    "network": ("lenet5", "mlp", "custom"),
    **dict.fromkeys(Links.model_fields, ("top_k", "eight_bits")),
}
"""The fields whose value is chosen by its kind."""
