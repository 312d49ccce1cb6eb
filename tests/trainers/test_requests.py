"""What trainers owe to each request: its own moment and rate, its own rows of the bank, its own parts."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedbac.core import trees
from fedbac.core.parts import Anatomy, Parts, Personalization
from fedbac.core.requests import Kept, Teachers, Train, Trained
from fedbac.federation import Federation
from fedbac.local import LoopTrainer, PoolTrainer
from fedbac.models import weights
from fedbac.personalization import Additive, PerCluster, Shared
from tests.covering import first
from tests.schemes import Branched, InTurns, Layered, Personal, Taught
from tests.support import distance, order
from tests.trainers.reference import CLIENTS, PATHS, RATE, check, make, requests, setting, starts, with_momentum

EXACT = {"loop", "native", "emulated", "fused"}
"""Trainers for which a client's bits do not depend on who trains beside it."""
CLIP: dict[str, Any] = {"clip_norm": 0.4}


def assert_same(path: str, one: Trained, other: Trained) -> None:
    if path in EXACT:
        assert distance(one.parts_C, other.parts_C) == 0
        np.testing.assert_array_equal(one.loss_C, other.loss_C)
    else:
        assert distance(one.parts_C, other.parts_C) < 1e-6
        np.testing.assert_allclose(one.loss_C, other.loss_C, rtol=1e-6)


def rows_of(trained: Trained, clients: slice) -> Trained:
    parts = {part: {name: v[clients] for name, v in params.items()} for part, params in trained.parts_C.items()}
    return Trained(parts, trained.loss_C[clients])


@pytest.mark.covering
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("scheme", [Shared(), Additive(), Personal()], ids=lambda scheme: scheme.kind)
def test_requests_of_different_moments_and_rates_do_not_mix(path: str, scheme: Personalization) -> None:
    """An edge that has nobody to train runs ahead of its neighbours: they then ask for different rounds at once."""
    federation = setting(augment=None, **CLIP)
    moments = [(2, 0, RATE), (2, 1, RATE), (5, 0, 0.05)]
    asked = [
        order(clients, start, *moment)
        for clients, start, moment in zip(CLIENTS, starts(federation, scheme), moments, strict=True)
    ]
    together = make(path, federation, scheme).train(asked)
    for request, trained in zip(asked, together, strict=True):
        assert_same(path, trained, make(path, federation, scheme).train([request])[0])
        check(trained, federation, scheme, request)
    for change in ({"round": 2}, {"learning_rate": RATE}):
        other = make(path, federation, scheme).train([replace(asked[2], **change)])[0]
        assert distance(together[2].parts_C, other.parts_C) > 1e-4, "otherwise nothing was compared"


