"""The rule of IFCA, its threshold and its ties (B.8)."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbac import Ask, Fixed, Loss, LowestLoss, Method, Moment, PerCluster
from fedbac.clustering.loss import lowest_loss, start_labels
from fedbac.core.policies import NoState
from fedbac.core.rng import stream
from tests.unit.tiny import clustering_evidence, scripted_rounds, tiny_run, tiny_task

cases = st.integers(1, 5).flatmap(
    lambda k: st.lists(
        st.tuples(
            st.lists(st.sampled_from([0.5, 0.9, 0.94, 0.96, 1.0, 2.0]), min_size=k, max_size=k), st.integers(0, k - 1)
        ),
        min_size=1,
        max_size=6,
    )
)


@given(cases, st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_every_edge_follows_the_rule(members: list[tuple[list[float], int]], threshold: float) -> None:
    """Switch only if min_k L^(k) < threshold · L^(current); a tie keeps the current label, else the lowest index."""
    expected = []
    for losses, current in members:
        best = min(losses)
        expected.append(losses.index(best) if best < threshold * losses[current] else current)
    got = lowest_loss(np.array([m[0] for m in members]), np.array([m[1] for m in members]), threshold)
    assert got.tolist() == expected


def test_threshold_is_strict() -> None:
    loss = np.array([[1.0, 0.95], [1.0, 0.9499]])
    assert lowest_loss(loss, np.array([0, 0]), 0.95).tolist() == [0, 1]


def test_special_thresholds() -> None:
    loss = stream(0, "loss").uniform(0.1, 10, (50, 4))
    label = stream(0, "label").integers(4, size=50)
    np.testing.assert_array_equal(lowest_loss(loss, label, 0.0), label)  # never
    np.testing.assert_array_equal(lowest_loss(loss, label, 1.0), loss.argmin(1))  # original IFCA
    np.testing.assert_array_equal(lowest_loss(np.ones((50, 4)), label, 1.0), label)  # equal models: nobody moves


def test_a_diverged_current_model_is_left_and_diverged_others_are_not_entered() -> None:
    loss = np.array([[np.inf, 1.0], [1.0, np.inf], [np.inf, np.inf]])
    assert lowest_loss(loss, np.array([0, 0, 0]), 0.95).tolist() == [1, 0, 0]


def test_due_every_period() -> None:
    assert [t for t in range(1, 61) if LowestLoss().ask(NoState(), Moment(t, 60))] == [20, 40, 60]
    assert all(LowestLoss(period=1).ask(NoState(), Moment(t, 60)) for t in range(1, 5))
    assert LowestLoss(period=3).ask(NoState(), Moment(3, 60)) == Ask(after=(Loss("clusters"),))
    assert LowestLoss().needs() == {Loss("clusters")}


@pytest.mark.parametrize("num_clusters", [1, None])
def test_a_single_cluster_is_never_measured(num_clusters: int | None) -> None:
    """With one cluster there is nothing to decide, so no network may travel to be measured."""
    policy = LowestLoss(num_clusters=num_clusters, period=1)
    method = Method(name="one", clustering=policy, personalization=PerCluster())
    record = tiny_run(method, task=tiny_task(num_edges=1, rounds=1)).records[0]
    assert record["bytes"]["client"]["down"]["evaluate"] == 0
    assert record["bytes"]["cloud"]["down"]["evaluate"] == 0


def test_original_ifca_moves_every_round_to_the_best() -> None:
    loss_TMK = stream(1, "loss").uniform(0.1, 1, (6, 4, 3))
    policy = LowestLoss(num_clusters=3, period=1, threshold=1.0)
    for t, (record, state) in enumerate(scripted_rounds(policy, loss_TMK)):
        np.testing.assert_array_equal(state.label_N, loss_TMK[t].argmin(1))
        assert record["assignment_next"] == state.label_N.tolist()


def test_fixed_labels_are_kept_for_good() -> None:
    loss_TMK = stream(1, "loss").uniform(0.1, 1, (5, 4, 4))
    assert {tuple(record["assignment_next"]) for record, _ in scripted_rounds(Fixed(), loss_TMK)} == {(0, 1, 2, 3)}
    assert Fixed().ask(NoState(), Moment(20, 60)) is None
    assert Fixed().needs() == frozenset()
    _, (label, origin) = Fixed().act(NoState(), clustering_evidence([2, 0], np.ones((2, 3))), stream(0, "x"))
    assert label.tolist() == [2, 0]
    assert origin is None


@pytest.mark.parametrize(
    ("rule", "origin"), [("keep", None), ("clone", [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]])]
)
def test_an_empty_cluster_is_found_as_it_was_left_or_as_a_copy_of_ones_own(rule: str, origin: Any) -> None:
    """C.17: edges 1 and 2 enter cluster 2, which was empty: with ``clone`` the first of them brings its network."""
    policy = LowestLoss.model_validate({"num_clusters": 4, "empty_cluster": rule})
    loss = [[0.1, 9, 9, 9], [9, 9, 0.1, 9], [9, 9, 0.1, 9], [9, 0.1, 9, 9]]
    _, answer = policy.act(NoState(), clustering_evidence([0, 1, 0, 0], loss), stream(0, "x"))
    assert answer.label_N.tolist() == [0, 2, 2, 1]
    assert (None if answer.origin_KJ is None else answer.origin_KJ.tolist()) == origin


def test_start_labels() -> None:
    assert start_labels("round_robin", 7, 3, stream(0, "x")).tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert start_labels("uniform", 4, 3, stream(0, "x")).tolist() == [0, 0, 0, 0]
    drawn = start_labels("random", 3000, 3, stream(0, "x"))
    assert np.all(np.abs(np.bincount(drawn) / 1000 - 1) < 0.1)
    assert not np.array_equal(drawn, start_labels("random", 3000, 3, stream(1, "x")))


def test_number_of_clusters() -> None:
    assert LowestLoss().clusters(10) == 5
    assert LowestLoss(num_clusters=None).clusters(10) == 10
    assert Fixed().clusters(7) == 7
    assert Fixed(num_clusters=1).clusters(7) == 1
