"""The columns of a method and its links, and the kinds that each may be chosen from; the first is the default."""

from collections.abc import Collection
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from fedbac.config.choices import Choice
from fedbac.core.codecs import Alteration, Chain, Transform, order_fault
from fedbac.core.parts import Personalization
from fedbac.core.policies import Aggregation, Clock, ClusterPolicy, SelectionPolicy, Sharing, Step, Topology
from fedbac.core.settings import Settings, in_a_row, written

TOPOLOGY = Choice(Topology, "fedbac.topology", "Hierarchical Flat")
CLUSTERING = Choice(
    ClusterPolicy,
    "fedbac.clustering",
    "Fixed LowestLoss LinUCB Merging Drifting CosineSplits Agglomerative KMeans GaussianRewards",
)
SELECTION = Choice(
    SelectionPolicy,
    "fedbac.selection",
    "Random Poisson Thompson CreditThompson Sound PowerOfChoice LossUCB Oort LatencyUCB COCS ResourceScore Contextual",
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
    "Shared PerCluster Directed Additive Personal Interpolated MoreauEnvelope PersonalHead LateHead HeadsTogether "
    "TwoHeads AdaptiveStart ControlVariates GroupCorrections DynamicPull Adapters",
)
AGGREGATION = Choice(
    Aggregation,
    "fedbac.aggregation",
    "Mean Median TrimmedMean Krum GeometricMedian CentredClipping MinimumDiameter",
)
CLOCK = Choice(Clock, "fedbac.clocks", "Synchronous Deadline Buffered Asynchronous")
STEP = Choice(Step, "fedbac.steps", "Take Momentum Adam Yogi Dynamic")
LINKS = Choice(Transform, "fedbac.core.codecs", "TopK EightBits Clip GaussianNoise")


def _in_order(transforms: tuple[Transform, ...]) -> tuple[Transform, ...]:
    if (fault := order_fault(transforms)) is not None:
        raise ValueError(fault)
    return transforms


def _of_codecs(transforms: tuple[Transform, ...]) -> tuple[Transform, ...]:
    for one in transforms:
        if isinstance(one, Alteration):
            raise ValueError(
                f"{one.kind!r} alters what a sender contributes, but down goes the difference to what receivers have, "
                "and the next difference would undo it; use it on client_up or cloud_up"
            )
    return transforms


Transforms = Annotated[
    tuple[Annotated[Transform, LINKS], ...],
    Field(max_length=100),
    BeforeValidator(in_a_row),
    AfterValidator(_in_order),
    PlainSerializer(written),
]
"""One transform or a list of them, in the order in which a change passes them."""


class Links(Settings):
    """What links make of what is sent for training: a transform, or an ordered list of them.

    ``clip`` and ``noise`` go before codecs, and up only; what a codec leaves out is sent later (error feedback).
    """

    client_up: Transforms = ()
    """What clients send to their edge."""
    client_down: Annotated[Transforms, AfterValidator(_of_codecs)] = ()
    """What edges send to their clients."""
    region_up: Transforms = ()
    """What edges send to their region, where there are some (``task.tiers``)."""
    region_down: Annotated[Transforms, AfterValidator(_of_codecs)] = ()
    """What regions send to their edges."""
    country_up: Transforms = ()
    """What regions send to their country."""
    country_down: Annotated[Transforms, AfterValidator(_of_codecs)] = ()
    """What countries send to their regions."""
    cloud_up: Transforms = ()
    """What the tier below the cloud sends to it: the edges, if there are no others."""
    cloud_down: Annotated[Transforms, AfterValidator(_of_codecs)] = ()
    """What the cloud sends to the tier below."""

    @property
    def chains(self) -> dict[str, Chain]:
        """The links that do something, by name."""
        return {name: Chain.of(getattr(self, name)) for name in type(self).model_fields if getattr(self, name)}


CHOSEN: dict[str, Collection[str]] = {
    "topology": TOPOLOGY,
    "clustering": CLUSTERING,
    "selection": SELECTION,
    "sharing": SHARING,
    "personalization": PERSONALIZATION,
    "aggregation": AGGREGATION,
    "cloud_aggregation": AGGREGATION,
    "before": ("nnm", "bucketing", "one_voice"),
    "step": STEP,
    "clock": CLOCK,
    "cloud_clock": CLOCK,
    "loss": ("cross_entropy", "squared_error", "next_token", "package"),
    "network": ("lenet5", "mlp", "resnet", "lstm", "transformer", "smollm2", "package"),
    "optimizer": ("sgd", "adamw"),
    **dict.fromkeys(Links.model_fields, LINKS),
}
"""The fields whose value is chosen by its kind."""
