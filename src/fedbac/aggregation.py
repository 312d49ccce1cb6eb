"""How an owner combines what its children changed: by the mean, or by a rule that a few liars cannot move far."""

import math
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedbac.core.settings import Positive, Settings

__all__ = ["GeometricMedian", "Krum", "Mean", "Median", "TrimmedMean"]


class Mean(Settings):
    """Eqs. 1, 5 and 6: Σ_i (n_i / n) Δ_i. Children are added up as they come, so that none of them is held."""

    kind: Literal["mean"] = "mean"
    needs: ClassVar[Literal["sum", "all"]] = "sum"

    def combine(self, change_CD: Tensor, weight_C: Tensor) -> Tensor:
        """Return the weighted mean."""
        share_C = weight_C.double() / weight_C.double().sum()
        return (share_C[:, None] * change_CD).sum(0).to(change_CD.dtype)


COLUMNS = 1 << 16
"""Weights that are sorted at a time: what sorting takes besides is several times their size."""

Share = Annotated[float, Field(ge=0, lt=0.5)]


class Median(Settings):
    """Every weight's median (Yin, Chen, Ramchandran, Bartlett, 2018); of an even number the mean of the middle two.

    It holds while fewer than half of the children lie. Of two children it is their mean.
    """

    kind: Literal["median"] = "median"
    needs: ClassVar[Literal["sum", "all"]] = "all"

    def combine(self, change_CD: Tensor, weight_C: Tensor) -> Tensor:
        """Return the medians."""
        return _middle(change_CD, (len(change_CD) - 1) // 2)


class TrimmedMean(Settings):
    """Every weight's mean without the f largest and the f smallest (Yin, Chen, Ramchandran, Bartlett, 2018).

    Of two children it is their mean.
    """

    kind: Literal["trimmed_mean"] = "trimmed_mean"
    needs: ClassVar[Literal["sum", "all"]] = "all"
    faulty: Share = 0.2
    """Share of the children that may lie: f = ⌈faulty · n⌉ of n, and at most ⌊(n − 1) / 2⌋."""

    def combine(self, change_CD: Tensor, weight_C: Tensor) -> Tensor:
        """Return the trimmed means."""
        return _middle(change_CD, num_faulty(self.faulty, len(change_CD)))


class Krum(Settings):
    """The child that is nearest to the others (Blanchard, El Mhamdi, Guerraoui, Stainer, 2017).

    The score of a child is the sum of its squared distances to the n − f − 1 others that are nearest to it; the paper
    counts one fewer. The smallest score wins, of equal ones the first. Of two children it is their mean.
    """

    kind: Literal["krum"] = "krum"
    needs: ClassVar[Literal["sum", "all"]] = "all"
    faulty: Share = 0.2
    """Share of the children that may lie: f = ⌈faulty · n⌉ of n, and at most ⌊(n − 1) / 2⌋."""
    multi: bool = False
    """Multi-Krum: the mean of the n − f children with the smallest scores, instead of the best one."""

    def combine(self, change_CD: Tensor, weight_C: Tensor) -> Tensor:
        """Return the best child, or the mean of the best."""
        num, faulty = len(change_CD), num_faulty(self.faulty, len(change_CD))
        score_C = torch.stack([_distance(change_CD, one_D).square().sort().values for one_D in change_CD])
        best = score_C[:, 1 : num - faulty].sum(1).sort(stable=True).indices
        kept = num - faulty if self.multi or num == 2 else 1
        return change_CD[best[:kept].sort().values].mean(0, dtype=torch.float64).to(change_CD.dtype)


class GeometricMedian(Settings):
    """The point whose sum of distances to all children is smallest.

    Found by the smoothed Weiszfeld algorithm (Pillutla, Kakade, Harchaoui, 2022): z ← Σ_i β_i Δ_i / Σ_i β_i with
    β_i = 1 / max(ν, ‖Δ_i − z‖), from z = 0, where the children started. It holds while fewer than half of the children
    lie. Of two children it is a point between them.
    """

    kind: Literal["geometric_median"] = "geometric_median"
    needs: ClassVar[Literal["sum", "all"]] = "all"
    smoothing: Positive = 1e-6
    """ν: a child that is nearer than this counts as if it were as far."""
    iterations: Annotated[int, Field(gt=0, le=1000)] = 3
    """How often z moves; the authors find 3 enough."""

    def combine(self, change_CD: Tensor, weight_C: Tensor) -> Tensor:
        """Return z."""
        point_D = torch.zeros_like(change_CD[0])
        for _ in range(self.iterations):
            share_C = 1 / _distance(change_CD, point_D).clamp(min=self.smoothing)
            point_D = ((share_C / share_C.sum())[:, None] * change_CD).sum(0).to(change_CD.dtype)
        return point_D


def num_faulty(share: float, num: int) -> int:
    """Return f."""
    return min(math.ceil(share * num - 1e-9), (num - 1) // 2)


def _middle(change_CD: Tensor, left_out: int) -> Tensor:
    """Return the mean of every column without its largest and its smallest entries."""
    kept = slice(left_out, len(change_CD) - left_out)
    pieces = torch.split(change_CD, COLUMNS, dim=1)
    return torch.cat([piece.sort(0).values[kept].mean(0, dtype=torch.float64) for piece in pieces]).to(change_CD.dtype)


def _distance(change_CD: Tensor, point_D: Tensor) -> Tensor:
    distance_C: Tensor = torch.linalg.vector_norm(change_CD - point_D, dim=1, dtype=torch.float64)
    return distance_C
