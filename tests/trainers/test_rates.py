"""A learning rate of each client's own in a phase."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedbac.core.parts import Parts
from fedbac.core.requests import Train
from fedbac.core.settings import FloatArray
from fedbac.federation import Federation
from tests.emulator import NO_COMPILER
from tests.schemes import InTurns
from tests.support import distance, order
from tests.trainers.reference import CLIENTS, PATHS, RATE, make, requests, setting, starts

SCHEME = InTurns()
"""Phase 0 moves the network of all, phase 1 that of the cluster."""
PART = {0: "global", 1: "cluster"}
SOME = [*PATHS[:3], pytest.param("emulated", marks=[NO_COMPILER, pytest.mark.full]), *PATHS[4:]]
"""Of all trainers; the kernels of a GPU take a while on none."""


def scaled(asked: list[Train], phase: int, *scale: float) -> list[Train]:
    """Return requests whose clients, all together, have these multipliers in one phase."""
    scale_J = np.resize(np.array(scale), sum(len(request.clients) for request in asked))
    cuts: list[FloatArray] = np.split(scale_J, np.cumsum([len(request.clients) for request in asked])[:-1])
    return [replace(request, rate_scale={phase: cut}) for request, cut in zip(asked, cuts, strict=True)]


def learned(path: str, federation: Federation, asked: list[Train]) -> list[Parts]:
    return [trained.parts_C for trained in make(path, federation, SCHEME).train(asked)]


def moved(parts: Parts, start: Parts, part: str, client: int) -> float:
    return max(float((value[client].cpu() - start[part][n]).abs().max()) for n, value in parts[part].items())


@pytest.mark.parametrize("path", SOME)
def test_a_scale_of_one_keeps_every_bit(path: str) -> None:
    federation = setting(clip_norm=0.4)
    asked = requests(federation, SCHEME)
    plain = learned(path, federation, asked)
    for one, other in zip(plain, learned(path, federation, scaled(asked, 1, 1.0)), strict=True):
        assert distance(one, other) == 0


@pytest.mark.parametrize("path", SOME)
@pytest.mark.parametrize("phase", [0, 1])
def test_a_scale_of_zero_leaves_a_client_where_it_was_in_that_phase_alone(path: str, phase: int) -> None:
    federation, still = setting(), (0, 3, 5)
    start = starts(federation, SCHEME)
    scale = [0.0 if client in still else 1.0 for clients in CLIENTS for client in clients]
    asked = scaled(requests(federation, SCHEME), phase, *scale)
    for request, parts, begin in zip(asked, learned(path, federation, asked), start, strict=True):
        for row, client in enumerate(request.clients):
            assert (moved(parts, begin, PART[phase], row) == 0) == (client in still)
            assert moved(parts, begin, PART[1 - phase], row) > 1e-3


@pytest.mark.parametrize("path", SOME)
def test_half_the_scale_is_half_the_rate_in_that_phase(path: str) -> None:
    """The first phase does not know of the second, so that with a scale there alone it learns what it always does."""
    federation = setting(clip_norm=0.4)
    asked = requests(federation, SCHEME)
    whole = learned(path, federation, asked)
    first = learned(path, federation, scaled(asked, 0, 0.5))
    slow = learned(path, federation, [replace(request, learning_rate=RATE / 2) for request in asked])
    last = learned(path, federation, scaled(asked, 1, 0.5))
    halves = [replace(r, rate_scale={phase: np.full(len(r.clients), 0.5) for phase in (0, 1)}) for r in asked]
    both = learned(path, federation, halves)
    for parts, half_first, half_last, half_both, half in zip(whole, first, last, both, slow, strict=True):
        assert distance({"global": half_first["global"]}, {"global": half["global"]}) == 0
        assert distance({"global": half_last["global"]}, {"global": parts["global"]}) == 0
        assert distance(half_both, half) == 0
        assert distance({"cluster": half_last["cluster"]}, {"cluster": parts["cluster"]}) > 1e-4
        assert distance({"cluster": half_last["cluster"]}, {"cluster": half["cluster"]}) > 1e-4


@pytest.mark.parametrize("path", PATHS)
def test_every_client_has_the_rate_of_its_own(path: str) -> None:
    federation, scale = setting(), (0.25, 1.0, 2.0)
    (request, *_) = requests(federation, SCHEME)
    together = make(path, federation, SCHEME).train([replace(request, rate_scale={0: np.array(scale)})])[0].parts_C
    for row, (client, factor) in enumerate(zip(request.clients, scale, strict=True)):
        begin = starts(federation, SCHEME)[0]
        alone = make(path, federation, SCHEME).train([order((client,), begin, 2, 0, RATE * factor)])[0].parts_C
        for name, value in alone["global"].items():
            torch.testing.assert_close(together["global"][name][row], value[0], rtol=1e-6, atol=1e-6)


def test_some_clients_of_a_request_keep_their_own_scale() -> None:
    (request, *_) = scaled(requests(setting(), SCHEME), 0, 0.0, 0.5, 2.0)
    piece = request.part(slice(1, 3))
    assert piece.rates(0).tolist() == [RATE * 0.5, RATE * 2.0]
    assert piece.rates(1).tolist() == [RATE, RATE]
