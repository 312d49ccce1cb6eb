"""Clients in chunks: the same numbers for every chunk, and what happens when memory runs out."""

import logging
import weakref
from collections.abc import Sequence
from typing import ClassVar

import pytest
import torch

from fedbac.config.experiment import Method, Training
from fedbac.core.requests import Train, Trained, Trainer
from fedbac.data import planted_groups
from fedbac.engines import Simulator
from fedbac.engines.chunks import COPIES, GIB, Piece, cut
from fedbac.errors import NotEnoughMemoryError
from fedbac.local import LoopTrainer
from fedbac.personalization import Additive
from fedbac.rounds.cloud import rounds, start
from fedbac.selection import Thompson
from fedbac.topology import Hierarchical
from tests.support import Played, StubTrainer, prepare, without

DATA, SHARDS, _ = planted_groups(3, 5, 2, train=6, validation=2, test=12)
TRAINING = Training(epochs=1, batch_size=4, momentum_state="persist")
METHOD = Method(
    name="test",
    topology=Hierarchical(edge_rounds=2),
    selection=Thompson(fraction=0.8),
    personalization=Additive(),
)


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


def play(room: int = 1000, memory_gib: float | None = None, error: Exception | None = None) -> tuple[Played, Narrow]:
    experiment, federation = prepare(METHOD, DATA, SHARDS, training=TRAINING, num_rounds=2)
    trainer = Narrow(LoopTrainer(federation.network, METHOD.personalization, federation.examples), room, error)
    edges = Simulator(experiment, federation.sites, trainer, memory_gib)
    played = Played(experiment, federation, [], [start(experiment, federation.build, federation.sites)])
    for record, state in rounds(experiment, federation.sites, edges, played.end):
        played.records.append(record)
        played.states.append(state)
    return played, trainer


def client_gib(played: Played) -> float:
    numbers = sum(value[0].numel() for params in played.end.parts.values() for value in params.values())
    return COPIES * 4 * numbers / GIB


def same(one: Played, other: Played) -> bool:
    trees = [
        [*p.end.parts.values(), *(params for m in p.end.momentum_M if m for params in m.values())] for p in (one, other)
    ]
    equal = [torch.equal(a[name], b[name]) for a, b in zip(*trees, strict=True) for name in a]
    return all(equal) and without(one.records) == without(other.records)


def test_the_budget_decides_the_chunks_and_nothing_else() -> None:
    """Twelve clients train in every edge round; weights, momenta and records have the same bits."""
    whole, trainer = play()
    assert trainer.sizes == [12] * 4
    for clients, sizes in ((1.5, [1] * 12), (5.1, [4] * 3), (8, [6, 6])):
        chunked, trainer = play(memory_gib=clients * client_gib(whole))
        assert trainer.sizes == sizes * 4
        assert same(chunked, whole)


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
        played, trainer = play(room=7, error=error)
    assert trainer.sizes == [6] * 8
    assert same(played, play()[0])
    assert [record.getMessage() for record in caplog.records] == [
        "out of memory with 12 clients at once; going on with 6"
    ]


def test_it_halves_down_to_a_single_client() -> None:
    played, trainer = play(room=1)
    assert set(trainer.sizes) == {1}
    assert same(played, play()[0])


def test_without_room_for_a_single_client_the_error_says_so() -> None:
    with pytest.raises(NotEnoughMemoryError, match=r"a single client \(no room\).*batch"):
        play(room=0)


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        play(room=0, error=RuntimeError("shapes cannot be multiplied"))


def test_a_chunk_is_let_go_of_before_the_next_is_trained() -> None:
    class Watched(StubTrainer):
        results: ClassVar[list[weakref.ref[Trained]]] = []

        def train(self, requests: Sequence[Train]) -> list[Trained]:
            assert all(result() is None for result in self.results)
            trained = super().train(requests)
            self.results.extend(weakref.ref(result) for result in trained)
            return trained

    experiment, federation = prepare(Method(name="test"), DATA, SHARDS, num_rounds=1)
    first = start(experiment, federation.build, federation.sites)
    edges = Simulator(experiment, federation.sites, Watched(), memory_gib=1e-9)
    next(rounds(experiment, federation.sites, edges, first))
    assert len(Watched.results) == 15


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
