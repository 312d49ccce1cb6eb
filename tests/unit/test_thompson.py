"""Thompson sampling: what it draws, what it learns, and the open questions of C.30."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedbac import Accuracy, Ask, Thompson
from fedbac.core.rng import stream
from fedbac.core.settings import BoolArray
from fedbac.selection import ThompsonState
from tests.unit.tiny import beginning, inclusion_statistic, selection_evidence

SIZES = [10] * 10
FIRST_FOUR = np.arange(10) < 4
BEFORE, AFTER = Accuracy("received", "validation"), Accuracy("trained", "validation")


def chosen(policy: Thompson, state: ThompsonState, round_: int, draws: int, sizes: list[int] = SIZES) -> np.ndarray:
    rng = stream(0, "draws", round_)
    masks = [policy.act(state, selection_evidence(sizes, round_), rng) for _ in range(draws)]
    assert {int(mask.sum()) for mask in masks} == {
        min(max(1, int(policy.fraction * len(sizes))), np.count_nonzero(sizes))
    }
    counts: np.ndarray = np.sum(masks, axis=0)
    return counts


def one_sided(num: int = 10) -> ThompsonState:
    """Clients 0 to 3 are known to be good, the others known to be bad."""
    good = np.arange(num) < 4
    return ThompsonState(np.where(good, 1000.0, 1.0), np.where(good, 1.0, 1000.0), np.array([0.5]))


def test_untouched_posteriors_give_a_uniform_subset() -> None:
    """D.3: the top B of Beta(1, 1) draws is a uniform random subset."""
    policy = Thompson(fraction=0.3, warmup=0)
    counts = chosen(policy, policy.init(10), 1, 3000)
    assert inclusion_statistic(counts, 3000, 3) < stats.chi2.ppf(0.999, df=9)


def test_warmup_ignores_what_is_known_and_then_uses_it() -> None:
    policy = Thompson(fraction=0.4, warmup=10)
    counts = chosen(policy, one_sided(), 10, 3000)
    assert inclusion_statistic(counts, 3000, 4) < stats.chi2.ppf(0.999, df=9)
    np.testing.assert_array_equal(chosen(policy, one_sided(), 11, 200), 200 * FIRST_FOUR)


def test_draws_follow_the_posteriors() -> None:
    """Of two clients one is taken: P(Beta(3, 1) > Beta(1, 1)) = 3/4, P(Beta(2, 5) > Beta(5, 2)) by its integral."""
    grid = np.linspace(0, 1, 20001)
    for a, b in (((3, 1), (1, 1)), ((2, 5), (5, 2))):
        exact = np.trapezoid(stats.beta.pdf(grid, *a) * stats.beta.cdf(grid, *b), grid)
        state = ThompsonState(np.array([a[0], b[0]], float), np.array([a[1], b[1]], float), np.array([0.0]))
        counts = chosen(Thompson(fraction=0.5, warmup=0), state, 1, 4000, [5, 5])
        assert stats.binomtest(int(counts[0]), 4000, float(exact)).pvalue > 0.001


def test_clients_without_data_are_never_selected() -> None:
    policy = Thompson(fraction=0.8, warmup=1)
    sizes = [0, 5, 0, 5, 5, 0, 5, 5, 0, 0]
    for round_ in (1, 2):
        counts = chosen(policy, one_sided(), round_, 50, sizes)
        np.testing.assert_array_equal(counts, 50 * (np.array(sizes) > 0))


@pytest.mark.parametrize(
    ("accuracy", "alpha", "beta"),
    [(0.55, 1.5, 1.0), (0.45, 1.0, 1.5), (0.5, 1.0, 1.0), (0.9, 3.0, 1.0), (0.0, 1.0, 3.0)],
)
def test_learning_moves_the_selected_by_the_soft_step(accuracy: float, alpha: float, beta: float) -> None:
    policy = Thompson(warmup=0)
    before = policy.init(10)._replace(accuracy=np.array([0.5]))
    after = policy.learn(before, selection_evidence(SIZES, 5, trained=accuracy), FIRST_FOUR)
    np.testing.assert_allclose(after.alpha_N, np.where(FIRST_FOUR, alpha, 1.0))
    np.testing.assert_allclose(after.beta_N, np.where(FIRST_FOUR, beta, 1.0))
    assert after.accuracy.tolist() == [accuracy]


def test_learning_accumulates_over_rounds() -> None:
    """a = 0.5, 0.56, 0.52, 0.52, 0.9: rewards 0.06, −0.04, 0, 0.38."""
    policy = Thompson(warmup=0)
    state = policy.init(3)._replace(accuracy=np.array([0.5]))
    masks = [[True, True, False], [True, False, True], [True, True, True], [False, True, True]]
    for accuracy, mask in zip((0.56, 0.52, 0.52, 0.9), masks, strict=True):
        state = policy.learn(state, selection_evidence([1, 1, 1], 1, trained=accuracy), np.array(mask))
    np.testing.assert_allclose(state.alpha_N, [1.6, 3.6, 3.0])
    np.testing.assert_allclose(state.beta_N, [1.4, 1.0, 1.4])


def test_initial_accuracy_is_measured_once() -> None:
    policy = Thompson()
    state = policy.init(10)
    assert policy.ask(state, beginning(1), stream(0, "candidates")) == Ask(before=(BEFORE,), after=(AFTER,))
    assert policy.needs() == {BEFORE, AFTER}
    state = policy.learn(state, selection_evidence(SIZES, 1, received=0.1, trained=0.2), FIRST_FOUR)
    np.testing.assert_allclose(state.alpha_N[:4], 2.0)
    assert policy.ask(state, beginning(2), stream(0, "candidates")) == Ask(after=(AFTER,))
    state = policy.learn(state, selection_evidence(SIZES, 2, trained=0.15), FIRST_FOUR)
    np.testing.assert_allclose(state.beta_N[:4], 1.5)


def test_initial_accuracy_zero_rewards_the_first_round() -> None:
    policy = Thompson(initial_accuracy="zero")
    assert policy.ask(policy.init(10), beginning(1), stream(0, "candidates")) == Ask(after=(AFTER,))
    assert policy.needs() == {AFTER}
    state = policy.learn(policy.init(10), selection_evidence(SIZES, 1, trained=0.1), FIRST_FOUR)
    np.testing.assert_allclose(state.alpha_N[:4], 2.0)


def test_initial_accuracy_skip_learns_from_the_second_round() -> None:
    policy = Thompson(initial_accuracy="skip")
    assert policy.ask(policy.init(10), beginning(1), stream(0, "candidates")) == Ask(after=(AFTER,))
    assert policy.needs() == {AFTER}
    state = policy.learn(policy.init(10), selection_evidence(SIZES, 1, trained=0.1), FIRST_FOUR)
    np.testing.assert_array_equal([state.alpha_N, state.beta_N], 1.0)
    state = policy.learn(state, selection_evidence(SIZES, 2, trained=0.15), FIRST_FOUR)
    np.testing.assert_allclose(state.alpha_N[:4], 1.5)


@pytest.mark.parametrize("skip", [True, False])
def test_after_a_move_the_change_is_not_the_clients_doing(skip: bool) -> None:
    policy = Thompson(skip_after_move=skip)
    state = policy.init(10)._replace(accuracy=np.array([0.5]))
    state = policy.learn(state, selection_evidence(SIZES, 3, trained=0.3, moved=True), FIRST_FOUR)
    np.testing.assert_allclose(state.beta_N, np.where(FIRST_FOUR & (not skip), 3.0, 1.0))
    # Either way the next round is compared with the accuracy after the move.
    state = policy.learn(state, selection_evidence(SIZES, 4, trained=0.32), FIRST_FOUR)
    np.testing.assert_allclose(state.alpha_N[:4], 1.2)


def test_warmup_updates_are_an_option() -> None:
    """Algorithm 2 learns in every round (C.30); without it learning starts after the warm-up, accuracy is kept."""
    for option, gain in ((True, 1.0), (False, 0.0)):
        policy = Thompson(update_in_warmup=option, warmup=10)
        state = policy.init(10)._replace(accuracy=np.array([0.5]))
        state = policy.learn(state, selection_evidence(SIZES, 10, trained=0.6), FIRST_FOUR)
        np.testing.assert_allclose(state.alpha_N[:4], 1 + gain)
        state = policy.learn(state, selection_evidence(SIZES, 11, trained=0.65), FIRST_FOUR)
        np.testing.assert_allclose(state.alpha_N[:4], 1.5 + gain)


def test_constants_are_options() -> None:
    policy = Thompson(prior_alpha=2.0, prior_beta=3.0, step_scale=4.0, step_cap=0.5, reward_split="test")
    state = policy.init(2)
    np.testing.assert_array_equal([state.alpha_N, state.beta_N], [[2, 2], [3, 3]])
    on_test_data = Ask(before=(Accuracy("received", "test"),), after=(Accuracy("trained", "test"),))
    assert policy.ask(state, beginning(1), stream(0, "candidates")) == on_test_data
    mask = np.array([True, False])
    state = policy.learn(state, selection_evidence([1, 1], 1, received=0.1, trained=0.2, on="test"), mask)
    np.testing.assert_allclose(state.alpha_N, [2.4, 2.0])
    state = policy.learn(state, selection_evidence([1, 1], 2, trained=0.0, on="test"), mask)
    np.testing.assert_allclose(state.beta_N, [3.5, 3.0])


def simulate(policy: Any, bad: int, seed: int, num_rounds: int) -> list[BoolArray]:
    """Play selection where accuracy is 0.7 with a little noise, and 0.1 lower whenever the bad client took part."""
    state, noise, masks = policy.init(10), stream(seed, "noise"), []
    for t in range(1, num_rounds + 1):
        before = 0.7 if policy.ask(state, beginning(t, num_rounds), stream(0, "candidates")).before else None
        mask = policy.act(state, selection_evidence(SIZES, t, received=before), stream(seed, "selection", t))
        accuracy = 0.7 - 0.1 * mask[bad] + noise.normal(0, 0.01)
        state = policy.learn(state, selection_evidence(SIZES, t, received=before, trained=accuracy), mask)
        masks.append(mask)
    return masks


def test_a_planted_bad_client_is_dropped() -> None:
    """D.3: at p = 0.5 its selection rate falls below everybody else's within 200 rounds."""
    rates = []
    for seed in range(8):
        rate = np.mean(simulate(Thompson(fraction=0.5), 3, seed, 200)[100:], axis=0)
        rates.append(rate)
    mean = np.mean(rates, axis=0)
    others = np.delete(mean, 3)
    assert mean[3] < others.min()
    assert mean[3] < 0.5 * others.mean()


def test_without_steps_even_a_bad_client_is_selected_like_all_others() -> None:
    """D.3: with Δ ≡ 0 nothing is learned and the selection rates stay at p."""
    masks = simulate(Thompson(fraction=0.5, step_scale=0.0), 3, 0, 1500)
    counts = np.sum(masks, axis=0)
    assert inclusion_statistic(counts, 1500, 5) < stats.chi2.ppf(0.999, df=9)


def test_beliefs_are_the_means_of_the_posteriors() -> None:
    state = ThompsonState(np.array([1.0, 3.0]), np.array([1.0, 1.0]), np.array([0.5]))
    assert Thompson().beliefs(state).tolist() == [0.5, 0.75]
