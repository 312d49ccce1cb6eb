"""How an owner combines what its children changed: by the mean, or by a rule that a few liars cannot move far."""

import math
from abc import ABC, abstractmethod
from functools import cache
from itertools import combinations
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import BeforeValidator, Field, PlainSerializer
from torch import Tensor

from fedbac.core.rng import stream
from fedbac.core.settings import MAX_CLIENTS, BareKind, BoolArray, IntArray, Positive, Settings, in_a_row, written

__all__ = [
    "Bucketing", "CentredClipping", "GeometricMedian", "Krum", "Mean", "Median", "MinimumDiameter", "NearestNeighbours",
    "OneVoice", "TrimmedMean",
]  # fmt: skip


class Mean(Settings):
    """Eqs. 1, 5 and 6: Σ_i (n_i / n) Δ_i."""

    kind: Literal["mean"] = "mean"
    needs: ClassVar[Literal["sum", "all"]] = "sum"
    secret: bool = False
    """Whether an edge sees only sums of its clients."""
    threshold: Annotated[int, Field(ge=2, le=129)] = 3
    """With ``secret``: the fewest clients whose sum may be seen."""
    bound: Annotated[float, Field(gt=0, le=1000)] = 8.0
    """With ``secret``: the largest change of a weight in one training; more is cut."""

    def combine(self, change_CD: Tensor, weight_C: Tensor) -> Tensor:
        """Return the weighted mean."""
        share_C = weight_C.double() / weight_C.double().sum()
        return (share_C[:, None] * change_CD).sum(0).to(change_CD.dtype)


COLUMNS = 1 << 16
"""Weights that are sorted at a time: what sorting takes besides is several times their size."""
SAME = 0.01
"""Share of the distance at which children say nearly the same, at which they say the very same."""
MOST_SUBSETS = 20_000
"""Of children, among which the one of the smallest diameter is looked for."""

Faulty = Annotated[int, Field(ge=1, le=MAX_CLIENTS)] | Annotated[float, Field(ge=0, lt=0.5)]


class NearestNeighbours(Settings):
    """Nearest-neighbour mixing (Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan, 2023): every change becomes the
    mean of the n − f nearest to it, itself included, which makes honest children of unlike data more alike."""

    kind: Literal["nnm"] = "nnm"
    faulty: Faulty = 0.2
    """As in the rule that follows."""

    def mix(self, change_CD: Tensor, found: int = 0) -> tuple[Tensor, int]:
        """Return as many changes, mixed, of which fewer may be lies by as many as were found before."""
        num = len(change_CD)
        kept = num - num_faulty(self.faulty, num, num, found)
        nearest = _squared_distances(change_CD).sort(dim=1, stable=True).indices[:, :kept]
        share_CC = change_CD.new_zeros((num, num)).scatter_(1, nearest, 1 / kept)
        return share_CC @ change_CD, found


