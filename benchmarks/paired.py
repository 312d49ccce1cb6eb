"""One row of an artefact less another, seed by seed: what docs/plus.md says of some seeds and pairs of rows.

    python benchmarks/paired.py beyond fedbac-plus "additive, frozen singletons" [--seeds 3 4 5] [--results results]

In points of accuracy, per task: the mean, its standard error, and the difference in each seed that both rows have.
"""

import argparse
from pathlib import Path

import numpy as np

from fedbac_paper import measures, results
from fedbac_paper.artefacts import ARTEFACTS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artefact", choices=ARTEFACTS)
    parser.add_argument("one")
    parser.add_argument("other")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--results", type=Path, default=Path("results"))
    args = parser.parse_args()
    found = results.read(args.artefact, args.results)
    if found is None:
        parser.error(f"{args.results} has no results of {args.artefact}")
    known = ARTEFACTS[args.artefact].variants
    for row in (args.one, args.other):
        if row not in known:
            parser.error(f"{args.artefact} has no row {row!r}; choose of {list(known)}")
    for task in ARTEFACTS[args.artefact].tasks:
        by_seed = measures.gap(found, task, args.one, args.other)
        gaps = [100 * gap for seed, gap in by_seed.items() if args.seeds is None or seed in args.seeds]
        mean = f"{np.mean(gaps):+.2f}" if gaps else "no seed that both have"
        error = f" ± {np.std(gaps, ddof=1) / len(gaps) ** 0.5:.2f}" if len(gaps) > 1 else ""
        print(f"{task:22}{mean}{error:8} ", *(f"{gap:+.2f}" for gap in gaps))


if __name__ == "__main__":
    main()
