"""Stacks as matrices: without a copy where that is possible, and never a look at what is not theirs."""

import numpy as np
import pytest
import torch

from fedbac.core import trees
from fedbac.core.links import Link
from fedbac.core.parts import Params
from fedbac.personalization import Personal


def stack(num: int = 4) -> Params:
    like = {"w": torch.zeros(num, 2, 3), "b": torch.zeros(num, 2), "s": torch.zeros(num)}
    return trees.shaped(torch.arange(num * 9.0).reshape(num, 9), like)


@pytest.mark.parametrize("index", [[0], [2], [1, 2], [0, 1, 2, 3]])
def test_neighbours_are_views_from_selection_to_matrix(index: list[int]) -> None:
    tree = stack()
    chosen = trees.select(tree, np.array(index))
    matrix = trees.rows(chosen)
    assert matrix.data_ptr() == tree["w"][index[0]].data_ptr()
    assert torch.equal(matrix, trees.rows(tree)[index])


@pytest.mark.parametrize("index", [[3, 1], [1, 1], [2, 1, 0], []])
def test_others_are_copied(index: list[int]) -> None:
    tree = stack()
    chosen = trees.select(tree, np.array(index, dtype=np.int64))
    for name, value in tree.items():
        assert torch.equal(chosen[name], value[index])
    assert torch.equal(trees.rows(chosen), trees.rows(tree)[index])


def test_weights_of_several_tensors_are_copied_even_side_by_side() -> None:
    memory = np.arange(12, dtype=np.float32)
    apart = {"a": torch.from_numpy(memory[:6])[None], "b": torch.from_numpy(memory[6:])[None]}
    assert apart["b"].data_ptr() == apart["a"].data_ptr() + 6 * 4
    matrix = trees.rows(apart)
    assert matrix.data_ptr() != apart["a"].data_ptr()
    assert matrix.tolist() == [memory.tolist()]


@pytest.mark.parametrize("change", [lambda v: v.double(), lambda v: v.transpose(-1, -2), lambda v: v.clone()])
def test_what_does_not_fit_in_line_is_copied(change: object) -> None:
    tree = stack()
    assert callable(change)
    tree["w"] = change(tree["w"])
    expected = torch.cat([value.reshape(4, -1) for value in tree.values()], 1)
    assert torch.equal(trees.rows(tree), expected)


def test_joined_stacks_lie_in_one_matrix() -> None:
    joined = trees.join([stack(2), dict(reversed(stack(3).items()))])
    assert torch.equal(trees.rows(joined), torch.cat([trees.rows(stack(2)), trees.rows(stack(3))]))
    assert trees.rows(joined).data_ptr() == joined["w"].data_ptr()


def test_joined_counters_stay_whole() -> None:
    mixed = {"w": torch.ones(1, 2), "count": torch.tensor([2**40 + 1])}
    joined = trees.join([mixed, mixed])
    assert joined["count"].tolist() == [2**40 + 1] * 2
    assert joined["w"].dtype == torch.float32


def test_one_row_of_a_bank_is_what_a_client_receives() -> None:
    bank = {"global": stack(4), "personal": stack(4)}
    link = Link("client", Personal())
    assert link.send("down", "train", bank, receivers=3, one_row=True) is bank
    assert link.traffic.nested()["client"]["down"]["train"] == 3 * 9 * 4
