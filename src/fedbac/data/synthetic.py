"""Small made-up data with a known structure, for tests that take seconds."""

import numpy as np

from fedbac.core.rng import Rng, stream
from fedbac.core.settings import IntArray
from fedbac.data.datasets import Array, Dataset, Floats
from fedbac.data.shards import Shards
from fedbac.errors import ConfigError

SEPARATION = 4.0
"""Length of every class's mean in units of the noise: about one example in a hundred lies nearer to a wrong mean."""


def planted_groups(
    num_edges: int = 9,
    clients_per_edge: int = 4,
    num_groups: int = 3,
    *,
    num_classes: int = 4,
    num_features: int = 8,
    train: int = 40,
    validation: int = 10,
    test: int = 100,
    seed: int = 0,
) -> tuple[Dataset, Shards, IntArray]:
    """Make a Gaussian mixture in which groups of edges name the same classes differently.

    Edge m is in group g = m mod G and calls component c of the mixture (c + g) mod C, so that no two groups agree on
    any class. Each client holds ``train`` and ``validation`` examples and each edge ``test``, all independent draws.
    Returns the data, who holds what, and the group of each edge.
    """
    if num_groups > num_classes or num_classes > num_features:
        raise ConfigError(
            f"{num_groups=}, {num_classes=}, {num_features=}: there must be at least as many classes as groups "
            "and as many features as classes"
        )
    rng = stream(seed, "planted")
    group_M = np.arange(num_edges) % num_groups
    mean_CF = SEPARATION * np.linalg.qr(rng.standard_normal((num_features, num_classes)))[0].T
    held = train + validation
    num_clients = num_edges * clients_per_edge
    x_train, y_train = _mixture(rng, mean_CF, np.repeat(group_M, clients_per_edge * held))
    x_test, y_test = _mixture(rng, mean_CF, np.repeat(group_M, test))
    starts = range(0, num_clients * held, held)
    shards = Shards(
        train=tuple(np.arange(start, start + train) for start in starts),
        validation=tuple(np.arange(start + train, start + held) for start in starts),
        test=tuple(np.arange(edge * test, (edge + 1) * test) for edge in range(num_edges)),
        clients=tuple(range(edge * clients_per_edge, (edge + 1) * clients_per_edge) for edge in range(num_edges)),
    )
    return Dataset("planted-groups", x_train, y_train, x_test, y_test, num_classes), shards, group_M


def toy(seed: int = 0, *, num_classes: int = 10, size: int = 8, train: int = 600, test: int = 200) -> Dataset:
    """Make grey uint8 images ``[N, 1, size, size]``, each a random pattern of its class plus noise."""
    rng = stream(seed, "toy")
    pattern_CHW = rng.uniform(40, 215, (num_classes, 1, size, size))
    x_train, y_train = _noisy(rng, pattern_CHW, train)
    x_test, y_test = _noisy(rng, pattern_CHW, test)
    return Dataset("toy", x_train, y_train, x_test, y_test, num_classes)


def _mixture(rng: Rng, mean_CF: Array, group_N: IntArray) -> tuple[Floats, IntArray]:
    num_classes, num_features = mean_CF.shape
    component_N = rng.integers(num_classes, size=len(group_N))
    x = mean_CF[component_N] + rng.standard_normal((len(group_N), num_features))
    return x.astype(np.float32), (component_N + group_N) % num_classes


def _noisy(rng: Rng, pattern_CHW: Array, num: int) -> tuple[Array, IntArray]:
    y = np.arange(num) % len(pattern_CHW)
    x = pattern_CHW[y] + rng.normal(0, 40, (num, *pattern_CHW.shape[1:]))
    return x.clip(0, 255).astype(np.uint8), y
