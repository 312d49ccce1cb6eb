"""Splits by the angle between updates (B.9): planted groups part, and only where there is reason to."""

from typing import Any

import numpy as np
import pytest

from fedbac import Ask, CosineSplits, Gram, Moment
from fedbac.clustering.splits import CosineState
from fedbac.core.geometry import cosines
from fedbac.core.policies import Assignment
from fedbac.core.queries import Evidence
from fedbac.core.rng import stream
from fedbac.core.settings import FloatArray, IntArray

NO_RANDOMNESS = stream(0, "unused")
PLAIN: dict[str, Any] = {"thresholds": "absolute", "first_split": 0}


def evidence(
    label_N: IntArray | list[int], update_NF: FloatArray, round_: int = 50, num_clusters: int | None = None
) -> Evidence:
    """Return what the cloud shows after a round with these updates; a row of NaN did not train."""
    label = np.asarray(label_N)
    num_clusters = label.size if num_clusters is None else num_clusters
    return Evidence(
        round=round_,
        num_rounds=100,
        num_classes=10,
        size_N=np.where(np.arange(label.size) == 0, 10_000, 100),  # members count alike
        readings={Gram(): update_NF @ update_NF.T},
        label_N=label,
        used_K=np.isin(np.arange(num_clusters), label),
    )


def planted(group_N: IntArray | list[int], direction_GF: list[list[float]], noise: float = 0.1) -> FloatArray:
    """Return updates of length about 2 that point where those of their group do."""
    group = np.asarray(group_N)
    update_NF: FloatArray = 2 * np.array(direction_GF)[group]
    return update_NF + stream(0, "updates").normal(0, noise, update_NF.shape)


def split(policy: CosineSplits, label_N: IntArray | list[int], update_NF: FloatArray, **changes: Any) -> Assignment:
    seen = evidence(label_N, update_NF, **changes)
    _, answer = policy.act(policy.learn(policy.init(len(label_N)), seen), seen, NO_RANDOMNESS)
    return answer


