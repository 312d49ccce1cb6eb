"""The GPU kernels against the plain loop, for networks of many shapes; their plan is checked without a GPU too."""

import numpy as np
import pytest
import torch
from torch import nn

from fedbac.config.experiment import Training
from fedbac.core import trees
from fedbac.core.parts import Personalization
from fedbac.data import Augment, Dataset
from fedbac.federation import Federation
from fedbac.gpu import NetworkPlan
from fedbac.local import LoopTrainer, batches, fused
from fedbac.native import Layers
from fedbac.personalization import Additive, Shared
from tests.emulator import NO_COMPILER
from tests.native import lenet5
from tests.schemes import Layered, Personal
from tests.support import NO_GPU, deal, distance, federate, on_gpu, on_test, order, question

SHAPES = {
    "LeNet-5 on 28": lenet5(1, 28, 28),
    "LeNet-5 on 32": lenet5(3, 32, 32),
    "wide LeNet-5": lenet5(3, 32, 32, 10, (8, 23, 169, 118)),
    "odd sizes": Layers(1, 13, 14, ((3, 3), (5, 2)), (9, 7)),
    "one convolution": Layers(2, 9, 12, ((5, 4),), (6,)),
    "three convolutions": Layers(2, 31, 27, ((4, 3), (7, 2), (6, 3)), (5, 4)),
    "large kernels": Layers(1, 25, 24, ((2, 7), (3, 6)), (4,)),
    "kernel of one": Layers(3, 9, 8, ((4, 1), (13, 1)), (5,)),
    "many channels": Layers(1, 16, 16, ((19, 3), (21, 3)), (33, 10)),
    "six linear layers": Layers(1, 6, 6, ((2, 3),), (9, 8, 7, 6, 5, 4)),
    "perceptron": Layers(1, 3, 4, (), (19, 5)),
    "linear": Layers(2, 5, 5, (), (3,)),
    "wide layer, few inputs": Layers(1, 8, 8, ((4, 3),), (512, 10)),
    "wide layers": Layers(1, 14, 14, ((15, 3),), (529, 18, 4)),
}
SIZES = [[1, 7, 40], [64, 33]]


def module(layers: Layers) -> nn.Sequential:
    """Return the network that ``layers`` describes."""
    found: list[nn.Module] = []
    channels, height, width = layers.channels, layers.height, layers.width
    for outputs, kernel in layers.convolutions:
        found += [nn.Conv2d(channels, outputs, kernel), nn.ReLU(), nn.MaxPool2d(2)]
        channels, height, width = outputs, (height - kernel + 1) // 2, (width - kernel + 1) // 2
    found.append(nn.Flatten())
    inputs = channels * height * width
    for number, outputs in enumerate(layers.linears):
        found += [nn.Linear(inputs, outputs)] + ([nn.ReLU()] if number + 1 < len(layers.linears) else [])
        inputs = outputs
    return nn.Sequential(*found)


def setting(layers: Layers, batch_size: int, floats: bool, crop: int) -> Federation:
    rng = np.random.default_rng(1)
    total, shape, classes = sum(map(sum, SIZES)), (layers.channels, layers.height, layers.width), layers.linears[-1]

    def images(num: int) -> np.ndarray:
        if floats:
            return rng.normal(size=(num, *shape))
        return rng.integers(0, 256, (num, *shape), dtype=np.uint8)

    def labels(num: int) -> np.ndarray:
        return rng.integers(0, classes, num)

    data = Dataset("random", images(total), labels(total), images(150), labels(150), classes)
    training = Training(
        epochs=2, batch_size=batch_size, learning_rate=0.05, momentum=0.9, weight_decay=1e-3, clip_norm=1.0
    )
    return federate(
        data,
        deal(data, SIZES),
        training=training,
        user=lambda: module(layers),
        augment=Augment(crop_padding=crop) if crop else None,
    )


OPTIONS = {"plain": (16, False, 0), "crops": (13, False, 2), "floats": (64, True, 0)}
EMULATED = [
    ("odd sizes", Additive(), "crops"),
    ("one convolution", Shared(), "floats"),
    ("many channels", Personal(), "plain"),
    ("three convolutions", Shared(), "plain"),
    ("large kernels", Additive(), "plain"),
    ("kernel of one", Shared(), "crops"),
    ("many channels", Shared(), "plain"),
    ("six linear layers", Shared(), "plain"),
    ("wide layers", Shared(), "plain"),
    ("wide layer, few inputs", Shared(), "plain"),
    ("odd sizes", Layered(in_turns=True), "crops"),
    ("three convolutions", Layered(in_turns=True), "plain"),
]
"""Enough to meet every branch; ``make test`` takes the first three. With a GPU all combinations are tested."""


