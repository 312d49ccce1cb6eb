"""The native kernel measures as PyTorch does; its sets of instructions, and mistakes in calling it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedbac import native
from fedbac.native import Images, JobSgd, Layers
from tests.native import lenet5
from tests.native.reference import (
    NETWORKS,
    SETS,
    TINY,
    load,
    make_images,
    make_visits,
    read,
    start_networks,
)


@pytest.mark.covering
@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("num_parts", [1, 2])
@pytest.mark.parametrize("name", ["lenet5-1x28x28", "lenet5-odd", "three convolutions", "perceptron"])
def test_evaluation_equals_pytorch(name: Any, num_parts: Any, instruction_set: Any) -> None:
    layers = NETWORKS[name]
    images = make_images(layers, 400)
    networks = start_networks(layers, 4)
    models = np.array([[0, 1], [0, 2], [3, 3], [2, 1]])[:, :num_parts]
    rng = np.random.default_rng(2)
    groups = [rng.permutation(400)[:size] for size in (400, 37, 0, 1, 256)]
    pairs = np.array([(model, group) for group in range(5) for model in range(4) if (model, group) != (2, 1)])
    found, again = (
        native.evaluate(
            layers, images, networks, models, groups, pairs, num_threads=threads, instruction_set=instruction_set
        )
        for threads in (2, 1)
    )
    assert found.loss.tobytes() == again.loss.tobytes()
    for row, (model, group) in enumerate(pairs):
        parts = [load(layers, networks[at], torch.float64) for at in models[model]]
        with torch.no_grad():
            logits = sum(part(read(images, groups[group], None, None, torch.float64)) for part in parts)
        labels = torch.from_numpy(images.labels_N[groups[group]])
        assert found.loss[row] == pytest.approx(
            float(functional.cross_entropy(logits, labels, reduction="sum")), rel=1e-6
        )
        assert found.correct[row] == int((logits.argmax(1) == labels).sum())
        assert found.count[row] == len(groups[group])


def test_the_lowest_class_wins_a_tie() -> None:
    images = Images(np.zeros((6, 1, 3, 4), np.uint8), np.array([0, 1, 0, 2, 3, 0]))
    layers = Layers(1, 3, 4, (), (4,))
    found = native.evaluate(
        layers,
        images,
        np.zeros((1, layers.num_parameters), np.float32),
        [[0]],  # type: ignore[arg-type]
        [np.arange(6)],
        [(0, 0)],  # type: ignore[arg-type]
    )
    assert (found.correct[0], found.count[0]) == (3, 6)
    assert found.loss[0] == pytest.approx(6 * np.log(4))


def test_number_of_parameters() -> None:
    assert lenet5(3, 32, 32).num_parameters == 62_006
    assert lenet5(1, 28, 28).num_parameters == 44_426


def test_environment_forces_the_instruction_set(monkeypatch: Any) -> None:
    images = make_images(TINY, 20)
    arguments = (
        TINY,
        images,
        start_networks(TINY, 1),
        np.zeros((1, 1), int),
        make_visits(images, [20], [2]),
        JobSgd(8, 0.1),
    )
    for name in SETS:
        monkeypatch.setenv("FEDBAC_NATIVE_ISA", name)
        forced = native.train(*arguments)
        asked = native.train(*arguments, instruction_set=name)
        assert forced.parameters_JPD.tobytes() == asked.parameters_JPD.tobytes()
    monkeypatch.setenv("FEDBAC_NATIVE_ISA", "v9")
    with pytest.raises(ValueError, match="v9"):
        native.train(*arguments)


def test_mistakes_are_named() -> None:
    images = make_images(TINY, 20)
    networks, start = start_networks(TINY, 1), np.zeros((1, 1), int)
    visits, sgd = make_visits(images, [20], [2]), JobSgd(8, 0.1)
    with pytest.raises(ValueError, match="is no network"):
        native.train(Layers(1, 4, 4, ((3, 5),), (2,)), images, networks, start, visits, sgd)
    with pytest.raises(ValueError, match="examples_S"):
        native.train(TINY, images, networks, start, replace(visits, examples_S=visits.examples_S + 5), sgd)
    with pytest.raises(ValueError, match="visits"):
        native.train(TINY, images, networks, start, replace(visits, examples_S=visits.examples_S[:-1]), sgd)
    with pytest.raises(ValueError, match="start_JP"):
        native.train(TINY, images, networks, start + 1, visits, sgd)
    with pytest.raises(ValueError, match="networks_TD"):
        native.train(TINY, images, networks[:, 1:], start, visits, sgd)
    with pytest.raises(ValueError, match="labels_N"):
        native.train(TINY, replace(images, labels_N=images.labels_N + 3), networks, start, visits, sgd)
    with pytest.raises(ValueError, match="sum of 1 to 16"):
        native.train(TINY, images, networks, np.zeros((1, 17), int), visits, sgd)
