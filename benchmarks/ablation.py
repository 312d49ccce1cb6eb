"""Each rule of fedfork switched off, its blend given to rivals, and its sum of two networks beside one.

    python benchmarks/ablation.py [--parts rules blends sums] [--tasks NAME ...] [--seeds 0 1 2]

A run is a line of results/fedfork/ablation.jsonl, and one that is there is not played again.
``python -m fedbac_paper.ablation`` then draws the figure.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Literal

import torch
from torch import nn

import fedbac
from fedbac import local
from fedbac.clustering import Merging
from fedbac.clustering.merging import AVERAGED, TRAINED, MergingState
from fedbac.core.parts import Personalization
from fedbac.core.policies import Assignment, Exchange
from fedbac.core.queries import Evidence
from fedbac.core.rng import Rng
from fedbac.local.examples import Examples
from fedbac.local.vmapped import VmapTrainer
from fedbac.personalization import Personal
from fedbac.sharing import PredictTowardsMean
from fedbac.sharing.mean import LeaningState, also_judged, towards_mean
from fedbac_paper.ablation import KEPT

ALONE = 10
"""The last rounds of fine-tuning, as of ``fedavg-ft``."""


class AlwaysForks(Merging):
    """Edges fork when it is time, however good the shared model is."""

    kind: Literal["always_forks"] = "always_forks"  # type: ignore[assignment]

    def act(self, state: MergingState, evidence: Evidence, rng: Rng) -> tuple[MergingState, Assignment]:
        """Take no notice of what the average is better for."""
        if TRAINED in evidence.readings:
            evidence = replace(evidence, readings={**evidence.readings, TRAINED: evidence[AVERAGED]})
        return super().act(state, evidence, rng)


class TunedBlend(PredictTowardsMean):
    """Fine-tuning, whose edges predict with a blend."""

    kind: Literal["tuned_blend"] = "tuned_blend"  # type: ignore[assignment]

    def act(self, state: LeaningState, evidence: Evidence) -> Exchange:
        """Share the mean of all until the last rounds."""
        if evidence.round > evidence.num_rounds - ALONE + 1:
            return super().act(state, evidence)
        return also_judged(towards_mean(1.0, evidence))


class DittoOfClusters(Personal):
    """Ditto whose personal networks are of clusters, since only those are blended."""

    kind: Literal["ditto_of_clusters"] = "ditto_of_clusters"  # type: ignore[assignment]
    owner: Literal["cluster"] = "cluster"  # type: ignore[assignment]


class SideBySide(VmapTrainer):
    """An LSTM trains twice as fast on a CPU, too, with the clients of an edge side by side."""

    def __init__(self, network: nn.Module, scheme: Personalization, examples: Examples) -> None:
        super().__init__(network, scheme, examples, torch.device("cpu"), "float32")


TASKS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "glyphs": ("glyphs", ()),
    "shakespeare": ("shakespeare", ()),
    "udhr-varieties": ("udhr-varieties", ()),
    "planted": ("demo", ()),
    "planted, noisy": ("demo", ("task.noise={}",)),
}
"""By name, a task of the package with settings."""
OFF = {
    "fedfork": (),
    "one network": ("method.personalization.networks=1",),
    "never together": ("method.clustering.alone_steps=null",),
    "always together": ("method.clustering={kind: fixed, num_clusters: 1}",),
    "forks at any price": ("method.clustering={kind: always_forks, alone_steps: 1000}",),
    "no mergers": ("method.clustering.tolerance=0",),
    "no blend": ("method.sharing=apart",),
    "all clients": ("method.selection=random",),
}
BLEND = "method.sharing={kind: predict_towards_mean, period: 2}"
RIVALS = {
    "fedavg-ft": ("method.sharing={kind: tuned_blend, period: 2}",),
    "fedper-edges": ("method.clustering.num_clusters=null", "method.personalization.owner=cluster", BLEND),
    "ditto-edges": (
        "method.clustering.num_clusters=null",
        "method.personalization={kind: ditto_of_clusters, momentum: 0.0}",
        BLEND,
    ),
    "ifca-edges": (BLEND,),
    "local": (BLEND,),
}
"""By rival, how it blends."""
SUM = "method.personalization={kind: per_cluster, networks: 2}"
LSTM = ("task.network={kind: lstm, layers: 1}", "task.data_fraction=0.25", "task.rounds=20")
SLOW = "method.clustering.period=5"
"""What presets had in runs of 20 rounds when these were played."""
SUMS = {
    "perceptron": ((0.05, 0.1, 0.2, 0.4), (), ("task.network={kind: mlp, hidden: [128]}",)),
    "LSTM": ((0.25, 0.5, 1.0), LSTM, None),
}
"""By network: learning rates, settings, and those of one network of twice the weights."""
ELSEWHERE = {
    "LSTM, udhr-varieties": ("udhr-varieties", (*LSTM, SLOW, "task.training.learning_rate=1.0")),
    "LSTM, demo": ("demo", (LSTM[0], "task.data_fraction=0.5", LSTM[2], SLOW, "task.training.learning_rate=0.5")),
}
"""Other tasks, where fedfork forks, on which it trains one LSTM or two."""
Row = tuple[str, str, str, str, tuple[str, ...]]
"""Part, task, name, method, settings."""


def rows() -> list[Row]:
    """Return what is played, on each seed."""
    found: list[Row] = []
    for task, name in product(TASKS, OFF):
        found.append(("rules", task, name, "fedfork", OFF[name]))
    for task, (name, blend) in product(TASKS, RIVALS.items()):
        found += [("blends", task, name, name, ()), ("blends", task, f"{name}, blend", name, blend)]
    for network, (rates, common, wide) in SUMS.items():
        forms = {"one network": (), "two networks": (SUM,)} | ({} if wide is None else {"twice the weights": wide})
        for rate, (name, settings) in product(rates, forms.items()):
            rated = (*common, *settings, f"task.training.learning_rate={rate}")
            found.append(("sums", network, f"{name}, {rate}", "hierfavg", rated))
    for network, (_, settings) in ELSEWHERE.items():
        tried = settings[-1].rpartition("=")[2]
        for number, name in enumerate(("one network", "two networks"), start=1):
            form = f"method.personalization.networks={number}"
            found.append(("sums", network, f"{name}, {tried}", "fedfork", (*settings, form)))
    return found


def main() -> None:
    """Play what is not in the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=["rules", "blends", "sums"])
    parser.add_argument("--tasks", nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--names", nargs="+", help="beginnings of the names of rows; default: all")
    parser.add_argument("--file", type=Path, default=KEPT)
    options = parser.parse_args()
    fedbac.CLUSTERING.register(AlwaysForks)
    fedbac.SHARING.register(TunedBlend)
    fedbac.PERSONALIZATION.register(DittoOfClusters)
    local.LoopTrainer = SideBySide  # type: ignore[assignment,misc]
    torch.set_num_threads(1)
    lines = options.file.read_text(encoding="utf-8").splitlines() if options.file.exists() else []
    done = {(row["part"], row["task"], row["name"], row["seed"]) for row in map(json.loads, lines)}
    for seed, (part, task, name, method, settings) in product(options.seeds, rows()):
        asked = options.tasks or [task]
        wanted = part in options.parts and task in asked and name.startswith(tuple(options.names or [""]))
        if not wanted or (part, task, name, seed) in done:
            continue
        preset, common = TASKS.get(task) or (ELSEWHERE.get(task, ("shakespeare", ()))[0], ())
        began = time.process_time()
        run = fedbac.run(
            method, preset, seed=seed, settings=[*common, "evaluation.global_every=1000", *settings], workers=1,
            progress=False,
        )  # fmt: skip
        found = {key: run.summary[key] for key in ("accuracy", "edge_min", "active_clusters")}
        row = {"part": part, "task": task, "name": name, "seed": seed, **found, "loss": run.records[-1]["loss"]}
        with options.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        seconds = time.process_time() - began
        sys.stdout.write(f"{100 * row['accuracy']:6.2f} {seconds:5.0f} s  {task}, {name}, seed {seed}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
