"""Eqs. 1, 5 and 6: averages at the edge and at the cloud."""

import numpy as np
import pytest
import torch

from fedbac.aggregation import cloud_average, cluster_average, edge_average, global_average
from fedbac.types import Parts

NAN = float("nan")


def rows(*values: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor(values)}


def test_edge_average_by_hand() -> None:
    """Eq. 1 with n = (10, 30): a quarter of the first, three quarters of the second, for every part."""
    parts = {"global": rows(4.0, 8.0), "cluster": rows(0.0, 4.0)}
    mean = edge_average(parts, np.array([10.0, 30.0]))
    assert mean["global"]["w"].item() == 7.0
    assert mean["cluster"]["w"].item() == 3.0


def test_a_failed_client_does_not_count_whatever_it_sent() -> None:
    mean = edge_average({"global": rows(4.0, NAN, 8.0, float("inf"))}, np.array([10.0, 0.0, 30.0, 0.0]))
    assert mean["global"]["w"].item() == 7.0


def test_nobody_left_is_an_error_not_a_nan() -> None:
    with pytest.raises(ValueError, match="positive weight"):
        edge_average({"global": rows(1.0, 2.0)}, np.zeros(2))


def test_global_average_by_hand() -> None:
    assert global_average(rows(1.0, 2.0, 5.0), np.array([1.0, 1.0, 2.0]))["w"].item() == 3.25


def test_cluster_average_by_hand() -> None:
    """Eq. 6: n_m / n_k within the cluster; cluster 1 is empty and keeps its bits, even odd ones."""
    before = {"w": torch.tensor([100.0, -0.0, 300.0])}
    after = cluster_average(rows(1.0, 3.0, 7.0), np.array([1.0, 3.0, 5.0]), np.array([0, 0, 2]), before)
    assert after["w"].tolist() == [2.5, 0.0, 7.0]
    assert torch.signbit(after["w"][1])
    assert before["w"].tolist() == [100.0, 0.0, 300.0]  # a new stack comes out


def test_a_cluster_whose_edges_all_failed_keeps_its_network() -> None:
    before = {"w": torch.tensor([100.0, 200.0])}
    after = cluster_average(rows(1.0, NAN, 7.0), np.array([1.0, 0.0, 3.0]), np.array([0, 1, 0]), before)
    assert after["w"].tolist() == [5.5, 200.0]


def test_cloud_average_goes_by_scope() -> None:
    before: Parts = {
        "global": {"w": torch.tensor([[0.0]])},
        "cluster": {"w": torch.tensor([[-1.0], [-2.0], [-3.0]])},
    }
    reports = [{"global": rows(value), "cluster": rows(10 * value)} for value in (1.0, 2.0, 6.0)]
    after = cloud_average(
        before, reports, np.array([1.0, 2.0, 1.0]), np.array([2, 0, 2]), {"global": "cloud", "cluster": "cluster"}
    )
    assert after["global"]["w"].tolist() == [[2.75]]
    assert after["cluster"]["w"].tolist() == [[20.0], [-2.0], [35.0]]


def test_cloud_average_leaves_failed_edges_out_of_both_phases() -> None:
    before: Parts = {"global": {"w": torch.tensor([[0.0]])}, "cluster": {"w": torch.tensor([[-1.0], [-2.0]])}}
    reports = [{"global": rows(1.0), "cluster": rows(5.0)}, {"global": rows(NAN), "cluster": rows(NAN)}]
    scopes = {"global": "cloud", "cluster": "cluster"}
    after = cloud_average(before, reports, np.array([7.0, 0.0]), np.array([0, 1]), scopes)  # type: ignore[arg-type]
    assert after["global"]["w"].tolist() == [[1.0]]
    assert after["cluster"]["w"].tolist() == [[5.0], [-2.0]]


def test_when_every_edge_failed_everything_stays() -> None:
    before: Parts = {"global": {"w": torch.tensor([[3.0]])}, "cluster": {"w": torch.tensor([[-1.0], [-2.0]])}}
    reports = [{"global": rows(NAN), "cluster": rows(NAN)}] * 2
    after = cloud_average(before, reports, np.zeros(2), np.array([0, 1]), {"global": "cloud", "cluster": "cluster"})
    assert after["global"]["w"].tolist() == [[3.0]]
    assert after["cluster"]["w"].tolist() == [[-1.0], [-2.0]]
