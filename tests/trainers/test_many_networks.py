"""Networks of every kind, all clients at once: the same as one client after another, layer by layer and in training."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.networks import NETWORKS
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedbac.local import LoopTrainer, VmapTrainer, folding
from fedbac.local.folding import for_many
from fedbac.local.vmapped import Stack
from fedbac.personalization import Additive, Shared
from tests.covering import first
from tests.support import NO_GPU, distance, on_test, question, start_of
from tests.trainers.reference import DATA, requests, setting

CLIENTS, BATCH = 3, 4
DEVICES = ["cpu", pytest.param("cuda", marks=NO_GPU)]


class Mixed(nn.Module):
    """Layers that share weights, and functions between them that only ``vmap`` has rules for."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 6, 3, padding=2, stride=2, dilation=2)
        self.again = nn.Conv2d(6, 6, 3, padding="same", groups=3)
        self.norm, self.pool = nn.GroupNorm(3, 6), nn.AvgPool2d(2, ceil_mode=True)
        self.read = nn.LSTM(6, 5, bias=False)
        self.say = nn.Linear(5, 4, bias=False)
        self.mix = nn.Parameter(torch.rand(6, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = self.pool(self.again(self.again(x)) * self.mix + x)
        out, (hidden, cell) = self.read(x.flatten(2).permute(2, 0, 1))
        logits: Tensor = self.say(out).mean(0) + self.say(hidden[0] - cell[-1])
        return logits


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolution": (lambda: nn.Conv2d(2, 3, 3), (2, 7, 6)),
    "stride": (lambda: nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 0)), (2, 7, 6)),
    "dilation": (lambda: nn.Conv2d(2, 4, 3, dilation=2, padding=1, bias=False), (2, 8, 9)),
    "groups": (lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1), (4, 5, 5)),
    "same": (lambda: nn.Conv2d(2, 3, 3, padding="same"), (2, 5, 5)),
    "mirrored": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (2, 5, 5)),
    "in a line": (lambda: nn.Conv1d(2, 3, 3, padding=1), (2, 9)),
    "linear": (lambda: nn.Linear(5, 3), (5,)),
    "linear of steps": (lambda: nn.Linear(5, 3, bias=False), (2, 4, 5)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (4, 3, 3)),
    "group norm without weights": (lambda: nn.GroupNorm(2, 4, affine=False), (4, 5)),
    "maximum": (lambda: nn.MaxPool2d(3, 2, padding=1), (2, 7, 7)),
    "average": (lambda: nn.AdaptiveAvgPool2d((2, 1)), (2, 5, 6)),
    "lstm": (lambda: nn.LSTM(3, 4, num_layers=2, batch_first=True), (6, 3)),
}


def output(found: Any) -> Tensor:
    """Return one tensor of what a layer gives, with different weights for its parts."""
    if isinstance(found, Tensor):
        return found
    out, (hidden, cell) = found
    return torch.cat([out.flatten(1), 2 * hidden.transpose(0, 1).flatten(1), 3 * cell.transpose(0, 1).flatten(1)], 1)


WITHOUT_WEIGHTS = {"group norm without weights", "maximum", "average"}


