"""How a round's cost grows with the number of clients and edges, and how much of it is not local training.

    python benchmarks/scaling.py [--clients 100 1000 10000] [--edges 10] [--images 10] [--json FILE]

Every client holds a few random images of 1x28x28 and trains one epoch; all edges and all clients take part.
"""

import argparse
import json
import resource
import time
from pathlib import Path

import numpy as np

from fedbac import Dataset, Runtime, Shards, configure
from fedbac.engines import connect
from fedbac.federation import assemble
from fedbac.rounds import rounds, start
from fedbac.runs import Inputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000, 10000])
    parser.add_argument("--edges", type=int, default=10)
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--method", default="fed-bac")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    results = []
    print(f"{args.method}, {args.edges} edges, {args.images} images a client")
    print(f"{'clients':>8}{'round':>10}{'per client':>14}{'not training':>14}{'peak memory':>14}")
    for num_clients in args.clients:
        total = num_clients * args.images
        x = rng.integers(0, 256, (total, 1, 28, 28), dtype=np.uint8)
        data = Dataset("random", x, rng.integers(0, 10, total), x[:1000], rng.integers(0, 10, min(total, 1000)), 10)
        mine = np.arange(total).reshape(num_clients, args.images)
        per_edge = num_clients // args.edges
        shards = Shards(
            train=tuple(row[1:] for row in mine),
            validation=tuple(row[:1] for row in mine),
            test=tuple(np.array_split(np.arange(len(data.y_test)), args.edges)),
            clients=tuple(range(m * per_edge, (m + 1) * per_edge) for m in range(args.edges)),
        )
        inputs = Inputs(dataset=data, shards=shards)
        settings = ["task.training.epochs=1", "method.clustering.period=1"]
        experiment = configure(args.method, num_rounds=2, settings=settings, inputs=inputs)
        federation = assemble(experiment, dataset=data, shards=shards)
        edges = connect(experiment, federation, Runtime())
        clock = {"local": 0.0}
        trainer = edges.trainer
        for verb in ("train", "evaluate"):
            setattr(trainer, verb, _timed(getattr(trainer, verb), clock))
        seconds = []
        for record, _ in rounds(
            experiment, federation.sites, edges, start(experiment, federation.build, federation.sites)
        ):
            seconds.append(record["seconds"])
        edges.close()
        row = {
            "clients": num_clients,
            "seconds_per_round": float(np.mean(seconds)),
            "ms_per_client": 1e3 * float(np.mean(seconds)) / num_clients,
            "share_not_training": 1 - clock["local"] / sum(seconds),
            "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        results.append(row)
        print(
            f"{num_clients:>8}{row['seconds_per_round']:>9.2f}s{row['ms_per_client']:>12.2f}ms"
            f"{100 * row['share_not_training']:>12.1f} %{row['peak_memory_mib']:>10.0f} MiB"
        )
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


def _timed(work, clock):
    def timed(*words):
        began = time.perf_counter()
        answer = work(*words)
        clock["local"] += time.perf_counter() - began
        return answer

    return timed


if __name__ == "__main__":
    main()
