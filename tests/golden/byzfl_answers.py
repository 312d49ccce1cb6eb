"""What byzfl 0.0.11 makes of random changes, for tests/unit/test_byzfl.py. It wants torchvision, so it is no part of
the development environment: ``pip install --no-deps byzfl==0.0.11`` in another one, with torch, numpy and scipy, then

    python tests/golden/byzfl_answers.py
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

FILE = Path(__file__).with_name("byzfl.npz")
VERSION = "0.0.11"
NUM_INPUTS, NUM_WEIGHTS = 1000, 4


def inputs(number: int) -> tuple[np.ndarray[Any, Any], int]:
    """Return changes of 3 to 11 children, of different scales, and how many of them may lie."""
    rng = np.random.default_rng(number)
    num = int(rng.integers(3, 12))
    change = rng.normal(size=(num, NUM_WEIGHTS)) * 10.0 ** rng.uniform(-1, 0.5, size=(num, 1)) + rng.normal(size=4)
    return change.astype(np.float32), int(rng.integers(1, (num - 1) // 2 + 1))


def answers(byzfl: Any, attacks: Any, mixing: Any, number: int) -> dict[str, Any]:
    """Return what byzfl makes of an input, by the rule or attack."""
    change, f = inputs(number)
    exact = change.astype(np.float64)
    mixed = mixing.NNM(f)(exact)
    np.random.seed(number)
    noise = attacks.Gaussian(0.0, 2.0)(exact)
    return {
        "median": byzfl.Median()(exact),
        "trimmed_mean": byzfl.TrMean(f)(exact),
        "krum": byzfl.Krum(f)(exact),
        "multi_krum": byzfl.MultiKrum(f)(exact),
        "geometric_median": byzfl.GeometricMedian(nu=0.1, T=8)(exact),
        "centred_clipping": byzfl.CenteredClipping(L=3, tau=1.5)(exact),
        "minimum_diameter": byzfl.MDA(f)(exact),
        "nnm": mixed.mean(0),
        "nnm+trimmed_mean": byzfl.TrMean(f)(mixed),
        "nnm+krum": byzfl.Krum(f)(mixed),
        "bucketing+median": byzfl.Median()(mixing.Bucketing(2)(exact)),
        "sign_flip": attacks.SignFlipping()(exact),
        "ipm": attacks.InnerProductManipulation(2.0)(exact),
        "alie": attacks.ALittleIsEnough(-1.5)(exact),
        "mimic": attacks.Mimic(0)(exact),
        "gaussian": noise,
    }


def main() -> None:
    """Write the answers of all inputs."""
    found = importlib.util.find_spec("byzfl")
    assert found is not None
    assert found.submodule_search_locations is not None
    package = ModuleType("byzfl")  # its own imports the benchmark with torchvision, which rules and attacks do not need
    package.__path__ = list(found.submodule_search_locations)
    sys.modules["byzfl"] = package
    aggregators, preaggregators = (
        importlib.import_module(f"byzfl.aggregators.{name}") for name in ("aggregators", "preaggregators")
    )
    sys.modules["byzfl.aggregators"].__dict__.update(Average=aggregators.Average, Clipping=preaggregators.Clipping)
    attacks = importlib.import_module("byzfl.attacks.attacks")
    np.random.permutation = lambda changes: changes  # buckets of neighbours
    rows = [answers(aggregators, attacks, preaggregators, number) for number in range(NUM_INPUTS)]
    kept = {name: np.array([row[name] for row in rows], dtype=np.float32) for name in rows[0]}
    np.savez_compressed(FILE, **kept)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
