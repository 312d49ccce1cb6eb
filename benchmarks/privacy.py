"""Accuracy against epsilon: what privacy of clients costs, by how many they are.

    python benchmarks/privacy.py run FILE [--clients 100 1000 10000] [--epsilons 1 4 16] [--seeds 0 1] [--limit SECONDS]
    python benchmarks/privacy.py table FILE

A run is one line of FILE, and one that is there is not run again, so a pass may be stopped and continued. No run starts
after ``--limit`` seconds. All hold the same embedded images, so of 10,000 clients each holds one or none. ``table``
prints the mean over seeds of the accuracy after the last round.
"""

import argparse
import json
import logging
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedbac_paper.privacy import table

METHODS = ("fedavg", "hierfavg", "fl-hc-edges")
"""Without edges, with edges, and with clusters of edges that are found from their noised averages."""
ROUNDS, EDGES = 10, 10
CLIPS = {100: 0.5, 1000: 0.5, 10_000: 4.0}


def play(method: str, clients: int, epsilon: float | None, seed: int) -> dict[str, Any]:
    """Return the line of a run."""
    import fedbac
    from fedbac.data import load

    settings = [
        f"task.num_edges={EDGES}", f"task.clients_per_edge={clients // EDGES}", f"task.rounds={ROUNDS}",
        "task.network={kind: mlp, hidden: []}",
        "task.training={epochs: 2, batch_size: 8, learning_rate: 0.05, momentum: 0}",
        f"evaluation.global_every={ROUNDS}", "method.selection={kind: random, fraction: 1.0}",
    ]  # fmt: skip
    if method == "fl-hc-edges":
        settings += ["method.clustering.warmup=4", "method.clustering.num_clusters=3"]
    if epsilon is not None:
        settings += [f"method.privacy={{clip: {CLIPS[clients]}, epsilon: {epsilon}, delta: 1.0e-5}}"]
    began, data = time.perf_counter(), load("fashion-mnist-mini")
    run = fedbac.run(
        method, "fashion-mnist-mini", seed=seed, settings=settings, device="cpu", workers=1, dataset=data,
        shards=dealt(data, clients, seed),
    )  # fmt: skip
    job = {"method": method, "clients": clients, "epsilon": epsilon, "seed": seed}
    accuracies = [round(record["accuracy"], 4) for record in run.records]
    return job | {
        "accuracy": accuracies,
        "worst": run.records[-1]["accuracy_min"],
        "seconds": time.perf_counter() - began,
    }


def dealt(data: Any, clients: int, seed: int) -> Any:
    """Return ten edges, alike for any number of clients, and the images of each in turn to its clients."""
    from fedbac import Partition, Shards
    from fedbac.data import partition

    edges = partition(*data.dealt_by, (1,) * EDGES, Partition(dirichlet_server=1.0, min_edge_test=10), seed)
    each = clients // EDGES
    train = [piece for mine in edges.train for piece in np.array_split(mine, each)]
    ranges = tuple(range(edge * each, (edge + 1) * each) for edge in range(EDGES))
    return Shards(tuple(train), tuple(mine[:0] for mine in train), edges.test, ranges)


def done(file: Path) -> list[dict[str, Any]]:
    """Return the lines that are there."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def run(file: Path, clients: list[int], epsilons: list[float], seeds: list[int], limit: float) -> None:
    """Play what is missing, small federations first."""
    until, known = time.monotonic() + limit, {key(line) for line in done(file)}
    file.parent.mkdir(parents=True, exist_ok=True)
    for count in clients:
        for seed in seeds:
            for method in METHODS:
                for epsilon in (*epsilons, None):
                    if (method, count, epsilon, seed) in known or time.monotonic() > until:
                        continue
                    line = play(method, count, epsilon, seed)
                    with file.open("a") as to:
                        to.write(json.dumps(line) + "\n")
                    print(method, count, epsilon, seed, line["accuracy"][-1], round(line["seconds"], 1), flush=True)


def key(line: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a line is of."""
    return line["method"], line["clients"], line["epsilon"], line["seed"]


def main() -> None:
    """Run or print."""
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run", "table"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 4.0, 16.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--limit", type=float, default=1e9)
    asked = parser.parse_args()
    if asked.action == "run":
        run(asked.file, asked.clients, asked.epsilons, asked.seeds, asked.limit)
    else:
        print(table(asked.file))


if __name__ == "__main__":
    main()
