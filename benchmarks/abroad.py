"""The data cards of natural tasks whose data are not in the package, with what the simple answers reach there.

fedbac data get insteval --to FOLDER; fedbac data get chem97 --to FOLDER
python benchmarks/abroad.py FOLDER [--seeds 0 1 2]
"""

import argparse
import json
from pathlib import Path

import torch

import fedbac
from fedbac_paper import benchmark, leaderboard
from fedbac_paper.confirmed import SIMPLE

KEPT = Path("results/natural/abroad.jsonl")


def main() -> None:
    """Write a line for every task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    torch.set_num_threads(1)
    asked = benchmark.protocol().settings
    lines = []
    for task in leaderboard.ABROAD:
        reached = {
            method: [
                fedbac.run(
                    method, task, seed=seed, settings=asked, data_folder=options.folder, workers=1, progress=False
                ).summary["accuracy"]
                for seed in options.seeds
            ]
            for method in SIMPLE
        }
        lines.append(json.dumps({"task": task, **leaderboard.sizes(task, options.folder), "accuracy": reached}))
        print(lines[-1], flush=True)
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    KEPT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
