"""The linear bandit on contexts: what it sees of a client, what it rewards, what it finds out."""

from typing import Any

import numpy as np
import pytest

from fedbac import Contextual, Loss
from fedbac.core.rng import stream
from fedbac.core.settings import FloatArray
from fedbac.core.world import Profile
from fedbac.selection.learned import FEATURES, ContextualState
from tests.unit.crowd import crowd, play

BEFORE, AFTER = Loss("received", each=True), Loss("trained", each=True)
NUM = 10


def speeds(*value: float) -> Profile:
    return Profile(np.array(value), np.ones(len(value)), np.ones(len(value)))


def test_the_context_of_a_client() -> None:
    policy = Contextual()
    state = policy.init(4)._replace(since_N=np.array([0.0, 5.0, 10.0, 30.0]))
    loss_N = np.array([1.0, 3.0, 2.0, np.nan])
    seen = crowd([1, 10, 100, 10], profile=speeds(100, 200, 300, 100), readings={BEFORE: loss_N})
    expected: list[list[float]] = [
        [1, 0, 0, 0, 0],
        [1, 1, 0.5, 0.5, 0.5],
        [1, 0.5, 1, 1, 1],
        [1, 0.5, 0.5, 1, 0],  # a loss that is not known is taken as the mean
    ]
    np.testing.assert_allclose(policy.contexts(state, seen), expected)
    assert len(FEATURES) == 5


def learned(before: float, after: float) -> ContextualState:
    policy, mask_N = Contextual(), np.array([True, False])
    readings = {BEFORE: np.array([before, 1.0]), AFTER: np.array([after, 0.1])}
    return policy.learn(policy.init(2), crowd(2, started_N=mask_N, readings=readings), mask_N)


@pytest.mark.parametrize(("before", "after", "reward"), [(2.0, 1.5, 0.25), (1.0, 1.5, -0.5), (1.0, 9.0, -1.0)])
def test_the_reward_is_the_share_of_its_own_loss_that_is_gone(before: float, after: float, reward: float) -> None:
    """b starts at 0 and holds reward · x, whose first entry is 1."""
    assert learned(before, after).b[0] == pytest.approx(reward)


@pytest.mark.parametrize(("before", "after"), [(np.nan, 1.0), (1.0, np.nan), (np.inf, 1.0), (1.0, np.inf), (0.0, 1.0)])
def test_what_cannot_be_compared_teaches_nothing(before: float, after: float) -> None:
    state = learned(before, after)
    np.testing.assert_array_equal(state.A, np.eye(5))
    assert not state.b.any()


def test_only_clients_that_trained_teach_and_rounds_since_selection_are_counted() -> None:
    policy = Contextual()
    started_N, mask_N = np.array([True, True, False]), np.array([True, False, False])
    readings = {BEFORE: np.ones(3), AFTER: np.full(3, 0.5)}
    state = policy.init(3)._replace(since_N=np.array([3.0, 2.0, 1.0]))
    after = policy.learn(state, crowd(3, started_N=started_N, readings=readings), mask_N)
    assert after.A[0, 0] == 2.0, "1 of the ridge and 1 of one client"
    assert after.since_N.tolist() == [0, 0, 2]


@pytest.mark.parametrize(("feature", "place"), [("loss", 1), ("data", 2), ("speed", 4)])
def test_the_feature_that_decides_the_reward_has_the_largest_coefficient(feature: str, place: int) -> None:
    """Features of the clients are independent; the reward of a client is its feature, from 0 to 1."""
    policy = Contextual(fraction=0.5)
    value_N3 = np.array([stream(0, "features", i).permutation(NUM) for i in range(3)]).T / (NUM - 1.0)
    begin = crowd(np.round(10 ** (1 + value_N3[:, 1])).astype(int).tolist(), profile=speeds(*(1 + value_N3[:, 2])))
    assert FEATURES[place] == feature
    share_N = value_N3[:, {1: 0, 2: 1, 4: 2}[place]]

    def answer(t: int) -> dict[Any, FloatArray]:
        loss_N = 1 + value_N3[:, 0]
        return {BEFORE: loss_N, AFTER: loss_N * (1 - share_N)}

    played = list(play(policy, begin, 60, answer))
    state = played[-1][0]
    theta = np.linalg.solve(state.A, state.b)
    assert np.abs(theta).argmax() == place
    assert 0.6 < theta[place] < 1.1, "a ridge pulls it down a little"
    late_N = np.sum([mask_N for _, mask_N in played[30:]], axis=0)
    assert late_N[share_N > 0.5].min() > late_N[share_N < 0.5].max(), "and these clients are selected"
