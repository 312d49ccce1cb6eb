"""Methods as rows of choices: one function per row, given the task it is for."""

from collections.abc import Callable

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
from fedbac.config.experiment import Method, Task
from fedbac.config.plugins import plugins
from fedbac.errors import ConfigError, unknown
from fedbac.models import LeNet5
from fedbac.personalization import Additive, PerCluster, Personal, PersonalHead, Shared
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
    Thompson,
)
from fedbac.sharing import (
    Blend,
    Distill,
    DistillAdaptive,
    LeaveOneOut,
    MeanThenApart,
    OnceOverfitted,
    Similar,
)
from fedbac.topology import Flat

Preset = Callable[[Task], Method]


def fed_bac(task: Task) -> Method:
    """Fed-BAC as written: additive parts, LinUCB every 20 rounds from one cluster per edge, Thompson at p = 0.8."""
    return Method(name="fed-bac", clustering=LinUCB(), selection=Thompson(), personalization=Additive())


def hierfavg(task: Task) -> Method:
    """One network for all, everybody trains."""
    return Method(name="hierfavg", clustering=Fixed(num_clusters=1), selection=Random(), personalization=Shared())


def hierfavg_wide(task: Task) -> Method:
    """The paper's "HierFAVG 2×": one wider LeNet-5 with as many weights as Fed-BAC's two networks (C.8)."""
    return hierfavg(task).model_copy(update={"name": "hierfavg-wide", "network": LeNet5(width=1.41)})


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


def paper_text(task: Task) -> Method:
    """Fed-BAC by the paper's text: period 20, reward on the edge's test data, Fashion-MNIST starting in one cluster."""
    return _as_in_paper(task, "paper-text", period=20)


def paper_figures(task: Task) -> Method:
    """Fed-BAC by the paper's figures: as the text, but assignments every round (C.21)."""
    return _as_in_paper(task, "paper-figures", period=1)


def _as_in_paper(task: Task, name: str, period: int) -> Method:
    uniform = task.dataset.startswith("fashion-mnist")
    return Method(
        name=name,
        clustering=LinUCB(period=period, start_labels="uniform" if uniform else "round_robin"),
        selection=Thompson(reward_split="test", skip_after_move=False),
        personalization=Additive(),
    )


def fed_bac_random(task: Task) -> Method:
    """Fed-BAC with uniform random clients instead of Thompson sampling, p = 0.8."""
    return fed_bac(task).model_copy(update={"name": "fed-bac-random", "selection": Random(fraction=0.8)})


def fed_bac_full(task: Task) -> Method:
    """Fed-BAC with every client in every round."""
    return fed_bac(task).model_copy(update={"name": "fed-bac-full", "selection": Random()})


def singletons(task: Task) -> Method:
    """Fed-BAC without its cluster bandit: every edge keeps a cluster of its own."""
    return fed_bac(task).model_copy(update={"name": "singletons", "clustering": Fixed()})


def fed_cam(task: Task) -> Method:
    """The Fed-CAM rule: additive parts, lowest-loss assignment to 5 clusters, random clients."""
    return Method(name="fed-cam", clustering=LowestLoss(), selection=Random(fraction=0.8), personalization=Additive())


def linucb_isolated(task: Task) -> Method:
    """Fed-BAC's two bandits without the additive part: isolated cluster networks."""
    return fed_bac(task).model_copy(update={"name": "linucb-isolated", "personalization": PerCluster()})


def fedbac_plus(task: Task) -> Method:
    """Clusters that merge and share, and Thompson sampling with credit of each client's own (docs/plus.md)."""
    return Method(
        name="fedbac-plus",
        clustering=Merging(),
        selection=CreditThompson(),
        sharing=OnceOverfitted(share=0.1),
        personalization=Additive(),
    )


def fedavg(task: Task) -> Method:
    """FedAvg: two tiers, one network for all, everybody trains."""
    return Method(name="fedavg", topology=Flat())


def fedprox(task: Task) -> Method:
    """FedProx: FedAvg whose clients are pulled to the network they received."""
    return Method(name="fedprox", topology=Flat(), personalization=Shared(proximal=0.01))


