"""The networks that ``round.py`` trains: what users bring, each as small as federated studies have it; and the shape of
a language model with low-rank adapters, its frozen weights random."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedbac import LSTM, LeNet5, Perceptron, ResNet, Transformer

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Sizes:
    """Of a model of the Llama family."""

    words: int
    width: int
    layers: int
    heads: int
    pairs: int
    """Heads of keys and values."""
    wide: int


LANGUAGE = {
    "smollm2-lora": Sizes(words=49_152, width=576, layers=30, heads=9, pairs=3, wide=1_536),
    "tiny-lora": Sizes(words=500, width=64, layers=4, heads=4, pairs=2, wide=128),
}
"""Trained by adapters of rank 8 on what asks and what answers in attention, as ``peft`` does unless told otherwise."""
TARGET = ("*.q_proj", "*.v_proj")


class Norm(nn.Module):
    """By the root of the mean square."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)


class Layer(nn.Module):
    """Attention with rotated places and shared keys, and a gated perceptron, each beside a shortcut."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, self.each = sizes.width, sizes.width // sizes.heads
        self.before, self.between = Norm(width), Norm(width)
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, sizes.pairs * self.each, bias=False)
        self.v_proj = nn.Linear(width, sizes.pairs * self.each, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.gate_proj = nn.Linear(width, sizes.wide, bias=False)
        self.up_proj = nn.Linear(width, sizes.wide, bias=False)
        self.down_proj = nn.Linear(sizes.wide, width, bias=False)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        seen = self.before(x)
        q, k, v = (
            project(seen).unflatten(-1, (-1, self.each)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        found = F.scaled_dot_product_attention(turned(q, turns), turned(k, turns), v, is_causal=True, enable_gqa=True)
        x = x + self.o_proj(found.transpose(1, 2).flatten(2))
        seen = self.between(x)
        more: Tensor = self.down_proj(F.silu(self.gate_proj(seen)) * self.up_proj(seen))
        return x + more


def turned(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate pairs of numbers by their place."""
    one, other = x.chunk(2, -1)
    cosine, sine = (turn.to(x.dtype) for turn in turns)
    return torch.cat([one * cosine - other * sine, other * cosine + one * sine], -1)


class Language(nn.Module):
    """A model of the Llama family."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.read, self.norm = nn.Embedding(sizes.words, sizes.width), Norm(sizes.width)
        nn.init.normal_(self.read.weight, std=0.02)
        self.half_head = sizes.width // sizes.heads // 2
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))

    def features(self, x: Tensor) -> Tensor:
        half = self.half_head
        rate = 1e4 ** -(torch.arange(half, device=x.device) / half)
        angle = torch.arange(x.shape[1], device=x.device)[:, None] * rate
        turns, x = (angle.cos(), angle.sin()), self.read(x)
        for layer in self.layers:
            x = layer(x, turns)
        found: Tensor = self.norm(x)
        return found

    def head(self, features: Tensor) -> Tensor:
        return F.linear(features, self.read.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x)).float()


class Block(nn.Module):
    """Two convolutions with batch normalization beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


def resnet18(shape: Shape, classes: int, width: int = 64) -> nn.Module:
    """Return a ResNet-18 as small images have it: a first filter of 3×3, and no pooling after it."""
    widths = [width * times for times in (1, 1, 2, 2, 4, 4, 8, 8)]
    blocks = [Block(a, b, 1 + (b > a)) for a, b in zip([width, *widths], widths, strict=False)]
    first = nn.Conv2d(shape[0], width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


def language(sizes: Sizes) -> Callable[[Shape, int], nn.Module]:
    """Return what makes a model of these sizes."""
    return lambda shape, words: Language(sizes)


NETWORKS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "lenet5": LeNet5().build,
    "resnet8": ResNet().build,
    "resnet18": resnet18,
    "mlp": Perceptron(hidden=(200,)).build,
    "lstm": LSTM().build,
    "vit-tiny": Transformer(layers=4).build,
    **{name: language(sizes) for name, sizes in LANGUAGE.items()},
}
