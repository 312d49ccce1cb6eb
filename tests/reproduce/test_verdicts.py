"""The rules of the verdicts, on numbers with a known answer."""

import math

import numpy as np
import pytest
from scipy import stats

from fedbac.statistics import LEVEL
from fedbac_paper.verdicts import (
    MARGIN,
    Verdict,
    above,
    always,
    below,
    between,
    every,
    faster,
    near,
    not_worse,
    positive,
    ratio_between,
)

HOLDS, NOT, OPEN, FEW, NEVER = (
    Verdict(word) for word in ("holds", "does not hold", "not clear", "too few seeds", "not run")
)
NO = [
    ([0.5, 0.5], "too few seeds"),
    ([], "not run"),
]


@pytest.mark.parametrize(
    ("differences", "word"),
    [
        ([0.02, 0.03, 0.025], "holds"),
        ([-0.02, -0.03, -0.025], "does not hold"),
        ([0.01, 0.02, 0.06], "not clear"),  # every seed, but chance alone would do so too often
        ([0.007, 0.03, 0.035], "not clear"),  # beyond twice the standard error, which is 9 % of chance at three seeds
        ([0.05, 0.05, 0.05, 0.05, 0.05, 0.05, -0.001], "holds"),  # one seed of many does not undo a clear mean
        ([0.05, 0.05, 0.05, -0.05], "not clear"),
        ([0.0, 0.0, 0.0], "not clear"),
        *NO,
    ],
)
def test_a_comparison_needs_the_t_test(differences: list[float], word: str) -> None:
    assert positive(differences).word == word
    opposite = {"holds": "does not hold", "does not hold": "holds"}
    assert positive(differences, claimed=-1).word == opposite.get(word, word)


def test_the_chance_is_that_of_a_t_test() -> None:
    differences = [-0.02, -0.03, -0.025, -0.04]
    test = stats.ttest_1samp(differences, 0)
    assert positive(differences).doubt == pytest.approx(float(test.pvalue))


def test_a_comparison_is_rarely_right_by_chance() -> None:
    noise = np.random.default_rng(0).normal(size=(2000, 3))
    words = [positive(row.tolist()).word for row in noise]
    assert words.count("holds") + words.count("does not hold") < 1.3 * LEVEL * len(words)


def test_a_claim_of_many_parts_rarely_fails_by_chance() -> None:
    noise = np.random.default_rng(1).normal(size=(1000, 6, 3))
    words = [every({str(i): positive(part) for i, part in enumerate(claim)}).word for claim in noise.tolist()]
    assert words.count("does not hold") < 1.3 * LEVEL * len(words)


def test_only_seeds_that_both_have_are_compared() -> None:
    assert above({0: 0.9, 1: 0.9, 2: 0.91, 3: 0.1}, {0: 0.8, 1: 0.8, 2: 0.8, 4: 1.0}).word == "holds"
    assert above({0: 0.9}, {1: 0.8}).word == "not run"


def test_a_smaller_number_is_shown_as_ours_minus_theirs() -> None:
    ours, theirs = dict(enumerate([0.02, 0.02, 0.021])), dict(enumerate([0.05, 0.05, 0.05]))
    assert below(ours, theirs) == Verdict("holds", "−2.97 ± 0.14 points")
    assert below(theirs, ours).word == "does not hold"


@pytest.mark.parametrize(
    ("differences", "word"),
    [
        ([0.003, -0.003, 0.001], "holds"),
        ([0.01, -0.01, 0.002], "not clear"),  # a mean of zero, but too noisy to exclude a point
        ([-0.002, -0.003, 0.001], "holds"),
        ([-0.02, -0.025, -0.022], "does not hold"),
        ([-0.005, -0.006, -0.0055], "not clear"),  # surely lower, but by little
        ([-0.1, 0.02, -0.03], "not clear"),  # much lower, but perhaps by chance
        *NO,
    ],
)
def test_not_worse_allows_noise_and_a_point(differences: list[float], word: str) -> None:
    assert not_worse(differences).word == word


def test_who_is_a_point_worse_rarely_passes_however_noisy() -> None:
    rng = np.random.default_rng(2)
    for noise in (0.001, 0.01, 0.1):
        words = [not_worse(one).word for one in (rng.normal(size=(1000, 3)) * noise - MARGIN).tolist()]
        assert words.count("holds") < 1.3 * LEVEL * len(words)


