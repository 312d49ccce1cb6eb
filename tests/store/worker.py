"""A run in a process of its own, for tests that kill it: ``python -m tests.store.worker FOLDER [resume]``."""

import sys
from pathlib import Path

import fedbac
from fedbac.config.experiment import Task, Training
from fedbac.data import toy

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
    "method.sharing=0.3",
    "method.sharing_by=overfitting",
)


def play(folder: Path, resume: bool) -> fedbac.Run:
    """Run, or go on, in this process."""
    data = toy(size=8)
    if resume:
        return fedbac.resume(folder, dataset=data)
    return fedbac.run("fed-bac", TASK, settings=SETTINGS, out=folder, dataset=data, workers=1, device="cpu")


if __name__ == "__main__":
    play(Path(sys.argv[1]), "resume" in sys.argv[2:])
