"""Noisy labels: some clients of every edge hold wrong labels, so that a selection policy has something to find."""

from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field

from fedbac.core.rng import stream
from fedbac.core.settings import Settings
from fedbac.data.datasets import Dataset
from fedbac.data.shards import Shards
from fedbac.errors import ConfigError

Share = Annotated[float, Field(gt=0, le=1)]


class Noise(Settings):
    """Labels replaced by ones drawn uniformly from all classes, at a share of the clients of every edge.

    All labels a noisy client holds are hit, those it validates on too: it would not know which of them to trust. Test
    data stay clean.
    """

    clients: Share = 0.4
    """Share of the clients of every edge that are noisy, rounded."""
    labels: Share = 1.0
    """Probability that a label of a noisy client is drawn again; the draw may hit the true class."""


def add_noise(dataset: Dataset, shards: Shards, noise: Noise, seed: int) -> tuple[Dataset, Shards]:
    """Return the data with noisy labels, and the shards with a note of whose they are."""
    if dataset.labels != "classes":
        raise ConfigError(f"task.noise: it draws classes anew, and the labels of {dataset.name!r} are none; set null")
    held = np.concatenate([*shards.train, *shards.validation])
    if np.unique(held).size < held.size:
        raise ConfigError(
            "task.noise: clients share examples, so a noisy label of one would be another's too; set null"
        )
    noisy: list[int] = []
    for edge, clients in enumerate(shards.clients):
        count = round(noise.clients * len(clients))
        noisy += np.sort(stream(seed, "noisy-clients", edge).permutation(clients)[:count]).tolist()
    y_train = dataset.y_train.copy()
    for client in noisy:
        mine = np.concatenate([shards.train[client], shards.validation[client]])
        rng = stream(seed, "noisy-labels", client)
        hit = mine[rng.random(mine.size) < noise.labels]
        y_train[hit] = rng.integers(dataset.num_classes, size=hit.size)
    return replace(dataset, y_train=y_train), replace(shards, noisy=tuple(noisy))
