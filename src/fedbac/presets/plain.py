"""Presets with one network for everybody."""

from fedbac.clustering import Fixed
from fedbac.config.columns import Links
from fedbac.config.experiment import Method, Task
from fedbac.core.codecs import TopK
from fedbac.models import LeNet5
from fedbac.personalization import ControlVariates, DynamicPull, GroupCorrections, Shared
from fedbac.selection import Random
from fedbac.steps import Adam, Dynamic, Momentum, Yogi
from fedbac.topology import Flat, Hierarchical


def fedavg(task: Task) -> Method:
    """FedAvg: two tiers, one network for all, everybody trains."""
    return Method(name="fedavg", topology=Flat())


def fedprox(task: Task) -> Method:
    """FedProx: FedAvg whose clients are pulled to the network they received."""
    return Method(name="fedprox", topology=Flat(), personalization=Shared(proximal=0.01))


def scaffold(task: Task) -> Method:
    """SCAFFOLD: FedAvg whose clients correct their gradients by control variates."""
    return Method(name="scaffold", topology=Flat(), personalization=ControlVariates())


def feddyn(task: Task) -> Method:
    """FedDyn: FedAvg whose clients and server remember how far they drifted apart, and pull against it."""
    return Method(name="feddyn", topology=Flat(), personalization=DynamicPull(alpha=0.01), step=Dynamic(alpha=0.01))


def fedavgm(task: Task) -> Method:
    """FedAvgM: FedAvg whose server moves with momentum."""
    return Method(name="fedavgm", topology=Flat(), step=Momentum())


def fedadam(task: Task) -> Method:
    """FedAdam: FedAvg whose server takes steps of Adam."""
    return Method(name="fedadam", topology=Flat(), step=Adam())


def fedyogi(task: Task) -> Method:
    """FedYogi: FedAvg whose server takes steps of Yogi."""
    return Method(name="fedyogi", topology=Flat(), step=Yogi())


def hierfavg(task: Task) -> Method:
    """One network for all, everybody trains."""
    return Method(name="hierfavg", clustering=Fixed(num_clusters=1), selection=Random(), personalization=Shared())


def hierfavg_periods(task: Task) -> Method:
    """HierFAVG as it was meant: two edge averages for each round of the cloud."""
    return hierfavg(task).model_copy(update={"name": "hierfavg-periods", "topology": Hierarchical(edge_rounds=2)})


def mtgc(task: Task) -> Method:
    """MTGC: two edge averages a round, whose clients correct their gradients towards their edge's and everybody's."""
    return Method(name="mtgc", topology=Hierarchical(edge_rounds=2), personalization=GroupCorrections())


def abad(task: Task) -> Method:
    """Abad et al.: HierFAVG with two edge averages a round over sparse links that keep what they leave out."""
    return Method(
        name="abad",
        topology=Hierarchical(edge_rounds=2),
        links=Links(
            client_up=TopK(keep=0.01), client_down=TopK(keep=0.1), cloud_up=TopK(keep=0.1), cloud_down=TopK(keep=0.1)
        ),
    )


def hierfavg_wide(task: Task) -> Method:
    """The paper's "HierFAVG 2×": one wider LeNet-5 with as many weights as Fed-BAC's two networks (C.8)."""
    return hierfavg(task).model_copy(update={"name": "hierfavg-wide", "network": LeNet5(width=1.41)})
