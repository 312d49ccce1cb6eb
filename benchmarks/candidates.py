"""What is lost if an edge measures some candidate clusters instead of all.

    python benchmarks/candidates.py [--methods fed-bac fed-cam-edges] [--seeds 0 1 2] [--set PATH=VALUE]
                                    [--json results/performance/candidates.json]

Every edge may have a cluster of its own, and looks every 4 rounds. It measures its own cluster and others drawn at
random, in all 2, 3 or 5; or all clusters. The task is ``demo`` with less data, so that a run takes half a minute.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import fedbac

SMALL = ("task.data_fraction=0.4", "task.clients_per_edge=2")
LOOKS = ("method.clustering.period=4", "method.clustering.num_clusters=null")
CANDIDATES = (None, 2, 3, 5)


def play(method: str, candidates: int | None, seed: int, settings: list[str]) -> dict[str, Any]:
    """Return how one run went."""
    chosen = f"method.clustering.candidates={'null' if candidates is None else candidates}"
    began = time.perf_counter()
    run = fedbac.run(method, "demo", seed=seed, settings=[*SMALL, *LOOKS, *settings, chosen], workers=1)
    summary = run.summary
    return {
        "method": method,
        "candidates": candidates,
        "seed": seed,
        "accuracy": summary["accuracy"],
        "edge_min": summary["edge_min"],
        "moves": summary["moves"],
        "clusters": summary["active_clusters"],
        "cloud_evaluate": summary["bytes"]["cloud"]["down"]["evaluate"],
        "client_evaluate": summary["bytes"]["client"]["down"]["evaluate"],
        "bytes": summary["bytes_total"],
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["fed-bac", "fed-cam-edges"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--json", type=Path, default=Path("results/performance/candidates.json"))
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in args.seeds:
        for method in args.methods:
            for candidates in CANDIDATES:
                rows.append(play(method, candidates, seed, args.settings))
                print(json.dumps(rows[-1]), flush=True)
                found = {"settings": [*SMALL, *LOOKS, *args.settings], "runs": rows}
                args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
