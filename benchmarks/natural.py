"""Methods on data whose tiers are natural: accuracy, worst edge, clusters and bytes.

    python benchmarks/natural.py FILE.npz [--methods NAME ...] [--seeds 0 1 2] [--rounds 60] [--device auto]

``tools/make_natural.py`` writes the files. The data are split once and for all, so seeds differ in the initial networks
and the order of batches only. A line of JSON for each run.
"""

import argparse
import json
import sys
from pathlib import Path

import fedbac
from fedbac_paper import natural

METHODS = ("hierfavg", "local", "fedavg-ft", "fedper", "ditto-edges", "fedrod", "fedbac-plus", "fedbac-plus-2")


def main() -> None:
    """Run them one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    data = natural.read(options.file)
    for seed in options.seeds:
        for method in options.methods:
            run = fedbac.run(
                method, data.task, dataset=data.dataset, shards=data.shards, network=data.network, seed=seed,
                rounds=options.rounds, device=options.device, progress=False,
            )  # fmt: skip
            found = {name: run.summary[name] for name in ("accuracy", "edge_min", "active_clusters")}
            sys.stdout.write(json.dumps({"method": method, "seed": seed, **found}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
