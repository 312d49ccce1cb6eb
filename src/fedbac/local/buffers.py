"""What our GPU kernels are called with: their buffers, and which network is judged on which examples."""

import ctypes
from collections.abc import Callable, Sequence
from ctypes import Structure, c_float, c_int, c_int32, c_void_p
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbac.core import trees
from fedbac.core.requests import Evaluate, Kept
from fedbac.core.settings import IntArray
from fedbac.gpu.network import MAX_PARTS, Plan
from fedbac.local.examples import Losses, cells


class Rule(Structure):
    """As in ``kernels.cu``."""

    _fields_ = (
        ("momentum", c_float),
        ("max_norm", c_float),
        ("joint", c_int),
        ("decay", c_float * MAX_PARTS),
        ("penalty", c_float * MAX_PARTS),
        ("begin", c_int * MAX_PARTS),
        ("end", c_int * MAX_PARTS),
    )


class Arguments:
    """The arguments of a row of launches. They point to tensors, which must be there until the kernels have run."""

    def __init__(self, levels: int) -> None:
        self.buffers: Any = buffers_type(levels)()
        self.rule, self.step = Rule(), c_int32(0)

    def point(self, name: str, tensor: Tensor | None) -> None:
        """Point a field to a tensor; without one the kernels do without."""
        setattr(self.buffers, name, None if tensor is None else tensor.data_ptr())

    def point_each(self, name: str, tensors: Sequence[Tensor]) -> None:
        """Point the entries of an array of fields to tensors, one per layer."""
        for level, tensor in enumerate(tensors):
            getattr(self.buffers, name)[level] = tensor.data_ptr()


@cache
def buffers_type(levels: int) -> type[Structure]:
    """``Buffers`` of ``kernels.cu`` for a network of so many layers."""
    names = "pixels labels seen visits crop flip jobs slots rates anchors anchor shift "
    names += "weights velocity gradient partial squares loss square epoch_loss logits"
    fields: list[tuple[str, Any]] = [(name, c_void_p) for name in names.split()]
    fields += [(name, c_void_p * levels) for name in ("out", "back", "winner")]
    fields += [(name, c_int) for name in ("parts", "batch", "num_epochs", "first_epoch")]
    return type("Buffers", (ctypes.Structure,), {"_fields_": fields})


