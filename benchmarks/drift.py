"""How quickly methods follow when edges swap their data: accuracy and clusters before and after, round by round.

    python benchmarks/drift.py FILE [--methods NAME ...] [--seeds N ...]

In round 31 of 60, 8 of the 20 edges of ``planted`` take over the data of others of them. A run is one line of FILE, and
one that is there is not run again.
"""

import argparse
import json
from itertools import product
from pathlib import Path
from typing import Any

import fedbac
from fedbac.config.changes import Change
from fedbac_paper import drift
from fedbac_paper.benchmark import agreement
from fedbac_paper.clocks import read

GROUPS = 4
CHANGE = Change(round=drift.ROUND, share=0.4)
METHODS = (
    "fed-bac",
    "fedfork",
    "ifca-edges",
    "cfl-edges",
    "fl-hc-edges",
    "feddrift-edges",
    "fedper-edges",
    "hierfavg",
    "local",
)


def followed(method: str, seed: int) -> dict[str, Any]:
    """Return by round the accuracy, and how well clusters agree with the groups that edges' data are of."""
    settings = {"task.changes": [CHANGE.model_dump()], "evaluation.global_every": drift.ROUNDS}
    if method.startswith("fed-bac"):
        settings["method.clustering.period"] = 5
    run = fedbac.run(
        method, "planted", rounds=drift.ROUNDS, seed=seed, settings=settings, device="cpu", workers=1, progress=False
    )
    task = fedbac.Experiment.model_validate(run.config["experiment"]).task
    groups = [[m % GROUPS for m in task.held(seed, t).test_M.tolist()] for t in range(1, drift.ROUNDS + 1)]
    return {
        "accuracy": [round(record["accuracy"], 4) for record in run.records],
        "agreement": [
            round(agreement(group, record["assignment"]), 3) for group, record in zip(groups, run.records, strict=True)
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    asked = parser.parse_args()
    done = {(row["method"], row["seed"]) for row in read(asked.file)}
    for seed, method in product(asked.seeds, asked.methods):
        if (method, seed) not in done:
            row = {"method": method, "seed": seed} | followed(method, seed)
            with asked.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(method, seed, *(row["accuracy"][t - 1] for t in (30, 31, 35, 60)), flush=True)


if __name__ == "__main__":
    main()
