"""Who of the selected clients brings an update home, and when: devices, dropout and deadlines of a site."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedbac.core.rng import Rng
from fedbac.core.settings import BoolArray, FloatArray, IntArray
from fedbac.core.world import World


@dataclass(frozen=True)
class Attendance:
    """The clients of one round at a site, as places."""

    present: IntArray
    """Those whose update counts."""
    dropped: IntArray
    late: IntArray
    seconds: float
    """How long the site waits."""

    @cached_property
    def started(self) -> IntArray:
        """All that were given the model."""
        return np.sort(np.concatenate([self.present, self.dropped, self.late]))


def everybody(mask_N: BoolArray, seconds_N: FloatArray) -> Attendance:
    """Return that all selected clients come home."""
    nobody = np.zeros(0, dtype=np.int64)
    return Attendance(np.flatnonzero(mask_N), nobody, nobody, float(seconds_N[mask_N].max()))


def extended(world: World, mask_N: BoolArray, able_N: BoolArray, rng: Rng) -> BoolArray:
    """Return a selection with as many more clients, drawn at random, as over-selection asks for."""
    wanted = int(np.ceil(world.over_selection * mask_N.sum())) - int(mask_N.sum())
    spare = np.flatnonzero(able_N & ~mask_N)
    more_N = mask_N.copy()
    more_N[rng.permutation(spare)[:wanted]] = True
    return more_N


def attend(world: World, chosen: IntArray, wanted: int, seconds_N: FloatArray, rng: Rng) -> Attendance:
    """Return who of the chosen clients is home in time, ``wanted`` of them at most: the first to finish.

    Somebody always is: where all would drop out or be late, one stays, or the fastest is waited for.
    """
    order = rng.permutation(chosen)
    num_dropped = min(round(world.dropout * chosen.size), chosen.size - 1)
    dropped, left = order[:num_dropped], order[num_dropped:]
    left = left[np.argsort(seconds_N[left], kind="stable")]
    in_time = left if world.deadline is None else left[seconds_N[left] <= world.deadline]
    present = (in_time if in_time.size else left[:1])[:wanted]
    late = np.setdiff1d(left, present)
    waited = float(seconds_N[present].max())
    # An edge knows that it needs no more only when it has enough; else it waits for those who do not come.
    if world.deadline is not None and present.size < wanted:
        waited = max(waited, world.deadline)
    return Attendance(np.sort(present), np.sort(dropped), late, waited)