@pytest.mark.parametrize("seconds", first(1, [1.0, 0.0, 10.0]), ids=["in the midst", "at once", "never"])
def test_the_pool_hands_each_client_what_is_its_own(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Moment, rate, teachers; and back come the statistics. Workers are started once the work has taken a while."""
    monkeypatch.setattr("fedbac.local.pool.START_SECONDS", seconds)
    monkeypatch.setattr("fedbac.local.pool.perf_counter", itertools.count(step=0.4).__next__)  # 0.4 s for each client
    federation, scheme = setting(**CLIP), Taught()
    bank = trees.stack([weights(federation.build(number)) for number in (5, 6)])
    asked = []
    for i, request in enumerate(requests(federation, scheme)):
        size = len(request.clients)
        taught = Teachers(bank, np.resize([[0.0, 1.0], [0.5, 0.5]], (size, 2)), np.resize([0.5, 0.0, 1.0], size), 2.0)
        scale = {0: np.resize([0.5, 2.0, 1.0], size)}
        kept: frozenset[Kept] = frozenset({"square", "epochs"} if i else {})
        asked.append(replace(request, round=2 + i, rate_scale=scale, teachers=taught, keep=kept))
    pool = PoolTrainer(federation.network, scheme, federation.examples, workers=2)
    try:
        loop = LoopTrainer(federation.network, scheme, federation.examples)
        for one, other in zip(pool.train(asked), loop.train(asked), strict=True):
            assert_same("loop", one, other)
            for found, expected in ((one.square_C, other.square_C), (one.epoch_CE, other.epoch_CE)):
                assert (found is None) == (expected is None)
                assert found is None or expected is None or np.array_equal(found, expected)
        assert (pool.pool is None) == (seconds == 10)
        assert pool.spent == pytest.approx({0: 0, 1: 1.2, 10: 0.4 * sum(map(len, CLIENTS))}[int(seconds)])
    finally:
        pool.close()


def bank_of(federation: Federation, scheme: Personalization, rows: int) -> Parts:
    """Return a bank of so many different rows of every part."""
    parts = scheme.init(federation.build, {"cloud": 1, "cluster": 1, "edge": 1, "client": 1})
    return {
        part: {name: torch.cat([value[:1] * (1 + 0.3 * k) for k in range(rows)]) for name, value in params.items()}
        for part, params in parts.items()
    }


@pytest.mark.covering
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "scheme",
    [PerCluster(), Additive(l2_form="loss"), Personal(), Layered(), Layered(in_turns=True), Branched(in_turns=True)],
    ids=repr,
)
def test_clients_start_from_their_own_rows(path: str, scheme: Personalization) -> None:
    """Clients of one request that start from different rows end as they do in requests of their own."""
    federation = setting(**CLIP)
    bank, clients = bank_of(federation, scheme, 3), (2, 1, 3, 5)
    row_C = {part: np.array([(2, 0, 1, 2), (1, 1, 0, 2)][i % 2]) for i, part in enumerate(bank)}
    request = Train(clients, bank, row_C, 2, 1, RATE)
    trainer = make(path, federation, scheme)
    together = trainer.train([request])[0]
    assert list(together.parts_C) == list(scheme.parts)
    for c, client in enumerate(clients):
        start = {part: trees.take(bank[part], int(row_C[part][c])) for part in bank}
        alone = trainer.train([order((client,), start, 2, 1, RATE)])[0]
        assert_same(path, rows_of(together, slice(c, c + 1)), alone)
    check(together, federation, scheme, request)


@pytest.mark.parametrize("path", PATHS)
def test_what_was_sent_is_not_written_to(path: str) -> None:
    federation, scheme = setting(), Personal()
    (request, *_) = requests(federation, scheme)
    kept = {part: {name: value.clone() for name, value in params.items()} for part, params in request.bank.items()}
    make(path, federation, scheme).train([request])
    assert distance(kept, request.bank) == 0


@pytest.mark.covering
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("option", [{}, CLIP, CLIP | {"momentum": 0}, CLIP | {"clip_scope": "joint"}], ids=str)
def test_a_network_in_layers_learns_as_the_whole(path: str, option: dict[str, Any]) -> None:
    """Who owns the layers decides what is averaged, never how they are trained: the same bits."""
    federation = setting(**option)
    layered, whole = Layered(), Shared()
    (network,) = whole.init(federation.build, {"cloud": 1}).values()
    parts = Anatomy(layered, federation.network).split({"main": trees.take(network, 0)})
    split = make(path, federation, layered).train([order((0, 1, 2, 5), parts, rate=RATE)])[0]
    joint = make(path, federation, whole).train([order((0, 1, 2, 5), {"global": trees.take(network, 0)}, rate=RATE)])[0]
    assert set(split.parts_C["body"]).isdisjoint(split.parts_C["head"])
    assert distance({"global": split.parts_C["body"] | split.parts_C["head"]}, joint.parts_C) == 0
    np.testing.assert_array_equal(split.loss_C, joint.loss_C)


@pytest.mark.covering
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("option", [{}, CLIP, CLIP | {"clip_scope": "joint"}], ids=str)
def test_the_first_of_two_phases_learns_as_if_it_were_the_only_one(path: str, option: dict[str, Any]) -> None:
    federation, scheme = setting(**option), Personal()
    asked = requests(federation, scheme)
    alone = [replace(r, bank={"global": r.bank["global"]}, row_C={"global": r.row_C["global"]}) for r in asked]
    both, shared = make(path, federation, scheme).train(asked), make(path, federation, Shared()).train(alone)
    for one, other in zip(both, shared, strict=True):
        assert distance({"global": one.parts_C["global"]}, other.parts_C) == 0


@pytest.mark.parametrize("path", PATHS)
def test_the_second_phase_is_pulled_to_what_was_received_and_not_to_what_the_first_made_of_it(path: str) -> None:
    """A pull so strong that the own network goes all the way in one step to where it is pulled, and stays there."""
    federation, scheme = setting(momentum=0, weight_decay=0, batch_size=64, epochs=1), Personal(strength=1 / RATE)
    start = starts(federation, scheme)[0]
    start = {"global": start["global"], "personal": {name: 3 * value for name, value in start["personal"].items()}}
    trained = make(path, federation, scheme).train([order((2,), start, rate=RATE)])[0]
    check(trained, federation, scheme, order((2,), start, rate=RATE))
    gap = max(float((trained.parts_C["personal"][n][0].cpu() - v).abs().max()) for n, v in start["global"].items())
    moved = max(float((trained.parts_C["personal"][n][0].cpu() - v).abs().max()) for n, v in start["personal"].items())
    assert gap < moved / 2


@pytest.mark.covering
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("option", [{}, CLIP | {"momentum": 0}], ids=str)
def test_a_proximal_term_holds_clients_back(path: str, option: dict[str, Any]) -> None:
    federation = setting(**option)
    asked = requests(federation, Shared())

    def learned(strength: float) -> list[Trained]:
        return make(path, federation, Shared(proximal=strength)).train(asked)

    def distances(trained: list[Trained]) -> list[float]:
        return [
            sum(float((v[c].cpu() - r.bank["global"][n][0]).square().sum()) for n, v in t.parts_C["global"].items())
            for r, t in zip(asked, trained, strict=True)
            for c in range(len(r.clients))
        ]

    free, none, weak, strong = (learned(strength) for strength in (0.0, 1e-30, 0.1, 1.0))
    for one, other in zip(free, none, strict=True):
        assert distance(one.parts_C, other.parts_C) < 1e-6
    for far, near, nearer in zip(*map(distances, (free, weak, strong)), strict=True):
        assert far > near > nearer


@pytest.mark.covering
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "scheme", [Layered(in_turns=True), Personal(), InTurns(), Branched(), Branched(in_turns=True)], ids=repr
)
def test_momentum_of_layers_and_of_networks_that_take_turns_persists(path: str, scheme: Personalization) -> None:
    federation = setting(momentum_state="persist", clip_norm=0.5)
    trainer = make(path, federation, scheme)
    once = [with_momentum(request, None, federation) for request in requests(federation, scheme, 1)]
    done = trainer.train(once)
    again = [with_momentum(r, t.momentum, federation) for r, t in zip(once, done, strict=True)]
    for request, trained in zip([*once, *again], [*done, *trainer.train(again)], strict=True):
        check(trained, federation, scheme, request)
