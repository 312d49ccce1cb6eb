"""The work that all contestants of ``round.py`` do: one FedAvg round of many clients with a small network.

Every client trains from the same start on its own images, with clipped momentum SGD, in an order that is fixed by the
client's number; so the average of the trained networks is the same number whoever computes it, up to rounding.
"""

from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
import torch
from networks import NETWORKS
from torch import Tensor, nn
from torch.nn import functional as F

from fedbac import Dataset, Shards, Training
from fedbac.core.parts import Params
from fedbac.local import Examples
from fedbac.models import Custom, builder

CPU = torch.device("cpu")
RATE, MOMENTUM, DECAY, CLIP = 0.01, 0.9, 5e-4, 1.0


@dataclass(frozen=True)
class Work:
    """How much there is to do, and where."""

    network: str = "lenet5"
    shape: str = "1x28x28"
    clients: int = 100
    images: int = 100
    batch: int = 32
    epochs: int = 5
    device: str = "auto"
    trainer: str = "auto"
    precision: str = "float32"

    @property
    def sample_steps(self) -> int:
        """One image once forward and backward through one network, so often."""
        return self.clients * self.images * self.epochs

    @property
    def image(self) -> tuple[int, int, int]:
        channels, height, width = (int(side) for side in self.shape.split("x"))
        return channels, height, width

    @cached_property
    def _sources(self) -> dict[torch.device, tuple[Tensor, ...]]:
        return {}

    @cached_property
    def examples(self) -> Examples:
        rng = np.random.default_rng(0)
        total = self.clients * self.images
        x = rng.integers(0, 256, (total, *self.image), dtype=np.uint8)
        data = Dataset("random", x, rng.integers(0, 10, total), x[:100], rng.integers(0, 10, 100), 10)
        mine = tuple(np.arange(c * self.images, (c + 1) * self.images) for c in range(self.clients))
        shards = Shards(mine, tuple(part[:0] for part in mine), (np.arange(100),), (range(self.clients),))
        training = Training(
            epochs=self.epochs,
            batch_size=self.batch,
            learning_rate=RATE,
            momentum=MOMENTUM,
            weight_decay=DECAY,
            clip_norm=CLIP,
        )
        return Examples(data, shards, training, None, 0, data.normalization())

    def start(self) -> nn.Module:
        """The network before the round: the same weights each time it is asked for."""
        make = NETWORKS[self.network]
        return builder(Custom(name=self.network), lambda: make(self.image, 10), self.image, 10, seed=0)(0)

    def epochs_of(self, client: int, device: torch.device = CPU) -> list[list[tuple[Tensor, Tensor]]]:
        """Return a client's batches, epoch by epoch, from images that are already on the device."""
        examples = self.examples
        pixels, labels = self.source(device)
        return [
            [
                (examples.normalize(pixels[order[batch]]), labels[order[batch]])
                for batch in examples.batches(self.images)
            ]
            for order in examples.visits(client, 1, 0, self.epochs)
        ]

    def source(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return all images and labels on a device, brought there once."""
        if device not in self._sources:
            self._sources[device] = tuple(tensor.to(device) for tensor in self.examples.source("train"))
        return self._sources[device]

    def spec(self) -> dict[str, str | int]:
        """Everything another process needs to build the same work."""
        return asdict(self)


@dataclass(frozen=True)
class Outcome:
    """What a contestant has come to."""

    path: str
    seconds: float
    """Of a round after a warm-up round."""
    averaged: Params
    """The network after the warm-up, which starts from ``Work.start``."""
    device_mib: float | None = None


def train_client(network: nn.Module, work: Work, client: int, device: torch.device) -> None:
    """What one writes first: an optimizer and a loop."""
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
    for epoch in work.epochs_of(client, device):
        for x, y in epoch:
            optimizer.zero_grad()
            F.cross_entropy(network(x), y).backward()
            nn.utils.clip_grad_norm_(network.parameters(), CLIP)
            optimizer.step()
