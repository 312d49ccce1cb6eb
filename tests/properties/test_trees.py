"""Laws of means, mixes, selections and of the flat view, for any networks and weights."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbac.core import trees
from fedbac.core.parts import Params
from fedbac.core.rng import stream
from fedbac.core.settings import FloatArray

Draw = Callable[[st.SearchStrategy[Any]], Any]


@st.composite
def stacks(draw: Draw, min_rows: int = 1) -> tuple[Params, FloatArray]:
    """A stack of networks of two tensors, and weights of which at least one is positive."""
    num = draw(st.integers(min_rows, 7))
    rng = stream(draw(st.integers(0, 10**6)), "stack")
    scale = 10.0 ** draw(st.integers(-3, 3))
    tree = {
        "layer.weight": torch.from_numpy(rng.normal(0, scale, (num, 3, 2)).astype(np.float32)),
        "layer.bias": torch.from_numpy(rng.normal(0, scale, (num, 4)).astype(np.float32)),
    }
    weight = np.array(draw(st.lists(st.sampled_from([0, 0, 1, 7, 500]), min_size=num, max_size=num)), np.float64)
    weight[draw(st.integers(0, num - 1))] += 1
    return tree, weight


def close(left: Params, right: Params, scale: Params) -> None:
    for name, value in left.items():
        size = max(1.0, float(scale[name].abs().max()))
        np.testing.assert_allclose(value.numpy(), right[name].numpy(), atol=1e-6 * size, rtol=0)


def same(left: Params, right: Params) -> bool:
    """Whether two trees have the same bits."""
    return left.keys() == right.keys() and all(torch.equal(value, right[name]) for name, value in left.items())


@given(stacks())
def test_mean_is_the_plain_weighted_sum(case: tuple[Params, FloatArray]) -> None:
    tree, weight = case
    expected = {
        name: torch.from_numpy(np.einsum("n,n...->...", weight / weight.sum(), value.double().numpy())).float()
        for name, value in tree.items()
    }
    close(trees.weighted_mean(tree, weight), expected, tree)


@given(stacks())
def test_mean_lies_between_its_inputs(case: tuple[Params, FloatArray]) -> None:
    """Convexity, over the rows that count."""
    tree, weight = case
    for name, mean in trees.weighted_mean(tree, weight).items():
        rows = tree[name][torch.from_numpy(weight > 0)]
        slack = 1e-6 * float(rows.abs().max())
        assert bool((mean >= rows.amin(0) - slack).all())
        assert bool((mean <= rows.amax(0) + slack).all())


@given(stacks(), st.integers(0, 10**6))
def test_order_of_members_does_not_matter(case: tuple[Params, FloatArray], seed: int) -> None:
    tree, weight = case
    order = stream(seed, "order").permutation(weight.size)
    shuffled = {name: value[torch.from_numpy(order)] for name, value in tree.items()}
    close(trees.weighted_mean(tree, weight), trees.weighted_mean(shuffled, weight[order]), tree)


@given(stacks(), st.floats(1e-3, 1e3))
def test_only_relative_weights_matter(case: tuple[Params, FloatArray], factor: float) -> None:
    tree, weight = case
    close(trees.weighted_mean(tree, weight), trees.weighted_mean(tree, factor * weight), tree)


@given(stacks(min_rows=2), st.sampled_from([float("nan"), float("inf"), -float("inf")]))
def test_rows_of_weight_zero_may_hold_anything(case: tuple[Params, FloatArray], poison: float) -> None:
    tree, weight = case
    out = int(weight.argmin())
    weight = weight.copy()
    weight[out] = 0
    weight[(out + 1) % weight.size] += 1
    poisoned = {name: value.clone() for name, value in tree.items()}
    for value in poisoned.values():
        value[out] = poison
    clean, dirty = trees.weighted_mean(tree, weight), trees.weighted_mean(poisoned, weight)
    for name in tree:
        assert torch.equal(clean[name], dirty[name])


@given(stacks(), st.integers(1, 4), st.integers(0, 10**6))
def test_two_tier_mean_is_the_flat_mean(case: tuple[Params, FloatArray], num_edges: int, seed: int) -> None:
    """C.9: averaging clients at edges by n_i and edges at the cloud by n_m is one average over all clients."""
    tree, weight = case
    edge_N = stream(seed, "edges").integers(num_edges, size=weight.size)
    edges = [m for m in range(num_edges) if weight[edge_N == m].sum() > 0]
    means = trees.stack([trees.weighted_mean(tree, np.where(edge_N == m, weight, 0.0)) for m in edges])
    totals = np.array([weight[edge_N == m].sum() for m in edges])
    close(trees.weighted_mean(means, totals), trees.weighted_mean(tree, weight), tree)


@given(stacks(), st.integers(1, 4), st.integers(0, 10**6))
def test_grouped_mean_is_one_mean_per_group(case: tuple[Params, FloatArray], num_groups: int, seed: int) -> None:
    tree, weight = case
    rng = stream(seed, "groups")
    label_N = rng.integers(num_groups, size=weight.size)
    before = {
        name: torch.from_numpy(rng.normal(size=(num_groups, *value.shape[1:])).astype(np.float32))
        for name, value in tree.items()
    }
    kept = {name: value.clone() for name, value in before.items()}
    after = trees.grouped_mean(tree, weight, label_N, before)
    for k in range(num_groups):
        mine = np.where(label_N == k, weight, 0.0)
        expected = trees.weighted_mean(tree, mine) if mine.any() else trees.take(kept, k)
        for name in tree:
            assert torch.equal(after[name][k], expected[name])  # an empty group keeps its very bits
    assert all(torch.equal(before[name], kept[name]) for name in before)


@given(stacks())
def test_unravel_gives_back_flattened_weights(case: tuple[Params, FloatArray]) -> None:
    tree, _ = case
    one = trees.take(tree, 0)
    flat = torch.cat([value.flatten() for value in one.values()])
    assert flat.shape == (10,)
    back = trees.unravel(flat, one)
    assert list(back) == list(one)
    assert all(torch.equal(back[name], one[name]) for name in one)
    many = trees.unravel(trees.rows(tree), one)
    assert all(torch.equal(many[name], tree[name]) for name in tree)


def test_unravel_gives_views() -> None:
    flat = torch.zeros(5)
    tree = trees.unravel(flat, {"a": torch.zeros(2), "b": torch.zeros(3)})
    flat[3] = 7.0
    assert tree["b"].tolist() == [0.0, 7.0, 0.0]


@given(stacks())
def test_stack_take_and_join(case: tuple[Params, FloatArray]) -> None:
    tree, weight = case
    rows = [trees.take(tree, i) for i in range(weight.size)]
    again = trees.stack(rows)
    assert same(again, tree)
    joined = trees.join([tree, again])
    for name in tree:
        assert torch.equal(joined[name][: weight.size], tree[name])
        assert torch.equal(joined[name][weight.size :], tree[name])
        joined[name].zero_()
    assert same(again, tree)  # what is joined is copied


@given(stacks(), st.data())
def test_select_takes_any_rows_in_any_order(case: tuple[Params, FloatArray], data: st.DataObject) -> None:
    """As often as they are named; all of them in their order are the stack itself."""
    tree, weight = case
    index = np.array(data.draw(st.lists(st.integers(0, weight.size - 1), max_size=9)), np.int64)
    chosen = trees.select(tree, index)
    everything = index.tolist() == list(range(weight.size))
    assert (chosen is tree) == everything
    for name, value in tree.items():
        assert chosen[name].shape == (index.size, *value.shape[1:])
        for place, row in enumerate(index.tolist()):
            assert torch.equal(chosen[name][place], value[row])
    assert trees.select(tree, np.arange(weight.size)) is tree


@st.composite
def mixes(draw: Draw) -> tuple[Params, FloatArray]:
    """A stack, and a mix of its rows: some of them left as they are, the others any convex combination."""
    tree, first = draw(stacks())
    mix_KJ = np.eye(first.size)
    rng = stream(draw(st.integers(0, 10**6)), "mix")
    for k in draw(st.sets(st.integers(0, first.size - 1))):
        weight_J = rng.integers(0, 5, first.size) * first
        mix_KJ[k] = weight_J / weight_J.sum() if weight_J.any() else first / first.sum()
    return tree, mix_KJ


@given(mixes())
def test_a_mix_is_a_product_with_its_rows(case: tuple[Params, FloatArray]) -> None:
    tree, mix_KJ = case
    before = {name: value.clone() for name, value in tree.items()}
    mixed = trees.mix(tree, mix_KJ)
    expected = {
        name: torch.from_numpy(np.einsum("kj,j...->k...", mix_KJ, value.double().numpy())).float()
        for name, value in tree.items()
    }
    close(mixed, expected, tree)
    for k in range(len(mix_KJ)):
        if (mix_KJ[k] == np.eye(len(mix_KJ))[k]).all():
            assert same(trees.take(mixed, k), trees.take(tree, k)), "a row that stays keeps its bits"
        else:
            assert same(trees.take(mixed, k), trees.weighted_mean(tree, mix_KJ[k])), "any other is a weighted mean"
    assert same(tree, before)  # a new stack comes out


@given(stacks(), st.integers(0, 10**6))
def test_a_mix_of_single_rows_copies_them(case: tuple[Params, FloatArray], seed: int) -> None:
    """Cloning, swapping and staying lose no bit."""
    tree, weight = case
    source = stream(seed, "source").integers(weight.size, size=weight.size)
    assert same(trees.mix(tree, np.eye(weight.size)[source]), trees.select(tree, source))
    assert trees.mix(tree, np.eye(weight.size)) is tree


@given(stacks(min_rows=2), st.sampled_from([float("nan"), float("inf")]))
def test_a_network_that_has_diverged_spoils_only_the_mixes_it_is_in(
    case: tuple[Params, FloatArray], poison: float
) -> None:
    tree, weight = case
    for value in tree.values():
        value[0] = poison
    weight[0], weight[1] = 0, weight[1] + 1
    mix_KJ = np.tile(weight / weight.sum(), (weight.size, 1))
    mix_KJ[0] = 1 / weight.size
    for value in trees.mix(tree, mix_KJ).values():
        assert not bool(torch.isfinite(value[0]).any())
        assert bool(torch.isfinite(value[1:]).all())


def test_a_mix_keeps_counters_whole() -> None:
    """Batch normalization counts batches in whole numbers."""
    tree = {"w": torch.tensor([1.0, 3.0]), "seen": torch.tensor([4, 8])}
    mixed = trees.mix(tree, np.array([[0.75, 0.25], [0.25, 0.75]]))
    assert mixed["w"].tolist() == [1.5, 2.5]
    assert mixed["seen"].tolist() == [5, 7]
    assert mixed["seen"].dtype == torch.int64


@given(stacks(), st.integers(0, 10**6))
def test_a_group_of_one_is_a_copy(case: tuple[Params, FloatArray], seed: int) -> None:
    """Every row an owner of its own, in any order; an owner whose row has weight zero keeps what it had."""
    tree, weight = case
    label_N = stream(seed, "owners").permutation(weight.size)
    before = {name: value + 1 for name, value in tree.items()}
    after = trees.grouped_mean(tree, weight, label_N, before)
    for row, owner in enumerate(label_N.tolist()):
        expected = trees.take(tree, row) if weight[row] > 0 else trees.take(before, owner)
        assert same(trees.take(after, owner), expected)


def test_finite_rows_looks_at_every_weight_of_every_part() -> None:
    parts = {"global": {"w": torch.zeros(4, 2, 2)}, "cluster": {"w": torch.zeros(4, 3), "b": torch.zeros(4)}}
    parts["global"]["w"][1, 1, 0] = float("nan")
    parts["cluster"]["b"][3] = float("-inf")
    assert trees.finite_rows(parts).tolist() == [True, False, True, False]