def cfl(task: Task) -> Method:
    """CFL on edges: one cluster that splits where updates point apart, isolated networks."""
    return Method(name="cfl", clustering=CosineSplits(), personalization=PerCluster())


def ditto(task: Task) -> Method:
    """Ditto: every client keeps a network of its own, pulled to the one for all."""
    return Method(name="ditto", personalization=Personal())


def ditto_edges(task: Task) -> Method:
    """Ditto on edges: every edge keeps a network of its own, pulled to the one for all."""
    return Method(name="ditto-edges", personalization=Personal(owner="edge"))


def fedper(task: Task) -> Method:
    """FedPer on edges: one body for all, every edge its own last layer."""
    return Method(name="fedper", personalization=PersonalHead())


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


def pfedgraph(task: Task) -> Method:
    """pFedGraph on edges: every edge starts from a mix of all networks, with more of those of edges like it."""
    return Method(name="pfedgraph", clustering=Fixed(), sharing=Similar(), personalization=PerCluster())


def fedavg_ft(task: Task) -> Method:
    """FedAvg with fine-tuning: one network for all, and in the last 10 rounds every edge alone."""
    return Method(name="fedavg-ft", clustering=Fixed(), sharing=MeanThenApart(), personalization=PerCluster())


def local(task: Task) -> Method:
    """Every edge alone, from the first round to the last."""
    return Method(name="local", clustering=Fixed(), personalization=PerCluster())


def cflhkd(task: Task) -> Method:
    """CFLHKD on edges: clusters of similar updates that learn from each other and from the mean of all."""
    return Method(
        name="cflhkd",
        clustering=Agglomerative(metric="cosine", threshold=0.5, period=20),
        sharing=Distill(),
        personalization=PerCluster(taught=True),
    )


def fed_csad(task: Task) -> Method:
    """Fed-CSAD: every edge keeps its network and learns from the mean of all, the more the better that is."""
    return Method(
        name="fed-csad",
        clustering=Fixed(),
        selection=Contextual(),
        sharing=DistillAdaptive(),
        personalization=PerCluster(taught=True),
    )


METHODS: dict[str, Preset] = {
    "fed-bac": fed_bac,
    "fedavg": fedavg,
    "fedprox": fedprox,
    "hierfavg": hierfavg,
    "hierfavg-wide": hierfavg_wide,
    "ifca": ifca,
    "ifca-original": ifca_original,
    "paper-text": paper_text,
    "paper-figures": paper_figures,
    "fed-bac-random": fed_bac_random,
    "fed-bac-full": fed_bac_full,
    "singletons": singletons,
    "fed-cam": fed_cam,
    "linucb-isolated": linucb_isolated,
    "cfl": cfl,
    "ditto": ditto,
    "ditto-edges": ditto_edges,
    "fedper": fedper,
    "power-of-choice": power_of_choice,
    "ucb-cs": ucb_cs,
    "oort": oort,
    "cs-ucb": cs_ucb,
    "cocs": cocs,
    "trindade": trindade,
    "fedbac-plus": fedbac_plus,
    "fl-hc": fl_hc,
    "fedgwc": fedgwc,
    "chpfl": chpfl,
    "phe-fl": phe_fl,
    "phe-fl-kd": phe_fl_kd,
    "cflhkd": cflhkd,
    "fed-csad": fed_csad,
    "local": local,
    "fedavg-ft": fedavg_ft,
    "pfedgraph": pfedgraph,
}


def known() -> dict[str, Preset]:
    """Return all presets: ours, and those of other packages."""
    return {**plugins(), **METHODS}


def method(name: str, task: Task) -> Method:
    """Return a preset by name."""
    presets = METHODS if name in METHODS else known()
    if name not in presets:
        raise ConfigError(unknown("method", name, presets))
    found = presets[name](task)
    if not isinstance(found, Method):
        raise ConfigError(f"method {name!r}: its preset must return a Method, not a {type(found).__name__}")
    return found
