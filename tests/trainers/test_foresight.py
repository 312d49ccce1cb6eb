"""Visits that are drawn ahead: the same order, for whoever trains next, and no more work than can be hidden."""

import numpy as np
import pytest

from fedbac.core.requests import Train
from fedbac.local import Examples
from fedbac.local.foresight import Foresight
from tests.trainers.reference import setting


def asked(round_: int, edge_round: int, *clients: int) -> list[Train]:
    return [Train(clients, {}, {}, round_, edge_round, 0.1)]


def test_what_was_foreseen_is_what_would_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    examples = setting().examples
    ahead = Foresight(examples)
    expected = {(c, r, e): examples.visits(c, r, e, 2) for c in range(6) for r in (1, 2) for e in (0, 1)}
    draws = []
    draw = Examples.visits
    monkeypatch.setattr(Examples, "visits", lambda *words: draws.append(words[1:]) or draw(*words))
    late = {}
    for round_ in (1, 2):
        for edge_round in (0, 1):
            draws.clear()
            for client in range(6):
                found = ahead.visits(client, round_, edge_round, 2)
                np.testing.assert_array_equal(found, expected[client, round_, edge_round])
            late[round_, edge_round] = len(draws)
            ahead.look_ahead(asked(round_, edge_round, 0, 1, 2), {2})
    assert late == {(1, 0): 6, (1, 1): 6, (2, 0): 0, (2, 1): 0}, "how many edge rounds there are is seen in the first"
    assert ahead.visits(0, 3, 0, 1).shape == (1, 1), "another number of epochs was not foreseen"


def test_nothing_is_drawn_for_a_crowd_of_which_few_train_or_twice_for_chunks_of_a_round() -> None:
    ahead = Foresight(setting().examples)
    ahead.look_ahead(asked(1, 0, 3), {1})
    assert not ahead.drawn, "six clients, one of whom trains"
    ahead.look_ahead(asked(2, 0, 3, 4), {1})
    drawn = ahead.drawn
    assert {address[:3] for address in drawn} == {(client, 3, 0) for client in range(6)}
    ahead.look_ahead(asked(2, 0, 5), {1})
    assert ahead.drawn is drawn
