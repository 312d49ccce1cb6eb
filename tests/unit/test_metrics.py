"""Numbers that judge a run."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbac.rounds.metrics import JUDGED_AT, distributed, over_edges, rounds_to_target, summarize, total_bytes


def test_distributed_accuracy_by_hand() -> None:
    got = distributed(np.array([0.2, 0.4, 0.9]), np.array([100, 100, 300]))
    assert got["accuracy"] == pytest.approx(0.5)  # every edge counts the same (C.13)
    assert got["accuracy_weighted"] == pytest.approx(0.66)
    assert got["accuracy_std"] == pytest.approx(np.sqrt((0.09 + 0.01 + 0.16) / 3))
    assert (got["accuracy_min"], got["accuracy_max"]) == (0.2, 0.9)


@pytest.mark.parametrize(
    ("curve", "patience", "expected"),
    [
        ([0.1, 0.5, 0.6, 0.7], 3, 2),  # at the target counts
        ([0.5, 0.5, 0.4, 0.5, 0.5, 0.5], 3, 4),  # a dip starts the count again
        ([0.1, 0.2, 0.6, 0.7], 3, None),  # two rounds are too few
        ([0.1, 0.2, 0.6, 0.7], 1, 3),
        ([0.9], 1, 1),
        ([], 3, None),
        ([0.499] * 10, 1, None),
    ],
)
def test_rounds_to_target(curve: list[float], patience: int, expected: int | None) -> None:
    assert rounds_to_target(curve, 0.5, patience) == expected


@given(st.lists(st.floats(0, 1), max_size=20), st.floats(0, 1), st.integers(1, 5))
def test_rounds_to_target_is_the_first_window_at_the_target(curve: list[float], target: float, patience: int) -> None:
    windows = [curve[i : i + patience] for i in range(len(curve) - patience + 1)]
    expected = next((i for i, window in enumerate(windows, start=1) if min(window) >= target), None)
    assert rounds_to_target(curve, target, patience) == expected


def record(round_: int, accuracy: float, **changes: Any) -> dict[str, Any]:
    purposes = {"train": 10 * round_, "evaluate": 1, "control": 0}
    return {
        "round": round_,
        "accuracy": accuracy,
        "accuracy_per_edge": [accuracy - 0.1, accuracy + 0.1],
        "accuracy_std": 0.1,
        "accuracy_min": accuracy - 0.1,
        "accuracy_max": accuracy + 0.1,
        "accuracy_weighted": accuracy,
        "accuracy_global": accuracy / 2,
        "loss": 1 / round_,
        "moves": round_,
        "active_clusters": 5 - round_,
        "failed": [7] if round_ == 2 else [],
        "bytes": {"client": {"down": purposes, "up": purposes}},
        "seconds": 2.0,
        **changes,
    }


def test_summary_by_hand() -> None:
    records = [record(1, 0.2), record(2, 0.5), record(3, 0.6), record(4, 0.4)]
    got = summarize(records, [0.5, 0.9], last=2, patience=2)
    assert got["rounds"] == 4
    assert got["accuracy"] == pytest.approx(0.5)  # of the last two
    assert got["accuracy_std_last"] == pytest.approx(0.1)
    assert got["accuracy_best"] == 0.6
    assert got["edge_min"] == pytest.approx(0.4)
    assert got["edge_max"] == pytest.approx(0.6)
    assert got["edge_std"] == pytest.approx(0.1)
    assert (got["accuracy_last"], got["edge_min_last"], got["edge_std_last"]) == pytest.approx((0.4, 0.3, 0.1))
    assert (got["before_training"], got["after_training"]) == (None, None), "of runs that did not measure both"
    assert got["accuracy_global"] == pytest.approx(0.25)
    assert got["loss"] == pytest.approx((1 / 3 + 1 / 4) / 2)
    assert got["moves"] == 10
    assert got["active_clusters"] == 1  # at the end
    assert got["failed_clients"] == 1
    assert got["rounds_to_target"] == {"0.5": 2, "0.9": None}
    assert got["bytes_to_target"] == {"0.5": (2 * 10 + 2) + (2 * 20 + 2), "0.9": None}
    assert got["bytes"] == {"client": {d: {"train": 100, "evaluate": 4, "control": 0} for d in ("down", "up")}}
    assert got["bytes_total"] == 208
    assert got["seconds"] == 8.0


def test_summary_of_fewer_rounds_than_asked_for() -> None:
    got = summarize([record(1, 0.25)], [0.5], last=10, patience=3)
    assert (got["rounds"], got["accuracy"], got["accuracy_std_last"]) == (1, 0.25, 0.0)


def test_summary_survives_rounds_in_which_every_client_failed() -> None:
    """Such a round has no training loss (None); the run goes on, so its summary must come out too."""
    records = [record(1, 0.2), record(2, 0.2, loss=None, failed=[0, 1])]
    assert summarize(records, [0.5], last=2, patience=1)["failed_clients"] == 2
    assert summarize(records[1:], [0.5], last=2, patience=1)["accuracy"] == 0.2


def test_what_devices_cost_is_summed() -> None:
    devices = [
        record(1, 0.2, dropped=[3], late=[], simulated_seconds=2.5),
        record(2, 0.2, dropped=[4, 5], late=[1], simulated_seconds=1.5),
    ]
    got = summarize(devices, [0.5], last=2, patience=1)
    assert (got["dropped_clients"], got["late_clients"], got["simulated_seconds"]) == (3, 1, 4.0)
    without = summarize([record(1, 0.2)], [0.5], last=2, patience=1)  # a run of an earlier version says nothing of them
    assert (without["dropped_clients"], without["late_clients"], without["simulated_seconds"]) == (0, 0, None)


def test_total_bytes() -> None:
    assert total_bytes({"a": {"b": {"c": 1, "d": 2}, "e": {}}, "f": {"g": {"h": 4}}}) == 7


def test_the_worst_edge_is_the_one_that_is_worst_on_average() -> None:
    """Two edges that take turns are both served; the lowest of each round would be 0.2."""
    turns = [record(1, 0.4, accuracy_per_edge=[0.2, 0.6, None]), record(2, 0.4, accuracy_per_edge=[0.6, 0.2, 0.5])]
    assert over_edges(turns) == pytest.approx({"edge_min": 0.4, "edge_max": 0.5, "edge_std": np.std([0.4, 0.4, 0.5])})
    assert set(over_edges([record(1, 0.4, accuracy_per_edge=[None])]).values()) == {None}


@pytest.mark.parametrize("judged", JUDGED_AT)
def test_both_moments_stand_side_by_side(judged: str) -> None:
    """A record names the moment that its own accuracy is not of."""
    (other,) = set(JUDGED_AT) - {judged}
    told = [
        {other: {"accuracy": 0.7, "accuracy_per_edge": [0.6, 0.8]}},
        {other: {"accuracy": 0.9, "accuracy_per_edge": [0.8, 1.0]}},
    ]
    got = summarize([record(1, 0.1), *(record(t, 0.4, **one) for t, one in enumerate(told, start=2))], [], 2, 1)
    assert got[judged] == pytest.approx({"accuracy": 0.4, "edge_std": 0.1, "edge_min": 0.3, "edge_max": 0.5})
    assert got[other] == pytest.approx({"accuracy": 0.8, "edge_std": 0.1, "edge_min": 0.7, "edge_max": 0.9})
    assert summarize([record(1, 0.4, **{other: None})], [], 1, 1)[other] is None
