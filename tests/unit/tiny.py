"""A federation small enough to train in a blink, for tests that look at whole rounds."""

from typing import Any

import numpy as np

from fedbac import Method, Partition, Perceptron, Run, Task, Training, run
from fedbac.data import Dataset, toy
from fedbac.types import BoolArray, Evidence, FloatArray, IntArray


def tiny_task(**changes: Any) -> Task:
    """Two edges of five clients, a few examples each, a network of a few hundred weights."""
    settings: dict[str, Any] = {
        "num_edges": 2,
        "clients_per_edge": 5,
        "rounds": 2,
        "network": Perceptron(hidden=(4,)),
        "partition": Partition(dirichlet_server=5, dirichlet_client=5, min_client_samples=10, min_edge_test=5),
        "training": Training(epochs=1, batch_size=32, learning_rate=0.05),
        "targets": (0.5,),
    }
    return Task(**(settings | changes))


def tiny_data() -> Dataset:
    return toy(train=300, test=60)


def tiny_run(method: str | Method, *settings: str, task: Task | None = None, **inputs: Any) -> Run:
    """Play a method on the tiny task, in this process."""
    return run(
        method,
        task or tiny_task(),
        settings=settings,
        device="cpu",
        workers=1,
        **({"dataset": tiny_data()} | inputs),
    )


def clustering_evidence(
    label_N: IntArray | list[int],
    loss_NK: FloatArray | list[list[float]],
    *,
    round_: int = 20,
    num_rounds: int = 100,
    turn_N: BoolArray | None = None,
    trained_K: BoolArray | None = None,
) -> Evidence:
    """Return what the cloud shows a clustering policy; by default it is everybody's turn and all clusters trained."""
    label, loss = np.asarray(label_N, np.int64), np.asarray(loss_NK, np.float64)
    return Evidence(
        round=round_,
        num_rounds=num_rounds,
        size_N=np.full(label.size, 100),
        label_N=label,
        turn_N=np.ones(label.size, bool) if turn_N is None else turn_N,
        trained_K=np.ones(loss.shape[1], bool) if trained_K is None else trained_K,
        loss_NK=loss,
    )


def selection_evidence(size_N: IntArray | list[int], round_: int = 1, **seen: Any) -> Evidence:
    """Return what an edge shows a selection policy."""
    return Evidence(round=round_, num_rounds=100, size_N=np.asarray(size_N, np.int64), **seen)
