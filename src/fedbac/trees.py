"""Arithmetic on parameter dictionaries, single or stacked on a leading axis."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedbac.types import FloatArray, IntArray, Params, Parts


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


def to(tree: Params, device: torch.device | str) -> Params:
    """Return the tree on a device."""
    return {name: value.to(device) for name, value in tree.items()}


def weighted_mean(tree_N: Params, weight_N: FloatArray) -> Params:
    """Return Σ_i (w_i / Σ_j w_j) θ_i over the leading axis.

    Rows of weight zero are left out before anything is multiplied, so a row of NaN cannot leak through 0 · NaN.
    """
    rows = np.flatnonzero(weight_N > 0)
    if rows.size == 0:
        raise ValueError("weighted_mean needs at least one positive weight")
    share = weight_N[rows] / weight_N[rows].sum()
    if rows.size < weight_N.size:
        tree_N = {name: value[torch.as_tensor(rows, device=value.device)] for name, value in tree_N.items()}
    return {name: _mix(value, share) for name, value in tree_N.items()}


def _mix(value_N: Tensor, share_N: FloatArray) -> Tensor:
    share = torch.as_tensor(share_N, dtype=value_N.dtype, device=value_N.device)
    return (share @ value_N.reshape(len(share), -1)).reshape(value_N.shape[1:])


def grouped_mean(tree_N: Params, weight_N: FloatArray, label_N: IntArray, before_K: Params) -> Params:
    """Return one weighted mean per group; a group without positive weight keeps its row of ``before_K``."""
    out = {name: value.clone() for name, value in before_K.items()}
    for group in np.unique(label_N[weight_N > 0]):
        mean = weighted_mean(tree_N, np.where(label_N == group, weight_N, 0.0))
        for name, value in out.items():
            value[int(group)] = mean[name]
    return out


def finite_rows(parts_C: Parts) -> np.ndarray:
    """Return, per row of the stack, whether every weight of every part is finite."""
    flags = [
        torch.isfinite(value).reshape(value.shape[0], -1).all(1) for part in parts_C.values() for value in part.values()
    ]
    return torch.stack(flags).all(0).cpu().numpy()
