"""COCS: a contextual combinatorial bandit on cells of devices (Qu, Duan, Chen, Xu, Lu, Liu 2022)."""

from typing import Literal, NamedTuple

import numpy as np

from fedbac.core import bandits
from fedbac.core.queries import Evidence
from fedbac.core.rng import Rng
from fedbac.core.settings import BoolArray, FloatArray, IntArray, NonNegative, Rounds
from fedbac.selection.simple import Fraction, Selection, largest


class COCSState(NamedTuple):
    """What is known of each client in each cell."""

    count_NL: FloatArray
    """C: how often the client was selected while it was in the cell."""
    success_NL: FloatArray
    """How often its update counted then."""
    played: FloatArray
    """Rounds so far, in an array of one."""


class COCS(Selection):
    """Explore clients that were seen too seldom in their cell, then take those whose updates arrive most often.

    The context of a client is its downlink and its speed, on the scale of its edge. A client is explored while it was
    selected at most K(t) = explore_scale · t^(2/5) · ln t times in its cell.
    """

    kind: Literal["cocs"] = "cocs"
    fraction: Fraction = 0.8
    cells_per_side: Rounds = 3
    """h, so that there are h² cells. The analysis wants ⌈T^(1/5)⌉, which is 3 for 33 to 243 rounds."""
    explore_scale: NonNegative = 0.1
    """Scale of K(t). The analysis has 1, with which a run of 200 rounds would explore all the time."""

    def init(self, num_members: int) -> COCSState:
        """Nobody has been selected."""
        nothing = np.zeros((num_members, self.cells_per_side**2))
        return COCSState(nothing, nothing, np.zeros(1))

    def act(self, state: COCSState, evidence: Evidence, rng: Rng) -> BoolArray:
        """Take clients to explore as far as the budget goes, then the most reliable."""
        size_N = evidence.size_N
        at = np.arange(size_N.size), self.cells(evidence)
        count_N = state.count_NL[at]
        t = state.played[0] + 1
        unknown_N = count_N <= self.explore_scale * t**0.4 * np.log(t)
        reliable_N = state.success_NL[at] / np.maximum(count_N, 1)
        score_N = np.where(unknown_N, np.inf, reliable_N)
        return largest(score_N, self.fraction, evidence, rng)

    def cells(self, evidence: Evidence) -> IntArray:
        """Return the cell of each client."""
        everybody_N = np.ones(evidence.size_N.size, dtype=bool)
        side = self.cells_per_side
        down_N, speed_N = (
            np.minimum((bandits.spread(value_N, everybody_N) * side).astype(np.int64), side - 1)
            for value_N in (evidence.devices.down_N, evidence.devices.speed_N)
        )
        cell_N: IntArray = down_N * side + speed_N
        return cell_N

    def learn(self, state: COCSState, evidence: Evidence, mask_N: BoolArray) -> COCSState:
        """Count who was selected, and whose update arrived."""
        in_cell_NL = self.cells(evidence)[:, None] == np.arange(self.cells_per_side**2)
        return COCSState(
            state.count_NL + in_cell_NL * evidence.started[:, None],
            state.success_NL + in_cell_NL * mask_N[:, None],
            state.played + 1,
        )
