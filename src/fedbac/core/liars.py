"""Clients and edges that lie on purpose (``task.world.liars``): who, from which round, and what they say instead.

An edge that lies is one all of whose clients say what it makes up from what they learned.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedbac.core.rng import stream
from fedbac.core.settings import MAX_CLIENTS, MAX_EDGES, BoolArray, FloatArray, IntArray, NonNegative, Rounds, Settings
from fedbac.errors import ConfigError

if TYPE_CHECKING:  # parts know of queries, and these of the world with its liars
    from fedbac.core.parts import Parts

Attack = Literal[
    "label_flip", "sign_flip", "gaussian", "alie", "ipm", "min_max", "mimic", "backdoor", "examples", "losses"
]
Share = Annotated[float, Field(ge=0, le=1)]
USUAL: dict[Attack, float] = {"alie": 1.5, "ipm": 2.0, "examples": 1e6, "losses": 10.0}
"""The strength of an attack when none is given; of others 1."""
MOST_EXAMPLES = 1_000_000_000
AT_START = ("label_flip", "examples")
"""What is said of data once, before the first round."""


class Liars(Settings):
    """Who lies, and how (docs/liars.md)."""

    attack: Attack = "sign_flip"
    """What liars do."""
    clients: Share | Annotated[tuple[Annotated[int, Field(ge=0, lt=MAX_CLIENTS)], ...], Field(max_length=10_000)] = ()
    """Numbers of the clients that lie, or a share of every edge's, drawn by the seed."""
    edges: Share | Annotated[tuple[Annotated[int, Field(ge=0, lt=MAX_EDGES)], ...], Field(max_length=10_000)] = ()
    """Numbers of the edges that lie about all they say, or a share, drawn by the seed."""
    from_round: Rounds = 1
    """The first round with lies."""
    strength: NonNegative | None = None
    """s; default: 1, of ``alie`` 1.5, ``ipm`` 2, ``losses`` 10, ``examples`` a million."""
    target: Annotated[int, Field(ge=0, lt=1_000_000)] = 0
    """The class of ``backdoor``."""
    jitter: NonNegative = 0.0
    """How far lying clients who would all say the same differ: by noise of this times the standard deviation of honest
    updates, weight by weight. With 1 they are as far apart as honest clients are."""

    @model_validator(mode="after")
    def _somebody_lies(self) -> "Liars":
        if not self.clients and not self.edges:
            raise ValueError("nobody lies; name clients or edges, or give a share of them, as in clients: 0.3")
        if self.attack in AT_START and self.from_round > 1:
            raise ValueError(f"{self.attack!r} is about data, known from the first round on; set from_round to 1")
        if self.attack == "examples" and not 1 <= self.size <= MOST_EXAMPLES:
            raise ValueError(f"strength: {self.size:g} examples cannot be claimed; use 1 to {MOST_EXAMPLES:,}")
        if self.jitter and (self.attack not in ATTACKS or not self.clients):
            same = ", ".join(f"'{attack}'" for attack in ATTACKS)
            raise ValueError(f"jitter is for clients who would all say the same; use {same} with clients, or jitter: 0")
        return self

    @property
    def size(self) -> float:
        """The strength."""
        return USUAL.get(self.attack, 1.0) if self.strength is None else self.strength

    def among(
        self, seed: int, clients: tuple[int, ...], edge_N: IntArray, num_edges: int
    ) -> tuple[BoolArray, IntArray]:
        """Return which clients of a site lie, and the edge that makes each lie; -1 where that is its own doing."""
        lying_N, by_N, number_N = np.zeros(len(clients), dtype=bool), np.full(len(clients), -1), np.array(clients)
        for edge in np.unique(edge_N):
            mine = number_N[edge_N == edge]
            lying_N |= np.isin(number_N, _drawn(self.clients, mine, seed, "lying-clients", int(edge)))
        by_N[np.isin(edge_N, _drawn(self.edges, np.arange(num_edges), seed, "lying-edges"))] = 0
        return lying_N | (by_N == 0), np.where(by_N == 0, edge_N, -1)


def _drawn(who: float | tuple[int, ...], of: IntArray, seed: int, purpose: str, *address: int) -> IntArray:
    if isinstance(who, tuple):
        return np.array(who, dtype=np.int64)
    return stream(seed, purpose, *address).permutation(of)[: round(who * of.size)]


