"""Methods on data whose tiers are natural: accuracy, worst edge, clusters and bytes.

    python benchmarks/natural.py FILE.npz [--methods NAME ...] [--seeds 0 1 2] [--rounds 60] [--device auto]
                                 [--out results/natural.jsonl]

``tools/make_natural.py`` writes the files. The data are split once and for all, so seeds differ in the initial networks
and the order of batches only. Each run is a line of JSON; one that is in the file is not run again.
"""

import argparse
import json
import sys
from pathlib import Path

import fedbac
from fedbac_paper import natural
from fedbac_paper.measures import edges_of_rounds

METHODS = ("hierfavg", "local", "fedavg-ft", "fedper", "ditto-edges", "fedrod", "fedbac-plus", "fedbac-plus-2")


def main() -> None:
    """Run them one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("results/natural.jsonl"))
    options = parser.parse_args()
    data, name = natural.read(options.file), options.file.stem
    lines = options.out.read_text(encoding="utf-8").splitlines() if options.out.exists() else []
    done = {(row["data"], row["method"], row["seed"]) for row in map(json.loads, lines)}
    for seed in options.seeds:
        for method in options.methods:
            if (name, method, seed) in done:
                continue
            run = fedbac.run(
                method, data.task, dataset=data.dataset, shards=data.shards, network=data.network, seed=seed,
                rounds=options.rounds, device=options.device, progress=False,
                settings=["evaluation.global_every=1000"],  # nobody reads that accuracy here
            )  # fmt: skip
            told = run.summary | edges_of_rounds(run)
            found = {key: told[key] for key in ("accuracy", "edge_min", "active_clusters", "bytes_total")}
            line = json.dumps({"data": name, "method": method, "seed": seed, "rounds": len(run.records), **found})
            with options.out.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
