"""Averages at the edge and at the cloud."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedbac.core import trees
from fedbac.core.answers import checked_combination, consult
from fedbac.core.parts import Params, Parts
from fedbac.core.policies import Aggregation
from fedbac.core.runtime import one_thread
from fedbac.core.settings import BoolArray, FloatArray, IntArray

FEW = 2
"""Children among whom nobody can tell which one lies."""
BLOCK = 64
"""Clients of an edge that are summed in one product."""


class EdgeAverage:
    """Eq. 1: Θ̄_m = Σ_{i∈S_m} (n_i / n_{S_m}) Θ_i for every row of every part, over clients that come a few at a time.

    A row is averaged over the clients that started from it; one that nobody healthy started from stays as it was.
    Clients are summed in their order, in blocks of fixed size whose sums add up in float64: the result has the same
    bits however many come at once. A client whose loss or weights are not finite does not count.

    Parts with a rule of their own are held until all clients have come, and then combined by it.
    """

    def __init__(
        self,
        size_C: IntArray,
        bank: Parts,
        row_C: Mapping[str, IntArray],
        rules: Mapping[str, Aggregation] | None = None,
    ) -> None:
        self.size_C, self.before, self.row_C, self.rules = size_C, bank, row_C, rules or {}
        self.loss_C = np.full(size_C.size, np.nan)
        self.healthy_C = np.zeros(size_C.size, dtype=bool)
        self.bank: Parts = {}
        """The averages, once all clients have come."""
        self.weight: dict[str, IntArray] = {}
        """Per part, the examples behind each row."""
        self.seen = 0
        self.held: list[Parts] = []
        """Copies of the clients of a block that is not complete."""
        self.all: dict[str, Tensor] = {}
        """By part that has a rule, the rows of all clients that have come."""

    @cached_property
    def sums(self) -> "dict[str, RowSums]":
        """By part, what has come so far."""
        return {
            part: RowSums(self.size_C, params, self.row_C[part])
            for part, params in self.before.items()
            if part not in self.rules
        }

    def add(self, parts_C: Parts, loss_C: FloatArray) -> None:
        """Count the next clients."""
        self.loss_C[self.seen : self.seen + loss_C.size] = loss_C
        self.healthy_C[self.seen : self.seen + loss_C.size] = np.isfinite(loss_C)
        if self.rules:
            parts_C = self._hold(parts_C, slice(self.seen, self.seen + loss_C.size))
        at = 0
        while at < loss_C.size:
            begin = self.seen - self.seen % BLOCK
            count = min(begin + BLOCK - self.seen, loss_C.size - at)
            rows = parts_C if count == loss_C.size else trees.part_rows(parts_C, slice(at, at + count))
            at, self.seen = at + count, self.seen + count
            if self.seen in (begin + BLOCK, self.size_C.size):
                self._fold(trees.join_parts([*self.held, rows]) if self.held else rows, slice(begin, self.seen))
                self.held = []
            else:
                self.held.append(trees.join_parts([rows]))  # a copy: the chunk may go
        if self.seen == self.size_C.size:
            self._finish()

    def _hold(self, parts_C: Parts, clients: slice) -> Parts:
        """Keep copies of the parts that have a rule, and return the others."""
        held = {part: parts_C[part] for part in self.rules}
        self.healthy_C[clients] &= trees.finite_rows(held)
        for part, params in held.items():
            rows_C = trees.rows(params)
            if part not in self.all:
                self.all[part] = rows_C.new_empty((self.size_C.size, rows_C.shape[1]))
            self.all[part][clients] = rows_C
        return {part: params for part, params in parts_C.items() if part not in held}

    def _finish(self) -> None:
        counted_C = np.where(self.healthy_C, self.size_C, 0)
        for part, before in self.before.items():
            row_C = self.row_C[part]
            if part in self.rules:
                rows_C = trees.shaped(self.all.pop(part), before)
                self.bank[part] = combine_by_owner(before, rows_C, counted_C, row_C, self.rules[part])
            else:
                self.bank[part] = self.sums[part].mean(self.healthy_C)
            self.weight[part] = np.zeros(trees.count(before), dtype=np.int64)
            np.add.at(self.weight[part], row_C, counted_C)
        self.sums = {}

    def _fold(self, parts_C: Parts, clients: slice) -> None:
        """Add a block."""
        if not self.sums:
            return
        blocks = self._blocks(parts_C, clients)
        # A sum is finite only if all that is in it is: one look at it stands for a look at every weight.
        if not self._finite(torch.stack([look for block in blocks.values() for look in block.looks])):
            finite_C = trees.finite_rows({part: parts_C[part] for part in self.sums})
            self.healthy_C[clients] &= finite_C
            lost = np.flatnonzero(~finite_C)
            zeroed = {part: trees.put(rows, lost, trees.zeros(trees.take(rows, 0))) for part, rows in parts_C.items()}
            blocks = self._blocks(zeroed, clients)
        for part, block in blocks.items():
            self.sums[part].keep(block)

    def _finite(self, looks: Tensor) -> bool:
        return bool(np.isfinite(looks.cpu().numpy()).all())

    def _blocks(self, parts_C: Parts, clients: slice) -> "dict[str, Block]":
        healthy_C, shares = self.healthy_C[clients], Shares()
        return {
            part: sums.block(trees.rows(parts_C[part]), clients, healthy_C, shares) for part, sums in self.sums.items()
        }


Shares = dict[tuple[bytes, torch.dtype, torch.device], Tensor]
"""Shares of clients where their weights are; parts that are shared alike use the same ones."""


def _beside(shares: Shares, share_C: FloatArray, matrix_C: Tensor) -> Tensor:
    key = share_C.tobytes(), matrix_C.dtype, matrix_C.device
    if key not in shares:
        shares[key] = trees.onto(share_C, matrix_C.device, matrix_C.dtype)
    return shares[key]


class Block(NamedTuple):
    """What a block of clients adds to the rows of a part."""

    sums: dict[int, Tensor]
    """The new sums of rows that several clients share."""
    copies: tuple[IntArray, Tensor] | None
    """Rows that a single client has, and what it comes back with; None if there are none."""
    looks: list[Tensor]
    """Numbers that are finite only if all weights of the block are."""


class RowSums:
    """The sums of one part, row by row of its bank. A row that one client alone has is copied, not summed."""

    def __init__(self, size_C: IntArray, before: Params, row_C: IntArray) -> None:
        self.before, self.row_C, self.size_C = before, row_C, size_C
        self.num_rows = trees.count(before)
        total_R, self.count_R = np.zeros(self.num_rows, dtype=np.int64), np.bincount(row_C, minlength=self.num_rows)
        np.add.at(total_R, row_C, size_C)
        self.share_C = size_C / np.maximum(total_R, 1)[row_C]
        """Of a client among those who started from the same row."""
        self.sums: dict[int, Tensor] = {}

    @cached_property
    def result(self) -> Tensor:
        """The rows as they will be; copies are there as soon as they come. A single row that is summed needs none."""
        return trees.rows(self.before).clone()

    def block(self, matrix_C: Tensor, clients: slice, healthy_C: BoolArray, shares: Shares) -> Block:
        """Return what some clients add."""
        row_C, share_C = self.row_C[clients], np.where(healthy_C, self.share_C[clients], 0.0)
        alone = self.count_R[row_C] == 1
        sums = {}
        for row in sorted(set(row_C[~alone].tolist())):
            among = row_C == row
            mine = matrix_C if among.all() else matrix_C[trees.onto(np.flatnonzero(among), matrix_C.device)]
            total = trees.product(_beside(shares, share_C[among], mine), mine).double()
            sums[row] = self.sums[row] + total if row in self.sums else total
        looks = [total.sum() for total in sums.values()]
        if not alone.any():
            return Block(sums, None, looks)
        mine = matrix_C if alone.all() else matrix_C[trees.onto(np.flatnonzero(alone), matrix_C.device)]
        looks.append(mine.sum(dtype=torch.float64))
        counts = healthy_C[alone] & (self.size_C[clients][alone] > 0)
        copied = mine if counts.all() else mine[trees.onto(np.flatnonzero(counts), mine.device)]
        return Block(sums, (row_C[alone][counts], copied), looks)

    def keep(self, block: Block) -> None:
        """Count a block, all of whose weights are finite."""
        self.sums |= block.sums
        if block.copies is not None:
            rows, copied = block.copies
            self.result[trees.onto(rows, self.result.device)] = copied.to(self.result.dtype)

    def mean(self, healthy_C: BoolArray) -> Params:
        """Return the rows, averaged."""
        for row, total in self.sums.items():
            among = self.row_C == row
            share = float(self.share_C[among & healthy_C].sum())
            if healthy_C[among].all() and share > 0:
                share = 1.0  # and not what rounding makes of it
            mean = (total if share == 1.0 else total / share).float() if share > 0 else None
            if mean is not None and self.num_rows == 1:
                return trees.shaped(mean[None], self.before)
            if mean is not None:
                self.result[row] = mean
        return trees.shaped(self.result, self.before)


def average_by_owner(
    before: Params,
    reports: Sequence[Params],
    weight_R: FloatArray,
    owner_R: IntArray,
    rule: Aggregation | None = None,
    sent: Params | None = None,
) -> Params:
    """Eqs. 5 and 6: Θ_o = Σ_r (n_r / n_o) Θ_r over all rows r that were reported for owner o, or by another rule. The
    owner is the cloud (Eq. 5: all edges together), a cluster (Eq. 6: its members), or whoever reported the row. One
    that nobody reported for, or only rows of weight zero, keeps what it had."""
    if rule is None or rule.needs == "sum":
        means = []
        for cut in trees.cuts(before):  # so that no more is copied at a time
            rows_R = torch.cat([trees.columns({name: report[name] for name in before}, cut) for report in reports])
            means.append(trees.grouped_mean({"": rows_R}, weight_R, owner_R, {"": trees.columns(before, cut)})[""])
        return trees.shaped(torch.cat(means, 1), before)
    return combine_by_owner(before, trees.join(reports), weight_R, owner_R, rule, sent)


def bounded(
    reports: Sequence[Params], weight_R: FloatArray, owner_R: IntArray, sent_K: Params, longest_K: FloatArray
) -> Params:
    """Return the rows with the changes of two that share an owner cut to the longest change of an owner so far, by the
    median over owners, as one may have been a liar's alone: of two, no rule can leave out the one that lies."""
    rows_R, few = trees.join(reports), np.flatnonzero(shared_by_few(weight_R, owner_R))
    if not few.size or not longest_K.any():
        return rows_R
    matrix_RD, limit = trees.rows(rows_R).clone(), float(np.median(longest_K[longest_K > 0]))
    start_FD = trees.rows(trees.select(sent_K, owner_R[few])).to(matrix_RD.device)
    change_FD = matrix_RD[few].double() - start_FD
    share_F = limit / torch.linalg.vector_norm(change_FD, dim=1).clamp(min=limit)
    cut_FD = (start_FD + share_F[:, None] * change_FD).to(matrix_RD)
    matrix_RD[few] = torch.where((share_F < 1)[:, None], cut_FD, matrix_RD[few])
    return trees.shaped(matrix_RD, rows_R)


