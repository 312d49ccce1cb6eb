"""Thompson sampling with credit of each client's own: noise is found, rare classes are not taken for it."""

import numpy as np

from fedbac import Ask, Statistic
from fedbac.core.rng import stream
from fedbac.core.settings import BoolArray, FloatArray
from fedbac.selection import CreditState, CreditThompson, Sound, Thompson
from tests.unit.tiny import beginning, selection_evidence

NUM = 10
NOISY = np.arange(NUM) < 4


def losses(round_: int, rng: np.random.Generator) -> FloatArray:
    """Sound clients learn, each from a level of its own; noisy ones stay near ln(10) = 2.3."""
    level_N = np.where(NOISY, 2.05, np.linspace(0.2, 1.3, NUM))
    return np.asarray(level_N + (2.25 - level_N) * 0.85**round_ + rng.normal(0, 0.05, NUM))


def play(num_rounds: int, seed: int) -> tuple[CreditState, list[BoolArray]]:
    policy = CreditThompson(fraction=0.3)
    state, masks, noise = policy.init(NUM), [], stream(seed, "world")
    for t in range(1, num_rounds + 1):
        mask = policy.act(state, selection_evidence([20] * NUM, t), stream(seed, "act", t))
        seen = selection_evidence([20] * NUM, t, loss_N=np.where(mask, losses(t, noise), np.nan), trained=0.5)
        state = policy.learn(state, seen, mask)
        masks.append(mask)
    return state, masks


def test_noisy_clients_are_dropped_and_all_others_share_the_work() -> None:
    """The shared reward is level here, so that only the clients' own credit counts."""
    late = np.mean([play(60, seed)[1][20:] for seed in range(5)], axis=(0, 1))
    assert late[NOISY].mean() < 0.08, "0.3 would be chance"
    assert late[~NOISY].min() > 0.35, "also the one that learns least; 0.5 is an equal share"


def test_everybody_is_trusted_until_it_fails_more_often_than_not() -> None:
    policy = CreditThompson(fraction=0.3)
    assert policy.trusted(policy.init(NUM)).all()
    for seed in range(5):
        assert policy.trusted(play(60, seed)[0]).tolist() == (~NOISY).tolist()
    state = policy.init(3)._replace(pass_N=np.array([1.0, 0.5, 0.0]), fail_N=np.array([0.5, 1.0, 0.0]))
    assert policy.trusted(state).tolist() == [True, False, True]


def test_where_nobody_fails_it_is_the_papers_sampling_draw_for_draw() -> None:
    """Whatever the differences between sound clients."""
    own, shared = CreditThompson(fraction=0.3), Thompson(fraction=0.3)
    state, expected = own.init(NUM), shared.init(NUM)
    for t in range(1, 60):
        seen = selection_evidence([20] * NUM, t)
        mask = own.act(state, seen, stream(0, "act", t))
        np.testing.assert_array_equal(mask, shared.act(expected, seen, stream(0, "act", t)))
        reward = float(stream(0, "reward", t).random())
        after = selection_evidence(
            [20] * NUM, t, trained=reward, loss_N=np.where(mask, np.linspace(0.2, 1.5, NUM), np.nan)
        )
        state, expected = own.learn(state, after, mask), shared.learn(expected, after, mask)


def test_it_asks_for_the_losses_of_clients_beside_the_shared_reward() -> None:
    policy = CreditThompson()
    shared = policy.shared.ask(policy.shared.init(NUM), beginning(1), stream(0, "candidates"))
    ask = policy.ask(policy.init(NUM), beginning(1), stream(0, "candidates"))
    assert ask == Ask(shared.before, (*shared.after, Statistic("loss")))
    assert policy.needs() == {*shared.before, *shared.after, Statistic("loss")}


def test_what_an_untrained_network_loses_is_that_of_the_number_of_classes() -> None:
    """ln 100 = 4.6: a client at 3.5 has learned a third of what the reference has, at ln 10 it would have learned less
    than nothing."""
    policy, everybody = CreditThompson(), np.ones(4, bool)
    losses_N = np.array([1.3, 1.3, 1.3, 3.5])
    passed, failed = (
        policy.learn(
            policy.init(4), selection_evidence([20] * 4, 9, loss_N=losses_N, trained=0.5, num_classes=count), everybody
        )
        for count in (100, 10)
    )
    assert (passed.pass_N.tolist(), passed.fail_N.tolist()) == ([1, 1, 1, 1], [0, 0, 0, 0])
    assert (failed.pass_N.tolist(), failed.fail_N.tolist()) == ([1, 1, 1, 0], [0, 0, 0, 1])
    given = CreditThompson(untrained_loss=4.6).learn(
        policy.init(4), selection_evidence([20] * 4, 9, loss_N=losses_N, trained=0.5), everybody
    )
    assert given.pass_N.tolist() == [1, 1, 1, 1], "what the user gives counts, whatever the data"


