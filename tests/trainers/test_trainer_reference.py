"""The trainers against a naive one, for every scheme and every option of local training."""

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

from fedbac.config.experiment import Training
from fedbac.core.parts import Parts, Personalization
from fedbac.core.requests import Train
from fedbac.data import Augment
from fedbac.federation import Federation
from fedbac.local import LoopTrainer, PoolTrainer
from fedbac.personalization import Additive, Shared
from tests.support import NO_GPU, NO_KERNEL, deal, distance, federate, on_test, order, question, start_of
from tests.trainers.reference import (
    BASE,
    DATA,
    OPTIONS,
    PATHS,
    RATE,
    SCHEMES,
    Outcome,
    check,
    make,
    naive,
    requests,
    setting,
    starts,
    with_momentum,
)

CASES = [(name, option) for name in ("shared", "per_cluster", "additive") for option in OPTIONS] + [
    (name, option)
    for name in SCHEMES
    if name not in ("shared", "per_cluster", "additive")
    for option in ("plain", "clip_joint", "clip_per_network", "clip_no_momentum", "augment")
]


@lru_cache
def expected(name: str, option: str) -> tuple[Federation, list[Train], list[list[Outcome]]]:
    """Return the answer of the naive reference, found once for all trainers."""
    scheme = SCHEMES[name]
    federation = setting(scheme, **OPTIONS[option])
    asked = requests(federation, scheme)
    template = federation.network
    outcomes = [[naive(federation, scheme, r, row, template) for row in range(len(r.clients))] for r in asked]
    return federation, asked, outcomes


@pytest.mark.covering
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("name", "option"), CASES)
def test_trainers_train_as_the_naive_reference(path: str, name: str, option: str) -> None:
    federation, asked, outcomes = expected(name, option)
    results = make(path, federation, SCHEMES[name]).train(asked)
    for trained, train, known in zip(results, asked, outcomes, strict=True):
        check(trained, federation, SCHEMES[name], train, known)


@pytest.mark.parametrize("path", PATHS)
def test_a_trainer_remembers_nothing_of_what_it_did_before(path: str) -> None:
    """Neither other clients, nor longer or shorter rounds, nor an evaluation in between may leave a trace."""
    scheme = SCHEMES["additive"]
    federation = setting(scheme, clip_norm=0.5, augment=Augment(crop_padding=2))
    used, small = make(path, federation, scheme), [order((0, 4), starts(federation, scheme)[0], 7, 1, RATE)]
    asked = requests(federation, scheme)
    used.train(asked[1:])
    used.train(requests(federation, scheme, round_=5))
    used.evaluate([question((start_of(asked[0], 0),), "train", (1, 2))])
    used.train(small)
    for after in (asked[::-1], small):
        for one, other in zip(used.train(after), make(path, federation, scheme).train(after), strict=True):
            assert distance(one.parts_C, other.parts_C) == 0
            np.testing.assert_array_equal(one.loss_C, other.loss_C)


@pytest.mark.parametrize("option", [name for name in OPTIONS if name != "plain"])
def test_every_option_changes_what_is_learned(option: str) -> None:
    """Otherwise the comparisons above would compare nothing."""
    scheme = SCHEMES["additive"]
    plain, other = setting(scheme), setting(scheme, **OPTIONS[option])
    results = [LoopTrainer(f.network, scheme, f.examples).train(requests(f, scheme))[0].parts_C for f in (plain, other)]
    assert distance(*results) > 1e-3


def test_schemes_differ_where_they_should() -> None:
    def learned(scheme: Personalization, **options: Any) -> Parts:
        federation = setting(scheme, **options)
        return (
            LoopTrainer(federation.network, scheme, federation.examples).train(requests(federation, scheme))[0].parts_C
        )

    none, decay, loss = Additive(l2_cluster=0), SCHEMES["additive"], SCHEMES["additive_loss"]
    assert distance(learned(none), learned(decay)) > 1e-3
    assert distance(learned(decay), learned(loss)) < 1e-5, "without clipping the two forms are one"
    assert distance(learned(decay, clip_norm=0.4), learned(loss, clip_norm=0.4)) > 1e-3
    joint, per_network = (learned(decay, clip_norm=0.4, clip_scope=scope) for scope in ("joint", "per_network"))
    assert distance(joint, per_network) > 1e-3


def test_rounds_and_edge_rounds_visit_in_another_order() -> None:
    scheme = Shared()
    federation = setting(scheme)
    trainer = LoopTrainer(federation.network, scheme, federation.examples)
    results = [trainer.train(requests(federation, scheme, r, e))[0].parts_C for r, e in ((1, 0), (2, 0), (1, 1))]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert distance(results[one], results[other]) > 1e-4
    for request in requests(federation, scheme, 1, 1):
        check(trainer.train([request])[0], federation, scheme, request)


