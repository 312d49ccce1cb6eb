"""Made-up runs in which there is something to see in every figure of the page."""

from dataclasses import replace

import numpy as np

from fedbac.runs.store import StoredRun
from tests.made_up_runs import fake

EDGES, CLIENTS, ROUNDS = 5, 10, 12


def rich(name: str = "fed-bac", seed: int = 0) -> StoredRun:
    """Return a run whose edges merge in round 7, with gaps, beliefs, a class mix and simulated time."""
    run = fake(name, seed=seed, edges=EDGES, rounds=ROUNDS)
    rng = np.random.default_rng(seed)
    records = [
        {
            **record,
            "assignment": list(range(EDGES)) if record["round"] < 7 else [0, 0, 2, 2, 4],
            "selected": [sorted((CLIENTS * m + rng.permutation(CLIENTS)[:8]).tolist()) for m in range(EDGES)],
            "beliefs": rng.uniform(0.2, 0.9, (EDGES, CLIENTS)).round(4).tolist(),
            "simulated_seconds": 90.0,
            "gaps": GAPS if record["round"] == 6 else None,
        }
        for record in run.records
    ]
    mix = [" ".join(map(str, (100 * rng.dirichlet([0.5] * 10)).astype(int))) for _ in range(EDGES)]
    return replace(run, records=records, config={**run.config, "classes_per_edge": mix}, summary={})


def rich_runs() -> list[StoredRun]:
    """Return two methods with two seeds each, and one that has nothing but accuracies."""
    return [rich(name, seed) for name in ("fed-bac", "fedbac-plus") for seed in (0, 1)] + [fake("hierfavg")]


GAPS = {
    "clusters": list(range(EDGES)),
    "gap": [[0.0 if a == b else 0.1 if a // 2 == b // 2 else 0.8 for b in range(EDGES)] for a in range(EDGES)],
    "limit": 0.21,
}