@dataclass(frozen=True)
class Lies:
    """What the liars of a site do in a round."""

    liars: Liars
    lying_C: BoolArray
    by_C: IntArray
    """The edge that makes a client lie, or -1."""
    parts: frozenset[str]
    """What is sent: where a client keeps a part for itself, it has nobody to lie to."""
    streams: Callable[[int], np.random.Generator]
    """The random numbers of each liar, by its place."""
    num_classes: int

    def told(self, parts_C: "Parts", start_C: "Parts") -> "Parts":
        """Return what clients say that they have learned."""
        named = [(part, name) for part in sorted(self.parts) for name in parts_C[part]]
        kept = [(part, name) for part, name in named if parts_C[part][name].is_floating_point()]
        start = [start_C[part][name].to(parts_C[part][name].device) for part, name in kept]
        change = [parts_C[part][name] - one for (part, name), one in zip(kept, start, strict=True)]
        change_CD = torch.cat([one.reshape(len(one), -1) for one in change], 1)
        sound_C = torch.isfinite(change_CD).all(1).cpu().numpy()
        told_CD = change_CD.clone()
        for edge in np.unique(self.by_C[self.lying_C]).tolist():
            mine_C = self.lying_C & (self.by_C == edge)
            honest_C = sound_C & (~self.lying_C if edge < 0 else mine_C)
            if not honest_C.any():  # they have only each other to learn from
                honest_C = sound_C & mine_C
            mine, honest = (torch.from_numpy(mask_C).to(change_CD.device) for mask_C in (mine_C, honest_C))
            if self.liars.attack == "gaussian":
                told_CD[mine] = self.liars.size * self._noise(mine_C, told_CD)
            elif self.liars.attack == "backdoor":
                told_CD[mine] += self.liars.size * self._towards_target(kept, change).to(told_CD)
            elif honest_C.any():
                told_CD[mine] = ATTACKS[self.liars.attack](change_CD[honest], self.liars.size)
                if self.liars.jitter and edge < 0:  # an edge says one thing
                    deviation_D = _spread(change_CD[honest])[1].to(told_CD)
                    told_CD[mine] += self.liars.jitter * deviation_D * self._noise(mine_C, told_CD)
        told = {part: dict(params) for part, params in parts_C.items()}
        pieces = torch.split(told_CD, [one[0].numel() for one in change], dim=1)
        for (part, name), one, piece in zip(kept, start, pieces, strict=True):
            told[part][name] = one + piece.reshape(one.shape)
        return told

    def _noise(self, mine_C: BoolArray, like_CD: Tensor) -> Tensor:
        """Return a row of each liar's own."""
        places, size = np.flatnonzero(mine_C).tolist(), like_CD.shape[1]
        drawn = [self.streams(c).standard_normal(size, dtype=np.float32) for c in places]
        return torch.from_numpy(np.stack(drawn)).to(like_CD)

    def _towards_target(self, kept: list[tuple[str, str]], change: list[Tensor]) -> Tensor:
        """Return 1 at the biases of the target class: of every part, in the last weight of one number per class."""
        target, shift = self.liars.target, [torch.zeros(one[0].numel()) for one in change]
        last = {part: i for i, (part, _) in enumerate(kept) if change[i].shape[1:] == (self.num_classes,)}
        if not last or target >= self.num_classes:
            raise ConfigError(
                f"task.world.liars: 'backdoor' raises the last bias of class {target}, and what clients send of this "
                f"network has none for it among {self.num_classes} classes; choose another attack, network or target"
            )
        for i in last.values():
            shift[i][target] = 1.0
        return torch.cat(shift)


def _spread(honest_CD: Tensor) -> tuple[Tensor, Tensor]:
    """Return Δ̄ and σ."""
    exact_CD = honest_CD.double()
    mean_D = exact_CD.mean(0)
    square_D = (exact_CD - mean_D).square().sum(0)  # torch's own function takes ten times as long on a CPU
    return mean_D, (square_D / max(len(exact_CD) - 1, 1)).sqrt()


def against_the_mean(honest_CD: Tensor, size: float) -> Tensor:
    """Sign flipping, and inner-product manipulation (Xie, Koyejo, Gupta, 2019): −s Δ̄."""
    return (-size * honest_CD.mean(0, dtype=torch.float64)).to(honest_CD)


def a_little_is_enough(honest_CD: Tensor, size: float) -> Tensor:
    """ALIE (Baruch, Baruch, Goldberg, 2019): Δ̄ − s σ."""
    mean_D, deviation_D = _spread(honest_CD)
    return (mean_D - size * deviation_D).to(honest_CD)


def min_max(honest_CD: Tensor, size: float) -> Tensor:
    """Min-max (Shejwalkar, Houmansadr, 2021): Δ̄ − s γ σ with the largest γ such that it is no further from any honest
    change than two of these are apart. Every one of them allows γ up to the root of a quadratic."""
    mean_D, deviation_D = _spread(honest_CD)
    away_CD, square = mean_D - honest_CD.double(), deviation_D.square().sum()
    if square == 0:
        return mean_D.to(honest_CD)
    most = torch.pdist(honest_CD.double()).max().square()
    along_C, room_C = away_CD @ deviation_D, most - away_CD.square().sum(1)
    gamma = ((along_C + (along_C.square() + square * room_C).sqrt()) / square).min()
    return (mean_D - size * gamma * deviation_D).to(honest_CD)


def mimic(honest_CD: Tensor, size: float) -> Tensor:
    """Mimic (Karimireddy, He, Jaggi, 2022): the change of one honest client, the first."""
    return honest_CD[0]


ATTACKS: Mapping[str, Callable[[Tensor, float], Tensor]] = {
    "sign_flip": against_the_mean,
    "ipm": against_the_mean,
    "alie": a_little_is_enough,
    "min_max": min_max,
    "mimic": mimic,
}
OF_UPDATES = frozenset({*ATTACKS, "gaussian", "backdoor"})
"""Attacks that change what is sent of a network."""


def mirrored(loss_VG: FloatArray, accuracy_VG: FloatArray, size: float) -> tuple[FloatArray, FloatArray]:
    """Return what liars say of V models: the best have the largest loss, the worst the smallest, all times s."""
    with np.errstate(invalid="ignore"):
        turned_VG = size * (loss_VG.max(0) + loss_VG.min(0) - loss_VG)
    return np.where(np.isfinite(turned_VG), turned_VG, loss_VG), 1 - accuracy_VG
