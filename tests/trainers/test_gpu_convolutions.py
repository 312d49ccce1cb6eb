"""The GPU's convolutions of many clients against torch's; emulated on a CPU, and on a GPU where there is one."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedbac.gpu import convolution
from fedbac.gpu.convolution import MODES, Convolution, Layer, Mode
from fedbac.gpu.driver import Module
from tests.emulator import NO_COMPILER, EmulatedModule
from tests.support import NO_GPU

LAYERS = {
    "plain": Layer(16, 16, 8, 8, (3, 3), 1, (1, 1)),
    "stem": Layer(3, 16, 10, 12, (3, 3), 1, (1, 1)),
    "strides": Layer(5, 9, 8, 8, (3, 3), 2, (1, 1)),
    "shortcut": Layer(8, 17, 9, 6, (1, 1), 2, (0, 0)),
    "no padding": Layer(4, 6, 7, 9, (3, 3), 1, (0, 0)),
    "oblong": Layer(2, 12, 7, 14, (2, 5), 1, (0, 2)),
    "patches": Layer(3, 8, 8, 8, (4, 4), 4, (0, 0)),
    "wide": Layer(40, 72, 4, 4, (3, 3), 1, (1, 1)),
    "five by five": Layer(6, 8, 6, 5, (5, 5), 1, (2, 2)),
    "rows in bands": Layer(4, 8, 40, 36, (3, 3), 2, (1, 1)),
}
EMULATED = ["plain", "strides", "shortcut", "oblong", "patches"]
"""Enough to meet every branch; with a GPU all are tested."""
CLIENTS, BATCH = 2, 5
FAR = {"float32": 2e-6, "tf32": 1e-3, "bf16": 6e-3}


def near(found: Tensor, right: Tensor, mode: Mode) -> None:
    assert found.shape == right.shape
    error = (found.double().cpu() - right).norm() / right.norm()
    assert error < FAR[mode]


@pytest.mark.covering
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "where"),
    [
        *(pytest.param(name, "emulated", marks=NO_COMPILER) for name in EMULATED),
        *(pytest.param(name, "cuda", marks=NO_GPU) for name in LAYERS),
    ],
)
def test_convolutions_and_their_gradients(name: str, where: str, mode: Mode) -> None:
    layer, load = LAYERS[name], EmulatedModule if where == "emulated" else Module
    device = torch.device("cpu" if where == "emulated" else "cuda")
    kind = torch.bfloat16 if mode == "bf16" else torch.float32
    torch.manual_seed(1)
    x = torch.randn(BATCH, CLIENTS * layer.channels, layer.height, layer.width).to(kind)
    weight = torch.randn(CLIENTS * layer.outputs, layer.channels, *layer.kernel).to(kind)
    exact = [value.double().requires_grad_() for value in (x, weight)]
    right = F.conv2d(exact[0], exact[1], None, layer.step, layer.padding, 1, CLIENTS)
    gradient = torch.randn(right.shape).to(kind)
    to_x, to_weight = torch.autograd.grad(right, exact, gradient.double())
    kernels: Any = Convolution(layer, mode, load)
    x, weight, gradient = x.to(device), weight.to(device), gradient.to(device)
    near(kernels.convolve(x, weight, CLIENTS), right.detach(), mode)
    near(kernels.to_input(gradient, weight, CLIENTS), to_x, mode)
    near(kernels.to_filters(x, gradient, CLIENTS), to_weight, mode)


@pytest.mark.parametrize("mode", MODES)
def test_tiles_find_room_on_small_devices(mode: Mode) -> None:
    """Many small images make no large tile, and neither does one large image of many channels."""
    for layer in [*LAYERS.values(), Layer(64, 64, 8, 8, (3, 3), 1, (1, 1)), Layer(256, 512, 56, 56, (3, 3), 2, (1, 1))]:
        assert Convolution(layer, mode).shared <= 99 * 1024


def test_layers_that_would_idle_or_overflow_registers_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "shared_limit", lambda: 99 * 1024)
    assert Convolution(LAYERS["plain"], "float32").covered
    assert not Convolution(Layer(1, 1, 8, 8, (3, 3), 1, (1, 1)), "float32").covered  # of every channel its own
    assert not Convolution(Layer(3, 16, 32, 32, (7, 7), 2, (3, 3)), "float32").covered
