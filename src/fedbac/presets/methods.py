"""Methods as rows of choices: one function per row, given the task it is for."""

from collections.abc import Callable

from fedbac.clustering import CosineSplits, Fixed, LinUCB, LowestLoss, Merging
from fedbac.config.experiment import Method, Task
from fedbac.errors import ConfigError, unknown
from fedbac.models import LeNet5
from fedbac.personalization import Additive, PerCluster, Shared
from fedbac.presets.personal import (
    apfl,
    apfl_edges,
    ditto,
    ditto_edges,
    fedala,
    fedper,
    fedrep,
    fedrep_clients,
    fedrod,
)
from fedbac.selection import CreditThompson, Random, Thompson
from fedbac.sharing import OnceOverfitted
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


def fed_cam_alternate(task: Task) -> Method:
    """Fed-CAM whose two networks are trained in turns, each for the residual of the other."""
    return fed_cam(task).model_copy(
        update={"name": "fed-cam-alternate", "personalization": Additive(order="alternate")}
    )


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
    "fed-cam-alternate": fed_cam_alternate,
    "linucb-isolated": linucb_isolated,
    "cfl": cfl,
    "ditto": ditto,
    "ditto-edges": ditto_edges,
    "fedper": fedper,
    "fedrep": fedrep,
    "fedrep-clients": fedrep_clients,
    "apfl": apfl,
    "apfl-edges": apfl_edges,
    "fedrod": fedrod,
    "fedala": fedala,
    "fedbac-plus": fedbac_plus,
}


def method(name: str, task: Task) -> Method:
    """Return a preset by name."""
    if name not in METHODS:
        raise ConfigError(unknown("method", name, METHODS))
    return METHODS[name](task)
