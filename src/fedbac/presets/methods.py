"""Methods as rows of choices; ``notes`` says what each is about."""

import logging
from collections.abc import Callable
from typing import Any

from fedbac.clustering import Agglomerative, CosineSplits, Fixed, GaussianRewards, KMeans, LinUCB, LowestLoss, Merging
from fedbac.config.choices import plugins, say_hidden
from fedbac.config.columns import Links
from fedbac.config.experiment import Method, Task
from fedbac.core.codecs import TopK
from fedbac.errors import ConfigError, unknown
from fedbac.models import LeNet5
from fedbac.personalization import (
    AdaptiveStart,
    Additive,
    ControlVariates,
    Directed,
    DynamicPull,
    GroupCorrections,
    Interpolated,
    LateHead,
    MoreauEnvelope,
    PerCluster,
    Personal,
    PersonalHead,
    Shared,
    TwoHeads,
)
from fedbac.presets.notes import NOTES
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
    Blend,
    Distill,
    DistillAdaptive,
    LeaveOneOut,
    MeanThenApart,
    OnceOverfitted,
    PredictTowardsMean,
    Similar,
)
from fedbac.steps import Adam, Dynamic, Momentum, Yogi
from fedbac.topology import Flat, Hierarchical

log = logging.getLogger(__name__)


class Row:
    """The choices of a preset: its own, and for the rest those of one that it is like.

    What depends on the task that it is for is a function of that task.
    """

    def __init__(self, like: "str | None" = None, **choices: Any) -> None:
        self.like, self.choices, self.name = like, choices, ""

    def __call__(self, task: Task) -> Method:
        """Return the method for a task."""
        choices = self.choices if self.like is None else METHODS[self.like].choices | self.choices
        return Method(name=self.name, **{k: v(task) if callable(v) else v for k, v in choices.items()})


def _as_in_paper(task: Task, period: int) -> LinUCB:
    uniform = task.dataset.startswith("fashion-mnist")
    return LinUCB(period=period, start_labels="uniform" if uniform else "round_robin")


