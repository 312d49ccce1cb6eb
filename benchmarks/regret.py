"""The regret of Fed-BAC's cluster bandit against the best fixed assignment in hindsight.

    python benchmarks/regret.py [--seeds 0 1 2] [--file results/regret/planted.jsonl]

Four edges of two groups can be put into clusters in 15 ways. Each is played from the first round to the last, as
Fed-BAC with labels that stay; beside them LinUCB, and labels drawn anew at every look. Every run keeps the loss of
every edge with every cluster's network at every look, and so the reward (Eq. 9) of every arm. ``fedbac_paper.regret``
says what becomes of them. A run that is in the file is not played again.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

import fedbac
from fedbac.clustering import LinUCB
from fedbac.clustering.bandit import LinUCBState
from fedbac.core.policies import Assignment
from fedbac.core.queries import Evidence
from fedbac.core.rng import Rng
from fedbac.core.settings import IntArray
from fedbac_paper.regret import BANDIT, DRAWN, KEPT

EDGES, GROUPS, PERIOD = 4, 2, 3
TASK = (
    f"task.num_edges={EDGES}",
    "task.clients_per_edge=4",
    "task.data_fraction=0.1",
    "task.rounds=30",
    f"task.partition.edge_distributions={GROUPS}",
    "task.partition.dirichlet_server=0.2",
    "evaluation.global_every=1000",
)
LOOKS = f"period: {PERIOD}, tau_norm: {PERIOD}"


class Told(LinUCB):
    """LinUCB that tells all losses it sees."""

    kind: Literal["linucb_told"] = "linucb_told"  # type: ignore[assignment]

    def shown(self, state: LinUCBState, evidence: Evidence) -> Mapping[str, Any]:
        """Return the loss of every edge with every cluster's network."""
        return {"losses": evidence[self._losses].round(4).tolist()}


class Assigned(Told):
    """Labels that stay."""

    kind: Literal["assigned"] = "assigned"  # type: ignore[assignment]
    labels: tuple[int, ...]

    def start(self, num_members: int, rng: Rng) -> IntArray:
        """Begin with them."""
        return np.array(self.labels)

    def act(self, state: LinUCBState, evidence: Evidence, rng: Rng) -> tuple[LinUCBState, Assignment]:
        """Keep them."""
        return state, Assignment(evidence.labels)


class Drawn(Told):
    """Labels drawn anew at every look."""

    kind: Literal["drawn"] = "drawn"  # type: ignore[assignment]

    def act(self, state: LinUCBState, evidence: Evidence, rng: Rng) -> tuple[LinUCBState, Assignment]:
        """Draw them."""
        return state, Assignment(rng.integers(evidence[self._losses].shape[1], size=evidence.labels.size))


def assignments(edges: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways to put edges into clusters, whatever the clusters are called."""
    if not edges:
        yield ()
        return
    for before in assignments(edges - 1):
        for label in range(max(before, default=-1) + 2):
            yield (*before, label)


def play(name: str, clustering: str, seed: int) -> dict[str, Any]:
    """Return how one run went."""
    settings = [*TASK, f"method.clustering={{{clustering}, {LOOKS}}}"]
    run = fedbac.run("fed-bac", "planted", seed=seed, settings=settings, workers=1, progress=False)
    looks = [record for record in run.records if "losses" in record]
    return {
        "labels": name,
        "seed": seed,
        "accuracy": round(run.summary["accuracy"], 5),
        "edge_min": round(run.summary["edge_min"], 5),
        "looks": [{"round": one["round"], "held": one["assignment"], "losses": one["losses"]} for one in looks],
    }


def main() -> None:
    """Play what is not in the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--file", type=Path, default=KEPT)
    options = parser.parse_args()
    for kind in (Told, Assigned, Drawn):
        fedbac.CLUSTERING.register(kind)
    torch.set_num_threads(1)
    ways = {BANDIT: "kind: linucb_told", DRAWN: "kind: drawn"}
    ways |= {"".join(map(str, one)): f"kind: assigned, labels: {list(one)}" for one in assignments(EDGES)}
    rows = options.file.read_text(encoding="utf-8").splitlines() if options.file.exists() else []
    done = {(row["labels"], row["seed"]) for row in map(json.loads, rows)}
    for seed in options.seeds:
        for name, clustering in ways.items():
            if (name, seed) not in done:
                row = play(name, clustering, seed)
                with options.file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                print(f"{name:8} seed {seed}: {100 * row['accuracy']:.1f}", flush=True)


if __name__ == "__main__":
    main()
