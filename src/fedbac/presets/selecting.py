"""Presets whose clients are chosen by loss, utility, speed, or what a bandit has learned of them."""

from fedbac.clustering import Fixed
from fedbac.config.experiment import Method, Task
from fedbac.personalization import PerCluster
from fedbac.selection import COCS, Contextual, LatencyUCB, LossUCB, Oort, PowerOfChoice, ResourceScore
from fedbac.sharing import DistillAdaptive


def power_of_choice(task: Task) -> Method:
    """Power-of-choice at every edge: twice as many candidates as are needed, those with the largest loss train."""
    return Method(name="power-of-choice", selection=PowerOfChoice())


def ucb_cs(task: Task) -> Method:
    """UCB-CS at every edge: a discounted upper confidence bound of each client's training loss."""
    return Method(name="ucb-cs", selection=LossUCB())


def oort(task: Task) -> Method:
    """Oort at every edge: clients whose losses are high and who are quick, with exploration and a pacer."""
    return Method(name="oort", selection=Oort())


def cs_ucb(task: Task) -> Method:
    """CS-UCB at every edge: an upper confidence bound of how quick each client is."""
    return Method(name="cs-ucb", selection=LatencyUCB())


def cocs(task: Task) -> Method:
    """COCS: at every edge a contextual bandit learns whose updates arrive in time."""
    return Method(name="cocs", selection=COCS())


def trindade(task: Task) -> Method:
    """Trindade and da Fonseca, our reading: at every edge the best sums of resources, data and performance."""
    return Method(name="trindade", selection=ResourceScore())


def fed_csad(task: Task) -> Method:
    """Fed-CSAD: every edge keeps its network and learns from the mean of all, the more the better that is."""
    return Method(
        name="fed-csad",
        clustering=Fixed(),
        selection=Contextual(),
        sharing=DistillAdaptive(),
        personalization=PerCluster(taught=True),
    )
