"""Statistics of the losses of local training, for those who ask."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedbac.config.experiment import Training
from fedbac.core.requests import Kept, Train, Trained
from fedbac.personalization import Additive
from tests.support import deal, distance, federate, order, poisoned
from tests.trainers.reference import BASE, DATA, PATHS, RATE, SCHEMES, check, make, requests, setting, starts

BOTH: frozenset[Kept] = frozenset({"square", "epochs"})
STEPS = {"shared": 2, "in_turns": 4, "warmed": 3, "layers_in_turns": 3}
"""Epochs of all phases together."""


def asking(asked: list[Train], keep: frozenset[Kept] = BOTH) -> list[Train]:
    return [replace(request, keep=keep) for request in asked]


def assert_same_learning(one: Trained, other: Trained) -> None:
    assert distance(one.parts_C, other.parts_C) == 0
    np.testing.assert_array_equal(one.loss_C, other.loss_C)


@pytest.mark.covering
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("option", [{}, {"drop_last": True, "batch_size": 4}, {"batch_size": 64}], ids=str)
@pytest.mark.parametrize("name", STEPS)
def test_squares_and_epochs_are_those_of_the_naive_reference(path: str, name: str, option: dict[str, Any]) -> None:
    scheme, federation = SCHEMES[name], setting(**option)
    asked = asking(requests(federation, scheme))
    for request, trained in zip(asked, make(path, federation, scheme).train(asked), strict=True):
        assert trained.square_C is not None
        assert trained.epoch_CE is not None
        assert trained.epoch_CE.shape == (len(request.clients), STEPS[name])
        assert (trained.square_C[1:] > 1.001 * trained.loss_C[1:] ** 2).all(), "the losses of examples differ"
        check(trained, federation, scheme, request)


@pytest.mark.parametrize("path", PATHS)
def test_asking_changes_nothing_else_and_nobody_is_told_what_they_did_not_ask_for(path: str) -> None:
    scheme, federation = SCHEMES["warmed"], setting(clip_norm=0.4)
    asked, trainer = requests(federation, scheme), make(path, federation, scheme)
    plain = trainer.train(asked)
    assert all(one.square_C is None and one.epoch_CE is None for one in plain)
    mixed = [
        replace(request, keep=keep)
        for request, keep in zip(asked, (frozenset[Kept](["square"]), frozenset[Kept](["epochs"]), BOTH), strict=True)
    ]
    answers = trainer.train(mixed)
    assert [one.square_C is not None for one in answers] == [True, False, True]
    assert [one.epoch_CE is not None for one in answers] == [False, True, True]
    for one, other in zip(plain, answers, strict=True):
        assert_same_learning(one, other)
    for one, other in zip(plain, trainer.train(asked), strict=True):
        assert other.square_C is None
        assert_same_learning(one, other)


@pytest.mark.parametrize("path", PATHS)
def test_statistics_of_clients_without_examples_and_of_clients_that_break_down(path: str) -> None:
    scheme, shards = Additive(), deal(DATA, [[0, 5, 7]])
    federation = federate(DATA, shards, training=Training(**BASE), seed=3)
    start = starts(federation, scheme)[0]
    (answer,) = make(path, federation, scheme).train(asking([order((0, 1, 2), start, rate=RATE)]))
    assert answer.square_C is not None
    assert answer.epoch_CE is not None
    assert answer.square_C[0] == 0
    assert answer.epoch_CE[0].tolist() == [0, 0]
    broken = federate(poisoned(DATA, shards.train[1]), shards, training=Training(**BASE), seed=3)
    (answer,) = make(path, broken, scheme).train(asking([order((0, 1, 2), start, rate=RATE)]))
    assert answer.square_C is not None
    assert answer.epoch_CE is not None
    for found in (answer.loss_C, answer.square_C, answer.epoch_CE[:, 0], answer.epoch_CE[:, 1]):
        assert np.isfinite(found).tolist() == [True, False, True]
