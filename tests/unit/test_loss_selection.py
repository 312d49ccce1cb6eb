"""Power-of-choice and UCB-CS: clients with a large loss come first."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedbac import Loss, Statistic
from fedbac.core.rng import stream
from fedbac.core.settings import BoolArray, FloatArray
from fedbac.selection import LastLosses, LossUCB, LossUCBState, PowerOfChoice
from tests.unit.crowd import crowd, play

CURRENT = Loss("received", each=True)
LOSS, SQUARE = Statistic("loss"), Statistic("square")
PAIRS = list(itertools.combinations(range(5), 2))
LOSSES = np.array([0.3, 2.0, 1.1, 0.2, 1.7, 0.9, 0.1, 1.4, 0.6, 0.4])


def chosen(policy: PowerOfChoice, sizes: list[int], losses_N: FloatArray, seed: int) -> tuple[BoolArray, BoolArray]:
    """Return the candidates and the selected."""
    begin = crowd(sizes)
    ask = policy.ask(policy.init(len(sizes)), begin, stream(seed, "candidates"))
    assert ask.among_N is not None
    seen = replace(begin, readings={CURRENT: np.where(ask.among_N, losses_N, np.nan)})
    return ask.among_N, policy.act(policy.init(len(sizes)), seen, stream(seed, "act"))


# ---------------------------------------------------------------------------------------------- power-of-choice


def test_as_many_candidates_as_are_needed_are_drawn_in_proportion_to_data() -> None:
    """All pairs of five clients, with the probability of drawing them one after the other."""
    sizes, draws = [1, 2, 3, 4, 10], 3000
    share = np.array(sizes) / 20
    exact = {(a, b): share[a] * share[b] * (1 / (1 - share[a]) + 1 / (1 - share[b])) for a, b in PAIRS}
    counts = dict.fromkeys(PAIRS, 0)
    policy = PowerOfChoice(fraction=0.4, d_factor=1)
    for seed in range(draws):
        _, mask_N = chosen(policy, sizes, LOSSES[:5], seed)
        a, b = np.flatnonzero(mask_N).tolist()
        counts[a, b] += 1
    expected = [draws * exact[pair] for pair in PAIRS]
    assert stats.chisquare([counts[pair] for pair in PAIRS], expected).pvalue > 0.001


def test_with_everybody_a_candidate_the_largest_losses_are_taken() -> None:
    _, mask_N = chosen(PowerOfChoice(fraction=0.3, d_factor=10), [10] * 10, LOSSES, seed=0)
    assert np.flatnonzero(mask_N).tolist() == [1, 4, 7]


def test_the_selected_are_candidates_and_their_loss_grows_with_the_candidates() -> None:
    means = []
    for d_factor, count in ((1.0, 3), (1.5, 5), (2.0, 6), (3.0, 9)):
        policy = PowerOfChoice(fraction=0.3, d_factor=d_factor)
        found = [chosen(policy, [10] * 10, LOSSES, seed) for seed in range(150)]
        for among_N, mask_N in found:
            assert among_N.sum() == count
            assert not (mask_N & ~among_N).any()
        means.append(np.mean([LOSSES[mask_N].mean() for _, mask_N in found]))
    assert means == sorted(means)
    assert means[-1] > means[0] + 0.3


def test_whoever_cannot_measure_is_taken_only_to_spend_the_budget() -> None:
    policy = PowerOfChoice(fraction=0.5)
    broken = crowd(4, readings={CURRENT: np.array([np.nan, 0.1, np.nan, 0.2])})
    assert policy.act(policy.init(4), broken, stream(0, "act")).tolist() == [False, True, False, True]
    one = crowd(4, readings={CURRENT: np.array([np.nan, 0.1, np.nan, np.nan])})
    mask_N = policy.act(policy.init(4), one, stream(0, "act"))
    assert mask_N[1]
    assert mask_N.sum() == 2


def test_last_losses_cost_nothing_and_clients_never_selected_come_first() -> None:
    policy = PowerOfChoice(fraction=0.3, d_factor=10, variant="last")
    assert policy.adaptive
    assert not PowerOfChoice().adaptive
    ask = policy.ask(policy.init(10), crowd(10), stream(0, "candidates"))
    assert (ask.before, ask.after, ask.among_N) == ((), (LOSS,), None)
    found = list(play(policy, crowd(10), 6, lambda t: {LOSS: LOSSES}))
    assert np.sum([mask_N for _, mask_N in found[:3]], axis=0).max() == 1, "nobody twice while others are unknown"
    assert np.flatnonzero(found[4][1]).tolist() == [1, 4, 7], "all are known after four rounds"


def test_who_trained_tells_its_loss_and_who_did_not_keeps_the_last() -> None:
    policy = PowerOfChoice(variant="last")
    told = crowd(3, readings={LOSS: np.array([0.5, np.nan, np.nan])})
    state = policy.learn(LastLosses(np.array([1.0, 2.0, np.inf])), told, np.array([True, False, False]))
    assert state.loss_N.tolist() == [0.5, 2.0, np.inf]


# ------------------------------------------------------------------------------------------------------- UCB-CS


def told(loss_N: FloatArray, deviation: float = 0.1) -> dict[Statistic, FloatArray]:
    return {LOSS: loss_N, SQUARE: loss_N**2 + deviation**2}


def test_the_index_of_a_client_by_hand() -> None:
    """Selected with loss 2 and then 1; γ = 0.5: L = 0.5·2 + 1 = 2, N = 1.5, T = 1.5, σ² = 0.25."""
    policy, both = LossUCB(discount=0.5), np.array([True, True])
    state = policy.init(2)
    for losses in ([2.0, 4.0], [1.0, 4.0]):
        seen = crowd([30, 10], started_N=both, readings=told(np.array(losses), 0.5))
        state = policy.learn(state, seen, both)
    assert state.loss_N[0] == 2.0
    assert state.count_N.tolist() == [1.5, 1.5]
    assert (state.total[0], state.deviation[0]) == (1.5, pytest.approx(0.5))
    bonus = math.sqrt(2 * 0.25 * math.log(1.5) / 1.5)
    np.testing.assert_allclose(policy.index(state, crowd([30, 10])), [30 * (2 / 1.5 + bonus), 10 * (4 + bonus)])


def test_a_logarithm_below_zero_counts_as_none() -> None:
    state = LossUCBState(np.array([0.3]), np.array([0.2]), np.array([0.5]), np.array([1.0]))
    np.testing.assert_allclose(LossUCB().index(state, crowd([10])), [10 * 1.5])


def test_the_largest_deviation_of_the_round_counts_among_those_that_trained() -> None:
    policy, mask_N = LossUCB(), np.array([True, True, False])
    readings = {LOSS: np.array([1.0, 2.0, np.nan]), SQUARE: np.array([1.25, 4.01, np.nan])}
    state = policy.learn(policy.init(3), crowd(3, started_N=mask_N, readings=readings), mask_N)
    assert state.deviation[0] == pytest.approx(0.5)
    nobody = crowd(3, started_N=mask_N, readings=dict.fromkeys((LOSS, SQUARE), np.full(3, np.nan)))
    assert policy.learn(state, nobody, np.zeros(3, bool)).deviation[0] == pytest.approx(0.5), "kept if nobody trained"


@pytest.mark.parametrize(("fraction", "rounds"), [(0.3, 4), (0.5, 2), (0.8, 2)])
def test_ucb_cs_tries_everybody_before_anybody_twice(fraction: float, rounds: int) -> None:
    masks = [mask_N for _, mask_N in play(LossUCB(fraction=fraction), crowd(10), rounds, lambda t: told(LOSSES))]
    assert np.any(masks, axis=0).all()
    assert np.sum(masks[: rounds - 1], axis=0).max() == 1


def test_a_double_loss_is_selected_most_often_and_everybody_again() -> None:
    loss_N = np.where(np.arange(10) == 3, 2.0, 1.0)
    masks = np.array([m for _, m in play(LossUCB(fraction=0.3), crowd(10), 60, lambda t: told(loss_N, 0.3))])
    late_N = masks[20:].sum(0)
    assert late_N[3] > np.delete(late_N, 3).max()
    assert late_N.min() >= 2, "its count shrinks until it is selected again"


def test_without_discount_constant_losses_are_ordinary_ucb() -> None:
    """The best is selected more and more, all others about ln T times."""
    loss_N = np.array([1.0, 0.2, 0.2, 0.2])
    masks = np.array([m for _, m in play(LossUCB(fraction=0.25, discount=1), crowd(4), 400, lambda t: told(loss_N, 1))])
    assert masks[:, 0].mean() > 0.7
    assert masks[300:, 0].mean() > masks[:100, 0].mean()
    assert (masks[:, 1:].sum(0) > 5).all()


def test_who_never_comes_home_does_not_starve_the_others() -> None:
    """One client for a round, and the first of them always fails."""
    policy = LossUCB(fraction=0.2)
    masks = np.array(
        [
            mask_N
            for _, mask_N in play(
                policy, crowd(5), 60, lambda t: told(np.ones(5)), home=lambda t, mask_N: np.arange(5) > 0
            )
        ]
    )
    assert masks[20:].sum(0).min() >= 4
    assert masks[20:, 0].sum() < 15