@pytest.mark.covering
@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("loop", "shared"),
        ("loop", "additive"),
        ("loop", "frozen_global"),
        ("loop", "in_turns"),
        ("vmap", "shared"),
        ("vmap", "additive"),
        ("vmap", "in_turns"),
        pytest.param("native", "additive", marks=NO_KERNEL),
        pytest.param("native", "in_turns", marks=NO_KERNEL),
        pytest.param("fused", "additive", marks=NO_GPU),
        pytest.param("fused", "in_turns", marks=NO_GPU),
    ],
)
def test_momentum_that_persists_over_two_rounds(path: str, name: str) -> None:
    scheme = SCHEMES[name]
    federation = setting(scheme, momentum_state="persist", clip_norm=0.5)
    trainer = make(path, federation, scheme)
    first = [with_momentum(request, None, federation) for request in requests(federation, scheme, 1)]
    after_first = trainer.train(first)
    for request, trained in zip(first, after_first, strict=True):
        check(trained, federation, scheme, request)
    second = [
        with_momentum(request, trained.momentum, federation)
        for request, trained in zip(requests(federation, scheme, 2), after_first, strict=True)
    ]
    fresh = LoopTrainer(federation.network, scheme, federation.examples).train(requests(federation, scheme, 2))
    for request, trained, forgetful in zip(second, trainer.train(second), fresh, strict=True):
        check(trained, federation, scheme, request)
        assert distance(trained.parts_C, forgetful.parts_C) > 1e-3


@pytest.mark.full
def test_the_pool_computes_what_the_loop_computes_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedbac.local.pool.START_SECONDS", 0)
    scheme = SCHEMES["additive_loss"]
    options = {"momentum_state": "persist", "clip_norm": 0.5, "augment": Augment(crop_padding=2)}
    federation = setting(scheme, user=None, **options)
    loop = LoopTrainer(federation.network, scheme, federation.examples)
    pool = PoolTrainer(federation.network, scheme, federation.examples, workers=2)
    try:
        asked = [with_momentum(request, None, federation) for request in requests(federation, scheme)]
        for one, other in zip(loop.train(asked), pool.train(asked), strict=True):
            assert distance(one.parts_C, other.parts_C) == 0
            np.testing.assert_array_equal(one.loss_C, other.loss_C)
            assert one.momentum is not None
            assert other.momentum is not None
            assert distance(one.momentum, other.momentum) == 0
        first = start_of(asked[0], 0)
        models = (
            first,
            start_of(asked[1], 0),
            {"global": first["global"], "cluster": start_of(asked[2], 0)["cluster"]},
        )
        questions = [
            on_test(models, 1),
            question(models, "train", (2, 0), max_samples=5),
            question(models, "test", (4, 3, 5), paired=True),
        ]
        for one_answer, other_answer in zip(loop.evaluate(questions), pool.evaluate(questions), strict=True):
            np.testing.assert_array_equal(one_answer.loss_VG, other_answer.loss_VG)
            np.testing.assert_array_equal(one_answer.accuracy_VG, other_answer.accuracy_VG)
            np.testing.assert_array_equal(one_answer.count_G, other_answer.count_G)
    finally:
        pool.close()


@pytest.mark.parametrize("path", PATHS)
def test_a_client_without_examples_comes_back_as_it_went(path: str) -> None:
    scheme = SCHEMES["additive"]
    federation = federate(DATA, deal(DATA, [[0, 5], [7, 0]]), training=Training(**BASE), seed=3)
    start = starts(federation, scheme)[0]
    trainer = make(path, federation, scheme)
    asked = [order((0, 1), start, rate=RATE), order((2, 3), start, rate=RATE)]
    for trained, empty in zip(trainer.train(asked), (0, 1), strict=True):
        assert trained.loss_C[empty] == 0
        for part, params in start.items():
            for name, value in params.items():
                torch.testing.assert_close(trained.parts_C[part][name][empty].cpu(), value, rtol=0, atol=0)
                assert not torch.equal(trained.parts_C[part][name][1 - empty].cpu(), value)
    only_empty = trainer.train([order((0,), start, rate=RATE)])[0]
    assert (
        distance(
            {"cluster": {n: v[0] for n, v in only_empty.parts_C["cluster"].items()}}, {"cluster": start["cluster"]}
        )
        == 0
    )
