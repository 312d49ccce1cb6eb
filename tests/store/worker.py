"""Runs in a process of their own, for tests that kill it: ``python -m tests.store.worker FOLDER [resume | rows]``."""

import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import fedbac
from fedbac.config.experiment import Task, Training
from fedbac.data import toy
from fedbac.runs import play as playing
from fedbac.runs.configure import Inputs, configure
from fedbac.runs.store import RunFolder, StoredRun

ROUNDS = 14
TASK = Task(
    dataset="toy",
    num_edges=4,
    clients_per_edge=3,
    rounds=ROUNDS,
    partition=fedbac.Partition(min_edge_test=5),
    network=fedbac.Perceptron(hidden=(16,)),
    # It soon overfits, so that clusters share.
    training=Training(epochs=3, batch_size=16, learning_rate=0.2, momentum_state="persist"),
)
SETTINGS = (
    "method.clustering.period=2",
    "method.selection.warmup=2",
    "method.selection.fraction=0.67",
    "method.sharing={kind: once_overfitted, share: 0.3}",
)


ROWS: dict[str, tuple[str, ...]] = {
    "fedavg": ("method.selection.fraction=0.5",),
    "fedprox": ("method.personalization.proximal=0.5",),
    "ditto": ("method.selection.fraction=0.5",),
    "fedper-edges": (),
    "fedadam": ("method.selection.fraction=0.5", "method.aggregation=trimmed_mean"),
    "ifca-edges": (
        "method.clustering={kind: lowest_loss, num_clusters: 3, period: 2}",
        "method.step=momentum",
        "method.aggregation=krum",
    ),
    "cfl-edges": ("method.clustering={kind: cosine_splits, epsilon_1: 4, first_split: 5}",),
    "apfl": ("method.selection.fraction=0.5",),
    "pfedme": ("method.selection.fraction=0.5",),
    "fedala-edges": (),
    "fedrod-edges": (),
    "scaffold": ("method.selection.fraction=0.5", "task.training.schedule=cosine", "task.training.warmup_rounds=2"),
    "mtgc": ("method.selection.fraction=0.7",),
    "local": ("task.training.optimizer=adamw", "task.training.momentum_state=reset"),
    "singletons": ("method.personalization={kind: late_head, last: 4}",),
}
"""Methods whose state is of another make: one site, parts of edges and of clients, clusters that split, numbers of no
network, phases that rest, and owners that remember for their steps."""
SHORT = TASK.model_copy(update={"rounds": 12, "training": TASK.training.model_copy(update={"epochs": 1})})


def row(name: str, folder: Path) -> Generator[dict[str, Any], None, StoredRun]:
    """Play a row of Table I in a folder of its own, round by round."""
    inputs = Inputs(dataset=toy(size=8))
    experiment = configure(name, SHORT, settings=ROWS[name], inputs=inputs)
    return playing.play(
        experiment, folder=RunFolder(folder / name), inputs=inputs, runtime=fedbac.Runtime(workers=1, device="cpu")
    )


def play(folder: Path, resume: bool) -> fedbac.Run:
    """Run, or go on, in this process."""
    data = toy(size=8)
    if resume:
        return fedbac.resume(folder, dataset=data)
    return fedbac.run("fed-bac", TASK, settings=SETTINGS, out=folder, dataset=data, workers=1, device="cpu")


if __name__ == "__main__":
    if "rows" in sys.argv[2:]:  # in turn, so that one kill finds all of them in the middle
        for _ in zip(*(row(name, Path(sys.argv[1])) for name in ROWS), strict=True):
            pass
    else:
        play(Path(sys.argv[1]), "resume" in sys.argv[2:])
