"""Who is better than whom: the one rule of reports, tables and the study.

Methods with the same seed see the same data, so they are compared by their gaps, seed by seed: Student's t test, two
sides, 5 %, and Holm's correction for all comparisons that are made together. Below three seeds nothing is judged.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from scipy.special import stdtr, stdtrit

FEWEST_SEEDS = 3
LEVEL = 0.05
"""How often chance alone may name a difference, of all comparisons that are made together."""


class Gap(NamedTuple):
    """What numbers of several seeds are on average above zero."""

    mean: float
    error: float
    """Standard error of the mean."""
    half: float
    """Half of its 95 % interval."""
    chance: float
    """How often a mean at least as far from zero would come about if there were no gap (p, two sides)."""


class Ranking(NamedTuple):
    """Methods beside each other."""

    mean: dict[str, float]
    """Over the seeds of each."""
    spread: dict[str, float | None]
    """The standard deviation over seeds, which ± stands for; there is none of one seed."""
    leaders: tuple[str, ...]
    """The best, and after it all that are not significantly worse."""
    behind: tuple[str, ...]
    """The others, the best first."""
    few: bool
    """Whether the best has too few seeds in common with another, so that nobody can be named."""


def gap(differences: Sequence[float]) -> Gap:
    """Return what differences, one per seed, are on average; of a single one nothing more is known."""
    count, mean = len(differences), math.fsum(differences) / len(differences)
    if count == 1:
        return Gap(mean, math.nan, math.nan, 1.0)
    error = math.sqrt(math.fsum((one - mean) ** 2 for one in differences) / (count - 1) / count)
    chance = 2 * float(stdtr(count - 1, -abs(mean) / error)) if error else float(mean == 0)
    return Gap(mean, error, float(stdtrit(count - 1, 1 - LEVEL / 2)) * error, chance)


def holm(chances: Sequence[float]) -> list[bool]:
    """Return which of several comparisons that are made together are significant."""
    passed, left = [False] * len(chances), len(chances)
    for place in sorted(range(left), key=chances.__getitem__):
        if not chances[place] <= LEVEL / left:
            break
        passed[place], left = True, left - 1
    return passed


def standing(scores: Mapping[str, Mapping[int, float]], lowest: bool = False) -> Ranking:
    """Compare methods, whose scores are given by seed; the highest is the best, or the lowest.

    All pairs count in the correction: which of them holds the best is only known afterwards.
    """
    mean = {name: math.fsum(of.values()) / len(of) for name, of in scores.items()}
    worth = {name: (-one if lowest else one) if math.isfinite(one) else -math.inf for name, one in mean.items()}
    best, *others = ranked = sorted(scores, key=worth.__getitem__, reverse=True)
    against = {name: _paired(scores[best], scores[name]) for name in others}
    behind = [n for n, one in against.items() if one and one.chance <= LEVEL and (one.mean > 0) != lowest]
    if 0 < len(behind) < len(others):  # "better than every other" needs no correction: each test has to say so
        found = {pair: each for pair in combinations(ranked, 2) if (each := _paired(*(scores[name] for name in pair)))}
        sure = dict(zip(found, holm([each.chance for each in found.values()]), strict=True))
        behind = [name for name in behind if sure[best, name]]
    return Ranking(
        mean=mean,
        spread={name: deviation(list(of.values())) for name, of in scores.items()},
        leaders=(best, *(name for name in others if name not in behind)),
        behind=tuple(behind),
        few=None in against.values(),
    )


def _paired(one: Mapping[int, float], other: Mapping[int, float]) -> Gap | None:
    """Return the gap on the seeds that both have; None where these are too few, or a score is not finite."""
    gaps = [one[seed] - other[seed] for seed in one if seed in other]
    return gap(gaps) if len(gaps) >= FEWEST_SEEDS and all(map(math.isfinite, gaps)) else None


def deviation(values: Sequence[float]) -> float | None:
    """Return the standard deviation over seeds; there is none of one seed."""
    return gap(values).error * math.sqrt(len(values)) if len(values) > 1 else None