OPPOSED = [[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]


def test_it_starts_as_one_cluster_and_asks_after_every_round() -> None:
    policy = CosineSplits()
    assert policy.start(6, NO_RANDOMNESS).tolist() == [0] * 6
    assert [CosineSplits(max_clusters=most).clusters(6) for most in (None, 3, 9)] == [6, 3, 6]
    assert policy.ask(policy.init(6), Moment(1, 100)) == Ask(after=(Gram(),))
    assert policy.needs() == {Gram()}


def test_with_epsilon_1_at_zero_nothing_ever_splits() -> None:
    update_NF = planted([0, 1] * 3, OPPOSED)
    for thresholds in ("absolute", "relative"):
        policy = CosineSplits.model_validate({**PLAIN, "thresholds": thresholds, "epsilon_1": 0.0})
        assert split(policy, [0] * 6, update_NF).label_N.tolist() == [0] * 6


def test_two_planted_groups_split_exactly_and_both_go_on_from_their_parent() -> None:
    group = np.array([0, 1, 1, 0, 1, 0])
    answer = split(CosineSplits(**PLAIN), [0] * 6, planted(group, OPPOSED))
    assert answer.label_N.tolist() == group.tolist(), "the side of the first member stays"
    assert answer.origin_KJ is not None
    np.testing.assert_array_equal(answer.origin_KJ[:2, 0], 1)
    np.testing.assert_array_equal(answer.origin_KJ[2:], np.eye(6)[2:])


def test_three_groups_are_found_by_two_splits_of_which_the_second_is_inside_a_cluster() -> None:
    """The places of members within their cluster are not their places among all edges: public code confuses them."""
    group = np.array([0, 1, 2, 2, 1, 0, 1, 2, 0])
    directions = [[1.0, 0.0, 0.0], [-0.5, 0.3, 0.0], [-0.5, -0.3, 0.0]]
    policy = CosineSplits(**PLAIN, min_members=3)
    first = split(policy, [0] * 9, planted(group, directions))
    assert first.label_N.tolist() == (group > 0).astype(int).tolist()
    # In a cluster of its own, the first group has come to rest.
    update_NF = planted(group, [[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, -1.0, 0.0]], noise=0.01)
    second = split(policy, first.label_N, update_NF)
    assert second.origin_KJ is not None
    assert second.label_N.tolist() == group.tolist()
    np.testing.assert_array_equal(second.origin_KJ[2], np.arange(9) == 1)


def test_groups_at_right_angles_part_too() -> None:
    """All pairs of groups are as far from each other: some two of them must part, since the cluster is due."""
    update_NF = 2 * np.eye(8)
    answer = split(CosineSplits(**PLAIN, epsilon_1=1.0), [0] * 8, update_NF)
    assert len(np.unique(answer.label_N)) == 2


def test_clusters_that_are_due_split_in_the_same_round_each_into_a_cluster_of_its_own() -> None:
    group, label = np.array([0, 1, 0, 1, 0, 1, 0, 1]), np.array([3, 3, 3, 3, 5, 5, 5, 5])
    answer = split(CosineSplits(**PLAIN), label, planted(group, OPPOSED))
    assert answer.label_N.tolist() == [3, 0, 3, 0, 5, 1, 5, 1]
    assert answer.origin_KJ is not None
    np.testing.assert_array_equal(answer.origin_KJ[[0, 1]].argmax(1), [3, 5])


def test_there_are_no_more_clusters_than_allowed() -> None:
    group, label = np.array([0, 1, 0, 1, 0, 1, 0, 1]), np.array([0, 0, 0, 0, 1, 1, 1, 1])
    answer = split(CosineSplits(**PLAIN, max_clusters=3), label, planted(group, OPPOSED), num_clusters=3)
    assert answer.label_N.tolist() == [0, 2, 0, 2, 1, 1, 1, 1]


def test_who_did_not_train_is_left_out_of_test_and_split() -> None:
    """Its update is missing: it keeps its label, and the others split as if it were not there."""
    update_NF = planted([0, 1, 0, 1, 0, 1], OPPOSED)
    update_NF[[1, 4]] = np.nan
    assert split(CosineSplits(**PLAIN), [0] * 6, update_NF).label_N.tolist() == [0, 0, 0, 1, 0, 1]
    update_NF[:] = np.nan
    for thresholds in ("absolute", "relative"):
        policy = CosineSplits.model_validate({**PLAIN, "thresholds": thresholds})
        assert split(policy, [0] * 6, update_NF).label_N.tolist() == [0] * 6


def test_small_clusters_never_split() -> None:
    for label, group in (([0, 0, 1, 1], [0, 1, 0, 1]), ([0, 1, 2], [0, 1, 0])):
        assert split(CosineSplits(**PLAIN), label, planted(group, OPPOSED)).label_N.tolist() == label
    update_NF = planted([0, 1, 0], OPPOSED)
    update_NF[2] = np.nan
    assert split(CosineSplits(**PLAIN), [0, 0, 0], update_NF).label_N.tolist() == [0, 0, 0], "only two have an update"


def test_a_cluster_splits_only_if_it_rests_as_a_whole_and_some_member_does_not() -> None:
    still_moving = planted([0, 1] * 3, OPPOSED) + np.eye(3)[0]
    assert split(CosineSplits(**PLAIN), [0] * 6, still_moving).label_N.tolist() == [0] * 6
    all_at_rest = planted([0, 1] * 3, OPPOSED) / 4
    assert split(CosineSplits(**PLAIN), [0] * 6, all_at_rest).label_N.tolist() == [0] * 6


def test_nothing_splits_before_its_time_nor_after_the_last_round() -> None:
    policy = CosineSplits(thresholds="absolute", first_split=20)
    for round_, expected in ((19, 1), (20, 2), (99, 2), (100, 1)):
        answer = split(policy, [0] * 6, planted([0, 1] * 3, OPPOSED), round_=round_)
        assert len(np.unique(answer.label_N)) == expected


def test_relative_thresholds_count_in_quarters_of_the_largest_of_the_first_updates() -> None:
    """ρ = median over five rounds of the largest norm, over 4: splits do not depend on how long updates are."""
    policy = CosineSplits(first_split=0)
    for scale in (1e-3, 1.0, 1e3):
        state = policy.init(6)
        for largest in (9.0, 4.0, 1.0, 4.0, 2.0, 100.0):  # the sixth is not looked at
            first = np.zeros((6, 3))
            first[2, 0] = scale * largest
            state = policy.learn(state, evidence([0] * 6, first))
        np.testing.assert_allclose(state.norm_T, scale * np.array([9, 4, 1, 4, 2]))
        unit = scale * 4 / 4
        for length, due in ((1.7, True), (1.5, False)):
            seen = evidence([0] * 6, unit * length / 2 * planted([0, 1] * 3, OPPOSED, noise=0.0))
            _, answer = policy.act(state, seen, NO_RANDOMNESS)
            assert (len(np.unique(answer.label_N)) == 2) == due


def test_a_split_may_have_to_show_how_far_it_separates() -> None:
    """√((1 − α)/2) with α the largest cosine across: 1 for opposed groups, √½ for groups at right angles."""
    right_angles = 0.9 * (planted([0, 1] * 3, [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], noise=0.0))
    for separation, parts in ((0.7, True), (0.71, False)):
        policy = CosineSplits(**PLAIN, epsilon_1=2.0, separation=separation)
        assert (len(np.unique(split(policy, [0] * 6, right_angles).label_N)) == 2) == parts


def test_an_update_of_length_zero_is_at_right_angles_to_all_others() -> None:
    gram = np.array([[4.0, -4.0, 0.0], [-4.0, 4.0, 0.0], [0.0, 0.0, 0.0]])
    np.testing.assert_array_equal(cosines(gram), [[1, -1, 0], [-1, 1, 0], [0, 0, 1]])


def test_members_that_point_the_same_way_are_not_torn_apart() -> None:
    """Where no side differs from the other there is nothing to gain, whatever the thresholds say."""
    alike = np.ones((4, 3))
    assert split(CosineSplits(**PLAIN, epsilon_1=9.0, epsilon_2=0.1), [0] * 4, alike).label_N.tolist() == [0] * 4


@pytest.mark.parametrize("seed", range(3))
def test_edges_that_are_alike_never_split(seed: int) -> None:
    """(4) of B.9: updates that share a direction, get shorter over 50 rounds and have noise of their own."""
    policy, rng = CosineSplits(), stream(seed, "alike")
    state: CosineState = policy.init(8)
    label = policy.start(8, NO_RANDOMNESS)
    for t in range(1, 51):
        update_NF = 0.97**t * (np.ones(20) + rng.normal(0, 0.3, (8, 20)))
        seen = evidence(label, update_NF, round_=t)
        state, (label, _) = policy.act(policy.learn(state, seen), seen, NO_RANDOMNESS)
    assert label.tolist() == [0] * 8
