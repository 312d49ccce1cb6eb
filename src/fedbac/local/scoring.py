"""What our GPU kernels are told to evaluate some requests: which network runs on which examples, and who is judged."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbac.core import trees
from fedbac.core.requests import Evaluate
from fedbac.core.settings import IntArray
from fedbac.gpu.network import Plan
from fedbac.local.examples import cells

KEPT = 4
"""Layouts that are kept: those of a round and one to spare."""


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


class Layouts:
    """The layouts used last."""

    def __init__(self) -> None:
        self.known: dict[Hashable, Layout] = {}

    def find(self, key: Hashable, make: Callable[[], Layout]) -> Layout:
        """Return a layout, made if it is not known."""
        layout = self.known.pop(key, None) or make()
        self.known[key] = layout
        if len(self.known) > KEPT:
            del self.known[next(iter(self.known))]
        return layout


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


class ScoringRoom:
    """The outputs of convolutions on the way to logits."""

    def __init__(self, plan: Plan, rows: int, device: torch.device) -> None:
        sizes = plan.levels[: len(plan.convolutions)]
        self.out = [torch.empty((rows, plan.room, size), device=device) for size in sizes]
        self.winner = [torch.empty((rows, plan.room, size), dtype=torch.uint8, device=device) for size in sizes]
