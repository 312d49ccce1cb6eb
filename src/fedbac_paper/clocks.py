"""For docs/clocks.md: what benchmarks/clocks.py found."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from fedbac_paper import tables

KEY = ("method", "clients", "clock", "seed")


def read(file: Path) -> list[dict[str, Any]]:
    """Return the runs of a file, none if there is no such file."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what names a run."""
    return tuple(row[name] for name in KEY)


def table(file: Path) -> str:
    """Return by clock, method and clients the simulated seconds to the target, one number a seed."""
    found: dict[str, dict[tuple[str, str], dict[int, float | None]]] = defaultdict(lambda: defaultdict(dict))
    for row in read(file):
        found[row["clock"]][row["method"], row["clients"]][row["seed"]] = row["seconds"]
    columns = list(dict.fromkeys(column for by_column in found.values() for column in by_column))
    lines = []
    for clock, by_column in found.items():
        cells = []
        for column in columns:
            seconds = [value for _, value in sorted(by_column[column].items())]
            missed = not seconds or None in seconds
            cells.append(tables.NONE if missed else " / ".join(f"{value:.0f}" for value in seconds))
            cells.append(tables.NONE if missed else f"{np.mean([value or 0.0 for value in seconds]):.0f}")
        lines.append([clock, *cells])
    head = ["an edge waits", *(word for m, c in columns for word in (f"`{m}`, {c}: seeds 0, 1, 2", "mean"))]
    return f"\n{tables.table(head, lines)}\n\n"
