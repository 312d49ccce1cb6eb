"""The native kernel trains as PyTorch does, is reproducible, and keeps a broken job to itself."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedbac import native
from fedbac.native import JobSgd, JobVisits
from tests.covering import first
from tests.native import lenet5
from tests.native.reference import (
    NETWORKS,
    SETS,
    TINY,
    assert_equals_torch,
    make_images,
    make_visits,
    start_networks,
    torch_network,
    torch_train,
)


@pytest.mark.covering
@pytest.mark.parametrize("num_parts", [1, 2])
@pytest.mark.parametrize("name", NETWORKS)
def test_training_equals_pytorch_for_every_network(name: Any, num_parts: Any) -> None:
    layers = NETWORKS[name]
    images = make_images(layers, 60)
    networks = start_networks(layers, 3)
    start = np.array([[0, 1], [2, 0]])[:, :num_parts]
    visits = make_visits(images, [50, 19], [3, 2])
    sgd = JobSgd(16, 0.02, 0.9, weight_decay=[1e-3, 1e-2][:num_parts], l2=[1e-2, 0][:num_parts], max_norm=1.0)
    assert_equals_torch(layers, images, networks, start, visits, sgd)


@pytest.mark.parametrize("batch", [1, 7, 16, 32, 33, 64, 100, 101])
def test_any_batch_size(batch: Any) -> None:
    images = make_images(TINY, 120)
    visits = make_visits(images, [100, 3, 0, 64], [2, 3, 4, 0])
    sgd = JobSgd(batch, 0.01, 0.5, max_norm=2.0)
    assert_equals_torch(TINY, images, start_networks(TINY, 1), np.zeros((4, 1), int), visits, sgd)


@pytest.mark.parametrize("batch", [7, 32, 70])
def test_drop_last(batch: Any) -> None:
    images = make_images(TINY, 80)
    visits = make_visits(images, [64, 33], [3, 2])
    sgd = JobSgd(batch, 0.05, drop_last=True)
    for found in assert_equals_torch(TINY, images, start_networks(TINY, 1), np.zeros((2, 1), int), visits, sgd):
        assert (found.loss_J > 0).all()  # an only batch is not dropped


@pytest.mark.parametrize(
    "change",
    [
        {}, {"momentum": 0.9}, {"max_norm": 0.05}, {"max_norm": 0.05, "clip_per_part": True}, {"max_norm": 100.0},
        {"weight_decay": (0.1, 0.0)}, {"weight_decay": 0.1, "momentum": 0.9, "max_norm": 0.05},
        {"l2": (0.0, 0.3), "max_norm": 0.05}, {"l2": (0.2, 0.3), "max_norm": 0.05, "clip_per_part": True}, {"l2": 0.1},
        {"moving": (slice(0), slice(None)), "max_norm": 0.05, "momentum": 0.5},
        {"moving": (slice(None), slice(0)), "weight_decay": 0.1}, {"moving": (slice(0), slice(0))},
        {"learning_rate": (0.05, 0.01, 0.2), "momentum": 0.5},
    ],
)  # fmt: skip
def test_hyperparameters_of_two_parts(change: Any) -> None:
    images = make_images(TINY, 70)
    networks = start_networks(TINY, 4)
    start = np.array([[0, 1], [2, 3], [0, 3]])
    visits = make_visits(images, [50, 21, 0], [3, 4, 1])
    still = [part for part, span in enumerate(change.get("moving", ())) if span == slice(0)]
    sgd = JobSgd(20, **{"learning_rate": 0.05} | change)
    for found in assert_equals_torch(TINY, images, networks, start, visits, sgd):
        np.testing.assert_array_equal(found.parameters_JPD[:, still], networks[start[:, still]])


def test_momentum_goes_in_and_out() -> None:
    images = make_images(TINY, 64)
    networks, start = start_networks(TINY, 2), np.array([[0, 1]])
    sgd = JobSgd(16, 0.05, 0.9, max_norm=1.0)
    whole = make_visits(images, [64], [2])
    together = native.train(TINY, images, networks, start, whole, sgd, return_velocity=True)
    halves = [JobVisits(visits, np.array([64]), np.array([1])) for visits in np.split(whole.examples_S, 2)]
    first = native.train(TINY, images, networks, start, halves[0], sgd, return_velocity=True)
    second = native.train(
        TINY,
        images,
        first.parameters_JPD[0],
        start,
        halves[1],
        sgd,
        velocity_JPD=first.velocity_JPD,
        return_velocity=True,
    )
    np.testing.assert_array_equal(together.parameters_JPD, second.parameters_JPD)
    np.testing.assert_array_equal(together.velocity_JPD, second.velocity_JPD)
    assert first.velocity_JPD is not None
    given = np.random.default_rng(0).normal(scale=0.1, size=first.velocity_JPD.shape).astype(np.float32)
    assert_equals_torch(TINY, images, networks, start, whole, sgd, velocity=given)


@pytest.mark.parametrize("is_float", [False, True])
@pytest.mark.parametrize(
    "layers", [TINY, NETWORKS["lenet5-odd"], NETWORKS["perceptron"]], ids=["tiny", "odd", "perceptron"]
)
def test_augmentation(layers: Any, is_float: Any) -> None:
    images = make_images(layers, 40, is_float=is_float)
    visits = make_visits(images, [30, 11], [2, 3])
    rng = np.random.default_rng(1)
    count = len(visits.examples_S)
    crop = rng.integers(-4, 5, (count, 2)).astype(np.int8)
    crop[0] = (-128, 127)
    flip = rng.integers(0, 2, count).astype(bool)
    for change in ({"crop_S2": crop}, {"flip_S": flip}, {"crop_S2": crop, "flip_S": flip}):
        changed = replace(visits, **change)
        assert_equals_torch(layers, images, start_networks(layers, 1), np.zeros((2, 1), int), changed, JobSgd(8, 0.05))


def test_float_images_are_read_as_they_are() -> None:
    images = make_images(TINY, 40, is_float=True)
    visits = make_visits(images, [40], [3])
    assert_equals_torch(TINY, images, start_networks(TINY, 1), np.zeros((1, 1), int), visits, JobSgd(16, 0.05))


@pytest.mark.full
def test_as_close_to_double_precision_as_pytorch_itself() -> None:
    layers = lenet5(1, 28, 28)
    images = make_images(layers, 100)
    networks, start = start_networks(layers, 2), np.array([[0, 1]])
    visits = make_visits(images, [100], [6])
    sgd = JobSgd(32, 0.05, 0.9, weight_decay=1e-3, max_norm=1.0)
    exact = torch_train(layers, images, networks, start, visits, sgd)[0]
    single = torch_train(layers, images, networks, start, visits, sgd, dtype=torch.float32)[0]
    found = native.train(layers, images, networks, start, visits, sgd).parameters_JPD
    np.testing.assert_allclose(found, single, rtol=0, atol=1e-5)
    assert np.abs(found - exact).max() < 2 * np.abs(single - exact).max() + 1e-7


@pytest.mark.parametrize("instruction_set", SETS)
def test_same_bits_for_any_number_of_threads_and_order_of_jobs(instruction_set: Any) -> None:
    layers = NETWORKS["lenet5-odd"]
    images = make_images(layers, 90)
    sizes, epochs = [40, 0, 17, 90, 5, 33], [2, 3, 1, 2, 4, 2]
    visits = make_visits(images, sizes, epochs)
    networks, start = start_networks(layers, 7), np.stack([np.arange(6), np.arange(6)[::-1] + 1], 1)
    sgd = JobSgd(16, 0.05, 0.9, max_norm=0.5)
    one, two, four = (
        native.train(layers, images, networks, start, visits, sgd, num_threads=threads, instruction_set=instruction_set)
        for threads in (1, 2, 4)
    )
    order = np.array([3, 5, 0, 4, 1, 2])
    pieces = np.split(visits.examples_S, np.cumsum(np.multiply(sizes, epochs))[:-1])
    shuffled = JobVisits(np.concatenate([pieces[i] for i in order]), np.array(sizes)[order], np.array(epochs)[order])
    other = native.train(
        layers, images, networks, start[order], shuffled, sgd, num_threads=2, instruction_set=instruction_set
    )
    for found in (two, four):
        assert found.parameters_JPD.tobytes() == one.parameters_JPD.tobytes()
        assert found.loss_JE.tobytes() == one.loss_JE.tobytes()
    assert other.parameters_JPD.tobytes() == one.parameters_JPD[order].tobytes()
    assert other.loss_J.tobytes() == one.loss_J[order].tobytes()


def test_empty_job_returns_its_start() -> None:
    images = make_images(TINY, 20)
    networks = start_networks(TINY, 2)
    found = native.train(
        TINY, images, networks, np.array([[1], [0]]), make_visits(images, [0, 8], [3, 0]), JobSgd(4, 0.1)
    )
    np.testing.assert_array_equal(found.parameters_JPD[:, 0], networks[[1, 0]])
    assert found.loss_J.tolist() == [0, 0]
    assert found.finite_J.all()
    nothing = native.train(TINY, images, networks, np.empty((0, 1), int), make_visits(images, [], []), JobSgd(4, 0.1))
    assert nothing.parameters_JPD.shape == (0, 1, TINY.num_parameters)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["image", "network", "learning rate"])
def test_a_job_that_is_not_finite_keeps_it_to_itself(bad: Any, where: Any, instruction_set: Any) -> None:
    images = make_images(TINY, 30, is_float=True)
    networks = start_networks(TINY, 2)
    visits = JobVisits(np.arange(30), np.array([10, 10, 10]), np.array([1, 1, 1]))
    start = np.array([[0], [1], [0]])
    sgd = JobSgd(4, 0.1, max_norm=1.0)
    clean = native.train(TINY, images, networks, start, visits, sgd, instruction_set=instruction_set)
    if where == "image":
        images.pixels_NCHW[13, 0, 5, 5] = bad
    elif where == "network":
        networks[1, 3] = bad
    else:
        found = native.train(
            TINY, images, networks, start, visits, replace(sgd, learning_rate=bad), instruction_set=instruction_set
        )
        assert not found.finite_J.any()
        return
    found = native.train(TINY, images, networks, start, visits, sgd, num_threads=2, instruction_set=instruction_set)
    assert found.finite_J.tolist() == [True, False, True]
    np.testing.assert_array_equal(found.parameters_JPD[[0, 2]], clean.parameters_JPD[[0, 2]])


@pytest.mark.covering
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("max_norm", [0.0, 0.3])
@pytest.mark.parametrize("name", ["tiny", "lenet5-odd", "perceptron"])
def test_networks_are_pulled_to_their_anchors(name: str, max_norm: float, momentum: float) -> None:
    """Each job and part to its own anchor, or to zero."""
    layers = NETWORKS[name]
    images, networks, anchors = make_images(layers, 60), start_networks(layers, 3), start_networks(layers, 4, seed=1)
    start, anchor = np.array([[0, 1], [2, 0], [1, 1]]), np.array([[3, 0], [-1, 2], [1, -1]])
    visits = make_visits(images, [30, 19, 7], [2, 3, 1])
    sgd = JobSgd(8, (0.05, 0.02, 0.1), momentum, weight_decay=0.01, l2=(0.7, 0.3), max_norm=max_norm)
    pull: dict[str, Any] = {"anchors_AD": anchors, "anchor_JP": anchor}
    found, *_ = assert_equals_torch(layers, images, networks, start, visits, sgd, **pull)
    free = native.train(layers, images, networks, start, visits, sgd)
    assert np.abs(found.parameters_JPD - free.parameters_JPD).max() > 1e-3


def test_an_anchor_of_strength_zero_changes_no_bit() -> None:
    images, networks = make_images(TINY, 60), start_networks(TINY, 3)
    start, visits = np.array([[0, 1], [2, 0]]), make_visits(images, [50, 19], [2, 2])
    sgd = JobSgd(16, 0.05, 0.9, weight_decay=0.01, max_norm=0.5)
    plain, anchored = (
        native.train(TINY, images, networks, start, visits, sgd, **pull)  # type: ignore[arg-type]
        for pull in ({}, {"anchors_AD": networks, "anchor_JP": start[::-1]})
    )
    assert plain.parameters_JPD.tobytes() == anchored.parameters_JPD.tobytes()


@pytest.mark.parametrize("name", first(1, ["tiny", "lenet5-odd", "three convolutions", "perceptron"]))
def test_any_run_of_layers_moves_alone(name: str) -> None:
    """What keeps still has no part in the norm; the rest of the weights and all of their momentum stay as they were."""
    layers = NETWORKS[name]
    images, networks = make_images(layers, 40), start_networks(layers, 2)
    sizes = [weight.numel() for weight in torch_network(layers).parameters()]
    ends = [0, *np.cumsum(np.add(sizes[::2], sizes[1::2])).tolist()]
    visits, start = make_visits(images, [30, 11], [2, 2]), np.array([[0, 1], [1, 0]])
    for begin in range(len(ends) - 1):
        for last in range(begin + 1, len(ends)):
            moving = (slice(ends[begin], ends[last]), slice(None))
            sgd = JobSgd(8, 0.05, 0.9, weight_decay=0.01, l2=(0.2, 0.1), max_norm=0.4, moving=moving)
            still = np.ones(ends[-1], dtype=bool)
            still[moving[0]] = False
            for found in assert_equals_torch(layers, images, networks, start, visits, sgd):
                np.testing.assert_array_equal(found.parameters_JPD[:, 0, still], networks[start[:, 0]][:, still])
                assert (found.parameters_JPD[:, 0, ~still] != networks[start[:, 0]][:, ~still]).any()


def test_every_job_has_its_own_rate() -> None:
    images, networks = make_images(TINY, 60), start_networks(TINY, 1)
    visits, start = make_visits(images, [30, 20], [2, 3]), np.zeros((2, 1), int)
    together = native.train(TINY, images, networks, start, visits, JobSgd(8, (0.02, 0.1), 0.9, max_norm=1.0))
    pieces = np.split(visits.examples_S, [60])
    for job, rate in enumerate((0.02, 0.1)):
        alone = JobVisits(pieces[job], visits.num_examples_J[[job]], visits.num_epochs_J[[job]])
        found = native.train(TINY, images, networks, start[:1], alone, JobSgd(8, rate, 0.9, max_norm=1.0))
        assert found.parameters_JPD[0].tobytes() == together.parameters_JPD[job].tobytes()
