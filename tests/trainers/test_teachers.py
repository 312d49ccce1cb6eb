"""Clients that learn from teachers beside the labels."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedbac import ConfigError, Runtime
from fedbac.core import trees
from fedbac.core.parts import Params
from fedbac.core.requests import Teachers, Train
from fedbac.federation import Federation
from fedbac.local import LoopTrainer, make_trainer
from fedbac.models import weights
from tests.schemes import Taught
from tests.support import NO_GPU, Regular, distance
from tests.trainers.reference import check, make, requests, setting

PATHS = ["loop", "vmap", pytest.param("vmap-cuda", marks=NO_GPU)]
BETA = np.array([[0.25, 0.75, 0.0], [0.0, 0.0, 1.0], [0.5, 0.25, 0.25]])
LAMBDA = np.array([0.4, 0.9, 0.0])


def teachers(federation: Federation, seed: int = 0) -> Params:
    """Return three networks that are sure of what they say."""
    stack = trees.stack([weights(federation.build(10 * seed + number)) for number in (5, 6, 7)])
    return {name: 3 * value for name, value in stack.items()}


def taught(federation: Federation, scheme: Taught, temperature: float = 2.0) -> list[Train]:
    """Return requests whose teachers are the same networks."""
    bank = teachers(federation)
    return [
        replace(r, teachers=Teachers(bank, BETA[: len(r.clients)], LAMBDA[: len(r.clients)], temperature))
        for r in requests(federation, scheme)
    ]


@pytest.mark.covering
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize("which", [(0,), (1,), (0, 1)], ids=str)
def test_clients_learn_from_their_teachers_as_the_naive_reference(
    path: str, which: tuple[int, ...], temperature: float
) -> None:
    """The losses that come back are those on the labels alone."""
    federation, scheme = setting(clip_norm=0.4), Taught(which=which)
    asked = [replace(r, keep=frozenset({"square", "epochs"})) for r in taught(federation, scheme, temperature)]
    trainer = make(path, federation, scheme)
    for request, trained in zip(asked, trainer.train(asked), strict=True):
        check(trained, federation, scheme, request)
    plain = trainer.train(requests(federation, scheme))
    for one, other in zip(plain, trainer.train(asked), strict=True):
        assert distance(one.parts_C, other.parts_C) > 1e-3, "otherwise nothing was compared"


@pytest.mark.parametrize("path", PATHS)
def test_requests_bring_teachers_of_their_own(path: str) -> None:
    """Others, of other numbers and temperatures, or none at all."""
    federation, scheme = setting(), Taught()
    asked = taught(federation, scheme)
    two = {name: value[:2] for name, value in teachers(federation, 1).items()}
    half = np.array([[0.5, 0.5], [1.0, 0.0]])
    asked[1] = replace(asked[1], teachers=Teachers(two, half, np.array([0.3, 1.0]), 5.0))
    asked[2] = replace(asked[2], teachers=None)
    trainer = make(path, federation, scheme)
    for order in (asked, asked[::-1], asked[:1]):
        for request, trained in zip(order, trainer.train(order), strict=True):
            check(trained, federation, scheme, request)


@pytest.mark.parametrize("path", PATHS)
def test_without_a_share_teachers_do_not_run_and_no_bit_changes(path: str) -> None:
    federation, scheme = setting(clip_norm=0.4), Taught()
    plain, asked = requests(federation, scheme), taught(federation, scheme)
    nothing = {name: value[..., :0] for name, value in teachers(federation).items()}
    idle = [
        replace(r, teachers=Teachers(nothing, BETA[: len(r.clients)], np.zeros(len(r.clients)), 2.0)) for r in plain
    ]
    apart = [
        replace(r, teachers=Teachers(nothing, np.zeros((len(r.clients), 3)), np.ones(len(r.clients)), 2.0))
        for r in plain
    ]
    trainer = make(path, federation, scheme)
    expected = trainer.train(plain)
    trainer.train(asked)
    for others in (idle, apart, plain):
        for one, other in zip(expected, trainer.train(others), strict=True):
            assert distance(one.parts_C, other.parts_C) == 0
            np.testing.assert_array_equal(one.loss_C, other.loss_C)


@pytest.mark.parametrize("path", PATHS)
def test_a_client_without_a_share_learns_as_if_the_others_had_no_teachers(path: str) -> None:
    federation, scheme = setting(clip_norm=0.4), Taught()
    expected, found = (
        make(path, federation, scheme).train(asked)[0]
        for asked in (requests(federation, scheme), taught(federation, scheme))
    )
    still = LAMBDA.tolist().index(0.0)
    for part, params in found.parts_C.items():
        for name, value in params.items():
            torch.testing.assert_close(
                value[still], expected.parts_C[part][name][still], rtol=0, atol=0 if path == "loop" else 1e-6
            )


@pytest.mark.parametrize("path", PATHS)
def test_a_broken_teacher_spoils_only_those_whom_it_teaches(path: str) -> None:
    federation, scheme = setting(), Taught()
    (request, *_) = taught(federation, scheme)
    assert request.teachers is not None
    broken = {name: torch.cat([value[:2], value[2:] * np.nan]) for name, value in request.teachers.bank.items()}
    asked = replace(request, teachers=replace(request.teachers, bank=broken))
    (trained,) = make(path, federation, scheme).train([asked])
    assert trees.finite_rows(trained.parts_C).tolist() == [True, False, True]


@pytest.mark.full
def test_teachers_are_at_rest() -> None:
    """Neither dropout nor the batch at hand changes what they say."""
    federation, scheme = setting(user=lambda: Regular(norm=True), batch_size=6, drop_last=True), Taught()
    asked = taught(federation, scheme)
    for request, trained in zip(
        asked, LoopTrainer(federation.network, scheme, federation.examples).train(asked), strict=True
    ):
        check(trained, federation, scheme, request)
    federation = setting(user=lambda: Regular(dropout=0.5))
    (request, *_) = taught(federation, scheme)
    for path in ("loop", "vmap"):
        one, other = (make(path, federation, scheme).train([request])[0] for _ in range(2))
        assert distance(one.parts_C, other.parts_C) == 0
    check(make("loop", federation, scheme).train([request])[0], federation, scheme, request)


def test_some_clients_of_a_request_keep_their_own_teachers() -> None:
    federation, scheme = setting(), Taught()
    (request, *_) = taught(federation, scheme)
    loop, some = LoopTrainer(federation.network, scheme, federation.examples), slice(1, 3)
    whole, piece = loop.train([request])[0].parts_C, request.part(some)
    assert piece.clients == (1, 2)
    own = {part: {name: value[some] for name, value in params.items()} for part, params in whole.items()}
    assert distance(loop.train([piece])[0].parts_C, own) == 0


def test_kernels_leave_teachers_to_torch() -> None:
    federation, scheme = setting(), Taught()
    cpu = Runtime(device="cpu", workers=1)
    assert isinstance(make_trainer(federation.network, scheme, federation.examples, cpu), LoopTrainer)
    native = cpu.model_copy(update={"trainer": "native"})
    with pytest.raises(
        ConfigError, match=r"runtime\.trainer: .*'taught': a phase learns from teachers; use torch or auto"
    ):
        make_trainer(federation.network, scheme, federation.examples, native)
