"""Tasks by name: the paper's settings, and smaller ones on the embedded data."""

from fedbac.config.experiment import Task, Training
from fedbac.config.training import AdamW
from fedbac.core.world import World
from fedbac.data import Noise, Partition
from fedbac.errors import ConfigError, unknown
from fedbac.language import SmolLM2
from fedbac.losses import NextToken
from fedbac.networks import Perceptron

SEVERE = Partition(dirichlet_server=0.1)
"""The paper's "α = 0.1": only the server level changes, clients stay at 0.5 (C.44)."""
PLANTED = Partition(edge_distributions=4, validation_fraction=0.5)
"""Edges share four class mixes and have little to train on: half of what they hold is kept apart."""
AIRPORTS = (
    16, 3, 4, 2, 16, 6, 1, 15, 2, 5, 4, 1, 6, 4, 1, 3, 5, 2, 1, 2, 7, 3, 3, 2, 6, 6, 4, 2, 1, 1, 1, 2, 12, 5, 3, 3, 6,
    2, 1, 4, 2, 5, 24, 1, 5, 2, 1, 3, 4, 1, 1,
)  # fmt: skip
"""Of every state in ``flights``, from Alaska to Wyoming."""
LECTURERS = (41, 65, 54, 90, 44, 50, 37, 43, 83, 44, 83, 38, 47, 53)
"""Of every department in ``insteval``."""
SCHOOLS = (
    15, 18, 11, 29, 15, 30, 10, 17, 24, 24, 16, 17, 34, 36, 26, 17, 17, 11, 23, 20, 12, 19, 30, 11, 16, 15, 6, 20, 13,
    12, 8, 8, 8, 9, 11, 7, 17, 8, 10, 20, 15, 15, 17, 22,
)  # fmt: skip
"""Of every authority in ``chem97``."""


def _natural(
    dataset: str,
    num_edges: int,
    clients: int | tuple[int, ...],
    targets: tuple[float, ...],
    hidden: int,
    batch_size: int,
    learning_rate: float,
    epochs: int = 1,
) -> Task:
    """Return a task whose data tell who holds what, with a small perceptron."""
    return Task(
        dataset=dataset,
        num_edges=num_edges,
        clients_per_edge=clients,
        rounds=30,
        partition=Partition(natural=True),
        network=Perceptron(hidden=(hidden,)),
        training=Training(epochs=epochs, batch_size=batch_size, learning_rate=learning_rate),
        targets=targets,
    )


def _characters(dataset: str, num_edges: int, clients: int) -> Task:
    """Return a task of text: the next character from a few before it."""
    return _natural(dataset, num_edges, clients, (0.35, 0.4, 0.45), hidden=64, batch_size=16, learning_rate=0.1)


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
    "udhr": _characters("udhr", 32, 4),
    "udhr-varieties": _characters("udhr-varieties", 24, 4),
    "udhr-smollm2": Task(
        dataset="udhr-smollm2",
        num_edges=32,
        clients_per_edge=4,
        rounds=20,
        partition=Partition(natural=True),
        network=SmolLM2(),
        loss=NextToken(),
        training=Training(
            epochs=1, batch_size=4, learning_rate=1e-3, schedule="constant", optimizer=AdamW(), weight_decay=0
        ),
        targets=(0.3, 0.35, 0.4),
    ),
    "shakespeare": _characters("shakespeare", 16, 8),
    "glyphs": Task(
        dataset="glyphs",
        num_edges=40,
        clients_per_edge=2,
        rounds=30,
        partition=Partition(natural=True),
        training=Training(epochs=3, batch_size=8, learning_rate=0.05),
        targets=(0.5, 0.6, 0.7),
    ),
    "flights": _natural("flights", 51, AIRPORTS, (0.54, 0.56, 0.58), hidden=32, batch_size=16, learning_rate=0.05),
    "insteval": _natural("insteval", 14, LECTURERS, (0.26, 0.28, 0.3), hidden=32, batch_size=16, learning_rate=0.02),
    "chem97": _natural("chem97", 44, SCHOOLS, (0.36, 0.38, 0.4), hidden=32, batch_size=8, learning_rate=0.05, epochs=2),
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