def shared_by_few(weight_R: FloatArray, owner_R: IntArray) -> BoolArray:
    """Return which rows have an owner that hears of two and no more."""
    few_R: BoolArray = (weight_R > 0) & (np.bincount(owner_R, weight_R > 0)[owner_R] == FEW)
    return few_R


def lengths(after_K: Params, sent_K: Params) -> FloatArray:
    """Return how far every owner has come from what was sent."""
    after_KD = trees.rows(after_K)
    change_KD = after_KD - trees.rows(sent_K).to(after_KD.device)
    length_K: FloatArray = torch.linalg.vector_norm(change_KD, dim=1, dtype=torch.float64).cpu().numpy()
    return length_K


def combine_by_owner(
    before_K: Params,
    rows_N: Params,
    weight_N: FloatArray | IntArray,
    owner_N: IntArray,
    rule: Aggregation,
    sent_K: Params | None = None,
) -> Params:
    """Return w + rule(Δ) for every owner: Δ is what each of its rows of positive weight has changed since it was sent.
    Who has a single row takes it; who has none keeps what it had. Threads do not change the bits."""
    start_K = trees.rows(before_K if sent_K is None else sent_K)

    def combined(matrix_C: Tensor, weight_C: FloatArray, owner: int) -> Tensor:
        start = start_K[owner].to(matrix_C.device)
        change_CD, weights = matrix_C - start, trees.onto(weight_C, matrix_C.device, torch.float64)
        answer = consult("aggregation", "a round", rule.combine, change_CD, weights)
        return start + checked_combination(rule, answer, change_CD)

    with one_thread():
        return trees.grouped(rows_N, np.asarray(weight_N, dtype=np.float64), owner_N, before_K, combined)
