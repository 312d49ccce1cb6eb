"""Networks beyond plain blocks: the native kernel trains and evaluates them as PyTorch does."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedbac import LeNet5, ResNet, native
from fedbac.local.graphs import graph_of
from fedbac.native import Graph, JobSgd
from tests.covering import first
from tests.native.reference import (
    MODULES,
    SETS,
    assert_equals_torch,
    flat,
    load,
    make_images,
    make_visits,
    read,
    start_networks,
    torch_network,
)

Shape = tuple[int, int, int]


def ending(channels: int, side: int, *more: nn.Module) -> tuple[nn.Module, ...]:
    return nn.Flatten(), nn.Linear(channels * side**2, 5), *more


class Written(nn.Module):
    """As people write it: layers in another order than they run, and functions."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(5 * 3 * 3, 4)
        self.conv2, self.conv1 = nn.Conv2d(4, 5, 3, padding=1, bias=False), nn.Conv2d(2, 4, 3, padding=1)
        self.pool = nn.MaxPool2d(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.pool(self.conv1(x)))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = x.view(x.size(0), -1)
        logits: torch.Tensor = self.out(x)
        return logits


class Shortcuts(nn.Module):
    """Several readers of one output: with other strides and paddings, before and past its ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 6, 3, padding=1)
        self.norm = nn.GroupNorm(3, 6)
        self.down, self.short = nn.Conv2d(6, 4, 5, stride=2, padding=2), nn.Conv2d(6, 4, 1, stride=2)
        self.same = nn.Conv2d(4, 4, 3, padding="same", bias=False)
        self.alone = nn.InstanceNorm2d(4)
        self.out = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        y = torch.relu(self.norm(x))
        x = self.down(y) + self.short(x)
        x = x + self.alone(self.same(x.relu()))
        logits: torch.Tensor = self.out(F.relu(x).mean((2, 3)))
        return logits


CASES: dict[str, tuple[Callable[[], nn.Module], Shape]] = {
    "padded block": (
        lambda: nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), *ending(16, 7)), (1, 14, 14)
    ),
    "padded blocks": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 7, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(7, 9, 5, padding=2), nn.ReLU(),
            nn.MaxPool2d(2), nn.Conv2d(9, 4, 3, padding=2), nn.ReLU(), nn.MaxPool2d(2), *ending(4, 3),
        ), (3, 17, 17),
    ),
    "very deep": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 5, 3, padding=1), nn.ReLU(), nn.Conv2d(5, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 13, 3, padding=1), nn.ReLU(), nn.Conv2d(13, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            *ending(6, 3, nn.ReLU(), nn.Linear(5, 4)),
        ), (2, 13, 13),
    ),
    "no activation": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3), nn.Conv2d(3, 4, 2), nn.MaxPool2d(2), nn.Conv2d(4, 2, 2), *ending(2, 3, nn.Linear(5, 4))
        ), (2, 11, 11),
    ),
    "no bias": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3, bias=False), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(48, 5, bias=False),
            nn.ReLU(), nn.Linear(5, 4, bias=False),
        ), (1, 11, 11),
    ),
    "strides": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 7, 5, stride=2), nn.ReLU(), nn.Conv2d(7, 9, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(9, 3, 2, stride=3, padding=1), nn.ReLU(), *ending(3, 2),
        ), (2, 18, 18),
    ),
    "patches": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 4, stride=4), nn.Conv2d(8, 6, 2, stride=2), *ending(6, 2)), (3, 17, 17)
    ),
    "average pooling": (lambda: LeNet5(pooling="average").build((1, 20, 20), 6), (1, 20, 20)),
    "pooling": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(4, 5, 3, padding=1),
            nn.AvgPool2d(3, 1), nn.ReLU(), nn.Conv2d(5, 4, 1), nn.MaxPool2d((2, 1), (2, 3)), nn.ReLU(),
            nn.AdaptiveAvgPool2d((None, 1)), nn.Flatten(), nn.Linear(8, 4),
        ), (1, 12, 12),
    ),
    "pooling first": (
        lambda: nn.Sequential(nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(1, 3, 3), nn.ReLU(), *ending(3, 4)), (1, 12, 12)
    ),
    "norms": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 4, 3),
            nn.ReLU(), nn.InstanceNorm2d(4, affine=True), nn.Conv2d(4, 4, 3),
            nn.GroupNorm(1, 4, affine=False), *ending(4, 2),
        ), (1, 12, 12),
    ),
    "as written": (Written, (2, 12, 12)),
    "shortcuts": (Shortcuts, (2, 9, 9)),
    "resnet": (lambda: ResNet(width=4).build((3, 10, 10), 5), (3, 10, 10)),
    "nested": (
        lambda: nn.Sequential(
            nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU()), nn.Identity(),
            nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 4)),
        ), (1, 8, 8),
    ),
}  # fmt: skip


def known(name: str) -> Graph:
    """Return a case as the kernel is told of it."""
    build, shape = CASES[name]
    module = build()
    graph = graph_of(module, shape)
    assert isinstance(graph, Graph), graph
    assert graph.num_parameters == flat(module).size
    MODULES[graph] = module
    return graph


@pytest.mark.covering
@pytest.mark.parametrize("num_parts", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_training_equals_pytorch(name: str, num_parts: int) -> None:
    graph = known(name)
    images, networks = make_images(graph, 60), start_networks(graph, 3)
    start = np.array([[0, 1], [2, 0]])[:, :num_parts]
    visits = make_visits(images, [45, 19], [2, 2])
    sgd = JobSgd(20, 0.02, 0.9, weight_decay=[1e-3, 1e-2][:num_parts], l2=[1e-2, 0][:num_parts], max_norm=1.0)
    close = 5e-5 if name == "norms" else 1e-5  # normalization magnifies rounding; one step is compared closely below
    assert_equals_torch(graph, images, networks, start, visits, sgd, tolerance=close)


@pytest.mark.parametrize("name", CASES)
def test_one_step_equals_pytorch_to_the_last_digits(name: str) -> None:
    """Without the many steps in which pixels that all but tie, and ReLUs at zero, may part ways."""
    graph = known(name)
    images, networks = make_images(graph, 40), start_networks(graph, 1)
    visits = make_visits(images, [40], [1])
    assert_equals_torch(graph, images, networks, np.zeros((1, 1), int), visits, JobSgd(40, 0.1), tolerance=3e-6)


@pytest.mark.covering
@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("name", CASES)
def test_evaluation_equals_pytorch(name: str, instruction_set: str) -> None:
    graph = known(name)
    images, networks = make_images(graph, 70), start_networks(graph, 2)
    groups = [np.arange(41), np.arange(30, 70)]
    found = native.evaluate(
        graph,
        images,
        networks,
        np.array([[0], [1]]),
        groups,
        np.array([(0, 0), (1, 0), (1, 1)]),
        instruction_set=instruction_set,
    )
    for row, (model, group) in enumerate([(0, 0), (1, 0), (1, 1)]):
        x, y = read(images, groups[group], None, None, torch.float64), torch.from_numpy(images.labels_N[groups[group]])
        with torch.no_grad():
            logits = load(graph, networks[model], torch.float64)(x)
        np.testing.assert_allclose(found.loss[row], F.cross_entropy(logits, y, reduction="sum").item(), rtol=1e-5)
        assert found.correct[row] == (logits.argmax(1) == y).sum().item()


@pytest.mark.parametrize("name", first(1, ["shortcuts", "very deep", "as written", "norms"]))
def test_any_run_of_layers_moves_alone(name: str) -> None:
    """Where layers run in another order than their weights lie, too."""
    graph = known(name)
    images, networks = make_images(graph, 40), start_networks(graph, 2)
    layers = [m for m in torch_network(graph).modules() if next(m.parameters(recurse=False), None) is not None]
    ends = [0, *np.cumsum([sum(value.numel() for value in m.parameters()) for m in layers]).tolist()]
    visits, start = make_visits(images, [30, 11], [1, 1]), np.array([[0, 1], [1, 0]])
    for begin in range(len(ends) - 1):
        for end in {ends[begin + 1], ends[-1]}:
            moving = (slice(ends[begin], end), slice(None))
            sgd = JobSgd(8, 0.05, 0.9, weight_decay=0.01, l2=(0.2, 0.1), max_norm=0.4, moving=moving)
            still = np.ones(ends[-1], dtype=bool)
            still[moving[0]] = False
            for found in assert_equals_torch(graph, images, networks, start, visits, sgd, tolerance=1e-5):
                np.testing.assert_array_equal(found.parameters_JPD[:, 0, still], networks[start[:, 0]][:, still])


def test_augmentation_within_padding() -> None:
    graph = known("padded blocks")
    for is_float in (False, True):
        images = make_images(graph, 40, is_float=is_float)
        visits, rng = make_visits(images, [30, 11], [2, 2]), np.random.default_rng(1)
        count = len(visits.examples_S)
        crop, flip = rng.integers(-4, 5, (count, 2)).astype(np.int8), rng.integers(0, 2, count).astype(bool)
        visits = native.JobVisits(visits.examples_S, visits.num_examples_J, visits.num_epochs_J, crop, flip)
        start = np.zeros((2, 1), int)
        networks, sgd = start_networks(graph, 1), JobSgd(8, 0.02)
        assert_equals_torch(graph, images, networks, start, visits, sgd, tolerance=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["very deep", "pooling", "resnet"])
def test_a_job_that_is_not_finite_keeps_it_to_itself(name: str, bad: float) -> None:
    graph = known(name)
    images, networks = make_images(graph, 30, is_float=True), start_networks(graph, 2)
    visits = native.JobVisits(np.arange(30), np.array([10, 10, 10]), np.array([1, 1, 1]))
    start, sgd = np.array([[0], [1], [0]]), JobSgd(4, 0.1, max_norm=1.0)
    clean = native.train(graph, images, networks, start, visits, sgd)
    images.pixels_NCHW[13, 0, 4, 4] = bad
    found = native.train(graph, images, networks, start, visits, sgd)
    assert found.finite_J.tolist() == [True, False, True]
    np.testing.assert_array_equal(found.parameters_JPD[[0, 2]], clean.parameters_JPD[[0, 2]])


def test_plain_networks_have_the_same_bits_whichever_way_they_are_told() -> None:
    network = LeNet5().build((1, 20, 20), 6)
    graph = graph_of(network, (1, 20, 20))
    layers = native.Layers(1, 20, 20, ((6, 5), (16, 5)), (120, 84, 6))
    assert graph == layers.graph


def test_what_is_no_graph_is_refused() -> None:
    def count(*steps: native.ImageStep) -> Any:
        return Graph(1, 8, 8, steps, (native.Dense(3, False, 0),)).num_parameters

    with pytest.raises(ValueError, match="is no network"):
        count(native.ImageStep("average_pool", 0, size=(2, 2), stride=(2, 2)))
    with pytest.raises(ValueError, match="is no network"):
        count(native.ImageStep("max_pool", -1), native.ImageStep("max_pool", -1))
    with pytest.raises(ValueError, match="is no network"):
        count(native.ImageStep("norm", -1, groups=2))
