"""One row of an artefact less another, seed by seed, for docs/fedfork-why.md and its history, decision 11.

    python benchmarks/paired.py beyond fedbac-plus "additive, frozen singletons" [--seeds 3 4 5] [--results results]

Per task, over the seeds that both rows have: the mean difference in points of accuracy, half its 95 % interval, the
difference in each seed, and the ratio of total bytes.

    python benchmarks/paired.py costs [NAME ...] [--again] [--results results]

Presets of others as they are less as their papers have them, for the pages of methods; a run that is known is not
played again, unless ``--again`` says so.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from benchmarks import originals

import fedbac
from fedbac import statistics
from fedbac_paper import costs
from fedbac_paper.artefacts import ARTEFACTS
from fedbac_paper.measures import gap
from fedbac_paper.results import read_results


def measure(methods: list[str], again: bool, folder: Path) -> None:
    """Play what is not known yet, all of a seed before the next."""
    originals.register()
    file, found = folder / "methods" / costs.KEPT.name, costs.read(folder / "methods")
    found["settings"] = list(costs.SMALL)
    chosen = set(methods or costs.priced())
    if again:
        found["runs"] = {key: value for key, value in found["runs"].items() if key.split()[0] not in chosen}
    for seed in (*costs.SEEDS, *costs.MORE):
        for method, settings, task in costs.needed(found, seed):
            key = costs.key(method, settings, task, seed)
            if key in found["runs"] or method not in chosen:
                continue
            whole = costs.settings(method, settings)
            run = fedbac.run(method, task, seed=seed, settings=whole, workers=1, progress=False)
            found["runs"][key] = round(run.summary["accuracy"], 5)
            print(key, found["runs"][key], flush=True)
            file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    if sys.argv[1:2] == ["costs"]:
        parser = argparse.ArgumentParser()
        parser.add_argument("methods", nargs="*", choices=[*costs.priced(), []])
        parser.add_argument("--again", action="store_true")
        parser.add_argument("--results", type=Path, default=Path("results"))
        given = parser.parse_args(sys.argv[2:])
        measure(given.methods, given.again, given.results)
        return
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
        told = statistics.gap(gaps) if gaps else None
        mean = f"{told.mean:+.2f}" if told else "no seed that both have"
        error = f" ± {told.half:.2f}" if told and len(gaps) > 1 else ""
        rows = [[found.of(task, row)[seed].bytes.everything for seed in seeds] for row in (args.one, args.other)]
        ratio = f" bytes × {np.mean(rows[0]) / np.mean(rows[1]):.2f}" if gaps else ""
        print(f"{task:22}{mean}{error:8} ", *(f"{one:+.2f}" for one in gaps), ratio)


if __name__ == "__main__":
    main()
