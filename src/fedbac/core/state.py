"""The state of a run between two rounds: one tree, saved and restored without knowing what is in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbac.core.parts import Parts
from fedbac.core.settings import BoolArray, IntArray


@dataclass(frozen=True)
class State:
    """Everything a run needs to go on after a round."""

    round: int
    """Cloud rounds completed."""
    parts: Parts
    """Stacked, a row for each owner: one for the cloud, K clusters, M sites, or all clients."""
    label_M: IntArray
    """The cluster of every site."""
    moved_M: BoolArray
    """Which sites have changed their cluster after the last round, or had the network of their cluster replaced."""
    used_K: BoolArray
    """Which clusters have ever had a member."""
    clustering: Any
    """The states of the policies, here and below."""
    sharing: Any
    selection_M: tuple[Any, ...]
    """It stays at its site: it rides in orders and reports, so that whoever dies loses nothing, and passes no link."""
    trained: dict[str, BoolArray]
    """Of each part that follows another: which of its owners have trained it."""
    momentum_M: tuple[Parts | None, ...]
    """Of each site's clients, stacked; it stays with them."""

    @property
    def num_clusters(self) -> int:
        """K."""
        return self.used_K.size


def flatten(tree: Any, path: str = "") -> dict[str, Tensor]:
    """Return the arrays and tensors of a tree by their paths; numbers and None stand in its template."""
    if isinstance(tree, Tensor):
        return {path: tree.detach().cpu().contiguous()}
    if isinstance(tree, np.ndarray):
        return {path: torch.from_numpy(np.array(tree, order="C"))}
    flat: dict[str, Tensor] = {}
    for name, child in _children(tree):
        flat |= flatten(child, f"{path}/{name}" if path else name)
    return flat


def unflatten(template: Any, flat: Mapping[str, Tensor], path: str = "") -> Any:
    """Return the tree whose arrays these are; the template says what there must be, and where tensors belong.

    A KeyError names one that is missing, a ValueError one of another shape or type.
    """
    if isinstance(template, Tensor):
        return _fitting(flat[path], template.shape, template.dtype, path).to(template.device)
    if isinstance(template, np.ndarray):
        dtype = torch.from_numpy(np.empty(0, template.dtype)).dtype
        return _fitting(flat[path], template.shape, dtype, path).numpy()
    children = {name: unflatten(child, flat, f"{path}/{name}" if path else name) for name, child in _children(template)}
    if not children:
        return template
    if is_dataclass(template) and not isinstance(template, type):
        return replace(template, **children)
    if isinstance(template, Mapping):
        return children
    if hasattr(template, "_fields"):
        return type(template)(**children)
    return tuple(children.values())


def _fitting(tensor: Tensor, shape: Sequence[int], dtype: torch.dtype, path: str) -> Tensor:
    if tuple(tensor.shape) != tuple(shape) or tensor.dtype != dtype:
        raise ValueError(f"{path} is {tensor.dtype} {tuple(tensor.shape)}, not {dtype} {tuple(shape)}")
    return tensor


def _children(tree: Any) -> Sequence[tuple[str, Any]]:
    if is_dataclass(tree) and not isinstance(tree, type):
        return [(field.name, getattr(tree, field.name)) for field in fields(tree)]
    if isinstance(tree, Mapping):
        return list(tree.items())
    if hasattr(tree, "_fields"):
        return list(zip(tree._fields, tree, strict=True))
    if isinstance(tree, tuple | list):
        return [(str(index), child) for index, child in enumerate(tree)]
    return []
