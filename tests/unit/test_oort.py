"""Oort: utility, penalty, exploration and pacer, each by hand."""

import math
from typing import Any

import numpy as np
import pytest

from fedbac import Statistic
from fedbac.core.queries import Seconds
from fedbac.core.rng import stream
from fedbac.core.settings import BoolArray, FloatArray
from fedbac.selection import Oort, OortState
from tests.unit.crowd import crowd, play

SQUARE, SECONDS = Statistic("square"), Seconds()
NUM = 20
ALL = np.ones(NUM, bool)


def told(square_N: FloatArray, seconds_N: FloatArray | None = None) -> dict[Any, FloatArray]:
    return {SQUARE: square_N, SECONDS: np.ones_like(square_N) if seconds_N is None else seconds_N}


def explored(policy: Oort, square_N: FloatArray, seconds_N: FloatArray | None = None) -> OortState:
    """Return the state after a round with everybody, ten examples each."""
    everybody_N = np.ones(square_N.size, bool)
    seen = crowd(square_N.size, started_N=everybody_N, readings=told(square_N, seconds_N))
    return policy.learn(policy.init(square_N.size), seen, everybody_N)


def masks(policy: Oort, rounds: int, square_N: FloatArray | None = None, **options: Any) -> list[BoolArray]:
    answers = told(np.ones(NUM) if square_N is None else square_N)
    return [mask_N for _, mask_N in play(policy, crowd(NUM), rounds, lambda t: answers, **options)]


def test_the_utility_of_a_client_with_three_examples() -> None:
    """Losses 1, 2, 2: 3 · √((1 + 4 + 4) / 3) = 3√3."""
    policy, mask_N = Oort(), np.array([True])
    seen = crowd([3], started_N=mask_N, readings=told(np.array([3.0])))
    assert policy.learn(policy.init(1), seen, mask_N).utility_N[0] == pytest.approx(3 * math.sqrt(3))


def test_the_score_of_clients_by_hand() -> None:
    """Utilities 10, 20 and 30, of which the last is cut at 20; all were last seen in round 1, and it is round 2."""
    policy = Oort(clip_bound=0.5)
    score_N = policy.score(explored(policy, np.array([1.0, 4.0, 9.0])), crowd(3), np.ones(3, bool))
    bonus = math.sqrt(0.1 * math.log(2))
    np.testing.assert_allclose(score_N, [(value - 9.99) / (30 - 9.99) + bonus for value in (10, 20, 20)])


def test_who_claims_to_take_no_time_is_not_slow() -> None:
    policy, seconds_N = Oort(), np.where(np.arange(NUM) < NUM - 1, 0.0, 2.0)
    found_N = policy.penalty(explored(policy, np.ones(NUM), seconds_N), crowd(NUM))
    assert found_N.tolist() == [1.0] * (NUM - 1) + [0.0]


@pytest.mark.parametrize("penalty", [1.0, 2.0])
def test_a_slow_client_of_equal_utility_has_its_score_cut_by_the_penalty(penalty: float) -> None:
    policy, seconds_N = Oort(round_penalty=penalty), np.where(np.arange(NUM) == 4, 5.0, 2.0)
    score_N = policy.score(explored(policy, np.ones(NUM), seconds_N), crowd(NUM), ALL)
    np.testing.assert_allclose(score_N[4] / score_N[0], (2 / 5) ** penalty)
    assert np.unique(np.delete(score_N, 4)).size == 1
    lenient = Oort(round_threshold=100)
    assert lenient.penalty(explored(lenient, np.ones(NUM), seconds_N), crowd(NUM)).tolist() == [1.0] * NUM


def test_before_it_trains_a_client_is_as_slow_as_its_device_lets_expect() -> None:
    policy = Oort(round_threshold=0)
    begin = crowd(4, seconds_N=[1.0, 2.0, 4.0, 8.0])
    assert policy.penalty(policy.init(4), begin).tolist() == [1.0, 1 / 4, 1 / 16, 1 / 64]
    known = policy.init(4)._replace(seconds_N=np.array([np.nan, 1.0, np.nan, np.nan]))
    assert policy.penalty(known, begin).tolist() == [1.0, 1.0, 1 / 16, 1 / 64], "what it took counts from then on"


def test_with_an_exploration_of_one_nobody_is_exploited_while_somebody_is_new() -> None:
    policy = Oort(fraction=0.2, exploration=1, exploration_decay=1, exploration_min=1)
    assert np.sum(masks(policy, 5), axis=0).tolist() == [1] * NUM


def test_exploration_shrinks_to_its_least_and_ends_when_nobody_is_new() -> None:
    """B = 10: of the first round ⌊10 (1 − 0.5 · 0.5)⌋ = 7 places are for known clients, but there are none yet."""
    policy = Oort(fraction=0.5, exploration=0.5, exploration_decay=0.5, exploration_min=0.2)
    played = list(play(policy, crowd(NUM), 8, lambda t: told(np.ones(NUM))))
    new = [int((mask_N & (state.count_N == 0)).sum()) for state, mask_N in played]
    assert new == [10, 2, 2, 2, 2, 2, 0, 0]


