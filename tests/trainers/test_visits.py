"""Visits that are drawn early: the same order, for whoever trains next, and no more work than can be hidden."""

import numpy as np
import pytest

from fedbac.core.requests import Train
from fedbac.core.settings import IntArray
from fedbac.local import Examples
from fedbac.local.batches import Visits
from tests.trainers.reference import setting


def asked(round_: int, edge_round: int, *clients: int) -> list[Train]:
    return [Train(clients, {}, {}, round_, edge_round, 0.1)]


def test_what_is_drawn_early_is_what_would_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    examples = setting().examples
    visits = Visits(examples)
    expected = {(c, r, e): examples.visits(c, r, e, 2) for c in range(6) for r in (1, 2) for e in (0, 1)}
    draws, draw = [], Examples.visits

    def counted(self: Examples, *address: int) -> IntArray:
        draws.append(address)
        return draw(self, *address)

    monkeypatch.setattr(Examples, "visits", counted)
    late = {}
    for round_ in (1, 2):
        for edge_round in (0, 1):
            draws.clear()
            for client in range(6):
                found = visits.of(client, round_, edge_round, 2)
                np.testing.assert_array_equal(found, expected[client, round_, edge_round])
            late[round_, edge_round] = len(draws)
            visits.prefetch(asked(round_, edge_round, 0, 1, 2), {2})
    assert late == {(1, 0): 6, (1, 1): 6, (2, 0): 0, (2, 1): 0}, "how many edge rounds there are is seen in the first"
    assert visits.of(0, 3, 0, 1).shape == (1, 1), "another number of epochs was not drawn early"


def test_nothing_is_drawn_for_a_crowd_of_which_few_train_or_twice_for_chunks_of_a_round() -> None:
    visits = Visits(setting().examples)
    visits.prefetch(asked(1, 0, 3), {1})
    assert not visits.drawn, "six clients, one of whom trains"
    visits.prefetch(asked(2, 0, 3, 4), {1})
    drawn = visits.drawn
    assert {address[:3] for address in drawn} == {(client, 3, 0) for client in range(6)}
    visits.prefetch(asked(2, 0, 5), {1})
    assert visits.drawn is drawn
