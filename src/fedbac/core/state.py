"""The state of a run between two rounds: one tree, saved and restored without knowing what is in it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from fedbac.core import trees
from fedbac.core.parts import Params, Parts
from fedbac.core.settings import BoolArray, FloatArray, IntArray
from fedbac.errors import PolicyError


@dataclass(frozen=True)
class _UnderWay:
    """What is on its way, a row each."""

    child_W: IntArray
    """Whose it is: the place of a client at its site, or the number of a site or a node."""
    due_W: FloatArray
    """Seconds until it arrives, from the beginning of the round."""
    began_W: IntArray
    """The number of the average from which it started."""

    def __len__(self) -> int:
        return self.child_W.size

    def later(self, seconds: float) -> Self:
        """Return them after so many seconds."""
        return replace(self, due_W=self.due_W - seconds)

    def _some(self, places: IntArray) -> dict[str, Any]:
        return {name: value[places] for name, value in vars(self).items() if isinstance(value, np.ndarray)}

    def _and(self, other: Self) -> dict[str, Any]:
        return {n: np.concatenate([v, vars(other)[n]]) for n, v in vars(self).items() if isinstance(v, np.ndarray)}


@dataclass(frozen=True)
class Waiting(_UnderWay):
    """Updates of clients on their way to their site."""

    size_W: IntArray
    """The examples behind it."""
    loss_W: FloatArray
    square_W: FloatArray
    """Mean loss and mean squared loss in training, as far as they are known."""
    change_W: Parts
    """What it changes, as it arrives."""

    @classmethod
    def nobody(cls, parts: Parts) -> "Waiting":
        """Return that nothing of these parts is on its way."""
        whole, real = np.zeros(0, dtype=np.int64), np.zeros(0)
        return cls(whole, real, whole, whole, real, real, trees.part_rows(parts, slice(0, 0)))

    def of(self, mask_W: BoolArray) -> "Waiting":
        """Return some of them."""
        places = np.flatnonzero(mask_W)
        change_W = {part: trees.select(v, places) for part, v in self.change_W.items()}
        return Waiting(**self._some(places), change_W=change_W)

    def joined(self, other: "Waiting") -> "Waiting":
        """Return these and others."""
        return Waiting(**self._and(other), change_W=trees.join_parts([self.change_W, other.change_W]))


class RowsInTransit(NamedTuple):
    """The rows of one part in averages that are on their way."""

    line_R: IntArray
    """Which of the averages each row belongs to."""
    owner_R: IntArray
    weight_R: FloatArray
    trained_R: FloatArray
    """Examples behind it: as it counts, and of the clients that trained it."""
    change_R: Params
    """What it changes, as it arrives."""

    def of(self, places: IntArray) -> "RowsInTransit":
        """Return the rows of some of the averages, which are numbered again."""
        mine = np.flatnonzero(np.isin(self.line_R, places))
        line_R = np.searchsorted(places, self.line_R[mine])
        return RowsInTransit(
            line_R, self.owner_R[mine], self.weight_R[mine], self.trained_R[mine], trees.select(self.change_R, mine)
        )

    def joined(self, other: "RowsInTransit", count: int) -> "RowsInTransit":
        """Return these rows, of so many averages, and those of others."""
        other = other._replace(line_R=other.line_R + count)
        columns = {n: np.concatenate([getattr(self, n), getattr(other, n)]) for n in self._fields if n != "change_R"}
        return RowsInTransit(**columns, change_R=trees.join([self.change_R, other.change_R]))


@dataclass(frozen=True)
class InTransit(_UnderWay):
    """Averages of sites or nodes on their way to what is above them."""

    loss_W: FloatArray
    """The mean loss in training."""
    rows: Mapping[str, RowsInTransit]
    """By part."""

    @classmethod
    def nobody(cls, parts: Parts) -> "InTransit":
        """Return that nothing of these parts is on its way."""
        whole, real = np.zeros(0, dtype=np.int64), np.zeros(0)
        rows = {p: RowsInTransit(whole, whole, real, real, trees.select(own, whole)) for p, own in parts.items()}
        return cls(whole, real, whole, real, rows)

    def of(self, mask_W: BoolArray) -> "InTransit":
        """Return some of them."""
        places = np.flatnonzero(mask_W)
        return InTransit(**self._some(places), rows={part: mine.of(places) for part, mine in self.rows.items()})

    def joined(self, other: "InTransit") -> "InTransit":
        """Return these and others."""
        rows = {part: mine.joined(other.rows[part], len(self)) for part, mine in self.rows.items()}
        return InTransit(**self._and(other), rows=rows)


@dataclass(frozen=True)
class NodeState:
    """What a node between edges and the cloud remembers."""

    links: dict[str, Parts]
    """Of its link upwards, where that compresses."""
    steps: dict[str, Parts]
    """As the cloud's: a row for each owner, of whose networks it averages those of its own children."""
    selection: Any


