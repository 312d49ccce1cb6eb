"""The formulas of both bandits against hand-computed numbers and direct re-implementations."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedbac.clustering import bandit as linucb
from fedbac.core import bandits
from fedbac.core.rng import stream
from fedbac.selection import bandit as thompson
from tests.unit.tiny import inclusion_statistic

losses = st.floats(1e-3, 1e3)
features = st.lists(st.floats(-3, 3), min_size=4, max_size=4).map(lambda x: np.array(x))
rewards = st.floats(-1, 1)


def test_features_by_hand() -> None:
    assert linucb.loss_log_ratio(1.0, 2.0) == pytest.approx(-math.log(2), abs=1e-7)
    assert linucb.loss_log_ratio(3.0, 1.5) == pytest.approx(math.log(2), abs=1e-7)
    assert linucb.loss_log_ratio(0.0, 0.0) == 0.0
    assert linucb.balance(4, 1) == 3 / 5
    assert linucb.balance(1, 0) == 1.0
    assert linucb.balance(1, 3) == -1 / 2
    assert linucb.balance(0, 0) == 0.0
    assert [linucb.stability(rounds, 20) for rounds in (0, 1, 20, 40, 41)] == [0, 1 / 40, 0.5, 1.0, 1.0]


def test_epsilon_of_a_perfect_fit() -> None:
    """With L_current = 0 only ε keeps the logarithm finite: ln(ε / (1 + ε))."""
    assert linucb.loss_log_ratio(0.0, 1.0) == pytest.approx(math.log(1e-8), abs=1e-6)
    assert linucb.fit_reward(0.0, 0.0) == 0.0


@given(losses, losses)
def test_reward_is_bounded_and_a_function_of_the_first_feature(current: float, alternative: float) -> None:
    """C.23: r = −tanh(x₁ / 2), up to ε."""
    reward = linucb.fit_reward(current, alternative)
    assert -1 <= reward <= 1
    assert reward == pytest.approx(-math.tanh(linucb.loss_log_ratio(current, alternative) / 2), abs=1e-5)


@given(st.floats(0, 1e-6), st.floats(0, 1e12))
def test_reward_stays_bounded_at_extreme_losses(small: float, large: float) -> None:
    assert -1 <= linucb.fit_reward(large, small) <= 1
    assert -1 <= linucb.fit_reward(small, large) <= 1


def test_ridge_update_by_hand() -> None:
    x = np.array([1.0, 2.0, 0.0, -1.0])
    A, b = bandits.ridge_update(np.eye(4), np.zeros(4), x, 0.5, discount=1.0)
    np.testing.assert_array_equal(A, [[2, 2, 0, -1], [2, 5, 0, -2], [0, 0, 1, 0], [-1, -2, 0, 2]])
    np.testing.assert_array_equal(b, [0.5, 1.0, 0.0, -0.5])


@given(st.lists(st.tuples(features, rewards), max_size=8))
def test_ridge_statistics_are_sums_and_positive_definite(history: list[tuple[np.ndarray, float]]) -> None:
    """Eq. 10: after any history A = I + Σ x xᵀ, symmetric with no eigenvalue below 1, and b = Σ r x."""
    A, b = np.eye(4), np.zeros(4)
    for x, reward in history:
        A, b = bandits.ridge_update(A, b, x, reward, discount=1.0)
    np.testing.assert_allclose(A, np.eye(4) + sum((np.outer(x, x) for x, _ in history), np.zeros((4, 4))), atol=1e-9)
    np.testing.assert_allclose(b, sum((r * x for x, r in history), np.zeros(4)), atol=1e-9)
    np.testing.assert_array_equal(A, A.T)
    assert np.linalg.eigvalsh(A).min() >= 1 - 1e-9


@given(st.lists(st.tuples(features, rewards), min_size=1, max_size=6), st.floats(0.05, 0.99))
def test_discount_weights_the_past_by_its_age(history: list[tuple[np.ndarray, float]], discount: float) -> None:
    """After n updates A = I + Σ_i γ^(n−i) x_i x_iᵀ: what was learned fades, the prior I does not."""
    A, b = np.eye(4), np.zeros(4)
    for x, reward in history:
        A, b = bandits.ridge_update(A, b, x, reward, discount)
    age = [len(history) - 1 - i for i in range(len(history))]
    expected = np.eye(4) + sum(discount**a * np.outer(x, x) for a, (x, _) in zip(age, history, strict=True))
    np.testing.assert_allclose(A, expected, atol=1e-9)
    np.testing.assert_allclose(b, sum(discount**a * r * x for a, (x, r) in zip(age, history, strict=True)), atol=1e-9)


def test_discount_without_news_returns_to_the_prior() -> None:
    A, b = bandits.ridge_update(np.eye(4), np.zeros(4), np.ones(4), 1.0, 1.0)
    for _ in range(60):
        A, b = bandits.ridge_update(A, b, np.zeros(4), 0.0, 0.5)
    np.testing.assert_allclose(A, np.eye(4), atol=1e-12)
    np.testing.assert_allclose(b, 0, atol=1e-12)


@given(st.lists(st.tuples(features, rewards), min_size=1, max_size=6), features, st.floats(0, 2))
def test_upper_confidence_is_the_explicit_formula(
    history: list[tuple[np.ndarray, float]], x: np.ndarray, alpha: float
) -> None:
    """Eq. 8 by explicit inverse, for many arms at once, with one context or with one per arm."""
    A_K, b_K = np.tile(np.eye(4), (3, 1, 1)), np.zeros((3, 4))
    for i, (past, reward) in enumerate(history):
        A_K[i % 3], b_K[i % 3] = bandits.ridge_update(A_K[i % 3], b_K[i % 3], past, reward, 1.0)
    x_KF = np.stack([x, 2 * x, x[::-1]])
    for given_x in (x, x_KF):
        got = bandits.upper_confidence(A_K, b_K, given_x, alpha)
        for k in range(3):
            inverse, x_k = np.linalg.inv(A_K[k]), given_x if given_x.ndim == 1 else given_x[k]
            theta = inverse @ b_K[k]
            assert got[k] == pytest.approx(theta @ x_k + alpha * math.sqrt(x_k @ inverse @ x_k), abs=1e-8)


def test_upper_confidence_of_an_untouched_arm_is_the_length_of_the_context() -> None:
    x = np.array([0.6, 0.0, 0.8, 0.0])
    assert bandits.upper_confidence(np.eye(4)[None], np.zeros((1, 4)), x, 0.3)[0] == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("reward", "step"), [(0.0, 0.0), (0.01, 0.1), (-0.05, 0.5), (0.2, 2.0), (-0.2, 2.0), (0.9, 2.0), (-1.0, 2.0)]
)
def test_soft_step(reward: float, step: float) -> None:
    assert thompson.soft_step(reward) == pytest.approx(step)


def test_soft_step_with_other_constants() -> None:
    assert thompson.soft_step(-0.3, scale=5, cap=1) == 1
    assert thompson.soft_step(-0.1, scale=5, cap=1) == 0.5


def test_beta_update_goes_to_the_selected_only() -> None:
    alpha, beta, mask = np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0]), np.array([True, False, True])
    up = thompson.beta_update(alpha, beta, mask, 0.1, 1.0)
    np.testing.assert_array_equal(up, [[2, 2, 4], [4, 5, 6]])
    down = thompson.beta_update(alpha, beta, mask, -0.1, 0.5)
    np.testing.assert_array_equal(down, [[1, 2, 3], [4.5, 5, 6.5]])
    zero = thompson.beta_update(alpha, beta, mask, 0.0, 0.25)
    np.testing.assert_array_equal(zero, [[1, 2, 3], [4.25, 5, 6.25]])  # r = 0 counts as not better
    np.testing.assert_array_equal([alpha, beta], [[1, 2, 3], [4, 5, 6]])


@pytest.mark.parametrize(
    ("fraction", "members", "count"),
    [(0.29, 100, 29), (0.57, 100, 57), (0.8, 10, 8), (0.7, 25, 17), (0.9, 25, 22), (1.0, 7, 7), (0.01, 10, 1),
     (0.5, 1, 1), (0.999999, 10, 9)],
)  # fmt: skip
def test_budget(fraction: float, members: int, count: int) -> None:
    assert bandits.budget(fraction, members) == count


@given(st.integers(1, 400), st.integers(1, 400))
def test_budget_of_a_whole_number_of_members_is_that_number(part: int, whole: int) -> None:
    part, whole = min(part, whole), max(part, whole)
    assert bandits.budget(part / whole, whole) == part


@given(
    st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=12), st.integers(1, 12), st.integers(0)
)
def test_top_takes_the_best_candidates(members: list[tuple[int, bool]], count: int, seed: int) -> None:
    score, candidate = np.array([float(s) for s, _ in members]), np.array([c for _, c in members])
    mask = bandits.top(score, count, candidate, stream(seed, "top"))
    assert mask.dtype == bool
    assert mask.sum() == min(count, candidate.sum())
    assert not (mask & ~candidate).any()
    left_out = candidate & ~mask
    if mask.any() and left_out.any():
        assert score[mask].min() >= score[left_out].max()


def test_top_breaks_ties_evenly() -> None:
    """Four of six candidates share second place and compete for two seats: each gets one half the time."""
    score = np.array([1.0, 5.0, 1.0, 1.0, 0.0, 1.0, 9.0])
    candidate = np.array([True, True, True, True, True, True, False])
    rng, trials = stream(0, "ties"), 4000
    chosen = np.sum([bandits.top(score, 3, candidate, rng) for _ in range(trials)], axis=0)
    assert chosen[1] == trials
    assert chosen[4] == chosen[6] == 0
    assert chosen[[0, 2, 3, 5]].sum() == 2 * trials
    assert inclusion_statistic(chosen[[0, 2, 3, 5]], trials, 2) < stats.chi2.ppf(0.999, df=3)


def test_draws_follow_weights_and_leave_out_who_is_no_candidate() -> None:
    weight_N, candidate_N = np.array([1.0, 2.0, 0.0, 5.0, 100.0]), np.array([True, True, True, True, False])
    counts = np.sum([bandits.draw(weight_N, 1, candidate_N, stream(i, "draw")) for i in range(2000)], axis=0)
    assert counts[[2, 4]].tolist() == [0, 0]
    assert stats.chisquare(counts[[0, 1, 3]], 2000 * np.array([1, 2, 5]) / 8).pvalue > 0.001
    assert bandits.draw(weight_N, 9, candidate_N, stream(0, "draw")).tolist() == candidate_N.tolist()


@pytest.mark.parametrize(
    ("value", "known", "expected"),
    [
        ([2.0, 4.0, 3.0], [True, True, True], [0.0, 1.0, 0.5]),
        ([2.0, 4.0, 99.0], [True, True, False], [0.0, 1.0, 0.5]),
        ([2.0, np.nan, 8.0, 2.0], [True, False, True, True], [0.0, 1 / 3, 1.0, 0.0]),
        ([7.0, 7.0, np.nan], [True, True, False], [0.5, 0.5, 0.5]),
        ([1.0, 2.0], [False, False], [0.5, 0.5]),
    ],
)
def test_values_are_spread_from_zero_to_one(value: list[float], known: list[bool], expected: list[float]) -> None:
    np.testing.assert_allclose(bandits.spread(np.array(value), np.array(known)), expected)
