"""Eqs. 1, 5 and 6: averages at the edge and at the cloud."""

import numpy as np
import pytest
import torch

from fedbac.core.aggregation import BLOCK, EdgeAverage, cloud_average, cluster_average, draw_together, global_average
from fedbac.core.parts import Parts, Scope

NAN = float("nan")


def rows(*values: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor(values)}


def edge_average(parts_C: Parts, sizes: list[int], losses: list[float] | None = None) -> EdgeAverage:
    """Return the average of clients that come all at once."""
    like = {part: {name: value[0] for name, value in params.items()} for part, params in parts_C.items()}
    average = EdgeAverage(np.array(sizes), like)
    average.add(parts_C, np.array(losses or [1.0] * len(sizes)))
    return average


def test_edge_average_by_hand() -> None:
    """Eq. 1 with n = (10, 30): a quarter of the first, three quarters of the second, for every part."""
    parts = {"global": rows(4.0, 8.0), "cluster": rows(0.0, 4.0)}
    mean = edge_average(parts, [10, 30]).mean
    assert mean is not None
    assert mean["global"]["w"].item() == 7.0
    assert mean["cluster"]["w"].item() == 3.0


def test_a_failed_client_does_not_count_whatever_it_sent() -> None:
    """Broken weights, infinite weights of both signs, and sound weights with a loss that is not finite."""
    sent = {"global": rows(4.0, NAN, 8.0, float("inf"), -float("inf"), 5.0)}
    average = edge_average(sent, [10, 99, 30, 7, 8, 5], [1.0, 1.0, 1.0, 1.0, 1.0, NAN])
    assert average.healthy_C.tolist() == [True, False, True, False, False, False]
    mean = average.mean
    assert mean is not None
    assert mean["global"]["w"].item() == pytest.approx(7.0)


def test_weights_whose_sum_is_too_large_are_not_taken_for_broken() -> None:
    large = {"global": {"w": torch.full((3, 4), 3e38)}}
    average = edge_average(large, [1, 1, 1])
    mean = average.mean
    assert average.healthy_C.all()
    assert mean is not None
    torch.testing.assert_close(mean["global"]["w"], torch.full((4,), 3e38))


def test_nobody_left_is_no_average() -> None:
    assert edge_average({"global": rows(NAN, 2.0)}, [1, 1], [1.0, NAN]).mean is None


def test_one_client_is_its_own_average() -> None:
    sent = {"global": {"w": torch.randn(1, 50, generator=torch.Generator().manual_seed(0))}}
    mean = edge_average(sent, [7]).mean
    assert mean is not None
    assert torch.equal(mean["global"]["w"], sent["global"]["w"][0])


@pytest.mark.parametrize("failing", [(), (3, BLOCK, 2 * BLOCK + 5)])
def test_the_edge_average_has_the_same_bits_however_many_clients_come_at_once(failing: tuple[int, ...]) -> None:
    """And it is Eq. 1, as plain arithmetic in float64 has it."""
    num, rng = 2 * BLOCK + 22, np.random.default_rng(0)
    w, b = (torch.from_numpy(rng.normal(size=(num, *shape)).astype(np.float32)) for shape in ((5, 7), (11,)))
    w[list(failing), 2, 3] = float("nan")
    size_C, loss_C = rng.integers(1, 500, num), rng.random(num)
    parts: Parts = {"global": {"w": w, "b": b}, "cluster": {"w": 2 * w, "b": -b}}
    like = {part: {name: value[0] for name, value in params.items()} for part, params in parts.items()}
    means = []
    for step in (1, 7, BLOCK - 1, BLOCK, BLOCK + 1, num):
        average = EdgeAverage(size_C, like)
        for at in range(0, num, step):
            now = slice(at, at + step)
            some = {part: {name: v[now].clone() for name, v in params.items()} for part, params in parts.items()}
            average.add(some, loss_C[now])
        assert np.flatnonzero(~average.healthy_C).tolist() == list(failing)
        assert np.array_equal(average.loss_C, loss_C)
        mean = average.mean
        assert mean is not None
        means.append(mean)
    weight_C = np.where(average.healthy_C, size_C, 0) / size_C[average.healthy_C].sum()
    for part, params in parts.items():
        for name, value in params.items():
            expected = np.einsum("c,c...->...", weight_C, np.nan_to_num(value.double().numpy()))
            np.testing.assert_allclose(means[0][part][name].numpy(), expected, atol=1e-6)
            assert all(torch.equal(mean[part][name], means[0][part][name]) for mean in means)


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


def test_clusters_are_drawn_together_by_hand() -> None:
    """The mean of those with members is 4, and all go the share of the way there; the last draws nobody."""
    parts: Parts = {"global": {"w": torch.tensor([[9.0]])}, "cluster": {"w": torch.tensor([[1.0], [5.0], [100.0]])}}
    scopes: dict[str, Scope] = {"global": "cloud", "cluster": "cluster"}
    weight_K = np.array([1.0, 3.0, 0.0])
    drawn = draw_together(parts, 0.25, weight_K, scopes)
    assert drawn["cluster"]["w"].tolist() == [[1.75], [4.75], [76.0]]
    assert drawn["global"] is parts["global"]
    assert parts["cluster"]["w"].tolist() == [[1.0], [5.0], [100.0]]
    assert draw_together(parts, 1.0, weight_K, scopes)["cluster"]["w"].tolist() == [[4.0]] * 3


def test_drawing_together_keeps_counters_whole() -> None:
    """Batch normalization counts batches in whole numbers."""
    parts: Parts = {"cluster": {"w": torch.tensor([1.0, 3.0]), "seen": torch.tensor([4, 8])}}
    drawn = draw_together(parts, 0.5, np.ones(2), {"cluster": "cluster"})
    assert drawn["cluster"]["w"].tolist() == [1.5, 2.5]
    assert drawn["cluster"]["seen"].tolist() == [5, 7]
    assert drawn["cluster"]["seen"].dtype == torch.int64
