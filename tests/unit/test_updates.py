"""Clusters from the updates of one round (B.6, B.10): trees of joins, k-means, and which cluster keeps its name."""

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.spatial.distance import cdist
from sklearn.metrics import adjusted_rand_score

from fedbac import Agglomerative, Ask, Gram, KMeans, Moment, NoState
from fedbac.clustering.updates import matched, widest_gap
from fedbac.core.geometry import coordinates, cosines, distances, known
from fedbac.core.policies import Assignment, ClusterPolicy
from fedbac.core.queries import Evidence
from fedbac.core.rng import stream
from fedbac.core.settings import FloatArray, IntArray

LINE = np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 10.0], [0.0, 13.0], [0.0, 30.0], [0.0, 31.5]])
"""Six updates of one direction, and of lengths in three pairs."""
UPDATES = stream(0, "updates").normal(size=(7, 4))


def evidence(label_N: IntArray | list[int], update_NF: FloatArray, num_clusters: int | None = None) -> Evidence:
    """Return what the cloud shows after a round with these updates; a row of NaN did not train."""
    label = np.asarray(label_N)
    return Evidence(
        round=10,
        num_rounds=100,
        num_classes=10,
        size_N=np.full(label.size, 100),
        readings={Gram(): update_NF @ update_NF.T},
        label_N=label,
        used_K=np.isin(np.arange(num_clusters or label.size), label),
    )


def grouped(
    policy: ClusterPolicy, update_NF: FloatArray, label_N: list[int] | None = None, seed: int = 0
) -> Assignment:
    num_members = len(update_NF)
    seen = evidence(label_N or [0] * num_members, update_NF, policy.clusters(num_members))
    _, answer = policy.act(NoState(), seen, stream(seed, "act"))
    return answer


def same(label_N: IntArray, group_N: list[int]) -> bool:
    return float(adjusted_rand_score(group_N, label_N)) == 1


# -------------------------------------------------------------------------------------------------- geometry


def test_distances_and_coordinates_come_from_inner_products() -> None:
    gram_NN = UPDATES @ UPDATES.T
    np.testing.assert_allclose(distances(gram_NN), cdist(UPDATES, UPDATES), atol=1e-12)
    point_NF = coordinates(gram_NN)
    np.testing.assert_allclose(point_NF @ point_NF.T, gram_NN, atol=1e-12)
    gram_NN[2] = gram_NN[:, 2] = np.nan
    assert known(gram_NN).tolist() == [True, True, False, True, True, True, True]


def test_coordinates_of_cosines_are_unit_vectors() -> None:
    np.testing.assert_allclose(np.linalg.norm(coordinates(cosines(UPDATES @ UPDATES.T)), axis=1), 1)


# --------------------------------------------------------------------------------------------- when and whom


@pytest.mark.parametrize(
    ("policy", "rounds"),
    [
        (Agglomerative(), [10]),
        (Agglomerative(warmup=3, period=4), [3, 7, 11, 15]),
        (KMeans(), [1]),
        (KMeans(warmup=2, period=6), [2, 8, 14]),
    ],
)
def test_groups_are_due_once_or_every_so_often_after_the_warm_up(policy: Any, rounds: list[int]) -> None:
    due = {t: policy.ask(NoState(), Moment(t, 100)) for t in range(1, 17)}
    assert [t for t, ask in due.items() if ask is not None] == rounds
    assert due[rounds[0]] == Ask(after=(Gram(),))
    assert policy.start(4, stream(0, "start")).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("policy", [Agglomerative(num_clusters=2), KMeans(num_clusters=2)])
def test_who_did_not_train_stays_and_the_larger_group_keeps_the_name(policy: ClusterPolicy) -> None:
    update_NF = np.array([[1.0, 0.1], [1.0, -0.1], [np.nan, np.nan], [-1.0, 0.1], [1.0, 0.0]])
    assert grouped(policy, update_NF).label_N.tolist() == [0, 0, 0, 1, 0]
    update_NF[:4] = np.nan
    assert grouped(policy, update_NF).label_N.tolist() == [0] * 5, "one alone is not grouped"


# -------------------------------------------------------------------------------------------------- matching


def test_groups_keep_the_names_that_most_of_their_members_have() -> None:
    label_N = [3, 3, 3, 1, 1, 0]
    answer = matched(np.array([0, 0, 1, 1, 1, 2]), evidence(label_N, LINE))
    assert answer.label_N.tolist() == [3, 3, 1, 1, 1, 0]
    np.testing.assert_array_equal(answer.origin_KJ, np.eye(6))