EVERY_ROUND = LowestLoss(period=1, threshold=1.0, start_labels="lowest_loss")
TESTED = Thompson(reward_split="test", skip_after_move=False)
METHODS = {
    "fed-bac": Row(clustering=LinUCB(), selection=Thompson(), personalization=Additive()),
    "fedavg": Row(topology=Flat()),
    "fedprox": Row(topology=Flat(), personalization=Shared(proximal=0.01)),
    "scaffold": Row(topology=Flat(), personalization=ControlVariates()),
    "feddyn": Row(topology=Flat(), personalization=DynamicPull(alpha=0.01), step=Dynamic(alpha=0.01)),
    "fedavgm": Row(topology=Flat(), step=Momentum()),
    "fedadam": Row(topology=Flat(), step=Adam()),
    "fedyogi": Row(topology=Flat(), step=Yogi()),
    "hierfavg": Row(clustering=Fixed(num_clusters=1), selection=Random(), personalization=Shared()),
    "hierfavg-wide": Row(like="hierfavg", network=LeNet5(width=1.41)),
    "hierfavg-periods": Row(like="hierfavg", topology=Hierarchical(edge_rounds=2)),
    "mtgc": Row(topology=Hierarchical(edge_rounds=2), personalization=GroupCorrections()),
    "abad": Row(
        topology=Hierarchical(edge_rounds=2),
        links=Links(
            client_up=TopK(keep=0.01), client_down=TopK(keep=0.1), cloud_up=TopK(keep=0.1), cloud_down=TopK(keep=0.1)
        ),
    ),
    "trindade": Row(selection=ResourceScore()),
    "chpfl": Row(clustering=KMeans(), sharing=Blend(), personalization=PerCluster()),
    "phe-fl": Row(clustering=Fixed(), sharing=LeaveOneOut(), personalization=PerCluster()),
    "phe-fl-kd": Row(
        clustering=Fixed(),
        sharing=DistillAdaptive(teacher="others", max_share=1.0, steepness=0.0),
        personalization=PerCluster(taught=True),
    ),
    "ifca": Row(
        cloud_weight="uniform",
        clustering=EVERY_ROUND,
        selection=Random(),
        personalization=PerCluster(cluster_init="distinct"),
    ),
    "ifca-clients": Row(like="ifca", cloud_weight="total", topology=Flat(), unit="client"),
    "ifca-paper": Row(clustering=LowestLoss(), selection=Random(), personalization=PerCluster()),
    "cfl": Row(clustering=CosineSplits(), personalization=PerCluster()),
    "cfl-clients": Row(like="cfl", topology=Flat(), unit="client"),
    "fl-hc": Row(clustering=Agglomerative(), personalization=PerCluster()),
    "fed-cam": Row(
        clustering=EVERY_ROUND,
        selection=Random(fraction=0.8),
        personalization=Additive(cluster_init="distinct"),
    ),
    "fed-cam-alternate": Row(like="fed-cam", personalization=Additive(cluster_init="distinct", order="alternate")),
    "fedgwc": Row(
        topology=Flat(),
        unit="client",
        clustering=GaussianRewards(discount=None, patience=None, gamma=0.1, epsilon=1e-5),
        selection=Random(fraction=0.5),
        personalization=PerCluster(),
    ),
    "fedgwc-edges": Row(clustering=GaussianRewards(), personalization=PerCluster()),
    "cflhkd": Row(
        clustering=Agglomerative(metric="cosine", threshold=0.5, period=20),
        sharing=Distill(),
        personalization=PerCluster(taught=True),
    ),
    "power-of-choice": Row(selection=PowerOfChoice()),
    "oort": Row(selection=Oort()),
    "cs-ucb": Row(selection=LatencyUCB()),
    "ucb-cs": Row(selection=LossUCB()),
    "cocs": Row(selection=COCS()),
    "fed-csad": Row(
        clustering=Fixed(), selection=Contextual(), sharing=DistillAdaptive(), personalization=PerCluster(taught=True)
    ),
    "ditto": Row(personalization=Personal(momentum=0.0)),
    "ditto-edges": Row(personalization=Personal(owner="edge", momentum=0.0)),
    "apfl": Row(personalization=Interpolated()),
    "apfl-edges": Row(personalization=Interpolated(owner="edge")),
    "pfedme": Row(personalization=MoreauEnvelope()),
    "fedrep": Row(personalization=PersonalHead(order="head_first", body_epochs=1)),
    "fedrep-clients": Row(personalization=PersonalHead(owner="client", order="head_first", body_epochs=1)),
    "fedper": Row(personalization=PersonalHead()),
    "fedbabu": Row(clustering=Fixed(), sharing=MeanThenApart(), personalization=LateHead()),
    "fedrod": Row(personalization=TwoHeads()),
    "fedala": Row(personalization=AdaptiveStart()),
    "pfedgraph": Row(
        clustering=Fixed(), sharing=Similar(since="start"), personalization=Directed(), judged="after_training"
    ),
    "fedavg-ft": Row(clustering=Fixed(), sharing=MeanThenApart(), personalization=PerCluster()),
    "local": Row(clustering=Fixed(), personalization=PerCluster()),
    "paper-text": Row(clustering=lambda task: _as_in_paper(task, 20), selection=TESTED, personalization=Additive()),
    "paper-figures": Row(clustering=lambda task: _as_in_paper(task, 1), selection=TESTED, personalization=Additive()),
    "fed-bac-random": Row(like="fed-bac", selection=Random(fraction=0.8)),
    "fed-bac-full": Row(like="fed-bac", selection=Random()),
    "singletons": Row(like="fed-bac", clustering=Fixed()),
    "linucb-isolated": Row(like="fed-bac", personalization=PerCluster()),
    "fedbac-plus": Row(
        clustering=Merging(), selection=CreditThompson(), sharing=OnceOverfitted(share=0.1), personalization=Additive()
    ),
    "fedbac-plus-2": Row(
        clustering=Merging(alone_steps=1000),
        selection=Sound(),
        sharing=PredictTowardsMean(),
        personalization=PerCluster(networks=2),
    ),
}
RENAMED = {"ifca-original": "ifca"}
"""Names that presets had before."""
for _name, _row in METHODS.items():
    _row.name, _row.__doc__ = _name, NOTES[_name].summary


def known() -> dict[str, Callable[[Task], Method]]:
    """Return all presets: ours, and those of other packages that have names of their own."""
    say_hidden(frozenset(plugins().keys() & METHODS.keys()))
    return {**plugins(), **METHODS}


def method(name: str, task: Task) -> Method:
    """Return a preset by name; a former name of one still serves, with a warning."""
    if name in RENAMED:
        log.warning("method %r is now called %r", name, RENAMED[name])
        name = RENAMED[name]
    presets = METHODS if name in METHODS else known()
    if name not in presets:
        raise ConfigError(unknown("method", name, presets, "fedbac methods"))
    try:
        found = presets[name](task)
    except ConfigError:
        raise
    except Exception as error:  # whatever another package's function does
        why = " ".join(str(error).split())
        raise ConfigError(f"method {name!r}: its preset failed with {type(error).__name__}: {why}") from error
    if not isinstance(found, Method):
        raise ConfigError(f"method {name!r}: its preset must return a Method, not a {type(found).__name__}")
    return found
