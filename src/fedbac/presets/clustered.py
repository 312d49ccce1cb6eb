"""Presets that group members."""

from fedbac.clustering import Agglomerative, CosineSplits, GaussianRewards, LowestLoss
from fedbac.config.experiment import Method, Task
from fedbac.personalization import PerCluster
from fedbac.selection import Random
from fedbac.sharing import Distill
from fedbac.topology import Flat


def ifca(task: Task) -> Method:
    """IFCA on edges as the paper runs it: 5 isolated clusters, lowest loss every 20 rounds with threshold 0.95."""
    return Method(name="ifca", clustering=LowestLoss(), selection=Random(), personalization=PerCluster())


def ifca_original(task: Task) -> Method:
    """IFCA on edges by its own rules: distinct initial networks, lowest loss every round, no threshold."""
    return Method(
        name="ifca-original",
        clustering=LowestLoss(period=1, threshold=1.0),
        selection=Random(),
        personalization=PerCluster(cluster_init="distinct"),
    )


def ifca_clients(task: Task) -> Method:
    """IFCA as its authors run it: two tiers, clients as members, distinct initial networks, lowest loss every round."""
    return ifca_original(task).model_copy(update={"name": "ifca-clients", "topology": Flat(), "unit": "client"})


def cfl(task: Task) -> Method:
    """CFL on edges: one cluster that splits where updates point apart, isolated networks."""
    return Method(name="cfl", clustering=CosineSplits(), personalization=PerCluster())


def cfl_clients(task: Task) -> Method:
    """CFL as its authors run it: two tiers, clients as members, one cluster that splits where updates point apart."""
    return cfl(task).model_copy(update={"name": "cfl-clients", "topology": Flat(), "unit": "client"})


def fl_hc(task: Task) -> Method:
    """FL+HC on edges: one network for 10 rounds, then agglomerative clusters of updates, each for itself."""
    return Method(name="fl-hc", clustering=Agglomerative(), personalization=PerCluster())


def fedgwc(task: Task) -> Method:
    """FedGWC on edges: one cluster that splits where levels of loss differ, isolated networks."""
    return Method(name="fedgwc", clustering=GaussianRewards(), personalization=PerCluster())


def cflhkd(task: Task) -> Method:
    """CFLHKD on edges: clusters of similar updates that learn from each other and from the mean of all."""
    return Method(
        name="cflhkd",
        clustering=Agglomerative(metric="cosine", threshold=0.5, period=20),
        sharing=Distill(),
        personalization=PerCluster(taught=True),
    )
