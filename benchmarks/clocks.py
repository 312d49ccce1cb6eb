"""Simulated seconds to a target accuracy where three of ten clients are ten times as slow, by how long edges wait.

    python benchmarks/clocks.py run FILE [--methods NAME ...] [--clients alike different] [--clocks NAME ...]
    python benchmarks/clocks.py table FILE
    python benchmarks/clocks.py beliefs FILE

A run is one line of FILE, and one that is there is not run again. It stops when the mean accuracy of the last five
simulated seconds is at the target. Every way of waiting is tried at several values, so that none loses by a bad one.
``beliefs`` writes what Thompson sampling comes to expect of stragglers and of others, with and without its discount.
"""

import argparse
import json
from collections import deque
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import fedbac
from fedbac import Evidence, Thompson
from fedbac.core.rng import stream
from fedbac_paper import clocks

WINDOW, ROUNDS = 5.0, 3000
SETTINGS: dict[str, Any] = {
    "task.clients_per_edge": 10,
    "task.world.stragglers": 0.3,
    "method.selection.fraction": 0.5,
    "evaluation.global_every": ROUNDS,
}
CLIENTS = {"alike": (0.5, 0.65), "different": (0.1, 0.62)}
"""Concentration of the clients' classes, and the target."""
CLOCKS: dict[str, dict[str, Any]] = {
    "synchronous": {},
    **{f"deadline, {s} s": {"method.clock": {"kind": "deadline", "seconds": s}} for s in (0.5, 1.5, 3.0)},
    **{
        f"over-selection, {over}": {"method.clock": {"kind": "deadline", "seconds": 1e6, "over_selection": over}}
        for over in (1.4, 1.7, 2.0)
    },
    **{f"buffered, {b}": {"method.clock": {"kind": "buffered", "share": b}} for b in (0.2, 0.4, 0.6)},
    "buffered, 0.4, cloud too": {
        "method.clock": {"kind": "buffered", "share": 0.4},
        "method.cloud_clock": {"kind": "buffered", "share": 0.5},
    },
    "asynchronous": {"method.clock": "asynchronous"},
}


def reached(method: str, clients: str, clock: str, seed: int, give_up: float) -> dict[str, Any]:
    """Play until the target, or so many simulated seconds, and return how long it took."""
    concentration, target = CLIENTS[clients]
    settings = SETTINGS | {"task.partition.dirichlet_client": concentration} | CLOCKS[clock]
    playing = fedbac.play(method, task="devices", rounds=ROUNDS, seed=seed, settings=settings, device="cpu", workers=1)
    now, recent = 0.0, deque[tuple[float, float]]()
    for count, record in enumerate(playing, 1):
        now += record["simulated_seconds"]
        recent.append((now, record["accuracy"]))
        while recent[0][0] <= now - WINDOW:
            recent.popleft()
        if now >= WINDOW and np.mean([accuracy for _, accuracy in recent]) >= target:
            return {"seconds": now, "rounds": count}
        if now >= give_up:
            break
    return {"seconds": None, "rounds": count}


BELIEFS = {"synchronous": ("synchronous", True), "buffered": ("buffered", True), "no discount": ("buffered", False)}
"""How edges wait, and whether late rewards are discounted."""


def expected(seed: int, kind: str, discount: bool) -> dict[str, float]:
    """Return the mean belief of Thompson sampling in stragglers, and in others, after 40 rounds."""
    clock: dict[str, Any] = {"kind": kind} | ({"share": 0.4} if kind == "buffered" else {})
    settings: dict[str, Any] = {
        "task.world.stragglers": 0.3,
        "task.world.speed_spread": 0.5,
        "task.clients_per_edge": 5,
        "method.selection.fraction": 0.6,
        "method.clustering.period": 20,
        "method.clock": clock,
    }
    learn = Thompson.learn

    def undiscounted(policy: Thompson, state: Any, evidence: Evidence, mask_N: Any) -> Any:
        return learn(policy, state, replace(evidence, share_N=None), mask_N)

    with patch.object(Thompson, "learn", learn if discount else undiscounted):
        run = fedbac.run(
            "fed-bac", "planted", rounds=40, seed=seed, settings=settings, device="cpu", workers=1, progress=False
        )
    belief_C = np.array(run.records[-1]["beliefs"]).ravel()
    slow_C = np.array([stream(seed, "straggler", client).random() < 0.3 for client in range(belief_C.size)])
    return {"stragglers": float(belief_C[slow_C].mean()), "others": float(belief_C[~slow_C].mean())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table", "beliefs"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--methods", nargs="+", default=["hierfavg"])
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument("--clocks", nargs="+", default=list(CLOCKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--give-up", type=float, default=400.0, help="simulated seconds")
    asked = parser.parse_args()
    if asked.what == "table":
        print(clocks.table(asked.file))
        return
    if asked.what == "beliefs":
        rows = [
            {"waiting": name, "seed": seed} | expected(seed, *how)
            for name, how in BELIEFS.items()
            for seed in asked.seeds
        ]
        asked.file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return
    done = {clocks.key(row) for row in clocks.read(asked.file)}
    for key in product(asked.methods, asked.clients, asked.clocks, asked.seeds):
        if key in done:
            continue
        row = dict(zip(clocks.KEY, key, strict=True)) | reached(*key, asked.give_up)
        with asked.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(row, flush=True)


if __name__ == "__main__":
    main()
