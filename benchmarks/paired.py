"""One row of an artefact less another, seed by seed, for docs/plus.md and its history, decision 11.

    python benchmarks/paired.py beyond fedbac-plus "additive, frozen singletons" [--seeds 3 4 5] [--results results]

Per task, over the seeds that both rows have: the mean difference in points of accuracy, its standard error, the
difference in each seed, and the ratio of total bytes.
"""

import argparse
from pathlib import Path

import numpy as np

from fedbac_paper.artefacts import ARTEFACTS
from fedbac_paper.measures import gap
from fedbac_paper.results import read_results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artefact", choices=ARTEFACTS)
    parser.add_argument("one")
    parser.add_argument("other")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--results", type=Path, default=Path("results"))
    args = parser.parse_args()
    found = read_results(args.artefact, args.results)
    if found is None:
        parser.error(f"{args.results} has no results of {args.artefact}")
    known = ARTEFACTS[args.artefact].variants
    for row in (args.one, args.other):
        if row not in known:
            parser.error(f"{args.artefact} has no row {row!r}; choose of {list(known)}")
    for task in ARTEFACTS[args.artefact].tasks:
        by_seed = gap(found, task, args.one, args.other)
        seeds = [seed for seed in by_seed if args.seeds is None or seed in args.seeds]
        gaps = [100 * by_seed[seed] for seed in seeds]
        mean = f"{np.mean(gaps):+.2f}" if gaps else "no seed that both have"
        error = f" ± {np.std(gaps, ddof=1) / len(gaps) ** 0.5:.2f}" if len(gaps) > 1 else ""
        rows = [[found.of(task, row)[seed].bytes.everything for seed in seeds] for row in (args.one, args.other)]
        ratio = f" bytes × {np.mean(rows[0]) / np.mean(rows[1]):.2f}" if gaps else ""
        print(f"{task:22}{mean}{error:8} ", *(f"{one:+.2f}" for one in gaps), ratio)


if __name__ == "__main__":
    main()
