"""Presets that group members, blend their networks, or let every edge go its own way."""

from fedbac.clustering import Agglomerative, CosineSplits, Fixed, GaussianRewards, KMeans, LowestLoss
from fedbac.config.experiment import Method, Task
from fedbac.personalization import LateHead, PerCluster
from fedbac.selection import Random
from fedbac.sharing import Blend, Distill, DistillAdaptive, LeaveOneOut, MeanThenApart, Similar
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


def chpfl(task: Task) -> Method:
    """CHPFL on edges: clusters by k-means++ on updates, each with a learned blend of its network and the mean."""
    return Method(name="chpfl", clustering=KMeans(), sharing=Blend(), personalization=PerCluster())


def phe_fl(task: Task) -> Method:
    """PHE-FL: every edge blends its network with the mean of all others, by their accuracy on validation data."""
    return Method(name="phe-fl", clustering=Fixed(), sharing=LeaveOneOut(), personalization=PerCluster())


def phe_fl_kd(task: Task) -> Method:
    """PHE-FL by distillation: every edge keeps its network and learns from the mean of all others."""
    sharing = DistillAdaptive(teacher="others", max_share=1.0, steepness=0.0)
    return Method(name="phe-fl-kd", clustering=Fixed(), sharing=sharing, personalization=PerCluster(taught=True))


def cflhkd(task: Task) -> Method:
    """CFLHKD on edges: clusters of similar updates that learn from each other and from the mean of all."""
    return Method(
        name="cflhkd",
        clustering=Agglomerative(metric="cosine", threshold=0.5, period=20),
        sharing=Distill(),
        personalization=PerCluster(taught=True),
    )


def pfedgraph(task: Task) -> Method:
    """pFedGraph on edges: every edge starts from a mix of all networks, with more of those of edges like it."""
    return Method(name="pfedgraph", clustering=Fixed(), sharing=Similar(), personalization=PerCluster())


def fedavg_ft(task: Task) -> Method:
    """FedAvg with fine-tuning: one network for all, and in the last 10 rounds every edge alone."""
    return Method(name="fedavg-ft", clustering=Fixed(), sharing=MeanThenApart(), personalization=PerCluster())


def fedbabu(task: Task) -> Method:
    """FedBABU on edges: the body learns under a head that keeps still; in the last 10 rounds every edge trains all."""
    return Method(name="fedbabu", clustering=Fixed(), sharing=MeanThenApart(), personalization=LateHead())


def local(task: Task) -> Method:
    """Every edge alone, from the first round to the last."""
    return Method(name="local", clustering=Fixed(), personalization=PerCluster())
