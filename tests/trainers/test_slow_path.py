"""Whenever a run falls from our kernels to torch, one line says what caused it, and what would keep the speed."""

import logging
import re
from typing import Any

import numpy as np
import pytest
from torch import nn

import fedbac
from fedbac import LeNet5, ResNet
from fedbac.config.experiment import Runtime
from fedbac.config.training import AdamW
from fedbac.local import make_trainer
from fedbac.local.kernel import as_image, described
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
def test_the_layer_and_what_would_be_known_are_named(network: nn.Module, said: str) -> None:
    found = described(network, SHAPE)
    assert isinstance(found, str)
    assert re.search(said, found), found


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
