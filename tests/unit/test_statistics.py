"""Who is better than whom: numbers of tables, rates of false and true leaders by simulation."""

import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedbac.statistics import LEVEL, Ranking, deviation, gap, holm, standing

TRIALS = 2000
METHODS, SEEDS = (2, 3, 5, 8), (1, 2, 3, 5, 10)
SLOW = [pytest.param(5, marks=pytest.mark.full), pytest.param(8, marks=pytest.mark.full)]
TWO = math.sqrt(2) * 2
"""Two standard deviations of the gap between methods whose scores have a deviation of one."""


def compared(num_methods: int, num_seeds: int, *above: float) -> Iterator[Ranking]:
    """Compare methods of equal noise again and again, the first ones better than the others by so much."""
    noise = np.random.default_rng([0, num_methods, num_seeds]).normal(size=(TRIALS, num_methods, num_seeds))
    noise[:, : len(above)] += np.array(above)[:, None]
    for scores in noise.tolist():
        yield standing({f"method {i}": dict(enumerate(of)) for i, of in enumerate(scores)})


def chance_of(rate: float) -> float:
    """Return a rate that is seldom exceeded by chance (three standard errors)."""
    return rate + 3 * math.sqrt(rate * (1 - rate) / TRIALS)


def test_student_by_the_table() -> None:
    """The 97.5 % quantiles that every book prints, times the standard error."""
    for count, quantile in ((3, 4.303), (5, 2.776), (10, 2.262)):
        values = [1.0, *[2.0] * (count - 2), 3.0]
        assert gap(values).half == pytest.approx(quantile * gap(values).error, rel=2e-4)


@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_the_chance_is_that_of_scipys_test(count: int) -> None:
    values = np.random.default_rng(count).normal(0.5, size=count).tolist()
    theirs = stats.ttest_1samp(values, 0)
    found = gap(values)
    assert (found.mean, found.chance) == pytest.approx((float(np.mean(values)), float(theirs.pvalue)))
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx(theirs.confidence_interval(0.95))
    assert deviation(values) == pytest.approx(float(np.std(values, ddof=1)))


def test_gaps_that_do_not_vary_are_certain() -> None:
    assert (gap([0.5] * 3).chance, gap([-0.5] * 3).chance, gap([0.0] * 3).chance) == (0, 0, 1)
    assert gap([0.5]).chance == 1
    assert deviation([0.5]) is None


def test_holm_takes_the_least_likely_first() -> None:
    assert holm([0.04, 0.01, 0.02]) == [True, True, True], "0.01 of three, 0.02 of two, 0.04 of one"
    assert holm([0.03, 0.03, 0.01]) == [False, False, True]
    assert holm([0.02, 0.02, 0.02]) == [False] * 3, "the first already fails"
    assert holm([]) == []


@pytest.mark.parametrize("num_methods", [2, 3, *SLOW])
@pytest.mark.parametrize("num_seeds", SEEDS)
def test_equally_good_methods_are_seldom_told_apart(num_methods: int, num_seeds: int) -> None:
    """Neither is one named, nor is one put behind another."""
    told = sum(bool(found.behind) for found in compared(num_methods, num_seeds))
    assert told / TRIALS <= chance_of(LEVEL)
    assert told == 0 if num_seeds < 3 else told > 0


@pytest.mark.parametrize("num_seeds", [3, 10])
def test_two_good_ones_among_many_bad_ones_are_seldom_told_apart(num_seeds: int) -> None:
    """Who is far behind must not make it easier to name one of the two."""
    named = sum(len(found.leaders) == 1 for found in compared(5, num_seeds, 50.0, 50.0))
    assert named / TRIALS <= chance_of(LEVEL)


@pytest.mark.parametrize("num_methods", [2, 3, *SLOW])
def test_the_power_is_what_the_page_says(num_methods: int) -> None:
    page = Path(__file__).parents[2].joinpath("docs", "report.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| {num_methods} \| (.*) \|$", page, re.MULTILINE)
    for num_seeds, told in zip((3, 5, 10), re.findall(r"\d+", row), strict=True):
        named = sum(found.leaders == ("method 0",) for found in compared(num_methods, num_seeds, TWO))
        share = int(told) / 100
        assert named / TRIALS == pytest.approx(share, abs=0.01 + chance_of(share) - share)


def test_ties_stand_together_with_the_best_first() -> None:
    best, near, far = (dict(enumerate(of)) for of in ([0.8, 0.82, 0.81], [0.81, 0.8, 0.8], [0.5, 0.52, 0.515]))
    found = standing({"far": far, "near": near, "best": best})
    assert (found.leaders, found.behind, found.few) == (("best", "near"), ("far",), False)
    assert found.mean["best"] == pytest.approx(0.81)
    assert found.spread["best"] == pytest.approx(0.01)
    turned = standing({"far": far, "near": near, "best": best}, lowest=True)
    assert (turned.leaders, turned.behind) == (("far",), ("near", "best")), "of what should be small"


def test_only_seeds_that_both_have_count() -> None:
    one, other = {0: 0.9, 1: 0.91, 2: 0.92}, {0: 0.5, 1: 0.52, 2: 0.52}
    assert standing({"a": one, "b": other}).behind == ("b",)
    apart = standing({"a": one, "b": {seed + 1: score for seed, score in other.items()}})
    assert (apart.leaders, apart.few) == (("a", "b"), True)
    alone = standing({"a": {0: 0.5}})
    assert (alone.leaders, alone.few, alone.spread["a"]) == (("a",), False, None)
    diverged = standing({"a": one, "b": {**other, 1: math.nan}})
    assert (diverged.leaders, diverged.few) == (("a", "b"), True), "what is not finite is not judged"