class Room:
    """The clients' weights and everything computed on the way, in buffers that stay where they are."""

    def __init__(self, plan: Plan, rows: int, device: torch.device) -> None:
        self.rows, self.plan = rows, plan
        self.given: dict[tuple[int, int, int], Arguments] = {}
        """The arguments of kernels for some rows, by the networks of a client and the clients."""

        def room(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((rows, *shape), dtype=dtype, device=device)

        self.weights, self.velocity, self.gradient = (room(plan.size) for _ in range(3))
        self.partial = room(plan.chunks, plan.conv_size)
        self.squares = room(plan.slices)
        self.slots = torch.arange(rows, dtype=torch.int32, device=device)
        self.loss = room(plan.groups, dtype=torch.float64)
        self.out = [room(plan.room, size) for size in plan.levels]
        self.back = [room(plan.room, size) for size in plan.levels]
        self.winner = [room(plan.room, size, dtype=torch.uint8) for size in plan.levels[: len(plan.convolutions)]]


class Sums:
    """Losses of the clients, summed while they are trained; blocks of a client's examples have sums of their own."""

    def __init__(self, room: Room, keep: frozenset[Kept], num_jobs: int, num_epochs: int) -> None:
        self.num_epochs, self.begun = num_epochs, 0
        """Epochs of all phases, and of those that are done."""
        self.loss = room.loss[:num_jobs].zero_()
        self.square = torch.zeros_like(self.loss) if "square" in keep else None
        shape = (num_jobs, num_epochs, room.loss.shape[1])
        self.epoch_loss = self.loss.new_zeros(shape) if "epochs" in keep else None

    def point(self, buffers: Any, jobs: slice) -> None:
        """Point a phase's kernels to the sums that are wanted of some jobs."""
        for name in ("loss", "square", "epoch_loss"):
            sums = getattr(self, name)
            setattr(buffers, name, None if sums is None else sums[jobs].data_ptr())
        buffers.num_epochs, buffers.first_epoch = self.num_epochs, self.begun

    def fetch(self, used_J: IntArray, place: IntArray) -> Callable[[], Losses]:
        """Have the sums copied to the host, given the examples of an epoch and the jobs' places; what returns waits."""
        used_J = np.maximum(used_J, 1)
        seen_J = self.num_epochs * used_J
        loss = trees.to_host(self.loss.sum(1))
        square = None if self.square is None else trees.to_host(self.square.sum(1))
        epochs = None if self.epoch_loss is None else trees.to_host(self.epoch_loss.sum(2))

        def losses() -> Losses:
            square_J = None if square is None else (square() / seen_J)[place]
            epoch_JE = None if epochs is None else (epochs() / used_J[:, None])[place]
            return Losses((loss() / seen_J)[place], square_J, epoch_JE)

        return losses


@dataclass(frozen=True, eq=False)
class Layout:
    """The work of some requests about one split. It says nothing of weights, so rounds that ask the same share it."""

    examples: NDArray[np.int32]
    """Of all groups, one after another."""
    jobs: NDArray[np.int32]
    """Batches, ``[job, 4]``: where its examples begin, where its logits go, how many there are, and 1 for one batch."""
    slots: NDArray[np.int32]
    """The network of each job."""
    pairs: IntArray
    """Models and groups, ``[pair, 2 + networks]``: where examples begin, how many, where each network's logits are."""
    counts: tuple[tuple[tuple[int, ...], IntArray], ...]
    """By request, how many models and groups it has, and the examples of each group."""
    num_scored: int
    """Rows of logits."""
    device: torch.device

    @cached_property
    def there(self) -> dict[str, Tensor]:
        """The tables on the device, by name."""
        tables: dict[str, NDArray[Any]] = {
            "visits": self.examples, "jobs": self.jobs, "slots": self.slots, "pairs": self.pairs
        }  # fmt: skip
        return {name: trees.onto(table, self.device) for name, table in tables.items()}


def lay_out(
    requests: Sequence[tuple[Evaluate, list[IntArray]]], rows: Sequence[IntArray], batch: int, device: torch.device
) -> Layout:
    """Return the work of requests, given with their groups of examples and the networks of their models, ``row_VP``."""
    examples, jobs, slots = [np.zeros(0, np.int64)], [np.zeros((0, 4), np.int64)], [np.zeros(0, np.int64)]
    pairs, counts = [], []
    seen = scored = 0
    for (request, groups), row_VP in zip(requests, rows, strict=True):
        count_G = np.array([group.size for group in groups], dtype=np.int64)
        begin_G = seen + np.cumsum(count_G) - count_G
        seen += int(count_G.sum())
        examples += groups
        counts.append((cells(request).shape[:2], count_G))
        # All models look at all groups together; of paired ones each at its own.
        looks = [slice(g, g + 1) for g in range(len(groups))] if request.paired and groups else [slice(None)]
        for look in looks:
            mine_VP, first_G, size_G = row_VP[look] if request.paired else row_VP, begin_G[look], count_G[look]
            first, total = int(first_G[0]) if first_G.size else 0, int(size_G.sum())
            start_J = np.arange(0, total, batch)
            size_J = np.minimum(batch, total - start_J)
            slot_S, place_VP = np.unique(mine_VP, return_inverse=True)
            at_S = scored + total * np.arange(slot_S.size)
            scored += total * slot_S.size
            work = np.broadcast_arrays(first + start_J, at_S[:, None] + start_J, size_J, np.int64(1))
            jobs.append(np.stack(work, -1).reshape(-1, 4))
            slots.append(np.repeat(slot_S, start_J.size))
            at_VP = at_S[place_VP.reshape(mine_VP.shape)]
            columns = np.broadcast_arrays(first_G, size_G, *(at_V[:, None] + (first_G - first) for at_V in at_VP.T))
            pairs.append(np.stack(columns, -1).reshape(-1, len(columns)))
    return Layout(
        examples=np.concatenate(examples).astype(np.int32),
        jobs=np.concatenate(jobs).astype(np.int32),
        slots=np.concatenate(slots).astype(np.int32),
        pairs=np.ascontiguousarray(np.concatenate(pairs)),
        counts=tuple(counts),
        num_scored=scored,
        device=device,
    )
