"""What tf32 and bf16 change in accuracy on a GPU.

    python benchmarks/precision.py [--seeds 0 1 2] [--rounds 40] [--data FOLDER]
                                   [--json results/performance/precision.json]

A ResNet-8 with group normalization is trained by HierFAVG on a fifth of Fashion-MNIST: 10 edges, 100 clients, 2 epochs
a round. Runs of one seed see the same data in the same order and differ in the precision of products alone.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from networks import NETWORKS
from torch import device, nn

import fedbac
from fedbac.local import describe

METHOD, TASK, NETWORK, SHAPE = "hierfavg", "fashion-mnist", "resnet8", (1, 28, 28)
SETTINGS = ("task.data_fraction=0.2", "task.training.epochs=2")
PRECISIONS = ("float32", "tf32", "bf16")


def network() -> nn.Module:
    return NETWORKS[NETWORK](SHAPE, 10)


def play(precision: str, seed: int, rounds: int, folder: Path | None) -> dict[str, Any]:
    """Return how one run went."""
    run = fedbac.run(
        METHOD,
        TASK,
        seed=seed,
        rounds=rounds,
        settings=SETTINGS,
        network=network,
        device="cuda",
        precision=precision,
        data_folder=folder,
    )
    return {
        "method": METHOD,
        "task": TASK,
        "network": NETWORK,
        "precision": precision,
        "seed": seed,
        "rounds": rounds,
        "accuracy": run.summary["accuracy"],
        "loss": run.records[-1]["loss"],
        "path": run.config["trainer"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--json", type=Path, default=Path("results/performance/precision.json"))
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in args.seeds:
        for precision in PRECISIONS:
            rows.append(play(precision, seed, args.rounds, args.data))
            print(json.dumps(rows[-1]), flush=True)
            found = {"machine": describe(device("cuda")), "settings": SETTINGS, "runs": rows}
            args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