def test_everybody_is_explored_in_time() -> None:
    """⌈N / (ε_min · B)⌉ rounds at most."""
    policy = Oort(fraction=0.25, exploration=0.3)
    assert np.any(masks(policy, math.ceil(NUM / (0.2 * 5))), axis=0).all()


def test_new_clients_are_drawn_by_data_among_the_largest() -> None:
    """Two of 20 in a window of twice as many: the four largest, more often the larger."""
    policy, begin = Oort(fraction=0.1, sample_window=2), crowd([*range(1, 17), 100, 100, 100, 1000])
    found = np.sum([policy.act(policy.init(NUM), begin, stream(i, "act")) for i in range(200)], axis=0)
    assert not found[:16].any()
    assert found[19] > 190 > 170 > found[16:19].max()


def test_high_utility_is_exploited_and_what_is_below_the_cut_is_not() -> None:
    """Utilities 100 and 10: the first five are far above the others."""
    policy = Oort(fraction=0.2, uncertainty=0)
    state = explored(policy, np.where(np.arange(NUM) < 5, 100.0, 1.0))
    found = np.sum([policy.act(state, crowd(NUM), stream(i, "act")) for i in range(100)], axis=0)
    assert not found[5:].any()
    assert found[:5].min() > 60, "four of five, drawn"
    greedy = Oort(fraction=0.2, uncertainty=0, cut_off=0)
    found = np.sum([greedy.act(state, crowd(NUM), stream(i, "act")) for i in range(100)], axis=0)
    assert found[:5].sum() > 390, "drawn by score"


def test_the_pacer_lets_slower_clients_in_where_the_utility_is_flat() -> None:
    policy = Oort(pacer_step=3)
    thresholds = [state.threshold[0] for state, _ in play(policy, crowd(NUM), 13, lambda t: told(np.ones(NUM)))]
    assert thresholds[:6] == [10.0] * 6, "two windows are needed"
    assert thresholds[-1] == 20.0, "after rounds 9 and 12; the first window has no exploited clients to begin with"


@pytest.mark.parametrize(("growth", "expected"), [(1.0, 40.0), (1.2, 30.0), (2.0, 30.0), (6.0, 20.0), (0.5, 30.0)])
def test_the_threshold_moves_by_the_change_of_a_window(growth: float, expected: float) -> None:
    policy = Oort(pacer_step=2, pacer_delta=10, round_threshold=30)
    state = policy.init(NUM)._replace(
        count_N=np.ones(NUM), played=np.array([3.0]), window=np.array([0.0]), window_before=np.array([10.0])
    )
    seen = crowd(NUM, started_N=ALL, readings=told(np.full(NUM, growth**2)))
    after = policy.learn(state, seen, ALL)  # mean utility 10 · growth, against 10 of the window before
    assert after.threshold[0] == expected
    assert (after.window[0], after.window_before[0]) == (0.0, pytest.approx(10 * growth))


@pytest.mark.parametrize(("start", "growth", "end"), [(98.0, 1.0, 100.0), (12.0, 9.0, 10.0)])
def test_the_threshold_stays_within_bounds(start: float, growth: float, end: float) -> None:
    policy = Oort(pacer_delta=10, round_threshold=start)
    state = policy.init(1)._replace(
        played=np.array([40.0]), window=np.array([10.0 * growth]), window_before=np.array([10.0])
    )
    assert policy._paced(state).threshold[0] == end


def test_whoever_was_selected_too_often_is_passed_over_up_to_a_share() -> None:
    policy = Oort(fraction=0.5, blacklist_after=3, blacklist_share=0.25)
    state = explored(policy, np.ones(8))._replace(count_N=np.array([9.0, 4, 4, 5, 1, 1, 1, 1]))
    assert np.flatnonzero(policy.blacklisted(state)).tolist() == [0, 3]
    for i in range(20):
        assert not policy.act(state, crowd(8), stream(i, "act"))[[0, 3]].any()
    whole = Oort(fraction=1.0, blacklist_after=3)
    assert whole.act(state, crowd(8), stream(0, "act")).all(), "the budget is spent all the same"
    assert not Oort().blacklisted(state).any()


def test_a_client_that_never_came_home_counts_as_the_mean() -> None:
    """Not as new: with one client for a round it would be selected for ever."""
    policy = Oort(fraction=0.05)
    found = np.array(masks(policy, 80, home=lambda t, mask_N: np.arange(NUM) > 0))
    assert found[:20].sum(0).tolist() == [1] * NUM
    assert found[20:, 0].sum() < 15
    state = explored(policy, np.array([1.0, 4.0, 9.0, 4.0]))
    state = state._replace(utility_N=np.array([np.nan, 10.0, 20.0, 30.0]))
    score_N = policy.score(state, crowd(4), np.ones(4, bool))
    assert score_N[0] == score_N[2]
