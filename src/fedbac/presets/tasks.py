"""Tasks by name: the paper's settings, and smaller ones on the embedded data."""

from fedbac.config.experiment import Task, Training
from fedbac.core.world import World
from fedbac.data import Noise, Partition
from fedbac.errors import ConfigError, unknown

SEVERE = Partition(dirichlet_server=0.1)
"""The paper's "α = 0.1": only the server level changes, clients stay at 0.5 (C.44)."""
PLANTED = Partition(edge_distributions=4, validation_fraction=0.5)
"""Edges share four class mixes and have little to train on: half of what they hold is kept apart."""

TASKS: dict[str, Task] = {
    "demo": Task(
        num_edges=12,
        clients_per_edge=4,
        rounds=40,
        partition=Partition(dirichlet_server=0.3, edge_distributions=4, validation_fraction=0.5),
        training=Training(epochs=1, learning_rate=0.06),
        targets=(0.6, 0.7),
    ),
    "devices": Task(
        clients_per_edge=5,
        rounds=25,
        partition=Partition(dirichlet_server=0.3),
        training=Training(epochs=1, learning_rate=0.06),
        targets=(0.6, 0.7),
        world=World(),
    ),
    "fashion-mnist-mini": Task(rounds=50),
    "planted": Task(num_edges=20, clients_per_edge=5, rounds=40, partition=PLANTED, targets=(0.5, 0.6, 0.7)),
    "noisy": Task(rounds=40, noise=Noise(), targets=(0.5, 0.6, 0.7)),
    "fashion-mnist": Task(dataset="fashion-mnist", rounds=100, targets=(0.7, 0.75, 0.8, 0.85)),
    "fashion-mnist-severe": Task(dataset="fashion-mnist", rounds=100, partition=SEVERE, targets=(0.6, 0.7, 0.8, 0.9)),
    "cifar10": Task(dataset="cifar10", rounds=200, targets=(0.4, 0.5, 0.6, 0.7)),
    "cifar10-severe": Task(dataset="cifar10", rounds=200, partition=SEVERE, targets=(0.4, 0.5, 0.7, 0.8)),
    "cifar10-500": Task(dataset="cifar10", rounds=200, num_edges=20, clients_per_edge=25, targets=(0.3, 0.4, 0.5)),
    "svhn": Task(dataset="svhn", rounds=150, targets=(0.6, 0.7, 0.8, 0.85)),
    "svhn-severe": Task(dataset="svhn", rounds=150, partition=SEVERE, targets=(0.6, 0.7, 0.8, 0.9)),
}
"""The default is ``fashion-mnist-mini``. In ``demo`` 12 edges share 4 class mixes and in ``planted`` 20 do; in
``devices`` clients differ in speed and bandwidth; in ``noisy`` some clients hold wrong labels. All that are named after
another data set need that one in full."""


def task(name: str) -> Task:
    """Return a task by name."""
    if name not in TASKS:
        raise ConfigError(unknown("task", name, TASKS, "fedbac tasks"))
    return TASKS[name]
