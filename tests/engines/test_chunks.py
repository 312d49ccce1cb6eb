"""Clients in chunks: the same numbers for every chunk, and what happens when memory runs out."""

import logging
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from fedbac.aggregation import Krum
from fedbac.config.experiment import Training
from fedbac.core.parts import Personalization, Scope
from fedbac.core.requests import Average, Averaged, Train, Trained, Trainer
from fedbac.data import planted_groups
from fedbac.engines.simulator import COPIES, Chunks, Piece, cut
from fedbac.errors import NotEnoughMemoryError
from fedbac.federation import Federation
from fedbac.local import LoopTrainer
from fedbac.personalization import Additive, ControlVariates
from tests.covering import first
from tests.schemes import Layered, Personal
from tests.support import StubTrainer, distance, federate

DATA, SHARDS, _ = planted_groups(3, 5, 2, train=6, validation=2, test=12)
TRAINING = Training(epochs=1, batch_size=4, momentum_state="persist")


class Narrow:
    """A trainer that has room for so many clients at once."""

    path = "narrow"
    device = torch.device("cpu")

    def __init__(self, trainer: Trainer, room: int, error: Exception | None = None) -> None:
        self.trainer = trainer
        self.room = room
        self.error = error or MemoryError("no room")
        self.sizes: list[int] = []
        self.evaluate = trainer.evaluate
        self.close = trainer.close

    def train(self, requests: Sequence[Train]) -> list[Trained]:
        size = sum(len(request.clients) for request in requests)
        if size > self.room:
            raise self.error
        self.sizes.append(size)
        return self.trainer.train(requests)


def questions(federation: Federation, scheme: Personalization) -> list[Average]:
    """Return what three edges ask, at different moments: four of their five clients, from rows of their own."""
    owners: dict[Scope, int] = {"cloud": 1, "cluster": 2, "client": 4}
    asked = []
    for edge, clients in enumerate(SHARDS.clients):
        chosen = tuple(clients)[edge % 2 :][:4]
        bank = {
            part: {name: value * (1 + 0.1 * edge) for name, value in params.items()}
            for part, params in scheme.init(federation.build, owners).items()
        }
        scopes = {part: spec.scope for part, spec in scheme.parts.items()}
        rows: dict[str, list[int]] = {"cloud": [0, 0, 0, 0], "cluster": [0, 1, 1, 0], "client": [2, 0, 3, 1]}
        row_C = {part: np.array(rows[scope]) for part, scope in scopes.items()}
        rest = {
            part: {name: torch.zeros(4, *value.shape[1:]) for name, value in params.items()}
            for part, params in bank.items()
        }
        train = Train(chosen, bank, row_C, 1 + edge, 0, 0.1, rest, keep=frozenset({"square", "epochs"}))
        asked.append(Average(train, np.array([SHARDS.train[client].size + client for client in chosen])))
    return asked


def work(
    room: int = 1000,
    memory: float | None = None,
    error: Exception | None = None,
    scheme: Personalization | None = None,
) -> tuple[list[Averaged], Narrow]:
    """Train twelve clients, and again with the momentum they came back with."""
    scheme = scheme or Additive()
    federation = federate(DATA, SHARDS, training=TRAINING)
    trainer = Narrow(LoopTrainer(federation.network, scheme, federation.examples), room, error)
    chunks, asked = Chunks(trainer, memory, 1), questions(federation, scheme)
    first = chunks.average(asked)
    again = [
        replace(request, train=replace(request.train, round=9, bank=done.bank, momentum=done.momentum))
        for request, done in zip(asked, first, strict=True)
    ]
    return [*first, *chunks.average(again)], trainer


def client_bytes(averaged: Averaged) -> float:
    return COPIES * 4 * sum(value[0].numel() for params in averaged.bank.values() for value in params.values())


def same(one: list[Averaged], other: list[Averaged]) -> bool:
    for a, b in zip(one, other, strict=True):
        assert a.momentum is not None
        assert b.momentum is not None
        assert distance(a.bank, b.bank) == 0
        assert distance(a.momentum, b.momentum) == 0
        np.testing.assert_array_equal(a.loss_C, b.loss_C)
        assert a.square_C is not None
        assert a.epoch_CE is not None
        np.testing.assert_array_equal(a.square_C, b.square_C)
        np.testing.assert_array_equal(a.epoch_CE, b.epoch_CE)
        assert a.epoch_CE.shape[0] == a.square_C.size == a.loss_C.size
        assert {part: w.tolist() for part, w in a.weight.items()} == {part: w.tolist() for part, w in b.weight.items()}
    return True


@pytest.mark.parametrize("scheme", first(1, [Additive(), Personal(), Layered()]), ids=lambda scheme: scheme.kind)
def test_the_budget_decides_the_chunks_and_nothing_else(scheme: Personalization) -> None:
    """Averages, momenta, losses and their statistics have the same bits."""
    whole, trainer = work(scheme=scheme)
    assert trainer.sizes == [12] * 2
    for clients, sizes in ((1.5, [1] * 12), (5.1, [4] * 3), (8, [6, 6])):
        chunked, trainer = work(memory=clients * client_bytes(whole[0]), scheme=scheme)
        assert trainer.sizes == sizes * 2
        assert same(chunked, whole)


