"""Uniform and size-weighted draws."""

import numpy as np
import pytest
from scipy import stats

from fedbac import Random
from fedbac.core.policies import NoState
from fedbac.core.rng import stream
from fedbac.core.settings import IntArray
from tests.unit.tiny import inclusion_statistic, selection_evidence


def counts(policy: Random, sizes: list[int], draws: int) -> IntArray:
    rng, evidence = stream(0, "draws"), selection_evidence(sizes)
    total: IntArray = np.sum([policy.act(NoState(), evidence, rng) for _ in range(draws)], axis=0)
    return total


def test_uniform_draws_ignore_size() -> None:
    got = counts(Random(fraction=0.4), [1, 1000, 3, 50, 7], 3000)
    assert inclusion_statistic(got, 3000, 2) < stats.chi2.ppf(0.999, df=4)


def test_full_participation_takes_everybody_with_data() -> None:
    mask = Random().act(NoState(), selection_evidence([3, 0, 5, 1]), stream(0, "x"))
    assert mask.tolist() == [True, False, True, True]


@pytest.mark.parametrize("weighting", ["uniform", "size"])
def test_clients_without_data_are_never_drawn(weighting: str) -> None:
    got = counts(Random.model_validate({"fraction": 0.5, "weighting": weighting}), [0, 4, 0, 9], 200)
    assert got.tolist() == [0, 200, 0, 200]


def test_a_single_pick_is_proportional_to_size() -> None:
    sizes = [1, 2, 3, 4, 10]
    got = counts(Random(fraction=0.2, weighting="size"), sizes, 6000)
    expected = 6000 * np.array(sizes) / sum(sizes)
    assert stats.chisquare(got, expected).pvalue > 0.001


def test_several_picks_equal_sequential_draws_without_replacement() -> None:
    """Inclusion probabilities by enumerating every order in which numpy's ``choice(p=...)`` could draw two."""
    sizes = np.array([1, 2, 3, 4, 10])
    share, exact = sizes / sizes.sum(), np.zeros(5)
    for first in range(5):
        for second in range(5):
            if first != second:
                pair = share[first] * share[second] / (1 - share[first])
                exact[[first, second]] += pair
    draws = 6000
    got = counts(Random(fraction=0.4, weighting="size"), sizes.tolist(), draws)
    assert got.sum() == 2 * draws
    assert np.all(np.diff(got) > 0)  # ordered as the sizes are
    standard_error = np.sqrt(exact * (1 - exact) * draws)
    assert np.all(np.abs(got - draws * exact) < 4 * standard_error)
    rng = stream(0, "numpy")
    theirs = np.zeros(5)
    for _ in range(2000):
        theirs[rng.choice(5, 2, replace=False, p=share)] += 1
    np.testing.assert_allclose(got / draws, theirs / 2000, atol=0.05)
