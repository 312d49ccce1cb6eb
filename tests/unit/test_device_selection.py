"""CS-UCB, COCS and the score of resources: clients that are quick, that arrive, that have much."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedbac import Statistic
from fedbac.core.queries import Seconds
from fedbac.core.rng import stream
from fedbac.core.settings import FloatArray, IntArray
from fedbac.core.world import Profile, World
from fedbac.selection import COCS, LatencyUCB, LatencyUCBState, Random, ResourceScore, ResourceState
from tests.unit.crowd import crowd, play
from tests.unit.tiny import inclusion_statistic

SECONDS, LOSS = Seconds(), Statistic("loss")
NUM = 10


def tries(policy: Any, rounds: int, seconds_N: FloatArray, **options: Any) -> FloatArray:
    """Return who was selected in each round, where clients always take the same time."""
    begin = crowd(seconds_N.size, seconds_N=seconds_N.tolist())
    found = play(policy, begin, rounds, lambda t: {SECONDS: seconds_N}, **options)
    return np.array([mask_N for _, mask_N in found], dtype=np.float64)


def devices(down: list[float], speed: list[float], up: list[float] | None = None) -> Profile:
    return Profile(np.array(speed), np.array(down), np.array(up or down))


# ------------------------------------------------------------------------------------------------------- CS-UCB


def test_the_index_of_latencies_by_hand() -> None:
    """Three of six clients (B + 1 = 4), before round 5; one earned 1.5 in two rounds, one was never selected."""
    policy = LatencyUCB(fraction=0.5)
    state = LatencyUCBState(
        np.array([1.5, 0, 0, 0, 0, 0]), np.array([2.0, 0, 1, 1, 1, 1]), np.zeros(6), np.array([4.0])
    )
    index_N = policy.index(state)
    assert index_N[0] == pytest.approx(0.75 + math.sqrt(4 * math.log(5) / 2))
    assert index_N[1] == np.inf
    fair = LatencyUCB(fraction=0.5, fairness=0.25).index(state._replace(queue_N=np.array([3.0, 0, 0, 0, 0, 8])))
    assert fair[0] == pytest.approx(0.75 * 1 + 0.25 * 3), "the bound is cut at 1"
    assert fair[1] == 0.75, "as the quickest"


def test_the_reward_is_one_for_no_time_and_zero_for_the_longest_or_for_ever() -> None:
    mask_N = np.array([True, True, True, True, False])
    seen = crowd(
        5, seconds_N=[1, 2, 4, 4, 4], started_N=mask_N, readings={SECONDS: np.array([1, 4, np.nan, 9, np.nan])}
    )
    state = LatencyUCB().learn(LatencyUCB().init(5), seen, np.array([True, False, False, True, False]))
    assert state.reward_N.tolist() == [0.75, 0, 0, 0, 0]
    assert state.count_N.tolist() == [1, 1, 1, 1, 0]
    longer = LatencyUCB(longest=10).learn(LatencyUCB().init(5), seen, mask_N)
    np.testing.assert_allclose(longer.reward_N, [0.9, 0.6, 0, 0.1, 0])


@pytest.mark.parametrize(("fraction", "rounds"), [(0.3, 4), (0.5, 2), (0.8, 2)])
@pytest.mark.parametrize("slow", [1.0, 50.0])
def test_cs_ucb_tries_everybody_before_anybody_twice(fraction: float, rounds: int, slow: float) -> None:
    found = tries(LatencyUCB(fraction=fraction), rounds, np.linspace(1, slow, NUM))
    assert found.any(0).all()
    assert found[: rounds - 1].sum(0).max() == 1


def test_the_fastest_are_selected_in_the_end() -> None:
    """Mean rewards are 0.95 and 0: the fastest two are together in nearly all late rounds, and more so later."""
    seconds_N = np.where(np.arange(6) < 2, 0.5, 10.0)
    found = tries(LatencyUCB(fraction=1 / 3), 1500, seconds_N)
    both = found[:, :2].min(1)
    assert both[1000:].mean() > 0.9
    assert both[1000:].mean() > both[:30].mean() + 0.2
    regret = np.cumsum(2 - found[:, :2].sum(1))
    assert regret[-1] < 1.6 * regret[499], "a logarithm grows by 1.2 from 500 to 1500, a line by 3"


def test_queues_give_everybody_its_share() -> None:
    """B = 2 of 6 clients and a target of half an equal turn, 1/6 of the rounds."""
    seconds_N = np.where(np.arange(6) < 2, 0.5, 10.0)
    fair = tries(LatencyUCB(fraction=1 / 3, fairness=0.5), 600, seconds_N)
    assert fair.mean(0).min() > 0.95 / 6
    assert fair[:, :2].mean() > 0.5, "what is left goes to the fastest"
    owing = tries(LatencyUCB(fraction=1 / 3, fairness=0.5, target_share=0), 600, seconds_N)
    assert owing.mean(0).min() < 0.5 / 6


def test_who_never_answers_is_left_alone() -> None:
    """All others take a tenth of the longest."""
    found = tries(LatencyUCB(fraction=0.2, longest=10), 300, np.ones(5), home=lambda t, mask_N: np.arange(5) > 0)
    assert found[:, 0].sum() < 0.6 * found[:, 1:].sum(0).min()


# --------------------------------------------------------------------------------------------------------- COCS


def test_cells_are_squares_of_downlink_and_speed_on_the_scale_of_the_edge() -> None:
    begin = crowd(4, profile=devices([1, 2, 3, 4], [10, 40, 25, 10]))
    assert COCS(cells_per_side=2).cells(begin).tolist() == [0, 1, 3, 2]
    assert COCS(cells_per_side=1).cells(begin).tolist() == [0, 0, 0, 0]
    assert np.unique(COCS().cells(crowd(4))).tolist() == [4], "devices that are the same lie in the middle"


def test_success_is_learned_in_cells_and_exploited() -> None:
    """Half of the clients, near and fast, arrive in nine rounds of ten; the others in one of ten."""
    near = np.arange(NUM) % 2 == 0
    profile = devices(np.where(near, 40.0, 5.0).tolist(), np.where(near, 900.0, 100.0).tolist())
    policy, begin = COCS(fraction=0.4, explore_scale=0.5), crowd(NUM, profile=profile)
    cell_N = policy.cells(begin)
    assert np.unique(cell_N).tolist() == [0, 8]

    def home(t: int, mask_N: Any) -> Any:
        return stream(0, "home", t).random(NUM) < np.where(near, 0.9, 0.1)

    played = list(play(policy, begin, 600, lambda t: {}, home=home))
    end = played[-1][0]
    for cell, chance in ((8, 0.9), (0, 0.1)):
        known = end.success_NL[:, cell].sum() / end.count_NL[:, cell].sum()
        assert known == pytest.approx(chance, abs=0.06)
    empty_NL = np.arange(9) != cell_N[:, None]
    assert not end.count_NL[empty_NL].any(), "nobody is counted in a cell where it is not"
    late = np.mean([mask_N for _, mask_N in played[300:]], axis=0)
    assert late[near].mean() > 0.6
    assert late[~near].mean() < 0.15


def test_who_was_seen_too_seldom_is_explored_first() -> None:
    """K(t) = t^0.4 ln t is 8.4 in round 16: whoever was selected at most 8 times comes before all others."""
    policy, begin = COCS(fraction=0.5, explore_scale=1), crowd(4)
    state = policy.init(4)
    count_NL, success_NL = np.zeros((4, 9)), np.zeros((4, 9))
    count_NL[:, 4], success_NL[:, 4] = [9, 8, 9, 9], [9, 0, 2, 6]
    state = state._replace(count_NL=count_NL, success_NL=success_NL, played=np.array([15.0]))
    assert policy.act(state, begin, stream(0, "act")).tolist() == [True, True, False, False]
    seldom = COCS(fraction=0.5, explore_scale=0)
    assert seldom.act(state, begin, stream(0, "act")).tolist() == [True, False, False, True]


def test_the_budget_is_never_exceeded() -> None:
    policy = COCS(fraction=0.35)
    for size_N in ([10] * NUM, [0] * 8 + [10] * 2):
        found = [mask_N.sum() for _, mask_N in play(policy, crowd(size_N), 60, lambda t: {})]
        assert set(found) == {min(3, np.count_nonzero(size_N))}


def test_success_is_an_update_that_counts() -> None:
    policy, started_N = COCS(cells_per_side=1), np.array([True, True, False])
    state = policy.learn(policy.init(3), crowd(3, started_N=started_N), np.array([True, False, False]))
    assert state.count_NL[:, 0].tolist() == [1, 1, 0]
    assert state.success_NL[:, 0].tolist() == [1, 0, 0]


# -------------------------------------------------------------------------------------------- score of resources

ONLY = {f"{name}_weight": 0.0 for name in ("speed", "link", "data", "performance", "success")}


def picked(policy: ResourceScore, state: ResourceState | None = None, **options: Any) -> list[int]:
    begin = crowd(options.pop("size_N", 4), **options)
    mask_N = policy.act(state or policy.init(4), begin, stream(0, "act"))
    return np.flatnonzero(mask_N).tolist()


@pytest.mark.parametrize(
    ("weight", "expected"),
    [("speed", [1, 2]), ("link", [0, 3]), ("data", [0, 1]), ("performance", [2, 3]), ("success", [1, 3])],
)
def test_a_weight_on_one_feature_picks_by_it(weight: str, expected: list[int]) -> None:
    policy = ResourceScore.model_validate(ONLY | {"fraction": 0.5, f"{weight}_weight": 1.0})
    state = ResourceState(np.array([2.0, 1.9, 0.3, 0.2]), np.array([0.1, 0.9, 0.2, 0.8]))
    # A link is as fast as receiving and sending together: clients 1 and 2 are slow at one of them.
    profile = devices(down=[8, 50, 1, 8], speed=[1, 9, 8, 2], up=[8, 1, 50, 8])
    assert picked(policy, state, profile=profile, size_N=[30, 40, 10, 20]) == expected


def test_the_score_is_the_weighted_sum_of_features_from_zero_to_one() -> None:
    policy = ResourceScore.model_validate(ONLY | {"speed_weight": 2.0, "data_weight": 1.0, "performance_weight": 1.0})
    state = ResourceState(np.array([1.0, np.nan, 3.0]), np.full(3, np.nan))
    begin = crowd([10, 30, 20], profile=devices([1, 1, 1], [100, 150, 200]))
    # Losses 1 and 3 are worth 1 and 0; the client that never trained has their mean.
    np.testing.assert_allclose(policy.score(state, begin), [0 + 0 + 1, 1 + 1 + 0.5, 2 + 0.5 + 0])


def test_running_means_keep_a_half_and_start_with_the_first() -> None:
    policy, started_N = ResourceScore(), np.array([True, True, True, False])
    before = ResourceState(np.array([2.0, np.nan, 1.0, 4.0]), np.array([1.0, np.nan, 1.0, np.nan]))
    seen = crowd(4, started_N=started_N, readings={LOSS: np.array([1.0, 3.0, np.nan, np.nan])})
    after = policy.learn(before, seen, np.array([True, True, False, False]))
    np.testing.assert_array_equal(after.loss_N, [1.5, 3.0, 1.0, 4.0])
    np.testing.assert_array_equal(after.success_N, [1.0, 1.0, 0.5, np.nan])


def test_a_deadline_passes_over_the_slow_and_fills_up_with_the_fastest_of_them() -> None:
    policy = ResourceScore.model_validate(ONLY | {"fraction": 0.5, "data_weight": 1.0})
    slow: dict[str, Any] = {"size_N": [40, 30, 20, 10], "seconds_N": [9.0, 7.0, 8.0, 1.0]}
    assert picked(policy, **slow) == [0, 1]
    assert picked(policy.model_copy(update={"deadline": 8.5}), **slow) == [1, 2]
    assert picked(policy.model_copy(update={"deadline": 5.0}), **slow) == [1, 3]
    assert picked(policy.model_copy(update={"deadline": 0.5}), **slow) == [1, 3]


def test_a_deadline_makes_rounds_quicker_than_chance() -> None:
    profile = World(speed_spread=1.0).profile(0, tuple(range(NUM)))
    seconds_N = profile.seconds(np.full(NUM, 500.0), 1e6, 1e6)
    begin = crowd(NUM, profile=profile, seconds_N=seconds_N.tolist())
    deadline = float(np.median(seconds_N))
    means = []
    for policy in (ResourceScore(fraction=0.5, deadline=deadline), Random(fraction=0.5)):
        found = play(policy, begin, 50, lambda t: {LOSS: np.ones(NUM)})
        means.append(np.mean([seconds_N[mask_N].max() for _, mask_N in found]))
    assert means[0] <= deadline < means[1]


def test_clients_that_are_alike_are_drawn_uniformly() -> None:
    policy, draws = ResourceScore(fraction=0.4), 1500
    masks = [policy.act(policy.init(NUM), crowd(NUM), stream(i, "act")) for i in range(draws)]
    counts: IntArray = np.sum(masks, axis=0)
    assert inclusion_statistic(counts, draws, 4) < stats.chi2.ppf(0.999, df=NUM - 1)
