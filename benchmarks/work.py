"""The work that all contestants of ``round.py`` do: one FedAvg round of many clients with a small network, or with
adapters on a language model.

Every client trains from the same start on its own images or texts, with clipped momentum SGD, in an order that is fixed
by the client's number; so the average of the trained networks is the same number whoever computes it, up to rounding.
"""

from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
import torch
from networks import LANGUAGE, NETWORKS, TARGET
from torch import Tensor, nn

from fedbac import Adapters, Dataset, Shards, Shared, Training
from fedbac.core.parts import Params, Personalization, extension
from fedbac.local import Examples
from fedbac.losses import CrossEntropy, NextToken
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
    def place(self) -> torch.device:
        """Where a contestant without a choice of its own works."""
        return torch.device("cuda" if self.device != "cpu" and torch.cuda.is_available() else "cpu")

    @property
    def sample_steps(self) -> int:
        """One image or text once forward and backward through one network, so often."""
        return self.clients * self.images * self.epochs

    @property
    def image(self) -> tuple[int, ...]:
        """The shape of an example: of a text, its tokens."""
        return tuple(int(side) for side in self.shape.split("x"))

    @property
    def words(self) -> int | None:
        """The words that a language model knows; None of other networks."""
        return LANGUAGE[self.network].words if self.network in LANGUAGE else None

    @property
    def scheme(self) -> Personalization:
        return Shared() if self.words is None else Adapters(owners=("cloud",), target=TARGET, rank=8, alpha=16)

    @cached_property
    def _sources(self) -> dict[torch.device, tuple[Tensor, ...]]:
        return {}

    @cached_property
    def examples(self) -> Examples:
        rng = np.random.default_rng(0)
        total = self.clients * self.images
        if self.words is None:
            x = rng.integers(0, 256, (total, *self.image), dtype=np.uint8)
            data = Dataset("random", x, rng.integers(0, 10, total), x[:100], rng.integers(0, 10, len(x[:100])), 10)
        else:
            x = rng.integers(0, self.words, (total, self.image[0] + 1))
            data = Dataset("random", x[:, :-1], x[:, 1:], x[:100, :-1], x[:100, 1:], self.words)
        mine = tuple(np.arange(c * self.images, (c + 1) * self.images) for c in range(self.clients))
        shards = Shards(mine, tuple(part[:0] for part in mine), (np.arange(len(x[:100])),), (range(self.clients),))
        training = Training(
            epochs=self.epochs,
            batch_size=self.batch,
            learning_rate=RATE,
            momentum=MOMENTUM,
            weight_decay=DECAY,
            clip_norm=CLIP,
        )
        loss = CrossEntropy() if self.words is None else NextToken()
        return Examples(data, shards, training, None, 0, data.normalization(), loss)

    def start(self) -> nn.Module:
        """The network before the round: the same weights each time it is asked for. With bf16 the frozen weights of a
        language model have that precision, for all contestants."""
        make, outputs, extend = NETWORKS[self.network], self.words or 10, extension(self.scheme)
        tokens = {} if self.words is None else {"largest_token": self.words - 1, "steps": self.image}
        made = builder(Custom(name=self.network), lambda: make(self.image, outputs), self.image, outputs, seed=0,
                       extend=extend, **tokens)(0)  # fmt: skip
        for value in made.parameters() if self.precision == "bf16" and self.words is not None else ():
            value.data = value.data if value.requires_grad else value.data.bfloat16()
        return made

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
    trained = [value for value in network.parameters() if value.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
    for epoch in work.epochs_of(client, device):
        for x, y in epoch:
            optimizer.zero_grad()
            work.examples.loss.loss(network(x), y).backward()
            nn.utils.clip_grad_norm_(trained, CLIP)
            optimizer.step()
