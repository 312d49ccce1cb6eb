"""Presets whose edges or clusters blend their networks, or go their own way in the end or from the start."""

from fedbac.clustering import Fixed, KMeans
from fedbac.config.experiment import Method, Task
from fedbac.personalization import LateHead, PerCluster
from fedbac.sharing import Blend, DistillAdaptive, LeaveOneOut, MeanThenApart, Similar


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
