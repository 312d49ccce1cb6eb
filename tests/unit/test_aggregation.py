"""Eqs. 1, 5 and 6: averages at the edge and at the cloud."""

import numpy as np
import pytest
import torch

from fedbac.core import trees
from fedbac.core.aggregation import BLOCK, EdgeAverage, average_by_owner
from fedbac.core.parts import Params, Parts

NAN = float("nan")


def rows(*values: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor(values)}


def edge_average(
    parts_C: Parts, sizes: list[int], losses: list[float] | None = None, rows: dict[str, list[int]] | None = None
) -> EdgeAverage:
    """Return the average of clients that come all at once; they all start from one row, or from these rows of zeros."""
    row_C = {part: np.array((rows or {}).get(part, [0] * len(sizes))) for part in parts_C}
    bank = {
        part: {n: torch.zeros(int(row_C[part].max()) + 1, *v.shape[1:]) for n, v in params.items()}
        for part, params in parts_C.items()
    }
    average = EdgeAverage(np.array(sizes), bank, row_C)
    average.add(parts_C, np.array(losses or [1.0] * len(sizes)))
    return average


def test_edge_average_by_hand() -> None:
    """Eq. 1 with n = (10, 30): a quarter of the first, three quarters of the second, for every part."""
    average = edge_average({"global": rows(4.0, 8.0), "cluster": rows(0.0, 4.0)}, [10, 30])
    assert average.bank["global"]["w"].tolist() == [7.0]
    assert average.bank["cluster"]["w"].tolist() == [3.0]
    assert {part: weight.tolist() for part, weight in average.weight.items()} == {"global": [40], "cluster": [40]}


def test_every_row_is_averaged_over_those_who_started_from_it() -> None:
    """Two clusters of two and one member, one that nobody has, and a part that every client owns."""
    sent = {"cluster": rows(4.0, 10.0, 8.0), "own": rows(1.0, -0.0, 3.0)}
    where = {"cluster": [0, 2, 0], "own": [2, 0, 1]}
    bank = {"cluster": rows(50.0, 51.0, 52.0, 53.0), "own": rows(60.0, 61.0, 62.0, 63.0)}
    average = EdgeAverage(np.array([10, 5, 30]), bank, {part: np.array(row_C) for part, row_C in where.items()})
    average.add(sent, np.ones(3))
    assert average.bank["cluster"]["w"].tolist() == [7.0, 51.0, 10.0, 53.0]
    assert average.bank["own"]["w"].tolist() == [-0.0, 3.0, 1.0, 63.0]
    assert torch.signbit(average.bank["own"]["w"][0]), "a row of one client is a copy"
    assert average.weight["cluster"].tolist() == [40, 0, 5, 0]
    assert average.weight["own"].tolist() == [5, 30, 10, 0]
    assert bank["cluster"]["w"].tolist() == [50.0, 51.0, 52.0, 53.0]  # a new bank comes out


def test_a_client_that_is_broken_in_one_part_counts_in_none() -> None:
    sent = {"global": rows(4.0, 8.0, 6.0), "own": rows(1.0, NAN, 3.0)}
    average = edge_average(sent, [10, 30, 10], rows={"own": [0, 1, 2]})
    assert average.healthy_C.tolist() == [True, False, True]
    assert average.bank["global"]["w"].item() == pytest.approx(5.0)
    assert average.bank["own"]["w"].tolist() == [1.0, 0.0, 3.0]
    assert average.weight["own"].tolist() == [10, 0, 10]
    lost = edge_average(sent | {"own": rows(1.0, 2.0, 3.0)}, [10, 30, 10], [1.0, NAN, 1.0], {"own": [0, 1, 2]})
    assert lost.bank["own"]["w"].tolist() == [1.0, 0.0, 3.0]


