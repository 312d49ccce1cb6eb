"""Methods as rows of choices; ``notes`` says what each is about."""

import logging
from collections.abc import Callable
from typing import Any

from fedbac.config.choices import plugins, say_hidden
from fedbac.config.experiment import Method, Task
from fedbac.errors import ConfigError, unknown
from fedbac.networks import LSTM
from fedbac.presets.notes import NOTES

log = logging.getLogger(__name__)


class Row:
    """The choices of a preset, as configurations name them: its own, and for the rest those of one that it is like.

    What depends on the task that it is for is a function of that task.
    """

    def __init__(self, like: "str | None" = None, **choices: Any) -> None:
        self.like, self.choices, self.name = like, choices, ""

    def __call__(self, task: Task) -> Method:
        """Return the method for a task."""
        choices = self.choices if self.like is None else METHODS[self.like].choices | self.choices
        return Method(name=self.name, **{k: v(task) if callable(v) else v for k, v in choices.items()})


def _often(task: Task, period: int = 20) -> int:
    """Return a period, by default the paper's, where a run is long enough for five of it, else a fifth of the run."""
    return max(1, min(period, task.rounds // 5))


def _as_in_paper(task: Task, period: int) -> dict[str, Any]:
    uniform = task.dataset.startswith("fashion-mnist")
    return {"kind": "linucb", "period": period, "start_labels": "uniform" if uniform else "round_robin"}


def _summed(task: Task) -> dict[str, Any]:
    """Two networks, but one LSTM: a sum of two learns more slowly, which does not show early enough to measure it."""
    return {"kind": "per_cluster", "networks": 1 if isinstance(task.network, LSTM) else 2}


EVERY_ROUND = {"kind": "lowest_loss", "period": 1, "threshold": 1.0, "start_labels": "lowest_loss"}
OF_CLIENTS = {"topology": "flat", "unit": "client"}
ALIKE = {"client_weight": "uniform", "cloud_weight": "total"}
TAUGHT = {"kind": "per_cluster", "taught": True}
TENTH, TWICE = {"kind": "top_k", "keep": 0.1}, {"kind": "hierarchical", "edge_rounds": 2}
TESTED = {"kind": "thompson", "reward_split": "test", "skip_after_move": False}
METHODS = {
    "fedfork": Row(
        clustering=lambda task: {"kind": "merging", "alone_steps": 1000, "period": _often(task, 5)},
        selection="sound",
        sharing="predict_towards_mean",
        personalization=_summed,
    ),
    "fed-bac": Row(
        clustering=lambda task: {"kind": "linucb", "period": _often(task)},
        selection="thompson",
        personalization="additive",
    ),
    "fedavg": Row(topology="flat"),
    "fedprox": Row(topology="flat", personalization={"kind": "shared", "proximal": 0.01}),
    "scaffold": Row(topology="flat", client_weight="uniform", personalization="control_variates"),
    "feddyn": Row(
        topology="flat",
        client_weight="uniform",
        personalization={"kind": "dynamic_pull", "alpha": 0.01},
        step={"kind": "dynamic", "alpha": 0.01},
    ),
    "fedavgm": Row(topology="flat", step="momentum"),
    "fedadam": Row(topology="flat", step="adam"),
    "fedyogi": Row(topology="flat", step="yogi"),
    "hierfavg": Row(clustering={"kind": "fixed", "num_clusters": 1}, selection="random", personalization="shared"),
    "hierfavg-wide": Row(like="hierfavg", network={"kind": "lenet5", "width": 1.41}),
    "hierfavg-periods": Row(like="hierfavg", topology=TWICE),
    "mtgc": Row(topology=TWICE, client_weight="uniform", personalization="group_corrections"),
    "abad": Row(
        topology=TWICE,
        links={"client_up": TENTH | {"keep": 0.01}, "client_down": TENTH, "cloud_up": TENTH, "cloud_down": TENTH},
    ),
    "trindade": Row(selection="resource_score"),
    "chpfl": Row(unit="client", clustering="kmeans", sharing="blend", personalization="per_cluster"),
    "chpfl-edges": Row(clustering="kmeans", sharing="blend", personalization="per_cluster"),
    "phe-fl": Row(clustering="fixed", sharing="leave_one_out", personalization="per_cluster"),
    "phe-fl-kd": Row(
        clustering="fixed",
        sharing={"kind": "distill_adaptive", "teacher": "others", "max_share": 1.0, "steepness": 0.0},
        personalization=TAUGHT,
    ),
    "ifca-edges": Row(
        cloud_weight="uniform",
        clustering=EVERY_ROUND,
        selection="random",
        personalization={"kind": "per_cluster", "cluster_init": "distinct"},
    ),
    "ifca": Row(like="ifca-edges", **OF_CLIENTS, **ALIKE),
    "ifca-paper": Row(
        clustering=lambda task: {"kind": "lowest_loss", "period": _often(task)},
        selection="random",
        personalization="per_cluster",
    ),
    "cfl-edges": Row(cloud_weight="uniform", clustering="cosine_splits", personalization="per_cluster"),
    "cfl": Row(like="cfl-edges", **OF_CLIENTS, **ALIKE),
    "fl-hc-edges": Row(clustering="agglomerative", personalization="per_cluster"),
    "fl-hc": Row(like="fl-hc-edges", **OF_CLIENTS),
    "feddrift-edges": Row(
        clustering=lambda task: {"kind": "drifting", "period": _often(task, 5)}, personalization="per_cluster"
    ),
    "feddrift": Row(like="feddrift-edges", **OF_CLIENTS),
    "fed-cam-edges": Row(
        clustering=EVERY_ROUND,
        selection={"kind": "random", "fraction": 0.8},
        personalization={"kind": "additive", "cluster_init": "distinct"},
    ),
    "fed-cam": Row(like="fed-cam-edges", **OF_CLIENTS),
    "fed-cam-alternate": Row(
        like="fed-cam-edges",
        personalization={"kind": "additive", "cluster_init": "distinct", "order": "alternate"},
        **OF_CLIENTS,
    ),
    "fedgwc": Row(
        **OF_CLIENTS,
        clustering={"kind": "gaussian_rewards", "discount": None, "patience": None, "gamma": 0.1, "epsilon": 1e-5},
        selection={"kind": "random", "fraction": 0.5},
        personalization="per_cluster",
    ),
    "fedgwc-edges": Row(clustering="gaussian_rewards", personalization="per_cluster"),
    "cflhkd-edges": Row(
        clustering=lambda task: {"kind": "agglomerative", "metric": "cosine", "threshold": 0.5, "period": _often(task)},
        sharing=lambda task: {"kind": "distill", "mean_period": _often(task, 5)},
        personalization=TAUGHT,
    ),
    "cflhkd": Row(like="cflhkd-edges", unit="client"),
    "power-of-choice": Row(client_weight="uniform", selection="power_of_choice"),
    "oort": Row(selection="oort"),
    "cs-ucb": Row(selection="cs_ucb"),
    "ucb-cs": Row(selection="ucb_cs"),
    "cocs": Row(client_weight="uniform", selection="cocs"),
    "fed-csad": Row(clustering="fixed", selection="contextual", sharing="distill_adaptive", personalization=TAUGHT),
    "ditto": Row(personalization={"kind": "personal", "momentum": 0.0}),
    "ditto-edges": Row(personalization={"kind": "personal", "owner": "edge", "momentum": 0.0}),
    "apfl": Row(personalization="interpolated"),
    "apfl-edges": Row(personalization={"kind": "interpolated", "owner": "edge"}),
    "pfedme": Row(personalization="moreau_envelope"),
    "fedrep": Row(
        personalization={"kind": "personal_head", "owner": "client", "order": "head_first", "body_epochs": 1}
    ),
    "fedrep-edges": Row(personalization={"kind": "personal_head", "order": "head_first", "body_epochs": 1}),
    "fedper": Row(personalization={"kind": "personal_head", "owner": "client"}),
    "fedper-edges": Row(personalization="personal_head"),
    "fedbabu": Row(like="fedbabu-edges", **OF_CLIENTS),
    "fedbabu-edges": Row(clustering="fixed", sharing="mean_then_apart", personalization="late_head"),
    "fedrod": Row(personalization={"kind": "two_heads", "owner": "client"}),
    "fedrod-edges": Row(personalization="two_heads"),
    "fedala": Row(personalization={"kind": "adaptive_start", "owner": "client"}),
    "fedala-edges": Row(personalization="adaptive_start"),
    "pfedgraph": Row(like="pfedgraph-edges", **OF_CLIENTS),
    "pfedgraph-edges": Row(
        clustering="fixed",
        sharing={"kind": "similar", "since": "start"},
        personalization="directed",
        judged="after_training",
    ),
    "fedavg-ft": Row(clustering="fixed", sharing="mean_then_apart", personalization="per_cluster"),
    "local": Row(clustering="fixed", personalization="per_cluster"),
    "paper-text": Row(clustering=lambda task: _as_in_paper(task, 20), selection=TESTED, personalization="additive"),
    "paper-figures": Row(clustering=lambda task: _as_in_paper(task, 1), selection=TESTED, personalization="additive"),
    "fed-bac-random": Row(like="fed-bac", selection={"kind": "random", "fraction": 0.8}),
    "fed-bac-full": Row(like="fed-bac", selection="random"),
    "singletons": Row(like="fed-bac", clustering="fixed"),
    "linucb-isolated": Row(like="fed-bac", personalization="per_cluster"),
    "fedbac-plus": Row(
        clustering=lambda task: {"kind": "merging", "period": _often(task, 5)},
        selection="credit_thompson",
        sharing={"kind": "once_overfitted", "share": 0.1},
        personalization="additive",
    ),
}
RENAMED = {
    "ifca-original": "ifca-edges",
    "ifca-clients": "ifca",
    "cfl-clients": "cfl",
    "fedrep-clients": "fedrep",
    "fedbac-plus-2": "fedfork",
}
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
