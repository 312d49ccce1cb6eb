"""Seconds per round with all edges in one process on one core, on all cores, and with every edge an actor of Ray.

    python benchmarks/engines.py [--method fed-bac] [--edges 2 10] [--clients 20] [--rounds 10] [--json FILE]

The engines take turns, a round each, so that whatever else the machine does meets them all alike; speed-ups are medians
of the ratios between rounds of one turn. Their numbers must agree to the bit, or the run ends with an error. Data
are spread evenly, because edges of unequal size cannot keep all cores busy; starting Ray is not counted.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from fedbac import Runtime, configure
from fedbac.engines import connect
from fedbac.federation import assemble
from fedbac.local import num_cores
from fedbac.rounds.cloud import rounds
from fedbac.rounds.start import start

ENGINES = {
    "one process, one core": Runtime(device="cpu", workers=1),
    "one process, all cores": Runtime(device="cpu"),
    "ray, one core per edge": Runtime(device="cpu", engine="ray", address="local"),
}


def measure(method: str, num_edges: int, num_clients: int, num_rounds: int) -> list[dict[str, Any]]:
    settings = [f"task.num_edges={num_edges}", f"task.clients_per_edge={num_clients // num_edges}"]
    settings += ["task.partition.dirichlet_server=1000", "task.partition.dirichlet_client=1000"]
    experiment = configure(method, rounds=num_rounds + 1, settings=settings)
    federation = assemble(experiment)
    edges = [connect(experiment, federation, runtime) for runtime in ENGINES.values()]
    running = [
        rounds(experiment, federation.sites, e, start(experiment, federation.build, federation.sites)) for e in edges
    ]
    seconds = []
    for turn in zip(*running, strict=True):
        records = [dict(record) for record, _ in turn]
        seconds.append([record.pop("seconds") for record in records])
        if any(record != records[0] for record in records):
            sys.exit(f"round {records[0]['round']}: the engines disagree")
    for each in edges:
        each.close()
    seconds_TE = np.array(seconds[1:])  # the first round finds everything cold
    speedup_E = np.median(seconds_TE[:, :1] / seconds_TE, axis=0)
    return [
        {
            "edges": num_edges,
            "engine": name,
            "path": each.path,
            "seconds_per_round": float(median),
            "speedup": float(up),
        }
        for name, each, median, up in zip(ENGINES, edges, np.median(seconds_TE, axis=0), speedup_E, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="fed-bac")
    parser.add_argument("--edges", type=int, nargs="+", default=[2, 10])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = []
    print(f"{args.method}, {args.clients} clients, {num_cores()} cores, {args.rounds} rounds in turn")
    print(f"{'edges':>6}   {'engine':26}{'path':12}{'round':>10}{'speed-up':>10}")
    for num_edges in args.edges:
        for row in measure(args.method, num_edges, args.clients, args.rounds):
            results.append(row)
            print(
                f"{row['edges']:>6}   {row['engine']:26}{row['path']:12}"
                f"{row['seconds_per_round']:>9.3f}s{row['speedup']:>10.2f}",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