def test_parts_that_every_client_owns_cost_copies_only(monkeypatch: pytest.MonkeyPatch) -> None:
    products: list[int] = []
    plain = torch.Tensor.__matmul__

    def counted(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        products.append(len(other))
        return plain(one, other)

    monkeypatch.setattr(torch.Tensor, "__matmul__", counted)
    num = 3 * BLOCK
    sent = {"global": {"w": torch.randn(num, 7)}, "own": {"w": torch.randn(num, 7)}}
    average = edge_average(sent, [2] * num, rows={"own": list(range(num))})
    assert products == [BLOCK] * 3
    assert torch.equal(average.bank["own"]["w"], sent["own"]["w"])


def test_a_failed_client_does_not_count_whatever_it_sent() -> None:
    """Broken weights, infinite weights of both signs, and sound weights with a loss that is not finite."""
    sent = {"global": rows(4.0, NAN, 8.0, float("inf"), -float("inf"), 5.0)}
    average = edge_average(sent, [10, 99, 30, 7, 8, 5], [1.0, 1.0, 1.0, 1.0, 1.0, NAN])
    assert average.healthy_C.tolist() == [True, False, True, False, False, False]
    assert average.bank["global"]["w"].item() == pytest.approx(7.0)
    assert average.weight["global"].tolist() == [40]


@pytest.mark.parametrize("own", [False, True])
def test_weights_whose_sum_is_too_large_are_not_taken_for_broken(own: bool) -> None:
    large = {"global": {"w": torch.full((3, 4), 3e38)}}
    average = edge_average(large, [1, 1, 1], rows={"global": [0, 1, 2]} if own else None)
    assert average.healthy_C.all()
    torch.testing.assert_close(average.bank["global"]["w"], torch.full((3 if own else 1, 4), 3e38))


def test_where_nobody_is_left_the_row_stays() -> None:
    average = edge_average({"global": rows(NAN, 2.0)}, [1, 1], [1.0, NAN])
    assert average.bank["global"]["w"].tolist() == [0.0]
    assert average.weight["global"].tolist() == [0]


def test_one_client_is_its_own_average() -> None:
    sent = {"global": {"w": torch.randn(1, 50, generator=torch.Generator().manual_seed(0))}}
    assert torch.equal(edge_average(sent, [7]).bank["global"]["w"], sent["global"]["w"])


@pytest.mark.parametrize("failing", [(), (3, BLOCK, 2 * BLOCK + 5)])
def test_the_edge_average_has_the_same_bits_however_many_clients_come_at_once(failing: tuple[int, ...]) -> None:
    """And it is Eq. 1, as plain arithmetic in float64 has it."""
    num, rng = 2 * BLOCK + 22, np.random.default_rng(0)
    w, b = (torch.from_numpy(rng.normal(size=(num, *shape)).astype(np.float32)) for shape in ((5, 7), (11,)))
    w[list(failing), 2, 3] = float("nan")
    size_C, loss_C = rng.integers(1, 500, num), rng.random(num)
    parts: Parts = {"global": {"w": w, "b": b}, "cluster": {"w": 2 * w, "b": -b}, "own": {"w": 3 * w, "b": b}}
    row_C = {"global": np.zeros(num, dtype=int), "cluster": rng.integers(0, 5, num), "own": rng.permutation(num)}
    bank = {p: {n: torch.zeros(int(row_C[p].max()) + 1, *v.shape[1:]) for n, v in parts[p].items()} for p in parts}
    banks = []
    for step in (1, 7, BLOCK - 1, BLOCK, BLOCK + 1, num):
        average = EdgeAverage(size_C, bank, row_C)
        for at in range(0, num, step):
            now = slice(at, at + step)
            some = {part: {name: v[now].clone() for name, v in params.items()} for part, params in parts.items()}
            average.add(some, loss_C[now])
        assert np.flatnonzero(~average.healthy_C).tolist() == list(failing)
        assert np.array_equal(average.loss_C, loss_C)
        banks.append(average.bank)
    counted_C = np.where(average.healthy_C, size_C, 0)
    for part, params in parts.items():
        for row in range(len(bank[part]["w"])):
            weight_C = np.where(row_C[part] == row, counted_C, 0)
            assert average.weight[part][row] == weight_C.sum()
            for name, value in params.items():
                expected = np.einsum("c,c...->...", weight_C, np.nan_to_num(value.double().numpy()))
                expected = expected / max(weight_C.sum(), 1)
                np.testing.assert_allclose(banks[0][part][name][row].numpy(), expected, atol=1e-6)
        for name in params:
            assert all(torch.equal(other[part][name], banks[0][part][name]) for other in banks)


def by_owner(before: Params, reported: list[Params], weights: list[float], owners: list[int]) -> list[float]:
    return average_by_owner(before, reported, np.array(weights), np.array(owners))["w"].flatten().tolist()


def test_what_the_cloud_owns_is_averaged_over_all_by_hand() -> None:
    """Eq. 5."""
    assert by_owner(rows(9.0), [rows(1.0), rows(2.0), rows(5.0)], [1.0, 1.0, 2.0], [0, 0, 0]) == [3.25]


def test_what_clusters_own_is_averaged_within_them_by_hand() -> None:
    """Eq. 6: n_m / n_k within the cluster; cluster 1 is empty and keeps its bits, even odd ones."""
    before = {"w": torch.tensor([100.0, -0.0, 300.0])}
    reports = [rows(1.0), rows(3.0), rows(7.0)]
    after = average_by_owner(before, reports, np.array([1.0, 3.0, 5.0]), np.array([0, 0, 2]))
    assert after["w"].tolist() == [2.5, 0.0, 7.0]
    assert torch.signbit(after["w"][1])
    assert before["w"].tolist() == [100.0, 0.0, 300.0]  # a new stack comes out


def test_reports_may_hold_several_rows() -> None:
    """One edge reports what its two clients own, another one row for both owners' cluster."""
    reports = [rows(1.0, 2.0), rows(3.0), rows(4.0, 5.0)]
    assert by_owner(rows(-1.0, -2.0, -3.0, -4.0), reports, [1.0, 1.0, 0.0, 3.0, 1.0], [3, 0, 1, 0, 2]) == [
        3.5,
        -2.0,
        5.0,
        1.0,
    ]


def test_a_cluster_whose_edges_all_failed_keeps_its_network() -> None:
    assert by_owner(rows(100.0, 200.0), [rows(1.0), rows(NAN), rows(7.0)], [1.0, 0.0, 3.0], [0, 1, 0]) == [5.5, 200.0]


def test_every_part_is_averaged_by_its_own_owners() -> None:
    before: Parts = {
        "global": {"w": torch.tensor([[0.0]])},
        "cluster": {"w": torch.tensor([[-1.0], [-2.0], [-3.0]])},
    }
    values, weights = (1.0, 2.0, 6.0), [1.0, 2.0, 1.0]
    reports = [{"global": {"w": torch.tensor([[v]])}, "cluster": {"w": torch.tensor([[10 * v]])}} for v in values]
    assert by_owner(before["global"], [report["global"] for report in reports], weights, [0, 0, 0]) == [2.75]
    clusters = by_owner(before["cluster"], [report["cluster"] for report in reports], weights, [2, 0, 2])
    assert clusters == [20.0, -2.0, 35.0]


def test_failed_edges_are_left_out_of_both_phases() -> None:
    assert by_owner(rows(0.0), [rows(1.0), rows(NAN)], [7.0, 0.0], [0, 0]) == [1.0]
    assert by_owner(rows(-1.0, -2.0), [rows(5.0), rows(NAN)], [7.0, 0.0], [0, 1]) == [5.0, -2.0]


def test_when_every_edge_failed_everything_stays() -> None:
    assert by_owner(rows(3.0), [rows(NAN)] * 2, [0.0, 0.0], [0, 0]) == [3.0]
    assert by_owner(rows(-1.0, -2.0), [rows(NAN)] * 2, [0.0, 0.0], [0, 1]) == [-1.0, -2.0]


def test_clusters_are_drawn_together_by_hand() -> None:
    """The mean of those with members is 4, and all go the share of the way there; the last draws nobody."""
    cluster = {"w": torch.tensor([[1.0], [5.0], [100.0]])}
    weight_K = np.array([1.0, 3.0, 0.0])
    for share, expected in ((0.25, [1.75, 4.75, 76.0]), (1.0, [4.0] * 3)):
        mix_KJ = (1 - share) * np.eye(3) + share * weight_K / weight_K.sum()
        assert trees.mix(cluster, mix_KJ)["w"].flatten().tolist() == expected
    assert cluster["w"].flatten().tolist() == [1.0, 5.0, 100.0]