@dataclass(frozen=True)
class State:
    """Everything a run needs to go on after a round."""

    round: int
    """Cloud rounds completed."""
    parts: Parts
    """Stacked, a row for each owner: one for the cloud, K clusters, M sites, or all clients."""
    label_N: IntArray
    """The cluster of every member."""
    moved_N: BoolArray
    """Which members have changed their cluster after the last round, or had the network of their cluster replaced."""
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
    waiting_M: tuple[Waiting, ...] = ()
    """Updates on their way to each site, where it does not wait for all."""
    sent: tuple[tuple[InTransit, ...], ...] = ()
    """Averages on their way up, by the tier that they go to, the cloud last, and its node; none of those which wait."""
    links_M: tuple[dict[str, Parts], ...] = ()
    """What the links of each site remember, where they compress."""
    steps: dict[str, Parts] = field(default_factory=dict)
    """Of each part with a step: what its owners remember, by name, a row each: by weight, or one number, by ""."""
    stepped: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The weights of each part that somebody steps with."""
    nodes: tuple[tuple[NodeState, ...], ...] = ()
    """Of the tiers between edges and the cloud, from below."""
    first: Parts = field(default_factory=dict)
    """The parts of clusters as the run began, where a policy compares members with them."""
    longest: dict[str, FloatArray] = field(default_factory=dict)
    """Of each part of the cloud and clusters that a robust rule combines: the longest change of each owner so far."""

    @property
    def num_clusters(self) -> int:
        """K."""
        return self.used_K.size

    def misfit(self, template: "State") -> str | None:
        """Return what no state of the same run can hold; what policies remember may grow, and they know its range."""
        shaped = "parts label_N moved_N used_K trained momentum_M links_M steps first longest nodes"
        for name in shaped.split():
            own, other = (arrays(getattr(state, name), name) for state in (self, template))
            for (path, found), (_, wanted) in zip(own, other, strict=True):
                if (found.dtype, tuple(found.shape)) != (wanted.dtype, tuple(wanted.shape)):
                    return f"{path} is {found.dtype} {tuple(found.shape)}, not {wanted.dtype} {tuple(wanted.shape)}"
        if not ((self.label_N >= 0) & (self.label_N < self.num_clusters)).all():
            return f"label_N names clusters that are none of the {self.num_clusters}"
        return None


def flatten(tree: Any, path: str = "") -> dict[str, Tensor]:
    """Return the arrays and tensors of a tree by their paths; numbers and None stand in its template."""
    return {
        place: leaf.detach().cpu().contiguous() if isinstance(leaf, Tensor) else torch.from_numpy(_savable(place, leaf))
        for place, leaf in arrays(tree, path)
    }


def _savable(path: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype.kind not in "biuf":
        raise PolicyError(f"{path}: a policy remembers {array.dtype}, which no checkpoint can hold; use plain numbers")
    return np.array(array, array.dtype.newbyteorder("="), order="C")


def unflatten(template: Any, flat: Mapping[str, Tensor], path: str = "") -> Any:
    """Return the tree whose arrays these are; the template says what there must be, and where tensors belong."""
    if isinstance(template, Tensor):
        return flat[path].to(template.device)
    if isinstance(template, np.ndarray):
        return flat[path].numpy()
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


def arrays(tree: Any, path: str = "") -> Iterator[tuple[str, Tensor | np.ndarray[Any, Any]]]:
    """Yield the arrays and tensors of a tree with their paths."""
    if isinstance(tree, Tensor | np.ndarray):
        yield path, tree
        return
    for name, child in _children(tree):
        yield from arrays(child, f"{path}/{name}" if path else name)


def _children(tree: Any) -> Sequence[tuple[str, Any]]:
    if is_dataclass(tree) and not isinstance(tree, type):
        return [(one.name, getattr(tree, one.name)) for one in fields(tree)]
    if isinstance(tree, Mapping):
        return list(tree.items())
    if hasattr(tree, "_fields"):
        return list(zip(tree._fields, tree, strict=True))
    if isinstance(tree, tuple | list):
        return [(str(index), child) for index, child in enumerate(tree)]
    return []
