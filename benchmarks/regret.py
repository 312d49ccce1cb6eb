"""The regret of Fed-BAC's bandits against the best fixed assignment, or clients, in hindsight.

    python benchmarks/regret.py [--seeds 0 1 2] [--parts clusters clients]

Four edges of two groups can be put into clusters in 15 ways. Each is played from the first round to the last, as
Fed-BAC with labels that stay; beside them LinUCB, and labels drawn anew at every look. Every run keeps the loss of
every edge with every cluster's network at every look, and so the reward (Eq. 9) of every arm. ``fedbac_paper.regret``
says what becomes of them.

Thompson sampling picks four of five clients, so an edge has five fixed choices. Edges train alone, without a shared
network, so that five runs play every choice of every edge. A run that is in its file is not played again.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
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
from fedbac.core.settings import BoolArray, FloatArray, IntArray
from fedbac.selection import Thompson
from fedbac.selection.bandit import ThompsonState
from fedbac_paper.regret import ALL, BANDIT, CLIENTS, DRAWN, KEPT, SOUND, THOMPSON, WRONG

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
CHOICES = 5
"""Clients of an edge where they are selected."""
LAST = 10
"""Rounds over which the accuracy on test data is a mean."""
PICKING = f"task.clients_per_edge={CHOICES}"
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


class ToldThompson(Thompson):
    """Thompson sampling that tells, instead of its beliefs, the accuracy whose increase is its reward."""

    kind: Literal["thompson_told"] = "thompson_told"  # type: ignore[assignment]

    def beliefs(self, state: ThompsonState) -> FloatArray:
        """Return it once for every client."""
        return np.full(state.alpha_N.size, state.accuracy[0])


class LeavesOut(ToldThompson):
    """Always all clients of an edge but one."""

    kind: Literal["leaves_out"] = "leaves_out"  # type: ignore[assignment]
    one: int

    def act(self, state: ThompsonState, evidence: Evidence, rng: Rng) -> BoolArray:
        """Leave it out."""
        mask_N: BoolArray = np.arange(state.alpha_N.size) != self.one
        return mask_N


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


def pick(name: str, selection: str, seed: int) -> dict[str, Any]:
    """Return how one run with a way of selecting clients went, by edge."""
    settings = [*TASK, PICKING, f"method.selection={{{selection}}}"]
    settings += ["task.noise={clients: 0.2}"] if name.startswith(WRONG) else []
    run = fedbac.run("local", "planted", seed=seed, settings=settings, workers=1, progress=False)
    last = run.records[-LAST:]
    return {
        "labels": name,
        "seed": seed,
        "reached": [round(beliefs[0], 5) for beliefs in run.records[-1]["beliefs"]],
        "accuracy": np.mean([record["accuracy_per_edge"] for record in last], axis=0).round(5).tolist(),
    }


def main() -> None:
    """Play what is not in the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--parts", nargs="+", default=["clusters", "clients"], choices=["clusters", "clients"])
    options = parser.parse_args()
    for kind in (Told, Assigned, Drawn):
        fedbac.CLUSTERING.register(kind)
    for picked in (ToldThompson, LeavesOut):
        fedbac.SELECTION.register(picked)
    torch.set_num_threads(1)
    if "clusters" in options.parts:
        ways = {BANDIT: "kind: linucb_told", DRAWN: "kind: drawn"}
        ways |= {"".join(map(str, one)): f"kind: assigned, labels: {list(one)}" for one in assignments(EDGES)}
        fill(KEPT, options.seeds, ways, play)
    if "clients" in options.parts:
        chosen = {THOMPSON: "kind: thompson_told", ALL: "kind: thompson_told, fraction: 1.0"}
        chosen |= {f"without {one}": f"kind: leaves_out, one: {one}" for one in range(CHOICES)}
        chosen |= {DRAWN: "kind: thompson_told, warmup: 1000"}
        both = {f"{labels}, {name}": way for labels in (SOUND, WRONG) for name, way in chosen.items()}
        fill(CLIENTS, options.seeds, both, pick)


def fill(file: Path, seeds: list[int], ways: Mapping[str, str], run: Callable[[str, str, int], dict[str, Any]]) -> None:
    """Play each way on each seed that is not in a file."""
    rows = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    done = {(row["labels"], row["seed"]) for row in map(json.loads, rows)}
    for seed in seeds:
        for name, way in ways.items():
            if (name, seed) not in done:
                row = run(name, way, seed)
                with file.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(row) + "\n")
                print(f"{name:8} seed {seed}: {100 * np.mean(row['accuracy']):.1f}", flush=True)


if __name__ == "__main__":
    main()
