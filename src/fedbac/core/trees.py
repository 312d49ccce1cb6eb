"""Arithmetic on parameter dictionaries, single or stacked on a leading axis."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedbac.core.parts import Params, Parts
from fedbac.core.settings import FloatArray, IntArray


def stack(trees: Sequence[Params]) -> Params:
    """Stack networks on a new leading axis."""
    return {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}


def join(stacks: Sequence[Params]) -> Params:
    """Return stacks of networks as one stack, copied."""
    return {name: torch.cat([stack[name] for stack in stacks]) for name in stacks[0]}


def take(tree: Params, index: int) -> Params:
    """Return one network of a stack."""
    return {name: value[index] for name, value in tree.items()}


def put(tree: Params, index: int, row: Params) -> Params:
    """Return the stack with one network replaced."""
    out = {name: value.clone() for name, value in tree.items()}
    for name, value in out.items():
        value[index] = row[name]
    return out


def size(tree: Params) -> int:
    """Return the number of weights of one (unstacked) network."""
    return sum(value.numel() for value in tree.values())


def ravel(tree: Params) -> Tensor:
    """Return one network's weights as a flat vector, in the order of its names."""
    return torch.cat([value.reshape(-1) for value in tree.values()])


def unravel(flat: Tensor, like: Params) -> Params:
    """Return views of a flat vector (or of rows of flat vectors) shaped like ``like``."""
    pieces = torch.split(flat, [value.numel() for value in like.values()], dim=-1)
    return {
        name: piece.reshape((*flat.shape[:-1], *value.shape))
        for (name, value), piece in zip(like.items(), pieces, strict=True)
    }


def rows(tree_N: Params) -> Tensor:
    """Return a stack of networks as a matrix, one per row: a view where the weights lie one after another already."""
    first = next(iter(tree_N.values()))
    stride, at, flat, storage = first.stride(0), first.data_ptr(), [], first.untyped_storage().data_ptr()
    for value in tree_N.values():
        flat.append(value.reshape(len(value), -1))
        lies_next = value.data_ptr() == at and value.stride(0) == stride and value.dtype == first.dtype
        lies_next = lies_next and value.untyped_storage().data_ptr() == storage
        at = at + flat[-1].shape[1] * value.element_size() if lies_next and value[0].is_contiguous() else -1
    if at == -1:
        return torch.cat(flat, 1)
    width = sum(part.shape[1] for part in flat)
    return torch.as_strided(first, (len(first), width), (stride, 1))


def to(tree: Params, device: torch.device | str) -> Params:
    """Return the tree on a device."""
    return {name: value.to(device) for name, value in tree.items()}


def weighted_mean(tree_N: Params, weight_N: FloatArray) -> Params:
    """Return Σ_i (w_i / Σ_j w_j) θ_i over the leading axis.

    Rows of weight zero are left out before anything is multiplied, so a row of NaN cannot leak through 0 · NaN.
    """
    return like(unravel(_mean(rows(tree_N), weight_N), take(tree_N, 0)), tree_N)


def _mean(matrix_N: Tensor, weight_N: FloatArray) -> Tensor:
    counted = np.flatnonzero(weight_N > 0)
    if counted.size == 0:
        raise ValueError("weighted_mean needs at least one positive weight")
    if counted.size < weight_N.size:
        matrix_N = matrix_N[torch.as_tensor(counted, device=matrix_N.device)]
    share = weight_N[counted] / weight_N[counted].sum()
    return torch.as_tensor(share, dtype=matrix_N.dtype, device=matrix_N.device) @ matrix_N


def like(tree: Params, other: Params) -> Params:
    """Return the tree with the number types of another."""
    return {name: value.to(other[name].dtype) for name, value in tree.items()}


def grouped_mean(tree_N: Params, weight_N: FloatArray, label_N: IntArray, before_K: Params) -> Params:
    """Return one weighted mean per group; a group without positive weight keeps its row of ``before_K``."""
    matrix_N, out_K = rows(tree_N), rows(before_K).clone()
    for group in np.unique(label_N[weight_N > 0]):
        out_K[int(group)] = _mean(matrix_N, np.where(label_N == group, weight_N, 0.0))
    return like(unravel(out_K, take(before_K, 0)), before_K)


def towards_mean(tree_N: Params, weight_N: FloatArray, share: float) -> Params:
    """Return every row drawn towards the weighted mean: (1 − share) θ_i + share · mean."""
    matrix_N = rows(tree_N)
    drawn_N = torch.lerp(matrix_N, _mean(matrix_N, weight_N).expand_as(matrix_N), share)
    return like(unravel(drawn_N, take(tree_N, 0)), tree_N)


def finite_rows(parts_C: Parts) -> np.ndarray:
    """Return, per row of the stack, whether every weight of every part is finite."""
    flags = [
        torch.isfinite(value).reshape(value.shape[0], -1).all(1) for part in parts_C.values() for value in part.values()
    ]
    return torch.stack(flags).all(0).cpu().numpy()