@pytest.mark.parametrize(
    ("name", "scheme", "option", "path"),
    [
        *(pytest.param(*case, "emulated", marks=NO_COMPILER) for case in EMULATED[:2]),
        *(pytest.param(*case, "emulated", marks=[NO_COMPILER, pytest.mark.full]) for case in EMULATED[2:]),
        *(
            pytest.param(name, scheme, option, "fused", marks=[NO_GPU, pytest.mark.full])
            for name in SHAPES
            for scheme in (Shared(), Additive(), Personal(), Layered(in_turns=True))
            for option in OPTIONS
            # One layer cannot be cut into a body and a head.
            if not (name == "linear" and isinstance(scheme, Layered))
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value.kind,
)
def test_the_gpu_trains_and_measures_as_the_loop(name: str, scheme: Personalization, option: str, path: str) -> None:
    layers, options = SHAPES[name], OPTIONS[option]
    federation = setting(layers, *options)
    # In a window of two equal values rounding decides which one wins the pooling. The loop itself, started 1e-7 off,
    # then moves by up to 8e-5; the emulator, which always rounds alike, meets no such window in its cases.
    tolerance = 2e-5 if path == "emulated" else 1e-4
    parts = scheme.init(federation.build, {"cloud": 1, "cluster": 1, "client": 1})
    start = {part: trees.take(params, 0) for part, params in parts.items()}
    asked = [order((0, 1, 2), start, rate=0.05), order((3, 4), start, rate=0.05)]
    ours, loop = on_gpu(path, federation, scheme), LoopTrainer(federation.network, scheme, federation.examples)
    for mine, theirs in zip(ours.train(asked), loop.train(asked), strict=True):
        np.testing.assert_allclose(mine.loss_C, theirs.loss_C, rtol=2e-5)
        for part, params in theirs.parts_C.items():
            for name, value in params.items():
                torch.testing.assert_close(mine.parts_C[part][name].cpu(), value, rtol=1e-4, atol=tolerance)
    measured = [on_test((start, start), 0), question((start,), "train", (3, 4))]
    for mine_, theirs_ in zip(ours.evaluate(measured), loop.evaluate(measured), strict=True):
        np.testing.assert_allclose(mine_.loss_VG, theirs_.loss_VG, rtol=2e-5)
        np.testing.assert_array_equal(mine_.accuracy_VG, theirs_.accuracy_VG)


@pytest.mark.full
@pytest.mark.parametrize("path", [pytest.param("emulated", marks=NO_COMPILER), pytest.param("fused", marks=NO_GPU)])
@pytest.mark.parametrize("scheme", [Additive(), Layered(in_turns=True)], ids=lambda scheme: scheme.kind)
def test_lanes_change_no_bit(path: str, scheme: Personalization, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five clients in one lane, in two of different length, and in more lanes than clients."""
    federation = setting(SHAPES["odd sizes"], *OPTIONS["crops"])
    parts = scheme.init(federation.build, {"cloud": 1, "cluster": 1, "client": 1})
    start = {part: trees.take(params, 0) for part, params in parts.items()}
    asked, found = [order((0, 1, 2), start), order((3, 4), start)], []
    for lanes in (1, 2, 8):
        monkeypatch.setattr(batches, "LANES", lanes)
        monkeypatch.setattr(fused, "LANES", lanes)
        found.append(on_gpu(path, federation, scheme).train(asked))
    for one, two, many in zip(*found, strict=True):
        for other in (two, many):
            np.testing.assert_array_equal(one.loss_C, other.loss_C)
            assert distance(one.parts_C, other.parts_C) == 0


@pytest.mark.parametrize("layers", SHAPES.values(), ids=SHAPES)
def test_the_layout_holds_every_weight_once(layers: Layers) -> None:
    plan = NetworkPlan(layers, 32, float_pixels=False)
    positions = plan.positions()
    count = sum(parameter.numel() for parameter in module(layers).parameters())
    assert sorted(positions[positions >= 0]) == list(range(count))
    offsets = [c.offset for c in plan.convolutions] + [linear.offset for linear in plan.linears]
    assert all(offset % 4 == 0 for offset in [*offsets, plan.size])


@pytest.mark.parametrize("layers", SHAPES.values(), ids=SHAPES)
def test_launches_cover_all_channels_and_examples(layers: Layers) -> None:
    plan = NetworkPlan(layers, 50, float_pixels=False)
    launches = {launch.name: launch for launch in plan.training}
    for c in plan.convolutions:
        assert launches[f"convolve_{c.level}"].y * c.samples >= 50
        gradient = launches[f"convolve_weights_{c.level}"]
        assert gradient.threads // 32 % c.split == 0
        assert gradient.z * gradient.threads // 32 >= c.outputs * -(-c.channels // c.inputs) * c.split
        assert c.padded % c.tile == 0 or c.outputs <= c.tile <= c.padded
    assert launches["update"].y * 4096 >= plan.size
    assert all(launch.threads <= 1024 and launch.threads % 32 == 0 for launch in plan.training)


def test_the_head_needs_no_more_room_backwards_than_forwards() -> None:
    for layers in SHAPES.values():
        shared = {launch.name: launch.shared for launch in NetworkPlan(layers, 64, float_pixels=False).training}
        assert shared["head_back"] <= max(96 * 1024, shared["head_train"])


def test_lenet_finds_room_on_small_devices_and_a_wide_perceptron_does_not() -> None:
    assert all(
        NetworkPlan(SHAPES[name], 64, float_pixels=False).shared <= 99 * 1024 for name in SHAPES if "wide l" not in name
    )
    assert NetworkPlan(Layers(3, 64, 64, (), (100, 10)), 32, float_pixels=False).shared > 227 * 1024
