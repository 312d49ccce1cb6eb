"""Fed-BAC, its readings, its ablations and its successor."""

from fedbac.clustering import Fixed, LinUCB, LowestLoss, Merging
from fedbac.config.experiment import Method, Task
from fedbac.personalization import Additive, PerCluster
from fedbac.selection import CreditThompson, Random, Sound, Thompson
from fedbac.sharing import OnceOverfitted, PredictTowardsMean


def fed_bac(task: Task) -> Method:
    """Fed-BAC as written: additive parts, LinUCB every 20 rounds from one cluster per edge, Thompson at p = 0.8."""
    return Method(name="fed-bac", clustering=LinUCB(), selection=Thompson(), personalization=Additive())


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


def fedbac_plus_2(task: Task) -> Method:
    """The sum of two networks: first shared by all, then by clusters that merge; all sound clients train."""
    return Method(
        name="fedbac-plus-2",
        clustering=Merging(alone_steps=1000),
        selection=Sound(),
        sharing=PredictTowardsMean(),
        personalization=PerCluster(networks=2),
    )
