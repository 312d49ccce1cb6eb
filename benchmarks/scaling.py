"""How a round's cost grows with the number of clients and edges, and how much of it is not local work.

    python benchmarks/scaling.py [--clients 100 1000 10000] [--edges 10 100] [--json FILE]
    python benchmarks/scaling.py --clients 1000000 --edges 1000 --images 4 --rounds 1 --side 4 \\
        --network "{kind: mlp, hidden: [8]}" --methods hierfavg fed-bac --json results/performance/million.json

Every client holds a few random images of 1x28x28 and trains one epoch, so that little hides the rest. Edges are
assigned to clusters in every round, which is as often as a method can. Local work is what clients do: training, and
measuring the models that the policies ask about. The rest is selection, clustering (the policy itself) and aggregation
(at edges and cloud), and, as "other", orders, reports, the byte ledger and the round's record. Every row is measured in
a process of its own.
"""

import argparse
import json
import multiprocessing
import resource
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedbac import Dataset, Runtime, Shards, configure
from fedbac.core import aggregation, trees
from fedbac.engines import Simulator
from fedbac.federation import assemble
from fedbac.local import describe, make_trainer
from fedbac.rounds import cloud
from fedbac.rounds.start import start
from fedbac.runs.configure import Inputs

LOCAL = ("training", "measuring")
CENTRAL = ("selection", "clustering", "aggregation", "other")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000, 10000])
    parser.add_argument("--edges", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--clusters", type=int, default=10)
    parser.add_argument("--images", type=int, default=20, help="per client; a tenth of them for validation")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--side", type=int, default=28, help="of an image, in pixels")
    parser.add_argument("--network", default="lenet5")
    parser.add_argument("--period", type=int, default=1, help="rounds between assignments to clusters")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--methods", nargs="+", default=["fed-bac"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--memory", type=float, help="GiB for the clients that are trained at once")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    print(f"{args.clusters} clusters, {args.images} images a client, {args.epochs} epochs")
    titles = [
        "method",
        "clients",
        "edges",
        "s a round",
        "us per sample-step",
        *(f"{part} %" for part in (*LOCAL, *CENTRAL)),
    ]
    print("  ".join([*titles, "peak MiB", "chunk"]))
    results = []
    for method, num_edges, num_clients in product(args.methods, args.edges, args.clients):
        if num_clients < num_edges:
            continue
        with multiprocessing.get_context("spawn").Pool(1) as alone:
            row = alone.apply(measure, (method, num_clients, num_edges, args))
        results.append(row)
        cells = [method, num_clients, num_edges, f"{row['seconds_per_round']:.2f}", f"{row['us_per_sample_step']:.1f}"]
        cells += [f"{100 * row['share'][part]:.2f}" for part in (*LOCAL, *CENTRAL)]
        cells += [f"{row['peak_memory_mib']:.0f}", row["clients_at_once"]]
        widths = [len(title) for title in [*titles, "peak MiB", "chunk"]]
        print("  ".join(str(cell).rjust(width) for cell, width in zip(cells, widths, strict=True)), flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


def measure(method: str, num_clients: int, num_edges: int, args: argparse.Namespace) -> dict[str, Any]:
    """Play some rounds and return where the time went."""
    data, shards = federation(num_clients, num_edges, args.images, args.side)
    settings = [f"task.training.epochs={args.epochs}", f"task.network={args.network}"]
    if hasattr(configure(method, "demo").method.clustering, "period"):
        settings += [f"method.clustering.period={args.period}", f"method.clustering.num_clusters={args.clusters}"]
    inputs = Inputs(dataset=data, shards=shards)
    experiment = configure(method, rounds=args.rounds, settings=settings, inputs=inputs)
    parties = assemble(experiment, dataset=data, shards=shards)
    runtime = Runtime(device=args.device)
    trainer = make_trainer(parties.network, experiment.method.personalization, parties.examples, runtime)
    # On a GPU one thing after another, because what runs side by side has no share of its own.
    edges = Simulator(experiment, parties.sites, trainer, args.memory)
    clock = Clock()
    clock.watch("training", edges.trainer, "train")
    clock.watch("measuring", edges.trainer, "evaluate")
    for verb in ("act", "learn"):
        clock.watch("selection", type(experiment.method.selection), verb)
        clock.watch("clustering", type(experiment.method.clustering), verb)
    clock.watch("aggregation", aggregation.EdgeAverage, "add")
    clock.watch("aggregation", cloud, "average_by_owner")
    total, trained, sent = 0.0, 0, {}
    state = start(experiment, parties.build, parties.sites)
    state = replace(state, parts={part: trees.to(params, edges.device) for part, params in state.parts.items()})
    for record, _ in cloud.rounds(experiment, parties.sites, edges, state):
        total += record["seconds"]
        sent = record["bytes"]
        trained += sum(shards.train[client].size for edge in record["selected"] for client in edge)
    steps = trained * args.epochs * len(experiment.method.personalization.parts)
    on_gpu = edges.device.type == "cuda"
    peak = torch.cuda.max_memory_allocated() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    edges.close()
    clock.seconds["other"] = total - sum(clock.seconds.values())
    return {
        "method": method,
        "network": str(args.network),
        "side": args.side,
        "clients": num_clients,
        "edges": num_edges,
        "machine": describe(edges.device),
        "path": edges.path,
        "seconds_per_round": total / args.rounds,
        "us_per_sample_step": 1e6 * clock.seconds["training"] / steps,
        "share": {part: clock.seconds[part] / total for part in (*LOCAL, *CENTRAL)},
        "share_central": sum(clock.seconds[part] for part in CENTRAL) / total,
        "peak_memory_mib": peak / 2**20,
        "clients_at_once": edges.chunks.most,
        "images": args.images,
        "epochs": args.epochs,
        "clusters": args.clusters,
        "bytes_per_round": sent,
    }


def federation(num_clients: int, num_edges: int, images: int, side: int = 28) -> tuple[Dataset, Shards]:
    """Return random images, equally many for every client."""
    rng = np.random.default_rng(0)
    total = num_clients * images
    x, y = rng.integers(0, 256, (total, 1, side, side), dtype=np.uint8), rng.integers(0, 10, total)
    data = Dataset("random", x, y, x[:1000], y[:1000], 10)
    held = max(1, images // 10)
    shards = Shards(
        train=tuple(row[held:] for row in np.arange(total).reshape(num_clients, images)),
        validation=tuple(row[:held] for row in np.arange(total).reshape(num_clients, images)),
        test=tuple(np.array_split(np.arange(len(data.y_test)), num_edges)),
        clients=tuple(range(int(a[0]), int(a[-1]) + 1) for a in np.array_split(np.arange(num_clients), num_edges)),
    )
    return data, shards


class Clock:
    """Adds up the seconds that functions take, by what they are for."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys((*LOCAL, *CENTRAL), 0.0)

    def watch(self, purpose: str, owner: Any, name: str) -> None:
        """From now on count the time spent in a function of a module, a class or an object."""
        work = getattr(owner, name)

        def timed(*words: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return work(*words, **options)
            finally:
                self.seconds[purpose] += time.perf_counter() - began

        setattr(owner, name, timed)


if __name__ == "__main__":
    main()
