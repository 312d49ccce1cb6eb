"""Which networks the kernels for a GPU take: only those that they compute exactly, the others go through torch."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fedbac.local.kernel import layers_of

SHAPE = (1, 8, 8)


def plain() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 5), nn.ReLU(), nn.Linear(5, 3)
    )


class Scaled(nn.Sequential):
    """Runs its layers and does something to what comes out."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self:
            x = layer(x)
        return 2 * x


class Shifted(nn.Linear):
    """A linear layer that does a little more."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1


def changed(index: int, layer: nn.Module) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        network = plain()
        network[index] = layer
        return network

    return build


def used_twice() -> nn.Module:
    layer = nn.Linear(18, 18)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), layer, nn.ReLU(), layer)


def hooked() -> nn.Module:
    network = plain()
    network[4].register_forward_hook(lambda module, given, out: 2 * out)
    return network


def deep() -> nn.Module:
    linears = [layer for _ in range(9) for layer in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *linears[:-1])


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "forward of its own": lambda: Scaled(*plain()),
    "linear layer of its own": changed(6, Shifted(5, 3)),
    "parametrized": changed(6, nn.utils.parametrizations.weight_norm(nn.Linear(5, 3))),
    "hook": hooked,
    "dilated pooling": changed(2, nn.MaxPool2d(2, dilation=2)),
    "overlapping pooling": changed(2, nn.MaxPool2d(2, stride=1)),
    "padded convolution": changed(0, nn.Conv2d(1, 2, 3, padding=1)),
    "strided convolution": changed(0, nn.Conv2d(1, 2, 3, stride=2)),
    "no bias": changed(6, nn.Linear(5, 3, bias=False)),
    "another activation": changed(5, nn.Tanh()),
    "a layer used twice": used_twice,
    "too many layers": deep,
}


def test_a_plain_network_is_known() -> None:
    layers = layers_of(plain(), SHAPE)
    assert layers is not None
    assert (layers.convolutions, layers.linears) == (((2, 3),), (5, 3))


@pytest.mark.parametrize("build", OTHERS.values(), ids=OTHERS)
def test_others_are_not(build: Callable[[], nn.Module]) -> None:
    assert layers_of(build(), SHAPE) is None
