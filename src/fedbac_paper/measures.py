"""Numbers of a result, by seed, that claims are about."""

from collections.abc import Callable

import numpy as np

from fedbac.runs.store import StoredRun
from fedbac_paper.results import Finding, Results

Number = Callable[[Finding], float]


def accuracy(finding: Finding) -> float:
    """The final distributed accuracy."""
    return finding.accuracy


def spread(finding: Finding) -> float:
    """The standard deviation over edges."""
    return finding.edge_std


def values(results: Results, task: str, variant: str, number: Number = accuracy) -> dict[int, float]:
    """Return a number of each seed of a cell."""
    return {seed: number(found) for seed, found in results.of(task, variant).items()}


def gap(results: Results, task: str, higher: str, lower: str, number: Number = accuracy) -> dict[int, float]:
    """Return by seed by how much one variant is above another."""
    return minus(values(results, task, higher, number), values(results, task, lower, number))


def minus(a: dict[int, float], b: dict[int, float]) -> dict[int, float]:
    """Return the difference in each seed that both have."""
    return {seed: a[seed] - b[seed] for seed in sorted(set(a) & set(b))}


def moves_by(found: Finding, round_: int) -> int | None:
    """Return the reassignments until a round, if the curve keeps it."""
    curve = found.curve
    return curve.moves[curve.round.index(round_)] if curve and round_ in curve.round else None


def edges_of_rounds(run: StoredRun) -> dict[str, float]:
    """Return worst edge and σ of each round, averaged, as files have them that were begun before decision 27."""
    tail = run.records[-int(run.config["experiment"]["evaluation"]["last_rounds"]) :]
    return {f"edge_{name}": float(np.mean([record[f"accuracy_{name}"] for record in tail])) for name in ("min", "std")}
