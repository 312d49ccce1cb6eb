"""Every rule and attack is byzfl's, to 1e-6, on a thousand random inputs (tests/golden/byzfl_answers.py)."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedbac.aggregation import (
    Bucketing,
    CentredClipping,
    GeometricMedian,
    Krum,
    Median,
    MinimumDiameter,
    NearestNeighbours,
    TrimmedMean,
)
from fedbac.core.liars import ATTACKS, Liars, Lies
from fedbac.core.policies import Aggregation
from tests.covering import first
from tests.golden.byzfl_answers import FILE, NUM_INPUTS, inputs


def by(rule: Callable[[int], Aggregation]) -> Callable[[Tensor, int, int], Tensor]:
    return lambda change, f, number: rule(f).combine(change, torch.ones(len(change)))


def nnm(f: int) -> NearestNeighbours:
    return NearestNeighbours(faulty=f)


def gaussian(change: Tensor, f: int, number: int) -> Tensor:
    """What a liar sends beside these, given byzfl's random numbers."""
    draws = np.random.RandomState(number).standard_normal(change.shape[1]).astype(np.float32)
    lies = Lies(
        Liars(attack="gaussian", clients=(0,), strength=2.0),
        np.arange(len(change)) == 0,
        np.full(len(change), -1),
        frozenset({"global"}),
        lambda place: SimpleNamespace(standard_normal=lambda size, dtype: draws),  # type: ignore[arg-type,return-value]
        10,
    )
    return lies.told({"global": {"w": change}}, {"global": {"w": torch.zeros_like(change)}})["global"]["w"][0]


OURS: dict[str, Callable[[Tensor, int, int], Tensor]] = {
    "median": by(lambda f: Median()),
    "trimmed_mean": by(lambda f: TrimmedMean(faulty=f)),
    "krum": by(lambda f: Krum(faulty=f)),
    "multi_krum": by(lambda f: Krum(faulty=f, multi=True)),
    "geometric_median": by(lambda f: GeometricMedian(smoothing=0.1, iterations=8)),
    "centred_clipping": by(lambda f: CentredClipping(radius=1.5, iterations=3)),
    "minimum_diameter": by(lambda f: MinimumDiameter(faulty=f)),
    "nnm": lambda change, f, number: nnm(f).mix(change)[0].mean(0),
    "nnm+trimmed_mean": by(lambda f: TrimmedMean(faulty=f, before=nnm(f))),
    "nnm+krum": by(lambda f: Krum(faulty=f, before=nnm(f))),
    "bucketing+median": lambda change, f, number: Median().combine(
        Bucketing(size=2).means(change, np.arange(len(change))), torch.ones(len(change))
    ),
    "sign_flip": lambda change, f, number: ATTACKS["sign_flip"](change, 1.0),
    "ipm": lambda change, f, number: ATTACKS["ipm"](change, 2.0),
    "alie": lambda change, f, number: ATTACKS["alie"](change, 1.5),
    "mimic": lambda change, f, number: ATTACKS["mimic"](change, 1.0),
    "gaussian": gaussian,
}


@pytest.mark.parametrize("every", first(1, [10, 1]))
@pytest.mark.parametrize("name", np.load(FILE).files)
def test_it_is_that_of_byzfl(name: str, every: int) -> None:
    expected, given = np.load(FILE)[name][::every], {n: inputs(n) for n in range(0, NUM_INPUTS, every)}
    found = [OURS[name](torch.from_numpy(change), f, number) for number, (change, f) in given.items()]
    np.testing.assert_allclose(torch.stack(found).numpy(), expected, rtol=1e-6, atol=1e-6)


def test_min_max_is_as_near_to_all_as_they_are_to_each_other_and_no_nearer_than_it_must() -> None:
    """byzfl has none: by its definition."""
    for number in range(200):
        change = torch.from_numpy(inputs(number)[0]).double()
        apart = torch.pdist(change).max()
        for size, near in ((1.0, True), (1.001, False)):
            lie = ATTACKS["min_max"](change, size)
            assert bool((change - lie).norm(dim=1).max() <= apart * (1 + 1e-9)) == near
