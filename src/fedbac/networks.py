"""The networks at hand, as settings: LeNet-5 of any width, a perceptron, a ResNet, an LSTM and a transformer."""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedbac.core.settings import Settings, Width
from fedbac.errors import ConfigError

LENET_WIDTHS = (6, 16, 120, 84)
Layers = Annotated[int, Field(gt=0, le=100)]
Wide = Annotated[int, Field(gt=0, le=10_000, multiple_of=2)]


Shape = tuple[int, ...]
"""Of an example."""


class LeNet5(Settings):
    """LeNet-5 without padding: 62,006 weights for 3×32×32, 44,426 for 1×28×28 (C.7)."""

    kind: Literal["lenet5"] = "lenet5"
    reads_tokens: ClassVar[bool] = False
    width: Annotated[float, Field(gt=0, le=100)] | tuple[Width, Width, Width, Width] = 1.0
    """A multiplier, or the four layers' widths; 1.41 is the paper's "HierFAVG 2×" with 123,825 weights (C.8)."""
    activation: Literal["relu", "tanh"] = "relu"
    """Not given in the paper (C.7); our kernels know ReLU."""
    pooling: Literal["max", "average"] = "max"
    """Not given in the paper (C.7); our kernels for a GPU know maxima."""

    def build(self, shape: Shape, num_classes: int, tokens: int | None = None, every: bool = False) -> nn.Module:
        """Return the network for images of this shape."""
        check_images(self.kind, shape, 16)
        c1, c2, f1, f2 = self.widths()
        active = {"relu": nn.ReLU, "tanh": nn.Tanh}[self.activation]
        pool = {"max": nn.MaxPool2d, "average": nn.AvgPool2d}[self.pooling]
        height, width = (((side - 4) // 2 - 4) // 2 for side in shape[1:])
        return nn.Sequential(
            nn.Conv2d(shape[0], c1, 5), active(), pool(2),
            nn.Conv2d(c1, c2, 5), active(), pool(2),
            nn.Flatten(),
            nn.Linear(c2 * height * width, f1), active(),
            nn.Linear(f1, f2), active(),
            nn.Linear(f2, num_classes),
        )  # fmt: skip

    def widths(self) -> tuple[int, int, int, int]:
        """Return the widths of the four hidden layers."""
        if isinstance(self.width, tuple):
            return self.width
        c1, c2, f1, f2 = (max(1, round(base * self.width)) for base in LENET_WIDTHS)
        return c1, c2, f1, f2


class Perceptron(Settings):
    """A perceptron on the flattened example; linear without hidden layers."""

    kind: Literal["mlp"] = "mlp"
    reads_tokens: ClassVar[bool] = False
    hidden: Annotated[tuple[Width, ...], Field(max_length=100)] = (32,)
    """Widths of the hidden layers."""

    def build(self, shape: Shape, num_classes: int, tokens: int | None = None, every: bool = False) -> nn.Module:
        """Return the network for examples of this shape."""
        layers: list[nn.Module] = [nn.Flatten()]
        width = int(torch.Size(shape).numel())
        for hidden in self.hidden:
            layers += [nn.Linear(width, hidden), nn.ReLU()]
            width = hidden
        return nn.Sequential(*layers, nn.Linear(width, num_classes))


class ResNet(Settings):
    """ResNet-8 with group normalization: 77,850 weights for 3×32×32."""

    kind: Literal["resnet"] = "resnet"
    reads_tokens: ClassVar[bool] = False
    width: Wide = 16
    """Channels of the first of three blocks; the others have twice and four times as many."""

    def build(self, shape: Shape, num_classes: int, tokens: int | None = None, every: bool = False) -> nn.Module:
        """Return the network for images of this shape."""
        check_images(self.kind, shape, 4)
        width = self.width
        return nn.Sequential(
            nn.Conv2d(shape[0], width, 3, padding=1, bias=False), nn.GroupNorm(2, width), nn.ReLU(),
            _Residual(width, width, 1), _Residual(width, 2 * width, 2), _Residual(2 * width, 4 * width, 2),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, num_classes),
        )  # fmt: skip


class LSTM(Settings):
    """An LSTM over tokens, rows of numbers ``[steps, features]``, or the rows of an image."""

    kind: Literal["lstm"] = "lstm"
    reads_tokens: ClassVar[bool] = True
    width: Wide = 64
    """Of every layer."""
    layers: Layers = 2
    """Stacked layers."""

    def build(self, shape: Shape, num_classes: int, tokens: int | None = None, every: bool = False) -> nn.Module:
        """Return the network for sequences of this shape."""
        check_steps(self.kind, shape, tokens)
        read = nn.Embedding(tokens, self.width) if tokens else _Steps() if len(shape) == 3 else nn.Identity()
        features = self.width if tokens else shape[-1] * (shape[0] if len(shape) == 3 else 1)
        core = nn.LSTM(features, self.width, num_layers=self.layers, batch_first=True)
        return _Sequence(read, core, nn.Linear(self.width, num_classes), every)


class Transformer(Settings):
    """A transformer over tokens, rows of numbers ``[steps, features]``, or patches of 4×4 pixels."""

    kind: Literal["transformer"] = "transformer"
    reads_tokens: ClassVar[bool] = True
    width: Wide = 64
    """Of every layer."""
    layers: Layers = 2
    """Stacked layers."""
    heads: Annotated[int, Field(gt=0, le=100)] = 4
    """Attention heads, which divide the width."""

    def build(self, shape: Shape, num_classes: int, tokens: int | None = None, every: bool = False) -> nn.Module:
        """Return the network for sequences of this shape."""
        check_steps(self.kind, shape, tokens)
        width, steps = self.width, shape[0]
        if width % self.heads:
            raise ConfigError(f"task.network.heads: {self.heads} heads do not divide a width of {width}")
        if len(shape) == 3:
            check_images(self.kind, shape, 4)
            steps = (shape[1] // 4) * (shape[2] // 4)
            read: nn.Module = nn.Sequential(nn.Conv2d(shape[0], width, 4, 4), nn.Flatten(2), _Steps())
        else:
            read = nn.Embedding(tokens, width) if tokens else nn.Linear(shape[1], width)
        layers = (_Attention(width, self.heads, every) for _ in range(self.layers))
        core = nn.Sequential(_Placed(steps, width), *layers, nn.LayerNorm(width))
        return _Sequence(read, core, nn.Linear(width, num_classes), every)


class _Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.GroupNorm(2, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.GroupNorm(2, outputs)
        self.short = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = self.second_norm(self.second(F.relu(self.first_norm(self.first(x)))))
        return F.relu(out + self.short(x))


class _Sequence(nn.Module):
    """Reads an example as steps, and tells something of every one by those before it, or of all together."""

    def __init__(self, read: nn.Module, core: nn.Module, tell: nn.Module, every: bool) -> None:
        super().__init__()
        self.read, self.core, self.tell, self.every = read, core, tell, every

    def forward(self, x: Tensor) -> Tensor:
        seen = self.core(self.read(x))
        if isinstance(self.core, nn.LSTM):
            seen = seen[0] if self.every else seen[0][:, -1]
        elif not self.every:
            seen = seen.mean(1)
        return self.tell(seen)  # type: ignore[no-any-return]


class _Attention(nn.Module):
    """Attention and a perceptron, each beside a shortcut."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.ask, self.answer = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        asked = self.ask(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(asked[0], asked[1], asked[2], is_causal=self.causal)
        x = x + self.answer(found.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.between(x))))  # type: ignore[no-any-return]


class _Placed(nn.Module):
    """Adds to every step what it learned of its place."""

    def __init__(self, steps: int, width: int) -> None:
        super().__init__()
        self.place = nn.Parameter(0.02 * torch.randn(steps, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.place


class _Steps(nn.Module):
    """Makes steps of the second axis after the batch: of the rows of images, or of patches."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(2)


def check_steps(kind: str, shape: Shape, tokens: int | None) -> None:
    """Refuse examples that are no sequences."""
    if len(shape) not in ((2, 3) if tokens is None else (1,)):
        raise ConfigError(
            f"task.network: {kind} reads int64 tokens [steps], numbers [steps, features], or images [channels, height, "
            f"width], but an example of this data set is {'numbers' if tokens is None else 'tokens'} of shape "
            f"{list(shape)}"
        )


def check_images(kind: str, shape: Shape, least: int) -> None:
    """Refuse examples that are no images, or too small."""
    if len(shape) != 3 or min(shape[1:]) < least:
        raise ConfigError(
            f"task.network: {kind} needs images [channels, height, width] of at least {least}×{least}, but an example "
            f"of this data set has shape {list(shape)}; use task.network.kind=mlp or your own"
        )
