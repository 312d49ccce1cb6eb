"""Splits by how members' losses compare (B.12)."""

import numpy as np
import pytest

from fedbac import Ask, GaussianRewards, Moment, Statistic
from fedbac.clustering import RewardsState
from fedbac.clustering.splits import affinity, rewards
from fedbac.core.policies import Assignment
from fedbac.core.queries import Evidence
from fedbac.core.rng import stream
from fedbac.core.settings import FloatArray

EPOCHS = Statistic("epochs")
GROUP = np.array([0, 0, 1, 0, 0, 1, 0, 1, 0])
"""Two thirds lose less, one third more."""


def evidence(label_N: list[int], trace_NE: FloatArray, size_N: list[int] | None = None) -> Evidence:
    label = np.array(label_N)
    return Evidence(
        round=1,
        num_rounds=100,
        num_classes=10,
        size_N=np.array(size_N or [50] * label.size),
        readings={EPOCHS: trace_NE},
        label_N=label,
        used_K=np.isin(np.arange(label.size), label),
    )


def traces(t: int, noise: float = 0.03) -> FloatArray:
    """Return losses that fall over three epochs, on two levels."""
    level_NE = (1 + 0.5 * GROUP)[:, None] - 0.1 * np.arange(3)
    return level_NE + stream(t, "traces").normal(0, noise, level_NE.shape)


def played(policy: GaussianRewards, num_rounds: int) -> list[tuple[RewardsState, Assignment]]:
    """Return what the policy made of each round."""
    state, label_N, found = policy.init(GROUP.size), [0] * GROUP.size, []
    for t in range(num_rounds):
        seen = evidence(label_N, traces(t))
        state, answer = policy.act(policy.learn(state, seen), seen, stream(t, "act"))
        label_N = answer.label_N.tolist()
        found.append((state, answer))
    return found


def test_it_starts_as_one_cluster_and_asks_after_every_round() -> None:
    policy = GaussianRewards()
    assert policy.start(4, stream(0, "start")).tolist() == [0] * 4
    assert policy.ask(policy.init(4), Moment(1, 100)) == Ask(after=(EPOCHS,))
    np.testing.assert_array_equal(policy.init(4).weight_NN, np.full((4, 4), 1 / 16))


def test_rewards_are_those_of_a_bell_curve_around_the_mean_by_data() -> None:
    """Losses 1, 1, 4 with data 1, 1, 2: μ = 2.5, σ² = 2.25. In the second epoch all lose the same."""
    trace_NE = np.array([[1.0, 2.0], [1.0, 2.0], [4.0, 2.0]])
    bell = np.exp(-0.5)
    np.testing.assert_allclose(rewards(trace_NE, np.array([1, 1, 2])), (bell + 1) / 2)
    found_N = rewards(stream(0, "any").uniform(0, 9, (20, 4)), np.full(20, 7))
    assert found_N.min() > 0
    assert found_N.max() <= 1


def test_shares_are_running_means_and_who_did_not_train_keeps_its_own() -> None:
    policy = GaussianRewards(discount=0.25)
    trace_NE = np.array([[1.0], [2.0], [6.0], [np.nan]])
    state = policy.learn(policy.init(4), evidence([0] * 4, trace_NE))
    reward_N = rewards(trace_NE[:3], np.full(3, 50))
    expected_N = 0.75 / 16 + 0.25 * reward_N / reward_N.sum()
    np.testing.assert_allclose(state.weight_NN[:3, :3], np.tile(expected_N[:, None], 3))
    np.testing.assert_array_equal(state.weight_NN[3], 1 / 16)
    np.testing.assert_array_equal(state.weight_NN[:, 3], 1 / 16)
    np.testing.assert_allclose(state.change_N, 3 * ((expected_N - 1 / 16) ** 2).sum() / 9)
    for lonely in (np.array([[1.0], [np.nan], [np.nan], [np.nan]]), np.full((4, 1), np.nan)):
        again = policy.learn(state, evidence([0] * 4, lonely))
        np.testing.assert_array_equal(again.weight_NN, state.weight_NN)


def test_rest_is_counted_in_rounds_in_a_row() -> None:
    policy = GaussianRewards(epsilon=1e-3, discount=0.5)
    seen = evidence([0] * 9, traces(0))
    state = policy.init(9)
    calm = []
    for _ in range(8):
        state = policy.learn(state, seen)
        calm.append(int(state.calm_N[0]))
    assert calm[0] == 0
    assert calm[-3:] == [calm[-1] - 2, calm[-1] - 1, calm[-1]]
    stirred = policy.learn(state._replace(change_N=np.ones(9)), seen)
    assert (stirred.calm_N == 0).all()


def test_affinity_leaves_out_the_two_themselves() -> None:
    weight_NN = np.array([[0.0, 0.5, 0.2, 1.0], [0.3, 0.1, 0.2, 0.4], [1.0, 0.0, 0.6, 0.7], [0.2, 0.2, 0.2, 0.2]])
    near_NN = affinity(weight_NN, 2.0)
    assert near_NN[0, 1] == pytest.approx(np.exp(-2 * ((0.2 - 0.2) ** 2 + (1.0 - 0.4) ** 2)))
    assert near_NN[2, 3] == pytest.approx(np.exp(-2 * ((1.0 - 0.2) ** 2 + (0.0 - 0.2) ** 2)))
    np.testing.assert_array_equal(near_NN, near_NN.T)
    np.testing.assert_array_equal(np.diagonal(near_NN), 0)


def test_two_levels_of_loss_make_two_blocks_and_a_split_whose_children_inherit() -> None:
    policy = GaussianRewards()
    found = played(policy, 20)
    first = next(t for t, (_, answer) in enumerate(found) if answer.label_N.any())
    state, answer = found[first]
    assert answer.label_N.tolist() == GROUP.tolist()
    assert answer.origin_KJ is not None
    np.testing.assert_array_equal(answer.origin_KJ[1], np.eye(9)[0])
    level_N = state.weight_NN[:, 0]
    assert level_N[GROUP == 0].min() > 1.2 * level_N[GROUP == 1].max(), "who is near the mean gets more"
    assert state.weight_NN.max() < 1
    assert (state.calm_N == 0).all()
    assert np.isnan(state.change_N).all()
    assert first >= (policy.patience or 0) > 0
    for _, later in found[first:]:
        assert later.label_N.shape == (9,), "everybody is in one cluster"


def test_a_cluster_that_scores_too_badly_does_not_split_and_waits_again() -> None:
    found = played(GaussianRewards(separation=0, epsilon=9.0, patience=3), 7)
    assert not any(answer.label_N.any() for _, answer in found)
    assert [int(state.calm_N[0]) for state, _ in found] == [1, 2, 0, 1, 2, 0, 1]


def test_a_cluster_of_two_never_splits() -> None:
    policy = GaussianRewards(epsilon=9.0, patience=1)
    seen = evidence([1, 1, 2, 2], np.array([[1.0], [5.0], [2.0], [9.0]]))
    _, answer = policy.act(policy.learn(policy.init(4), seen), seen, stream(0, "act"))
    assert answer.label_N.tolist() == [1, 1, 2, 2]