def test_a_group_without_a_name_gets_a_free_one_and_the_network_that_most_of_it_had() -> None:
    answer = matched(np.array([0, 0, 0, 1, 1, 1]), evidence([2, 2, 2, 2, 2, 4], LINE))
    assert answer.label_N.tolist() == [2, 2, 2, 4, 4, 4]
    answer = matched(np.array([0, 0, 0, 1, 1, 2]), evidence([2, 2, 2, 2, 2, 2], LINE))
    assert answer.label_N[:3].tolist() == [2, 2, 2]
    assert answer.origin_KJ is not None
    np.testing.assert_array_equal(answer.origin_KJ[answer.label_N], np.eye(6)[[2] * 6])


def test_no_group_moves_in_with_one_who_stays_as_long_as_a_cluster_is_free() -> None:
    answer = matched(np.array([-1, 0, 0, 1, 1, 2]), evidence([0, 1, 1, 1, 1, 1], LINE))
    assert answer.label_N[0] == 0
    assert 0 not in answer.label_N[1:]


# --------------------------------------------------------------------------------------------- agglomerative


@pytest.mark.parametrize("linkage", ["ward", "complete", "average", "single"])
def test_a_tree_is_cut_at_a_distance_or_into_so_many(linkage: Any) -> None:
    pairs, halves = [0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 1, 1]
    assert same(grouped(Agglomerative(linkage=linkage, threshold=3.5), LINE).label_N, pairs)
    assert same(grouped(Agglomerative(linkage=linkage, num_clusters=3), LINE).label_N, pairs)
    assert same(grouped(Agglomerative(linkage=linkage, num_clusters=2), LINE).label_N, halves)
    assert same(grouped(Agglomerative(linkage=linkage, threshold=1.2), LINE).label_N, [0, 0, 1, 2, 3, 4])


def test_thresholds_of_nothing_and_of_everything() -> None:
    assert sorted(grouped(Agglomerative(threshold=0), LINE).label_N) == [0, 1, 2, 3, 4, 5]
    assert grouped(Agglomerative(threshold=1e9), LINE).label_N.tolist() == [0] * 6


def test_cosines_look_at_directions_only() -> None:
    """cos 60° = 0.5: the distance 0.5 is the limit."""
    angles = np.deg2rad([0, 59, 180])
    update_NF = np.array([1.0, 5.0, 0.1])[:, None] * np.column_stack([np.cos(angles), np.sin(angles)])
    policy = Agglomerative(metric="cosine", threshold=0.5)
    assert same(grouped(policy, update_NF).label_N, [0, 0, 1])
    assert same(grouped(policy.model_copy(update={"threshold": 0.48}), update_NF).label_N, [0, 1, 2])


@pytest.mark.parametrize(
    ("heights", "count"),
    [
        ([1, 1.5, 3, 17, 21], 3),  # into 3 before the step from 3 to 17; into 2 before that from 17 to 21
        ([1, 1.5, 3, 4, 21], 2),
        ([1, 9, 10, 11, 12], 3),  # into 5 would be better, but that is more than half
        ([0, 0, 0, 0, 5], 2),
        ([0, 0, 0, 0, 0], 1),
        ([1, 9], 1),  # three members: nothing lies between 2 and 1.5
        ([1, 2, 9], 2),
    ],
)
def test_the_widest_gap_says_how_many(heights: list[float], count: int) -> None:
    assert widest_gap(np.array(heights, dtype=np.float64)) == count


def test_without_a_number_or_a_threshold_the_widest_gap_decides() -> None:
    assert same(grouped(Agglomerative(), LINE).label_N, [0, 0, 1, 1, 2, 2])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_clusters": 2, "threshold": 1.0}, "num_clusters and threshold both say where to cut"),
        ({"metric": "cosine", "linkage": "ward"}, "linkage 'ward' needs metric 'l2'"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Agglomerative.model_validate(settings)


# --------------------------------------------------------------------------------------------------- k-means


@pytest.mark.parametrize("seed", range(3))
def test_two_planted_directions_are_recovered_exactly(seed: int) -> None:
    group = [0, 1, 1, 0, 1, 0, 0, 1]
    rng = stream(seed, "planted")
    update_NF = rng.normal(size=(2, 30))[group] * rng.uniform(0.1, 5, (8, 1))
    update_NF += 0.1 * np.linalg.norm(update_NF, axis=1, keepdims=True) * rng.normal(size=(8, 30)) / np.sqrt(30)
    assert same(grouped(KMeans(num_clusters=2), update_NF, seed=seed).label_N, group)


def test_there_are_no_more_groups_than_members_that_trained_or_different_updates() -> None:
    assert sorted(grouped(KMeans(num_clusters=None), UPDATES).label_N) == [0, 1, 2, 3, 4, 5, 6]
    update_NF = UPDATES.copy()
    update_NF[3:] = np.nan
    assert sorted(grouped(KMeans(num_clusters=5), update_NF).label_N) == [0, 0, 0, 0, 0, 1, 2]
    twice = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 2.0], [0.0, 1.0]])
    assert same(grouped(KMeans(num_clusters=3), twice).label_N, [0, 0, 1, 1])