class Bucketing(Settings):
    """The means of random buckets of changes (Karimireddy, He, Jaggi, 2022), drawn by the bits of all changes."""

    kind: Literal["bucketing"] = "bucketing"
    size: Annotated[int, Field(ge=1, le=MAX_CLIENTS)] = 2
    """Changes in a bucket; the last may have fewer."""

    def mix(self, change_CD: Tensor, found: int = 0) -> tuple[Tensor, int]:
        """Return a change for each bucket, and the number of lies found before."""
        return self.means(change_CD, self.drawn(change_CD)), found

    def drawn(self, change_CD: Tensor) -> IntArray:
        """Return the order in which changes fill the buckets."""
        pieces = torch.split(change_CD.contiguous().view(torch.int32), COLUMNS, dim=1)
        bits_C = torch.stack([piece.sum(1, dtype=torch.int64) for piece in pieces]).sum(0).cpu().numpy()
        order = np.argsort(bits_C, kind="stable")
        seed = int(bits_C.astype(np.uint64).sum() >> np.uint64(1))
        return order[stream(seed, "buckets").permutation(len(order))]

    def means(self, change_CD: Tensor, order: IntArray) -> Tensor:
        """Return the mean of each bucket."""
        share_BC = torch.zeros((-(-len(order) // self.size), len(order)), dtype=change_CD.dtype)
        for bucket, mine in enumerate(np.array_split(order, range(self.size, len(order), self.size))):
            share_BC[bucket, mine] = 1 / len(mine)
        return share_BC.to(change_CD.device) @ change_CD


class OneVoice(Settings):
    """Children that say nearly the same count once, by their mean, or not at all: those who agree on a lie do, honest
    children of unlike data do not (after FoolsGold: Fung, Yoon, Beschastnikh, 2020).

    Nearly the same are two nearer than ``within`` times the median of all children's distances to their nearest other,
    and whoever such pairs link. Fewer than half cannot move the median, so honest children of like data keep their
    voices. Of those who say exactly the same, within a hundredth of that, at most one is taken for honest, so the
    rule that follows expects fewer liars: a group of size s lowers ``faulty`` by s - 1 if it never counts, by s - 2 if
    it counts once.
    """

    kind: Literal["one_voice"] = "one_voice"
    within: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Share of the median distance."""
    count: Literal["once", "never"] = "once"
    """``never`` leaves such children out, as long as others are left: an agreed lie changes nothing then, but honest
    children of like data may lose their voices, and a liar can silence one by saying the same."""

    def mix(self, change_CD: Tensor, found: int = 0) -> tuple[Tensor, int]:
        """Return a change for each voice, and how many fewer of them may be lies."""
        from scipy.sparse.csgraph import connected_components  # slow to import and seldom needed

        distance_CC = _squared_distances(change_CD).cpu().numpy()
        np.fill_diagonal(distance_CC, np.inf)
        nearest_C = np.sort(distance_CC.min(1))
        limit = self.within**2 * nearest_C[(len(nearest_C) - 1) // 2]
        num, voice_C = connected_components(distance_CC < limit, directed=False)
        said_VC = voice_C == np.arange(num)[:, None]
        alone_V = said_VC.sum(1) == 1
        silent = self.count == "never" and alone_V.any()
        if silent:
            said_VC = said_VC[alone_V]
        # Honest children of like data may be near enough to lose their voices, but not to be taken for liars. Where a
        # group counts once, its one voice may still be a lie, though one member is honest.
        size_G = _group_sizes(distance_CC < (SAME / 2) ** 2 * limit)
        found += int((size_G[size_G > 1] - (1 if silent else 2)).sum())
        share_VC = torch.from_numpy(said_VC).to(change_CD)
        return (share_VC / share_VC.sum(1, keepdim=True)) @ change_CD, found


Mixing = Annotated[NearestNeighbours | Bucketing | OneVoice, Field(discriminator="kind"), BareKind]
Mixings = Annotated[tuple[Mixing, ...], Field(max_length=10), BeforeValidator(in_a_row), PlainSerializer(written)]


class Robust(Settings, ABC):
    """A rule that needs all children at once, weights them equally, and may have them mixed before."""

    kind: str
    needs: ClassVar[Literal["sum", "all"]] = "all"
    before: Mixings = ()
    """First ``nnm``, ``bucketing``, ``one_voice``, a list of them, or nothing."""

    def combine(self, change_CD: Tensor, weight_C: Tensor) -> Tensor:
        """Return one change for all, whatever examples they claim."""
        mixed_CD, found = change_CD, 0
        for mixing in self.before:
            mixed_CD, found = mixing.mix(mixed_CD, found)
        # What is mixed of a lie is one: there may be as many as before, but for those found, of perhaps fewer children.
        faulty = num_faulty(getattr(self, "faulty", 0.0), len(change_CD), len(mixed_CD), found)
        return self.rule(mixed_CD, faulty).to(change_CD.dtype)

    @abstractmethod
    def rule(self, change_CD: Tensor, faulty: int) -> Tensor:
        """Return one change for all, f of which may be lies."""

    def fault(self, num: int) -> str | None:
        """Say why so many children cannot be combined, and what to do; None if they can."""
        counts = [f for f in (getattr(one, "faulty", 0) for one in (self, *self.before)) if isinstance(f, int)]
        if counts and num <= 2 * max(counts):
            return f"faulty={max(counts)} of {num} is no minority; use at most {(num - 1) // 2}, or a share below 0.5"
        return None


class Median(Robust):
    """Every weight's median (Yin, Chen, Ramchandran, Bartlett, 2018); of an even number the mean of the middle two.

    It holds while fewer than half lie.
    """

    kind: Literal["median"] = "median"

    def rule(self, change_CD: Tensor, faulty: int) -> Tensor:
        """Return the medians."""
        return _middle(change_CD, (len(change_CD) - 1) // 2)


class TrimmedMean(Robust):
    """Every weight's mean without the f largest and the f smallest (Yin, Chen, Ramchandran, Bartlett, 2018)."""

    kind: Literal["trimmed_mean"] = "trimmed_mean"
    faulty: Faulty = 0.2
    """Share of children that may lie: f = ⌈faulty · n⌉, at most ⌊(n − 1) / 2⌋; or f itself, from 1."""

    def rule(self, change_CD: Tensor, faulty: int) -> Tensor:
        """Return the trimmed means."""
        return _middle(change_CD, faulty)


class Krum(Robust):
    """The child that is nearest to the others (Blanchard, El Mhamdi, Guerraoui, Stainer, 2017).

    A child's score is the sum of its squared distances to the n − f − 1 nearest others (the paper: one fewer); the
    smallest wins.
    """

    kind: Literal["krum"] = "krum"
    faulty: Faulty = 0.2
    """Share of children that may lie: f = ⌈faulty · n⌉, at most ⌊(n − 1) / 2⌋; or f itself, from 1."""
    multi: bool = False
    """Multi-Krum: the mean of the n − f best children."""

    def rule(self, change_CD: Tensor, faulty: int) -> Tensor:
        """Return the best child, or the mean of the best."""
        num = len(change_CD)
        score_C = _squared_distances(change_CD).sort(1).values[:, 1 : num - faulty].sum(1)
        best = score_C.sort(stable=True).indices
        kept = num - faulty if self.multi or num == 2 else 1
        return change_CD[best[:kept].sort().values].mean(0, dtype=torch.float64)


class MinimumDiameter(Robust):
    """The mean of the n − f children whose furthest two are nearest (El Mhamdi, Guerraoui, Rouault, 2018). All subsets
    are tried, so it is for few children."""

    kind: Literal["minimum_diameter"] = "minimum_diameter"
    faulty: Faulty = 0.2
    """Share of children that may lie: f = ⌈faulty · n⌉, at most ⌊(n − 1) / 2⌋; or f itself, from 1."""

    def rule(self, change_CD: Tensor, faulty: int) -> Tensor:
        """Return the mean of the first subset of the smallest diameter."""
        subset_SK = _subsets(len(change_CD), len(change_CD) - faulty)
        distance_CC = _squared_distances(change_CD).cpu().numpy()
        diameter_S = distance_CC[subset_SK[:, :, None], subset_SK[:, None, :]].max((1, 2))
        return change_CD[torch.from_numpy(subset_SK[diameter_S.argmin()])].mean(0, dtype=torch.float64)

    def fault(self, num: int) -> str | None:
        """Refuse more subsets than can be tried."""
        if (subsets := math.comb(num, num_faulty(self.faulty, num, num))) > MOST_SUBSETS:
            return f"it tries all subsets, here {subsets:,}, and at most {MOST_SUBSETS:,}; use krum with multi=true"
        return super().fault(num)


class GeometricMedian(Robust):
    """The point with the smallest sum of distances to all children.

    Found by the smoothed Weiszfeld algorithm (Pillutla, Kakade, Harchaoui, 2022): z ← Σ_i β_i Δ_i / Σ_i β_i with β_i =
    1 / max(ν, ‖Δ_i − z‖), from z = 0. It holds while fewer than half lie.
    """

    kind: Literal["geometric_median"] = "geometric_median"
    smoothing: Positive = 1e-6
    """ν: the least distance that counts."""
    iterations: Annotated[int, Field(gt=0, le=1000)] = 3
    """How often z moves; the authors find 3 enough."""

    def rule(self, change_CD: Tensor, faulty: int) -> Tensor:
        """Return z."""
        point_D = torch.zeros_like(change_CD[0])
        for _ in range(self.iterations):
            share_C = 1 / _distance(change_CD, point_D).clamp(min=self.smoothing)
            point_D = ((share_C / share_C.sum())[:, None] * change_CD).sum(0).to(change_CD.dtype)
        return point_D


class CentredClipping(Robust):
    """The mean of changes cut to a length (Karimireddy, He, Jaggi, 2021): v ← v + 1/n Σ_i (Δ_i − v) min(1, τ / ‖Δ_i −
    v‖), from v = 0, the last model. A fixed τ bounds any number of liars."""

    kind: Literal["centred_clipping"] = "centred_clipping"
    radius: Positive | None = None
    """τ; default: the median of children's distances to v, which holds while fewer than half lie."""
    iterations: Annotated[int, Field(gt=0, le=1000)] = 3
    """How often v moves."""

    def rule(self, change_CD: Tensor, faulty: int) -> Tensor:
        """Return v."""
        centre_D = torch.zeros_like(change_CD[0])
        for _ in range(self.iterations):
            far_C = _distance(change_CD, centre_D)
            radius = far_C.median() if self.radius is None else self.radius
            share_C = (radius / far_C.clamp(min=torch.finfo(far_C.dtype).tiny)).clamp(max=1) / len(change_CD)
            moved_D = (share_C[:, None] * (change_CD - centre_D)).sum(0)
            centre_D = (centre_D + moved_D).to(change_CD.dtype)
        return centre_D


def num_faulty(share: float, num: int, left: int, found: int = 0) -> int:
    """Return f, of a share or as it is, but for the lies that were found; it is a minority of those left."""
    faulty = share if isinstance(share, int) else math.ceil(share * num - 1e-9)
    return min(max(faulty - found, 0), (left - 1) // 2)


def _middle(change_CD: Tensor, left_out: int) -> Tensor:
    """Return the mean of every column without its largest and its smallest entries."""
    kept = slice(left_out, len(change_CD) - left_out)
    pieces = torch.split(change_CD, COLUMNS, dim=1)
    return torch.cat([piece.sort(0).values[kept].mean(0, dtype=torch.float64) for piece in pieces])


def _distance(change_CD: Tensor, point_D: Tensor) -> Tensor:
    distance_C: Tensor = torch.linalg.vector_norm(change_CD - point_D, dim=1, dtype=torch.float64)
    return distance_C


def _group_sizes(near_CC: BoolArray) -> IntArray:
    """Return how many are in each group of a child and whoever is near it; each child is in one.

    No chain makes a group: liars could lay one from an honest child to another, and both would be taken for liars.
    """
    left_C, sizes = np.ones(len(near_CC), dtype=bool), []
    while left_C.any():
        first = int(left_C.argmax())
        group_C = left_C & near_CC[first]
        group_C[first] = True
        left_C &= ~group_C
        sizes.append(group_C.sum())
    return np.array(sizes)


def _squared_distances(change_CD: Tensor) -> Tensor:
    """Return ‖Δ_i − Δ_j‖² for all pairs, exactly 0 of equal ones; not by products, in which small ones get lost."""
    pieces = [piece.double() for piece in torch.split(change_CD, COLUMNS, dim=1)]
    exact = "donot_use_mm_for_euclid_dist"
    return torch.stack([torch.cdist(one, one, compute_mode=exact).square() for one in pieces]).sum(0)


@cache
def _subsets(num: int, size: int) -> IntArray:
    return np.array(list(combinations(range(num), size)), dtype=np.int64)
