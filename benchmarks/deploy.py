"""What a federation of processes on this machine costs: time, bytes on its links against the ledger, and memory.

    python benchmarks/deploy.py [--edges 4] [--clients 8] [--rounds 20] [--json results/deploy/bench.json]

Memory is that of one process in MiB: all of it (RSS), and its share of what it has in common with others (PSS). A
client at work is two processes, of which the one that trains is ended after some seconds without work.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from deploying.records import Watch
from deploying.sites import made, whole_memory

from fedbac.deploy.roles.status import read_status
from fedbac.deploy.settings import CLOUD, DeploySettings
from fedbac.deploy.trial import Trial
from fedbac.local import describe
from fedbac.runs.configure import configure

IDLE = 60.0
"""Seconds without work after which a client frees its memory for training."""
PATIENCE = 1800.0
CARRIED = {"client": {"down": "fit", "up": "update"}, "cloud": {"down": "train", "up": "trained"}}
"""The messages that carry networks for training."""
AROUND = 4096
"""Bytes that a message may have beside networks."""


def measure(trial: Trial) -> dict[str, Any]:
    """Run a federation to its end and return what it cost."""
    began = time.time()
    at_work: dict[str, dict[str, float]] = {}
    with trial.running():
        watch = Watch(trial.folder)
        while trial.processes[CLOUD].poll() is None and time.time() - began < PATIENCE:
            if watch.records:
                for name, process in trial.processes.items():
                    found = whole_memory(process.pid)
                    if found["rss"] > at_work.get(name, found)["rss"] or name not in at_work:
                        at_work[name] = found
            time.sleep(0.5)
        time.sleep(IDLE + 5)
        at_rest = {name: whole_memory(process.pid) for name, process in trial.processes.items() if name != CLOUD}
        watch.stop()
    if trial.processes[CLOUD].returncode:
        raise SystemExit(f"the cloud ended: {watch.log[-500:].decode(errors='replace')}")
    seconds = [record["seconds"] for record in watch.records]
    return {
        "rounds": len(seconds),
        "cold_start": watch.seen[0] - began,
        "median_round": statistics.median(seconds[1:]),
        "rounds_a_second": (len(seconds) - 1) / (watch.seen[-1] - watch.seen[0]),
        "memory": {"at work": by_role(trial, at_work), "at rest": by_role(trial, at_rest)},
        "bytes": held_together(trial, watch.records),
    }


def by_role(trial: Trial, found: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return the largest site of every role."""
    roles: dict[str, dict[str, float]] = {}
    for name, mib in found.items():
        best = roles.setdefault(trial.sites[name].role, mib)
        if mib["rss"] > best["rss"]:
            roles[trial.sites[name].role] = mib
    return roles


def held_together(trial: Trial, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, for every tier and direction, what the ledger counts for training and what links carried."""
    carried_by = {
        name: read_status(trial.kits / name, trial.state(name))["traffic"]
        for name, site in trial.sites.items()
        if site.role != "client"
    }
    clouds = [carried_by.pop(CLOUD)]
    edges = list(carried_by.values())
    rows = []
    for tier, parents in (("client", edges), ("cloud", clouds)):
        messages, carried = Counter[str](), Counter[str]()
        for traffic in parents:
            messages.update({kind: counts[0] for kind, counts in traffic.items()})
            carried.update({kind: counts[1] for kind, counts in traffic.items()})
        answered = messages[CARRIED[tier]["up"]]
        for direction, kind in CARRIED[tier].items():
            ledger = sum(record["bytes"][tier][direction]["train"] for record in records)
            again = messages[kind] - answered  # to those who did not know yet what the run is about
            once = carried[kind] * answered / messages[kind]
            ratio = once / ledger
            if not 0 <= once - ledger <= AROUND * answered:
                raise SystemExit(f"{tier} {direction}: the ledger says {ledger:,} bytes, and links carried {once:,.0f}")
            rows.append(
                {"tier": tier, "direction": direction, "messages": messages[kind], "again": again, "ledger": ledger}
                | {"carried": carried[kind], "ratio": ratio}
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="fed-bac")
    parser.add_argument("--edges", type=int, default=4)
    parser.add_argument("--clients", type=int, default=8, help="of every edge")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sizes = [f"task.num_edges={options.edges}", f"task.clients_per_edge={options.clients}"]
    looks = ["method.clustering.period=20"] if options.method == "fed-bac" else []
    experiment = configure(options.method, rounds=options.rounds, settings=[*sizes, *looks])
    with tempfile.TemporaryDirectory(prefix="federation-") as folder:
        trial = made(Path(folder), experiment, DeploySettings(deadline=300), ["--idle", str(IDLE)])
        found = measure(trial)
    asked = {"method": options.method, "edges": options.edges, "clients": options.clients}
    text = json.dumps({"machine": describe(torch.device("cpu")), **asked, **found}, indent=1)
    print(text)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