@pytest.mark.parametrize(
    ("name", "shared"),
    [(name, shared) for name in LAYERS for shared in (False, True) if not (shared and name in WITHOUT_WEIGHTS)],
)
def test_a_layer_of_many_clients_is_theirs_one_by_one(name: str, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    layer = make()
    many = for_many(layer)
    monkeypatch.setattr(folding, "COLUMN_BYTES", 2000)  # several pieces
    params = {
        key: (value.detach() + 0.3 * torch.randn(CLIENTS, *value.shape)).requires_grad_()
        for key, value in layer.named_parameters()
    }
    x = torch.randn(*(() if shared else (CLIENTS,)), BATCH, *shape, requires_grad=True)
    with torch.backends.cudnn.flags(deterministic=True):
        found = vmap(lambda p, x: output(functional_call(many, p, (x,))), in_dims=(0, None if shared else 0))(params, x)
        wave = torch.sin(torch.arange(found.numel())).reshape(found.shape)
        gradients = torch.autograd.grad((found * wave).sum(), [x, *params.values()])
    to_x = torch.zeros_like(x)
    for c in range(CLIENTS):
        mine = {key: value[c].detach().requires_grad_() for key, value in params.items()}
        own = (x if shared else x[c]).detach().requires_grad_()
        expected = output(functional_call(layer, mine, (own,)))
        torch.testing.assert_close(found[c], expected, rtol=1e-4, atol=1e-5)
        each = torch.autograd.grad((expected * wave[c]).sum(), [own, *mine.values()])
        if shared:
            to_x = to_x + each[0]
        else:
            torch.testing.assert_close(gradients[0][c], each[0], rtol=1e-4, atol=1e-5)
        for one, other in zip(gradients[1:], each[1:], strict=True):
            torch.testing.assert_close(one[c], other, rtol=1e-4, atol=1e-4)
    if shared:
        torch.testing.assert_close(gradients[0], to_x, rtol=1e-4, atol=1e-4)


def build(name: str) -> nn.Module:
    shape = DATA.x_train.shape[1:]
    return Mixed() if name == "mixed" else NETWORKS[name]((shape[0], shape[1], shape[2]), DATA.num_classes)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", first(1, ["mlp", "resnet8", "lstm", "vit-tiny", "mixed"]))
def test_a_network_trains_and_is_judged_as_in_the_loop(name: str, device: str) -> None:
    scheme = Additive(l2_cluster=0.1) if name == "resnet8" else Shared()
    federation = setting(scheme, user=lambda: build(name), clip_norm=0.5)
    asked = requests(federation, scheme)
    loop = LoopTrainer(federation.network, scheme, federation.examples)
    expected = loop.train(asked)
    models = tuple(start_of(request, 0) for request in asked)
    questions = [on_test(models, 1), question(models, "train", (2, 0, 4), paired=True)]
    judged = loop.evaluate(questions)
    trainer = VmapTrainer(federation.network, scheme, federation.examples, torch.device(device))
    for one, other, request in zip(trainer.train(asked), expected, asked, strict=True):
        assert distance(one.parts_C, other.parts_C) < 2e-5
        np.testing.assert_allclose(one.loss_C, other.loss_C, rtol=1e-4)
        assert request.bank
    for answer, right in zip(trainer.evaluate(questions), judged, strict=True):
        np.testing.assert_allclose(answer.loss_VG, right.loss_VG, rtol=1e-4)
        np.testing.assert_array_equal(answer.accuracy_VG, right.accuracy_VG)


@pytest.mark.parametrize("device", DEVICES)
def test_bfloat16_rounds_coarsely_and_the_path_says_so(device: str) -> None:
    federation = setting(Shared(), user=lambda: build("mixed"))
    asked = requests(federation, Shared())
    parts = federation.network, Shared(), federation.examples
    exact = LoopTrainer(*parts).train(asked)
    coarse = VmapTrainer(*parts, torch.device(device), "bf16")
    assert coarse.path == f"torch-vmap-{device}-bf16"
    found = coarse.train(asked)
    start = {name: value[:1] for name, value in asked[0].bank["global"].items()}
    for one, other in zip(found, exact, strict=True):
        assert all(value.dtype == torch.float32 for value in one.parts_C["global"].values())
        moved = max(float((value - start[name]).abs().max()) for name, value in other.parts_C["global"].items())
        assert 1e-5 < distance(one.parts_C, other.parts_C) < 0.5 * moved


def test_memory_is_foreseen_for_what_a_network_keeps_of_a_batch() -> None:
    """Chunks of clients must fit: of a network with few weights it is nearly all."""
    federation = setting(Shared(), user=lambda: build("resnet8"), batch_size=8)
    small = VmapTrainer(federation.network, Shared(), federation.examples, torch.device("cpu")).bytes_per_client
    larger = setting(Shared(), user=lambda: build("resnet8"), batch_size=16)
    large = VmapTrainer(larger.network, Shared(), larger.examples, torch.device("cpu")).bytes_per_client
    pixels = DATA.x_train[0].size
    maps = 4 * pixels * 16 * 6  # what three convolutions of 16 channels, their norms and activations keep, at least
    assert large - small > 8 * maps
    assert large - small < 8 * 6 * maps


@pytest.mark.parametrize("device", DEVICES)
def test_short_batches_train_as_in_the_loop_without_their_padding(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU runs a step with room for the largest batch only; here every device does."""
    rooms = []

    def advance(self: Stack, number: int, stage: Any, active: int, largest: int) -> None:
        rooms.append(largest)
        self._step(number, stage, active, largest)

    monkeypatch.setattr(Stack, "advance", advance)
    federation = setting(Shared(), user=lambda: build("mixed"))
    asked = requests(federation, Shared())
    expected = LoopTrainer(federation.network, Shared(), federation.examples).train(asked)
    found = VmapTrainer(federation.network, Shared(), federation.examples, torch.device(device)).train(asked)
    assert min(rooms) < max(rooms) == federation.examples.batch_room
    for one, other in zip(found, expected, strict=True):
        assert distance(one.parts_C, other.parts_C) < 2e-5
        np.testing.assert_allclose(one.loss_C, other.loss_C, rtol=1e-4)
