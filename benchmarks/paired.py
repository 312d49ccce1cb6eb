"""One row of an artefact less another, seed by seed: what docs/plus.md says of some seeds and pairs of rows.

    python benchmarks/paired.py results/beyond.json fedbac-plus "additive, frozen singletons" [--seeds 3 4 5]

In points of accuracy, per task: the mean, its standard error, and the difference in each seed that both rows have.
"""

import argparse
import json
from pathlib import Path

import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("one")
    parser.add_argument("other")
    parser.add_argument("--seeds", type=int, nargs="+")
    args = parser.parse_args()
    findings = json.loads(args.results.read_text())["findings"]
    known = sorted({finding["variant"] for finding in findings})
    for row in (args.one, args.other):
        if row not in known:
            parser.error(f"{args.results} has no row {row!r}; choose of {known}")
    accuracy = {(f["task"], f["variant"], f["seed"]): 100 * f["accuracy"] for f in findings}
    for task in dict.fromkeys(finding["task"] for finding in findings):
        seeds = sorted({seed for _, _, seed in accuracy} & set(args.seeds or range(1000)))
        pairs = [(accuracy.get((task, args.one, seed)), accuracy.get((task, args.other, seed))) for seed in seeds]
        differences = [one - other for one, other in pairs if one is not None and other is not None]
        if differences:
            error = np.std(differences, ddof=1) / len(differences) ** 0.5 if len(differences) > 1 else float("nan")
            each = " ".join(f"{difference:+.2f}" for difference in differences)
            print(f"{task:22}{np.mean(differences):+6.2f} ± {error:.2f}   {each}")


if __name__ == "__main__":
    main()
