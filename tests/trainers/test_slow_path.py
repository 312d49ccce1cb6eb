"""Whenever a run falls from our kernels to torch, one line says what caused it, and what would keep the speed."""

import logging
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedbac
from fedbac import LeNet5, ResNet
from fedbac.config.experiment import Runtime
from fedbac.config.training import AdamW
from fedbac.local import _known, make_trainer
from fedbac.local.graphs import graph_of
from fedbac.local.kernel import as_image, described
from fedbac.native import Graph
from fedbac.personalization import MoreauEnvelope, PerCluster, Shared
from tests.support import NO_KERNEL
from tests.trainers.reference import setting

SHAPE = (1, 16, 16)


def layers(**other: nn.Module | None) -> nn.Sequential:
    """Return a network that the kernels know, with other layers at some places; None leaves one out."""
    plain: dict[str, nn.Module | None] = {
        "conv1": nn.Conv2d(1, 2, 3), "act1": nn.ReLU(), "pool1": nn.MaxPool2d(2), "flat": nn.Flatten(),
        "fc1": nn.Linear(98, 8), "act2": nn.ReLU(), "fc2": nn.Linear(8, 4),
    }  # fmt: skip
    network = nn.Sequential()
    for name, layer in (plain | other).items():
        if layer is not None:
            network.add_module(name, layer)
    return network


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (layers(conv1=nn.Conv2d(1, 2, 3, padding=1)), r"layer conv1 \(Conv2d\): padding=1 is not .*; padding=0"),
        (layers(conv1=nn.Conv2d(1, 2, 3, padding="same")), r"layer conv1 \(Conv2d\): padding=same is not"),
        (layers(conv1=nn.Conv2d(1, 2, 3, stride=2)), r"layer conv1 \(Conv2d\): stride=2 is not .*; stride=1"),
        (layers(conv1=nn.Conv2d(1, 2, (3, 5))), r"kernel_size=\(3, 5\) is not in our kernels; kernel_size=3 would"),
        (layers(conv1=nn.Conv2d(1, 2, 3, bias=False)), r"layer conv1 \(Conv2d\): bias=False .*; bias=True would be"),
        (layers(pool1=nn.AvgPool2d(2)), r"layer pool1 \(AvgPool2d\): it is not .*; nn.MaxPool2d\(2\) would be"),
        (layers(pool1=nn.MaxPool2d(3)), r"layer pool1 \(MaxPool2d\): kernel_size=3 is not .*; kernel_size=2 would be"),
        (layers(act1=nn.GELU()), r"layer act1 \(GELU\): it is not in our kernels; nn.ReLU would be"),
        (layers(act1=None), r"layer pool1 \(MaxPool2d\) stands where our kernels know nn.ReLU"),
        (layers(act2=None), r"layer fc2 \(Linear\) stands where our kernels know nn.ReLU"),
        (layers(last=nn.ReLU()), r"layer last \(ReLU\) stands where our kernels know its end"),
        (layers(pool1=None), r"layer flat \(Flatten\) stands where our kernels know nn.MaxPool2d\(2\)"),
        (layers(act1=nn.GroupNorm(1, 2)), r"layer act1 \(GroupNorm\): .*; the network without it would be"),
        (layers(act2=nn.LayerNorm(8)), r"layer act2 \(LayerNorm\): .*; the network without it would be"),
        (layers(act1=nn.BatchNorm2d(2)), r"layer act1 \(BatchNorm2d\): .*; the network without it would be"),
        (layers(act2=nn.Dropout()), r"layer act2 \(Dropout\): .*; the network without it would be"),
        (ResNet().build(SHAPE, 4), r"layer 0 \(Conv2d\): padding=1 is not"),
        (
            layers(flat=ResNet().build(SHAPE, 4).get_submodule("3")),
            r"layer flat \(_Residual\): .*; Conv2d, ReLU, MaxPool2d, Flatten, ",
        ),
        (LeNet5(pooling="average").build(SHAPE, 4), r"layer 2 \(AvgPool2d\): it is not .*; nn.MaxPool2d\(2\) would be"),
    ],
)
def test_the_layer_and_what_would_be_known_on_a_gpu_are_named(network: nn.Module, said: str) -> None:
    found = described(network, SHAPE)
    assert isinstance(found, str)
    assert re.search(said, found), found


class Custom(nn.Module):
    """A network of two layers that does something between them."""

    def __init__(self, between: Callable[[Tensor], Tensor], **more: Any) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, 2, 3), nn.Linear(392, 4)
        self.between = between
        for name, value in more.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(self.between(self.conv(x)))
        return logits


