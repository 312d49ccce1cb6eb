"""What benchmarks/adapters.py found, for docs/adapters.md."""

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from fedbac.data.natural import FAMILIES
from fedbac_paper import tables

NUMBERS = "adapters.csv"
Row = dict[str, Any]


def _runs(file: Path) -> dict[str, list[Row]]:
    """Return the runs of each method."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in json.loads(file.read_text(encoding="utf-8")):
        found[row["method"]].append(row)
    return found


def table(file: Path) -> str:
    """Return perplexity, next tokens told, and how well clusters fit families, by method."""

    def spread(rows: list[Row], number: Callable[[Row], float], digits: int) -> str:
        values = [number(row) for row in rows]
        return f"{mean(values):.{digits}f} ± {tables.std(values, scale=1, digits=digits)}"

    lines = []
    for method, rows in _runs(file).items():
        rand = [row["rand"] for row in rows if row["rand"] is not None]
        lines.append(
            (
                f"`{method}`",
                spread(rows, lambda row: mean(row["perplexity"].values()), 1),
                spread(rows, lambda row: max(row["perplexity"].values()), 0),
                spread(rows, lambda row: 100 * mean(row["accuracy"].values()), 1),
                spread(rows, lambda row: 100 * min(row["accuracy"].values()), 1),
                tables.fixed(mean(rand)) if rand else tables.NONE,
            )
        )
    head = ("method", "perplexity", "worst language", "next tokens right (%)", "worst language", "Rand index")
    seeds = min(len(rows) for rows in _runs(file).values())
    what = f"Means over all languages, and their standard deviation over {seeds} seeds:"
    return f"\n{what}\n\n{tables.table(head, lines)}\n\n"


def numbers(file: Path) -> list[list[str]]:
    """Return perplexity and next tokens told of every language, the means over seeds."""
    family = {code: name for name, codes in FAMILIES.items() for code in codes}
    head = ["method", "family", "language", "seeds", "perplexity", "next tokens right (%)"]
    rows = [head]
    for method, found in _runs(file).items():
        for code in sorted(family, key=lambda code: (family[code], code)):
            perplexity, accuracy = (mean(row[name][code] for row in found) for name in ("perplexity", "accuracy"))
            rows.append([method, family[code], code, str(len(found)), f"{perplexity:.1f}", f"{100 * accuracy:.1f}"])
    return rows