def test_printed_numbers_and_ranges() -> None:
    assert near([440, 450, 460], 447).word == "holds"
    assert near([880, 886, 890], 447).word == "does not hold"
    assert near([400, 450, 500], 505).word == "not clear", "beyond the tolerance, but not beyond chance"
    assert near([2.0, 8.0, 3.0], 8).word == "not clear", "much noise proves nothing"
    assert between([1.6, 1.7, 1.65], 1.5, 1.9).word == "holds"
    assert between([2.9, 3.0, 3.1], 1.5, 1.9).word == "does not hold"
    assert near([88, 101, 1], 60).word == "not clear", "near on average, and by chance"
    assert near([447, 447], 447).word == "too few seeds"
    assert near([], 447).word == "not run"
    assert near([1200, 1210, 1220], 647).detail == "1210 ± 24.8 against 647"


def test_ratios_are_judged_as_logarithms() -> None:
    assert faster([2.0, 2.5, 2.2]).word == "holds"
    assert faster([0.5, 0.4, 0.45]).word == "does not hold"
    assert faster([]).word == "not run"
    assert faster([2.0, 8.0]).detail == "4.00 times, 2 seeds"
    assert faster([4.0, 4.0, 4.0], ">").detail == "> 4.00 times (×/÷ 1.00)"
    assert ratio_between([3.8, 4.2, 4.0], 4, 4).word == "holds"
    assert ratio_between([2.0, 8.0, 4.0], 4, 4).word == "not clear", "the geometric mean is there, by chance"
    assert ratio_between([9.0, 9.5, 9.2], 4, 4).word == "does not hold"
    assert ratio_between([2.3, 2.2, 2.4], 2, math.inf).word == "holds"
    assert ratio_between([4.0, 4.0], 4, 4).detail == "4.00 times against 4, 2 seeds"


def test_a_bound_decides_only_what_lies_beyond_it() -> None:
    assert ratio_between([4.0, 4.0, 4.0], 4, 4, ">").word == "not clear", "the ratio is larger, who knows by how much"
    assert ratio_between([2.0, 2.1, 2.0], 4, 4, ">").word == "not clear"
    assert ratio_between([9.0, 9.1, 9.0], 4, 4, ">").word == "does not hold"
    assert ratio_between([2.0, 2.1, 2.0], 4, 4, "<").word == "does not hold"
    assert ratio_between([9.0, 9.1, 9.0], 4, 4, "~").word == "not clear"


def test_a_yes_or_no_of_every_seed() -> None:
    assert always([True] * 3) == Verdict("holds", "in 3 of 3 seeds")
    assert always([False] * 3).word == "does not hold"
    assert always([True, False, True]).word == "not clear"
    assert always([True] * 2).word == "too few seeds"
    assert always([]).word == "not run"


def test_a_claim_of_several_parts() -> None:
    assert every({"a": HOLDS, "b": HOLDS}).word == "holds"
    assert every({"a": HOLDS, "b": OPEN}).word == "not clear"
    assert every({"a": HOLDS, "b": NEVER}).word == "not clear", "a part that was not run leaves the claim open"
    assert every({"a": HOLDS, "b": FEW}).word == "too few seeds"
    assert every({"a": NOT, "b": FEW, "c": NEVER}).word == "does not hold"
    assert every({"a": NEVER}).word == "not run"
    assert every({"a": HOLDS, "b": HOLDS, "x": OPEN}).detail == "holds in 2 of 3; a: holds; b: holds; x: not clear"
    assert every({"a": HOLDS, "b": NOT}).detail.startswith("holds in 1 of 2, refuted in 1; a: holds")
    assert "holds in" not in every({"a": HOLDS}).detail


def test_one_of_many_parts_must_fail_clearly() -> None:
    weak = Verdict("does not hold", doubt=0.02)
    assert every({"a": weak, "b": HOLDS}).word == "does not hold"
    assert every({"a": weak, "b": HOLDS, "c": HOLDS}).word == "not clear", "0.02 is above 0.05 / 3"
    assert every({"a": weak, "b": HOLDS, "c": NEVER}).word == "does not hold", "what was not judged does not count"
    assert every({"a": weak, "b": weak, "c": HOLDS}).word == "not clear", "nor do two of them make one (Holm)"
