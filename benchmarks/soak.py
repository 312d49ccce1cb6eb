"""How much the package withstands: kills, damaged folders, hostile inputs, faults of engines; tried and survived.

    python benchmarks/soak.py [--only kills damages inputs engines messages scans] [--count 1000] [--seconds 600]
    python benchmarks/soak.py --only kills --device cuda
    python benchmarks/soak.py --only scans --count 20 --seed 0
    python benchmarks/soak.py --only federation --kills 100 --minutes 30 --json results/deploy/soak.json

``--count`` and ``--seconds`` limit each class, but for the federation, whose sites are killed at most ``--kills`` times
in about ``--minutes``. Complaints are printed as they come; if there are any, the exit status is 1.
"""

import argparse
import importlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the trials share their generators with the tests

CLASSES = ("kills", "damages", "inputs", "engines", "messages", "scans", "federation")

Trials = Callable[[int, int, Path], Iterator[str | None]]


def soak(trials: Trials, count: int, seconds: float, seed: int) -> tuple[int, int]:
    """Run one class of trials until its limits; return how many were tried and how many survived."""
    tried = survived = 0
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        for complaint in trials(count, seed, Path(folder)):
            tried += 1
            survived += complaint is None
            if complaint is not None:
                print(f"  {complaint}", flush=True)
            if tried >= count or time.monotonic() > end:
                break
    return tried, survived


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CLASSES, default=CLASSES, metavar="CLASS")
    parser.add_argument("--count", type=int, default=1000, help="trials of each class, at most")
    parser.add_argument("--seconds", type=float, default=600, help="time for each class, about")
    parser.add_argument("--kills", type=int, default=100, help="of sites of a federation, at most")
    parser.add_argument("--minutes", type=float, default=30, help="time for the federation, about")
    parser.add_argument(
        "--json", type=Path, help="keep what came of the federation here; phases that are there are not played again"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where the runs to be killed compute")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    results = {}
    for name in options.only:
        print(f"{name} ...", flush=True)
        started = time.monotonic()
        module = importlib.import_module(f"soaking.{name}")
        if name == "federation":
            with tempfile.TemporaryDirectory(prefix="soak-") as folder:
                limits = options.kills, 60 * options.minutes, options.seed
                done = module.campaign(*limits, Path(folder), options.json)
        else:
            trials = partial(module.trials, device=options.device) if name == "kills" else module.trials
            done = soak(trials, options.count, options.seconds, options.seed)
        results[name] = (*done, time.monotonic() - started)
    print(f"\n{'class':<10}{'tried':>8}{'survived':>10}{'seconds':>10}")
    for name, (tried, survived, seconds) in results.items():
        print(f"{name:<10}{tried:>8}{survived:>10}{seconds:>10.0f}")
    sys.exit(any(survived < tried for tried, survived, _ in results.values()))


if __name__ == "__main__":
    main()