class InTraining(Custom):
    """Does something else in training."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = super().forward(x)
        return logits if self.training else logits.relu()


def overwrites(x: Tensor) -> Tensor:
    y = F.relu(x, inplace=True)
    return (x + y).flatten(1)


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (layers(act1=nn.BatchNorm2d(2)), r"layer act1 \(BatchNorm2d\): .*; the network without it would be"),
        (layers(act2=nn.LayerNorm(8)), r"layer act2 \(LayerNorm\): .*; the network without it would be"),
        (layers(act2=nn.Dropout()), r"layer act2 \(Dropout\): .*; the network without it would be"),
        (layers(act1=nn.Tanh()), r"layer act1 \(Tanh\): it is not in our kernels; nn.ReLU would be"),
        (layers(conv1=nn.Conv2d(1, 2, (3, 5))), r"kernel_size=\(3, 5\) is not in our kernels; kernel_size=3 would"),
        (layers(conv1=nn.Conv2d(1, 2, 3, stride=(1, 2))), r"layer conv1 .*stride=\(1, 2\) is not .*; stride=1 would"),
        (layers(conv1=nn.Conv2d(1, 2, 3, padding=(1, 2))), r"padding=\(1, 2\) is not in our kernels; padding=1 would"),
        (layers(conv1=nn.Conv2d(1, 2, 4, padding="same")), r"an odd kernel_size would"),
        (layers(conv1=nn.Conv2d(1, 2, 3, dilation=2)), r"layer conv1 \(Conv2d\): dilation=2 is not .*; dilation=1"),
        (layers(conv1=nn.Conv2d(2, 2, 3, groups=2)), r"layer conv1 \(Conv2d\): groups=2 is not .*; groups=1 would"),
        (layers(pool1=nn.MaxPool2d(2, ceil_mode=True)), r"layer pool1 \(MaxPool2d\): ceil_mode=True .*; ceil_mode=F"),
        (layers(pool1=nn.AvgPool2d(2, padding=1)), r"layer pool1 \(AvgPool2d\): padding=1 is not .*; padding=0 would"),
        (layers(pool1=nn.AdaptiveAvgPool2d(4)), r"output_size=\(4, 4\) of images of \(14, 14\) is .*; output_size=1"),
        (layers(last=nn.ReLU()), r"ends with a ReLU; one that returns the output of an nn.Linear would be known"),
        (layers(fc2=None, act2=None, flat=None, fc1=None), r"does not end with the last nn.Linear"),
        (layers(flat=None, fc1=nn.Linear(7, 8)), r"layer fc1 \(Linear\): it does not read features, as nn.Flatten"),
        (Custom(lambda x: F.dropout(x, 0.5).flatten(1)), r"its forward calls dropout, .*; the network without it"),
        (Custom(lambda x: torch.sin(x).flatten(1)), r"its forward calls sin, .*; layers of torch.nn would be"),
        (Custom(lambda x: x.flatten(1) if x.sum() > 0 else -x.flatten(1)), r"Custom cannot be traced \(.*torch.nn"),
        (Custom(lambda x: x.reshape(-1, 14).flatten(1)), r"reshape.* is not in our kernels; flatten\(1\) would be"),
        (Custom(overwrites), r"relu overwrites what others read; one that is not inplace would be known"),
        (InTraining(lambda x: x.flatten(1)), r"InTraining does something else in training"),
        (Custom(lambda x: x.flatten(1), more=nn.Linear(2, 2)), r"more.bias is not used; a network that uses all"),
        (Custom(lambda x: x.flatten(1), more=nn.Embedding(2, 2)), r"layer more \(Embedding\): it is not in"),
        (nn.Sequential(*[nn.Conv2d(1, 1, 1) for _ in range(65)], nn.Flatten(), nn.Linear(256, 4)), "65 layers .* 64"),
    ],
)  # fmt: skip
def test_the_layer_and_what_would_be_known_on_a_cpu_are_named(network: nn.Module, said: str) -> None:
    found = graph_of(network, SHAPE)
    assert isinstance(found, str)
    assert re.search(said, found), found


def test_what_the_kernel_for_a_cpu_alone_knows_goes_through_torch_on_a_gpu() -> None:
    federation = setting(Shared())
    network = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(16, 4))
    assert isinstance(_known(network, federation.examples, on_gpu=False), Graph)
    assert "padding=1 is not in our kernels" in str(_known(network, federation.examples, on_gpu=True))


def test_a_known_network_needs_no_words() -> None:
    assert not isinstance(described(layers(), SHAPE), str)
    assert "neither an image nor a row of numbers; [channels, height, width] or" in str(described(layers(), (4, 3)))


@NO_KERNEL
def test_a_table_is_trained_by_our_kernels_as_torch_trains_it() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 400)
    x = (np.eye(3, 7)[y] + rng.normal(size=(400, 7))).astype(np.float32)
    data = fedbac.Dataset.from_arrays("table", x[:300], y[:300], x[300:], y[300:])
    few = ["task.num_edges=2", "task.clients_per_edge=3", "task.partition.min_edge_test=5"]
    given: dict[str, Any] = {"dataset": data, "network": "mlp", "rounds": 3, "settings": few, "device": "cpu"}
    ours, torchs = (fedbac.run("fedper-edges", trainer=name, workers=1, **given) for name in ("native", "torch"))
    for found, expected in zip(ours.records, torchs.records, strict=True):
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        assert found["accuracy"] == pytest.approx(expected["accuracy"], abs=0.02)
    assert as_image(x.astype(np.int64)) == (7,), "tokens are not numbers"


@NO_KERNEL
@pytest.mark.parametrize(
    ("scheme", "training", "said"),
    [
        (Shared(), {"optimizer": AdamW()}, "task.training.optimizer 'adamw' is not in our kernels; sgd would be"),
        (PerCluster(taught=True), {}, "method.personalization 'per_cluster': a phase learns from teachers"),
        (MoreauEnvelope(), {}, "method.personalization 'moreau_envelope' takes steps of its own"),
        (Shared(), {}, None),
    ],
)
def test_a_run_says_it_once(
    scheme: Any, training: dict[str, Any], said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    federation = setting(scheme, **training)
    with caplog.at_level(logging.WARNING, "fedbac"):
        trainer = make_trainer(federation.network, scheme, federation.examples, Runtime(device="cpu", workers=1))
    trainer.close()
    lines = [record.message for record in caplog.records]
    start = f"training through torch ({trainer.path}), which is slower than our kernels: "
    assert lines == ([] if said is None else [start + said])