def test_no_credit_before_anybody_has_learned_anything() -> None:
    policy = CreditThompson()
    seen = selection_evidence([20] * NUM, 1, loss_N=np.linspace(1.9, 2.9, NUM), trained=0.5)
    state = policy.learn(policy.init(NUM), seen, np.ones(NUM, bool))
    assert not state.pass_N.any()
    assert not state.fail_N.any()


def test_only_those_who_trained_are_judged_and_against_all_that_are_known() -> None:
    policy = CreditThompson()
    known = policy.init(3)._replace(loss_N=np.array([0.5, 0.6, np.nan]))
    mask = np.array([False, False, True])

    def after(loss: float) -> CreditState:
        seen = selection_evidence([20] * 3, 9, loss_N=np.array([np.nan, np.nan, loss]), trained=0.5)
        return policy.learn(known, seen, mask)

    failed, passed = after(2.2), after(1.5)
    assert (failed.pass_N.tolist(), failed.fail_N.tolist()) == ([0, 0, 0], [0, 0, 1])
    assert (passed.pass_N.tolist(), passed.fail_N.tolist()) == ([0, 0, 1], [0, 0, 0])
    np.testing.assert_array_equal(failed.loss_N, [0.5, 0.6, 2.2])


def test_who_holds_little_is_neither_passed_nor_failed_nor_kept_out() -> None:
    """A step or two an epoch teach little, with any labels; half of the mean, here 11, is enough to be judged by."""
    policy, everybody = CreditThompson(fraction=0.3), np.ones(4, bool)
    seen = selection_evidence([10, 11, 10, 57], 9, loss_N=np.array([2.2, 2.2, 0.5, 0.5]), trained=0.5)
    state = policy.learn(policy.init(4), seen, everybody)
    assert (state.pass_N.tolist(), state.fail_N.tolist()) == ([0, 0, 0, 1], [0, 1, 0, 0])
    assert policy.trusted(state).tolist() == [True, False, True, True]


def test_a_client_that_turned_sound_is_forgiven() -> None:
    state, _ = play(60, 0)
    policy = CreditThompson()
    for t in range(12):
        seen = selection_evidence([20] * NUM, 61 + t, loss_N=np.full(NUM, 0.6), trained=0.5)
        state = policy.learn(state, seen, np.ones(NUM, bool))
    assert (state.pass_N > state.fail_N).all()


def test_beliefs_rank_the_sound_by_the_shared_reward_and_show_who_failed() -> None:
    numbers = {"alpha_N": [3.0, 3.0], "beta_N": [1.0, 1.0], "pass_N": [0.0, 0.0], "fail_N": [0.0, 2.0]}
    state = CreditThompson().init(2)._replace(**{name: np.array(value) for name, value in numbers.items()})
    assert CreditThompson().beliefs(state).tolist() == [0.75, 0.25]


def test_all_sound_clients_train_and_noisy_ones_only_to_be_tried_again() -> None:
    policy = Sound()
    state, noise, masks = policy.init(NUM), stream(0, "world"), []
    for t in range(1, 61):
        mask = policy.act(state, selection_evidence([20] * NUM, t), stream(0, "act", t))
        state = policy.learn(
            state, selection_evidence([20] * NUM, t, loss_N=np.where(mask, losses(t, noise), np.nan)), mask
        )
        masks.append(mask)
    assert masks[0].all(), "innocent until they fail"
    late = np.mean(masks[20:], axis=0)
    assert (late[~NOISY] == 1).all()
    assert late[NOISY].mean() < 0.2
    assert policy.trusted(state).tolist() == (~NOISY).tolist()


def test_a_share_of_all_clients_is_drawn_from_the_sound_ones() -> None:
    policy = Sound(fraction=0.3)
    state = policy.init(NUM)._replace(fail_N=np.where(NOISY, 900.0, 0.0))
    masks = np.array([policy.act(state, selection_evidence([20] * NUM, 5), stream(0, "act", t)) for t in range(50)])
    assert (masks.sum(1) == 3).all()
    assert not masks[:, NOISY].any()
    assert masks[:, ~NOISY].any(0).all()


def test_somebody_trains_even_if_nobody_seems_sound() -> None:
    policy = Sound()
    state = policy.init(4)._replace(fail_N=np.array([900.0, 900.0, 5.0, 5.0]), pass_N=np.zeros(4))
    chosen = [policy.act(state, selection_evidence([20, 20, 20, 0], 5), stream(0, "act", t)) for t in range(50)]
    assert all(mask.sum() == 1 for mask in chosen)
    assert all(not mask[3] for mask in chosen), "who holds no data cannot train"
    assert np.mean([mask[2] for mask in chosen]) > 0.8, "the likeliest"
