"""Thompson sampling with credit of each client's own: noise is found, rare classes are not taken for it."""

import numpy as np
from scipy import stats

from fedbac.rng import stream
from fedbac.selection import CreditState, CreditThompson
from fedbac.types import BoolArray, FloatArray
from tests.unit.tiny import inclusion_statistic, selection_evidence

NUM = 10
NOISY = np.arange(NUM) < 4


def losses(round_: int, rng: np.random.Generator) -> FloatArray:
    """Sound clients learn, each from a level of its own; noisy ones stay near ln(10) = 2.3."""
    level_N = np.where(NOISY, 2.05, np.linspace(0.2, 1.3, NUM))
    return np.asarray(level_N + (2.25 - level_N) * 0.85**round_ + rng.normal(0, 0.05, NUM))


def play(num_rounds: int, seed: int, fraction: float = 0.3) -> tuple[CreditState, list[BoolArray]]:
    policy = CreditThompson(fraction=fraction)
    state, masks, noise = policy.init(NUM), [], stream(seed, "world")
    for t in range(1, num_rounds + 1):
        mask = policy.act(state, selection_evidence([20] * NUM, t), stream(seed, "act", t))
        loss_N = np.where(mask, losses(t, noise), np.nan)
        state = policy.learn(state, selection_evidence([20] * NUM, t, loss_N=loss_N), mask)
        masks.append(mask)
    return state, masks


def test_noisy_clients_are_dropped_and_all_others_share_the_work() -> None:
    late = np.mean([play(60, seed)[1][20:] for seed in range(5)], axis=(0, 1))
    assert late[NOISY].mean() < 0.08, "0.3 would be chance"
    assert late[~NOISY].min() > 0.35, "also the one that learns least; 0.5 is an equal share"


def test_without_noise_the_draw_is_uniform() -> None:
    """Whatever the differences between sound clients and however often each was seen."""
    policy = CreditThompson(fraction=0.3)
    state = policy.init(NUM)
    loss_N = np.linspace(0.2, 1.5, NUM)
    everyone = np.ones(NUM, bool)
    for t in range(1, 200):
        state = policy.learn(state, selection_evidence([20] * NUM, t, loss_N=loss_N), everyone)
    rng = stream(0, "draws")
    counts = np.sum([policy.act(state, selection_evidence([20] * NUM, 200), rng) for _ in range(3000)], axis=0)
    assert inclusion_statistic(counts, 3000, 3) < stats.chi2.ppf(0.999, df=NUM - 1)


def test_no_credit_before_anybody_has_learned_anything() -> None:
    policy = CreditThompson()
    seen = selection_evidence([20] * NUM, 1, loss_N=np.linspace(1.9, 2.9, NUM))
    state = policy.learn(policy.init(NUM), seen, np.ones(NUM, bool))
    assert (state.alpha_N == 1).all()
    assert (state.beta_N == 1).all()


def test_only_those_who_trained_are_judged_and_against_all_that_are_known() -> None:
    policy = CreditThompson()
    known = CreditState(np.ones(3), np.ones(3), np.array([0.5, 0.6, np.nan]))
    mask = np.array([False, False, True])
    failed = policy.learn(known, selection_evidence([20] * 3, 9, loss_N=np.array([np.nan, np.nan, 2.2])), mask)
    passed = policy.learn(known, selection_evidence([20] * 3, 9, loss_N=np.array([np.nan, np.nan, 1.5])), mask)
    assert failed.alpha_N.tolist() == [1, 1, 1]
    assert failed.beta_N.tolist() == [1, 1, 2]
    assert passed.alpha_N.tolist() == [1, 1, 2]
    assert passed.beta_N.tolist() == [1, 1, 1]
    np.testing.assert_array_equal(failed.loss_N, [0.5, 0.6, 2.2])


def test_a_client_that_turned_sound_is_forgiven() -> None:
    state, _ = play(60, 0)
    policy = CreditThompson()
    for t in range(12):
        loss_N = np.full(NUM, 0.6)
        state = policy.learn(state, selection_evidence([20] * NUM, 61 + t, loss_N=loss_N), np.ones(NUM, bool))
    assert (state.alpha_N / (state.alpha_N + state.beta_N) > 0.5).all()