def test_corrections_which_belong_to_no_network_take_as_much_room_as_one() -> None:
    federation, scheme = federate(DATA, SHARDS, training=TRAINING), ControlVariates()
    asked = questions(federation, scheme)
    network = COPIES * sum(value[0].nbytes for value in asked[0].train.bank["global"].values())
    trainer = LoopTrainer(federation.network, scheme, federation.examples)
    assert Chunks(trainer, 3 * 5.1 * network, 1).fitting(asked) == 5, (
        "the correction of all and its own are weights too"
    )


def test_a_rule_that_holds_all_clients_gives_the_same_bits_in_any_chunks_and_takes_from_the_budget() -> None:
    """It holds a copy of each of the twelve, a quarter of what a client takes in training; half the budget is left."""
    federation, scheme = federate(DATA, SHARDS, training=TRAINING), Additive()
    rules = dict.fromkeys(scheme.parts, Krum(multi=True))
    asked = [replace(request, rules=rules) for request in questions(federation, scheme)]
    found = []
    one = client_bytes(Averaged(asked[0].train.bank, {}, np.zeros(0, dtype=bool), np.zeros(0)))
    for clients, sizes in ((100.0, [12]), (9.1, [6, 6]), (4.1, [2] * 6)):
        trainer = Narrow(LoopTrainer(federation.network, scheme, federation.examples), 1000)
        found.append(Chunks(trainer, clients * one, 1).average(asked))
        assert trainer.sizes == sizes
    assert same(found[1], found[0])
    assert same(found[2], found[0])
    plain = Chunks(trainer, None, 1).average([replace(request, rules={}) for request in asked])
    assert distance(plain[0].bank, found[0][0].bank) > 0


def test_rows_that_nobody_started_from_stay_and_weigh_nothing() -> None:
    federation, scheme = federate(DATA, SHARDS, training=TRAINING), Additive(cluster_init="distinct")
    (asked, *_) = questions(federation, scheme)
    rows = {"global": np.zeros(4, dtype=int), "cluster": np.ones(4, dtype=int)}
    asked = replace(asked, train=replace(asked.train, row_C=rows))
    trainer = LoopTrainer(federation.network, scheme, federation.examples)
    (averaged,) = Chunks(trainer, None, 1).average([asked])
    assert averaged.weight["cluster"].tolist() == [0, int(asked.size_C.sum())]
    for name, value in averaged.bank["cluster"].items():
        assert torch.equal(value[0], asked.train.bank["cluster"][name][0])
        assert not torch.equal(value[1], asked.train.bank["cluster"][name][1])


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("no room"),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=["python", "gpu", "cpu"],
)
def test_out_of_memory_halves_the_chunk_and_goes_on(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="fedbac"):
        done, trainer = work(room=7, error=error)
    assert trainer.sizes == [6] * 4
    assert same(done, work()[0])
    assert [record.getMessage() for record in caplog.records] == [
        "out of memory with 12 clients at once; going on with 6"
    ]


def test_it_halves_down_to_a_single_client() -> None:
    done, trainer = work(room=1)
    assert set(trainer.sizes) == {1}
    assert same(done, work()[0])


def test_without_room_for_a_single_client_the_error_says_so() -> None:
    with pytest.raises(NotEnoughMemoryError, match=r"a single client \(no room\).*batch"):
        work(room=0)


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        work(room=0, error=RuntimeError("shapes cannot be multiplied"))


def test_a_chunk_is_let_go_of_before_the_next_is_trained() -> None:
    class Watched(StubTrainer):
        results: ClassVar[list[weakref.ref[Trained]]] = []

        def train(self, requests: Sequence[Train]) -> list[Trained]:
            assert all(result() is None for result in self.results)
            trained = super().train(requests)
            self.results.extend(weakref.ref(result) for result in trained)
            return trained

    federation = federate(DATA, SHARDS)
    Chunks(Watched(), 1.0, 1).average(questions(federation, Additive()))
    assert len(Watched.results) == 12


@pytest.mark.parametrize("most", [1, 5, 64, 100, 333, 635, 1000])
def test_chunks_are_of_equal_size_and_hold_every_client_once(most: int) -> None:
    sizes = [10, 170, 90, 1, 64, 300]
    left = [Piece(r, slice(0, size)) for r, size in enumerate(sizes)]
    counts: list[int] = []
    seen: list[tuple[int, int]] = []
    while left:
        chunk, left = cut(left, most)
        seen += [(piece.request, client) for piece in chunk for client in range(*piece.clients.indices(1000))]
        counts.append(len(seen) - sum(counts))
    assert seen == [(r, client) for r, size in enumerate(sizes) for client in range(size)]
    assert max(counts) <= most
    assert max(counts) - min(counts) <= 1
