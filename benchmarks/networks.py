"""The networks that ``round.py`` trains: what users bring, each as small as federated studies have it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedbac import LeNet5, Perceptron

Shape = tuple[int, int, int]


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.GroupNorm(2, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.GroupNorm(2, outputs)
        self.short = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.first_norm(self.first(x)))
        out = self.second_norm(self.second(out))
        return F.relu(out + self.short(x))


def resnet8(shape: Shape, num_classes: int) -> nn.Module:
    """ResNet-8 with group normalization: 78,000 weights for 3×32×32."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 16, 3, padding=1, bias=False), nn.GroupNorm(2, 16), nn.ReLU(),
        Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, num_classes),
    )  # fmt: skip


class Rows(nn.Module):
    """A two-layer LSTM that reads an image row by row."""

    def __init__(self, shape: Shape, num_classes: int, width: int = 64) -> None:
        super().__init__()
        self.read = nn.LSTM(shape[0] * shape[2], width, num_layers=2, batch_first=True)
        self.say = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        seen, _ = self.read(x.transpose(1, 2).flatten(2))
        said: Tensor = self.say(seen[:, -1])
        return said


class Layer(nn.Module):
    """Attention and a perceptron, each beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.ask, self.answer = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        asked = self.ask(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(asked[0], asked[1], asked[2])
        x = x + self.answer(found.transpose(1, 2).flatten(2))
        out: Tensor = x + self.narrow(F.gelu(self.wide(self.between(x))))
        return out


class Patches(nn.Module):
    """A tiny vision transformer over patches of 4×4 pixels."""

    def __init__(self, shape: Shape, num_classes: int, width: int = 64, depth: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.cut = nn.Conv2d(shape[0], width, 4, 4)
        self.place = nn.Parameter(0.02 * torch.randn((shape[1] // 4) * (shape[2] // 4), width))
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(depth)))
        self.norm, self.say = nn.LayerNorm(width), nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.cut(x).flatten(2).transpose(1, 2)
        seen = self.layers(seen + self.place)
        said: Tensor = self.say(self.norm(seen).mean(1))
        return said


NETWORKS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "lenet5": LeNet5().build,
    "resnet8": resnet8,
    "mlp": Perceptron(hidden=(200,)).build,
    "lstm": Rows,
    "vit-tiny": Patches,
}
