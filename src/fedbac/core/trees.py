"""Arithmetic on parameter dictionaries, single or stacked on a leading axis."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbac.core.parts import Params, Parts
from fedbac.core.settings import FloatArray, IntArray

COLUMNS = 2**16
"""Weights that are summed in one product. Whoever has few columns of many networks at hand finds the same bits."""


def onto(values: NDArray[Any], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return numbers on a device; the host does not wait until a GPU has done what it was told before."""
    here = torch.as_tensor(np.ascontiguousarray(values), dtype=dtype)
    return here.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else here.to(device)


def to_host(tensor: Tensor) -> Callable[[], NDArray[Any]]:
    """Have a tensor copied to the host when its turn comes; what is returned waits for that and for nothing later."""
    if tensor.device.type != "cuda":
        return tensor.numpy
    here = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    here.copy_(tensor, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record(torch.cuda.current_stream(tensor.device))

    def arrived() -> NDArray[Any]:
        copied.synchronize()
        return here.numpy()

    return arrived


def stack(trees: Sequence[Params]) -> Params:
    """Stack networks on a new leading axis."""
    return {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}


def join(stacks: Sequence[Params]) -> Params:
    """Return stacks of networks as one stack, copied; weights of one number type then lie one after another."""
    names = list(stacks[0])
    if len({value.dtype for value in stacks[0].values()}) > 1:  # in one matrix, a large counter would lose digits
        return {name: torch.cat([stack[name] for stack in stacks]) for name in names}
    return shaped(torch.cat([rows({name: stack[name] for name in names}) for stack in stacks]), stacks[0])


def join_parts(stacks: Sequence[Parts]) -> Parts:
    """Return stacks of parts as one, part by part."""
    return {part: join([stack[part] for stack in stacks]) for part in stacks[0]}


def part_rows(parts: Parts, rows: slice | Tensor) -> Parts:
    """Return rows of stacked parts: views of them for a slice, else copies."""
    return {part: {name: value[rows] for name, value in params.items()} for part, params in parts.items()}


def take(tree: Params, index: int) -> Params:
    """Return one network of a stack."""
    return {name: value[index] for name, value in tree.items()}


def select(tree_N: Params, index: IntArray) -> Params:
    """Return some networks of a stack, in this order: views of it where they are neighbours, itself where all."""
    first = next(iter(tree_N.values()))
    wanted: list[int] = index.tolist()
    if wanted and wanted[0] >= 0 and wanted == list(range(wanted[0], wanted[0] + len(wanted))):
        if len(wanted) == first.shape[0]:
            return tree_N
        neighbours = slice(wanted[0], wanted[0] + len(wanted))
        return {name: value[neighbours] for name, value in tree_N.items()}
    chosen = onto(index, first.device)
    return {name: value[chosen] for name, value in tree_N.items()}


def count(tree_N: Params) -> int:
    """Return the number of networks in a stack."""
    return next(iter(tree_N.values())).shape[0]


def unravel(flat: Tensor, like: Params) -> Params:
    """Return views of a flat vector (or of rows of flat vectors) shaped like ``like``."""
    pieces = torch.split(flat, [value.numel() for value in like.values()], dim=-1)
    return {
        name: piece.reshape((*flat.shape[:-1], *value.shape))
        for (name, value), piece in zip(like.items(), pieces, strict=True)
    }


def shaped(matrix_N: Tensor, like_N: Params) -> Params:
    """Return views of the rows of a matrix as a stack, with the shapes and number types of another."""
    num, shapes = len(matrix_N), [value.shape[1:] for value in like_N.values()]
    pieces = matrix_N.split_with_sizes([shape.numel() for shape in shapes], 1)
    return {
        name: (piece if piece.dtype == value.dtype else piece.to(value.dtype)).view(num, *shape)
        for (name, value), shape, piece in zip(like_N.items(), shapes, pieces, strict=True)
    }


def rows(tree_N: Params) -> Tensor:
    """Return a stack of networks as a matrix, one per row: a view where the weights lie one after another already."""
    first = next(iter(tree_N.values()))
    num, lying = first.shape[0], _lying(tree_N)
    if lying is None:
        return torch.cat([value.reshape(num, value.shape[1:].numel()) for value in tree_N.values()], 1)
    width, stride = lying
    return first.as_strided((num, width), (stride, 1))


def cuts(tree_N: Params) -> list[slice]:
    """Return the columns of ``rows`` that are summed together; a GPU sums all at once."""
    first, width = next(iter(tree_N.values())), sum(value.shape[1:].numel() for value in tree_N.values())
    ends = [*range(COLUMNS, width - COLUMNS + 1, COLUMNS), width] if first.device.type == "cpu" else [width]
    return [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def columns(tree_N: Params, cut: slice) -> Tensor:
    """Return some columns of ``rows``."""
    ends = np.cumsum([value.shape[1:].numel() for value in tree_N.values()]).tolist()
    if cut == slice(0, ends[-1]):
        return rows(tree_N)
    each = zip(tree_N.values(), [0, *ends], strict=False)
    return torch.cat([v.reshape(len(v), -1)[:, max(cut.start - at, 0) : max(cut.stop - at, 0)] for v, at in each], 1)


def product(share_N: Tensor, matrix_N: Tensor) -> Tensor:
    """Return Σ_i w_i θ_i over the rows of a matrix."""
    some = cuts({"": matrix_N})
    return share_N @ matrix_N if len(some) == 1 else torch.cat([share_N @ matrix_N[:, c].contiguous() for c in some])


def _lying(tree_N: Params) -> tuple[int, int] | None:
    """Return the size of a stack's networks and how far apart they are, if each lies in one piece; else None."""
    first = next(iter(tree_N.values()))
    num, stride, begin, number = first.shape[0], first.stride(0), first.data_ptr(), first.element_size()
    at = begin
    for value in tree_N.values():
        steps = value.stride()
        if value.data_ptr() != at or value.dtype != first.dtype or (num > 1 and steps[0] != stride):
            return None
        numbers = _compact(value.shape[1:], steps[1:])
        if numbers is None:
            return None
        at += numbers * number
    width = (at - begin) // number
    stride = width if num == 1 else stride  # what torch says of a single row means nothing
    end = first.storage_offset() * number + (num - 1) * stride * number + at - begin
    return (width, stride) if end <= first.untyped_storage().nbytes() else None  # beyond, they are neighbours by chance


@lru_cache(maxsize=1024)  # asked for every weight of every average, always about the same few shapes
def _compact(shape: tuple[int, ...], steps: tuple[int, ...]) -> int | None:
    """Return the numbers of a tensor if they lie one after another, else None."""
    expected = 1
    for length, step in zip(reversed(shape), reversed(steps), strict=True):
        if length != 1 and step != expected:
            return None
        expected *= length
    return expected


def to(tree: Params, device: torch.device | str) -> Params:
    """Return the tree on a device."""
    return {name: value.to(device) for name, value in tree.items()}


def weighted_mean(tree_N: Params, weight_N: FloatArray) -> Params:
    """Return Σ_i (w_i / Σ_j w_j) θ_i over the leading axis; rows of weight zero are left out, even those of NaN."""
    return take(shaped(_mean(rows(tree_N), weight_N)[None], tree_N), 0)


def _mean(matrix_N: Tensor, weight_N: FloatArray) -> Tensor:
    counted = np.flatnonzero(weight_N > 0)
    if counted.size == 0:
        raise ValueError("weighted_mean needs at least one positive weight")
    if counted.size < weight_N.size:
        matrix_N = matrix_N[onto(counted, matrix_N.device)]
    share = weight_N[counted] / weight_N[counted].sum()
    return product(onto(share, matrix_N.device, matrix_N.dtype), matrix_N)


def grouped_mean(tree_N: Params, weight_N: FloatArray, label_N: IntArray, before_K: Params) -> Params:
    """Return one weighted mean per group; a group without positive weight keeps its row of ``before_K``."""
    return grouped(tree_N, weight_N, label_N, before_K, lambda matrix_C, weight_C, group: _mean(matrix_C, weight_C))


def grouped(
    tree_N: Params,
    weight_N: FloatArray,
    label_N: IntArray,
    before_K: Params,
    combine: Callable[[Tensor, FloatArray, int], Tensor],
) -> Params:
    """Return, by group, what is combined of rows of positive weight; one alone is taken, none keeps ``before_K``."""
    matrix_N, out_K = rows(tree_N), rows(before_K).clone()
    counted = np.flatnonzero(weight_N > 0)
    groups, first, size = np.unique(label_N[counted], return_index=True, return_counts=True)
    alone = size == 1  # many owners of a row each cost no more than a copy
    if alone.any():
        out_K[onto(groups[alone], out_K.device)] = matrix_N[onto(counted[first[alone]], matrix_N.device)].to(
            out_K.device
        )
    for group in groups[~alone].tolist():
        mine = counted[label_N[counted] == group]
        matrix_C = matrix_N if mine.size == label_N.size else matrix_N[onto(mine, matrix_N.device)]
        out_K[group] = combine(matrix_C, weight_N[mine], group)
    return shaped(out_K, before_K)


def mix(tree_K: Params, mix_KJ: FloatArray) -> Params:
    """Return Θ'_k = Σ_j w_kj Θ_j for every row k; a row that stays as it is keeps its bits."""
    changed = np.flatnonzero((mix_KJ != np.eye(len(mix_KJ))).any(1))
    if changed.size == 0:
        return tree_K
    matrix_K = rows(tree_K)
    out_K = matrix_K.clone()
    for k in changed.tolist():
        out_K[k] = _mean(matrix_K, mix_KJ[k])
    return shaped(out_K, tree_K)


def zeros(tree: Params) -> Params:
    """Return zeros of the same shapes."""
    return {name: torch.zeros_like(value) for name, value in tree.items()}


def put(tree_N: Params, index: IntArray, rows: Params) -> Params:
    """Return the stack with some of its networks replaced: each by its own, or all by a single one."""
    out = {name: value.clone() for name, value in tree_N.items()}
    for name, value in out.items():
        value[onto(index, value.device)] = rows[name].to(value.device)
    return out


def blend(tree_K: Params, mix_TK: FloatArray) -> Params:
    """Return Σ_k w_tk Θ_k for every row t, stacked."""
    matrix_K = rows(tree_K)
    return shaped(torch.stack([_mean(matrix_K, weight_K) for weight_K in mix_TK]), tree_K)


def finite_rows(parts_C: Parts) -> np.ndarray:
    """Return, per row of the stack, whether every weight of every part is finite."""
    flags = [
        torch.isfinite(value).reshape(value.shape[0], -1).all(1) for part in parts_C.values() for value in part.values()
    ]
    return torch.stack(flags).all(0).cpu().numpy()


def column(value_C: FloatArray | Tensor, like: Tensor) -> Tensor:
    """Return a number for each row, to be multiplied with a stack."""
    number_C = torch.as_tensor(value_C, dtype=like.dtype, device=like.device)
    return number_C.reshape(-1, *[1] * (like.dim() - 1))
