"""Averages at the edge and at the cloud."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedbac.core import trees
from fedbac.core.parts import Params, Parts, Scope
from fedbac.core.settings import BoolArray, FloatArray, IntArray

BLOCK = 64
"""Clients of an edge that are summed in one product."""


class EdgeAverage:
    """Eq. 1: Θ̄_m = Σ_{i∈S_m} (n_i / n_{S_m}) Θ_i for every part, over clients that come a few at a time.

    Clients are summed in their order, in blocks of fixed size whose sums add up in float64: the result has the same
    bits however many come at once. A client whose loss or weights are not finite does not count.
    """

    def __init__(self, size_C: IntArray, like: Parts) -> None:
        self.like = like
        self.share_C = size_C / max(int(size_C.sum()), 1)
        self.loss_C = np.full(size_C.size, np.nan)
        self.healthy_C = np.zeros(size_C.size, dtype=bool)
        self.mean: Parts | None = None
        """The average, once all clients have come; None when nobody counts."""
        self.seen = 0
        self.sum: dict[str, Tensor] = {}
        """Per part, as a flat vector."""
        self.held: list[Parts] = []
        """Copies of the clients of a block that is not complete."""

    def add(self, parts_C: Parts, loss_C: FloatArray) -> None:
        """Count the next clients."""
        self.loss_C[self.seen : self.seen + loss_C.size] = loss_C
        self.healthy_C[self.seen : self.seen + loss_C.size] = np.isfinite(loss_C)
        at = 0
        while at < loss_C.size:
            begin = self.seen - self.seen % BLOCK
            count = min(begin + BLOCK - self.seen, loss_C.size - at)
            rows = _rows(parts_C, slice(at, at + count))
            at, self.seen = at + count, self.seen + count
            if self.seen in (begin + BLOCK, self.share_C.size):
                self._fold(_joined([*self.held, rows]), slice(begin, self.seen))
                self.held = []
            else:
                self.held.append({part: trees.join([params]) for part, params in rows.items()})  # the chunk may go
        if self.seen == self.share_C.size:
            self.mean = self._finish()
            self.sum = {}

    def _finish(self) -> Parts | None:
        share = float(self.share_C[self.healthy_C].sum())
        if self.healthy_C.all() and share > 0:
            share = 1.0  # and not what rounding makes of it
        if share == 0:
            return None
        means = {part: (total / share).float() for part, total in self.sum.items()}
        return {part: trees.like(trees.unravel(mean, self.like[part]), self.like[part]) for part, mean in means.items()}

    def _fold(self, parts_C: Parts, clients: slice) -> None:
        """Add a block."""
        after = self._plus(parts_C, clients)
        # A sum is finite only if all that is in it is: one look at it stands for a look at every weight.
        if not bool(torch.isfinite(torch.stack([total.sum() for total in after.values()])).all()):
            finite_C = trees.finite_rows(parts_C)
            self.healthy_C[clients] &= finite_C
            after = self._plus({part: _zeroed(params, ~finite_C) for part, params in parts_C.items()}, clients)
        self.sum = after

    def _plus(self, parts_C: Parts, clients: slice) -> dict[str, Tensor]:
        share_C = np.where(self.healthy_C[clients], self.share_C[clients], 0.0)
        after = {}
        for part in self.like:
            rows = trees.rows(parts_C[part])
            block = (torch.as_tensor(share_C, dtype=rows.dtype, device=rows.device) @ rows).double()
            after[part] = self.sum[part] + block if self.sum else block
        return after


def _rows(parts_C: Parts, rows: slice) -> Parts:
    return {part: {name: value[rows] for name, value in params.items()} for part, params in parts_C.items()}


def _joined(stacks: Sequence[Parts]) -> Parts:
    if len(stacks) == 1:
        return stacks[0]
    return {part: trees.join([stack[part] for stack in stacks]) for part in stacks[0]}


def _zeroed(params_C: Params, dropped_C: BoolArray) -> Params:
    out = {name: value.clone() for name, value in params_C.items()}
    for value in out.values():
        value[torch.as_tensor(np.flatnonzero(dropped_C), device=value.device)] = 0
    return out


def global_average(parts_M: Params, weight_M: FloatArray) -> Params:
    """Eq. 5: Θ_global = Σ_m (n_m / n) Θ̄_{global,m}, over all edges."""
    return trees.weighted_mean(parts_M, weight_M)


def cluster_average(parts_M: Params, weight_M: FloatArray, label_M: IntArray, before_K: Params) -> Params:
    """Eq. 6: Θ_k = Σ_{m∈C_k} (n_m / n_k) Θ̄_{k,m} for every cluster that has members; an empty one is kept."""
    return trees.grouped_mean(parts_M, weight_M, label_M, before_K)


def cloud_average(
    before: Parts, reports_M: Sequence[Parts], weight_M: FloatArray, label_M: IntArray, scopes: Mapping[str, Scope]
) -> Parts:
    """Two-phase aggregation: every part is averaged at its own scope; edges of weight zero do not count."""
    if not (weight_M > 0).any():
        return before
    after: Parts = {}
    for part, scope in scopes.items():
        parts_M = trees.stack([report[part] for report in reports_M])
        if scope == "cloud":
            after[part] = trees.stack([global_average(parts_M, weight_M)])
        else:
            after[part] = cluster_average(parts_M, weight_M, label_M, before[part])
    return after


def draw_together(parts: Parts, share: float, weight_K: FloatArray, scopes: Mapping[str, Scope]) -> Parts:
    """Draw the network of every cluster towards their weighted mean: (1 − ρ) Θ_k + ρ Σ_j w_j Θ_j, ρ the share.

    Clusters without members have weight zero: they do not draw. All networks are finite, as averages are of those that
    are (``EdgeAverage``).
    """
    return {
        part: trees.towards_mean(stacked, weight_K, share) if scopes[part] == "cluster" else stacked
        for part, stacked in parts.items()
    }
