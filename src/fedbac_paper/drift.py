"""For docs/drift.md: what benchmarks/drift.py found."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from fedbac_paper import tables
from fedbac_paper.clocks import read

ROUND, ROUNDS = 31, 60
"""When edges swap data, and how long runs are."""
BEFORE = slice(ROUND - 6, ROUND - 1)
SHOWN = (ROUND - 1, ROUND + 1, ROUND + 9, ROUNDS)
"""Rounds in which clusters are looked at."""
WITHIN = 0.01


def regained(accuracy_T: list[float]) -> int | None:
    """Return how many rounds after the change the accuracy is within a point of the mean of five rounds before; None if
    it never is."""
    level = np.mean(accuracy_T[BEFORE]) - WITHIN
    return next((t for t, one in enumerate(accuracy_T[ROUND - 1 :]) if one >= level), None)


def table(file: Path) -> str:
    """Return by method the accuracy around the change, the rounds to regain it, and how well clusters fit the data."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in read(file):
        found[row["method"]].append(row)
    lines = []
    for method, rows in found.items():
        before = np.mean([row["accuracy"][BEFORE] for row in rows])
        at, end = (np.mean([row["accuracy"][t - 1] for row in rows]) for t in (ROUND, ROUNDS))
        rounds = [regained(row["accuracy"]) for row in rows]
        fit = [np.mean([row["agreement"][t - 1] for row in rows]) for t in SHOWN]
        lines.append(
            (
                f"`{method}`",
                *(f"{100 * one:.1f}" for one in (before, at, end)),
                " / ".join(tables.NONE if one is None else str(one) for one in rounds),
                " / ".join(f"{one:.2f}" for one in fit) if any(fit) else tables.NONE,
            )
        )
    head = (
        "method",
        "before",
        f"round {ROUND}",
        f"round {ROUNDS}",
        "rounds to regain: seeds 0, 1, 2",
        f"clusters fit, rounds {', '.join(map(str, SHOWN))}",
    )
    return f"\n{tables.table(head, lines)}\n\n"
