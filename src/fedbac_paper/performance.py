"""What the benchmarks measured, in tables for docs/performance.md."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbac_paper.tables import NONE, table

Row = Mapping[str, Any]
PARTS = {
    "training": ("training",),
    "measuring": ("measuring",),
    "selection and clustering": ("selection", "clustering", "selection and clustering"),
    "aggregation": ("aggregation",),
    "other": ("other",),
}
"""Columns of the table, and what is added up in each; rows of an earlier table have but the sum of two."""


def rounds(folder: Path) -> str:
    """Return the table of single rounds, from the files that ``benchmarks/round.py --json`` wrote."""
    lines, before = [], ""
    for row in _read(folder / "rounds.json"):
        machine = str(row["machine"])
        lines.append(
            (
                machine if machine != before else "",
                f"{row['network']}, {str(row['shape']).replace('x', '×')}",
                str(row["precision"]),
                _number(row["loop_us_per_sample_step"]),
                _number(row["us_per_sample_step"]),
                _number(row["speedup_over_loop"]),
                f"`{row['path']}`",
            )
        )
        before = machine
    return f"\n{table(('machine', 'network', 'precision', 'plain loop', 'ours', 'speed-up', 'path'), lines)}\n\n"


def scaling(folder: Path) -> str:
    """Return how the cost grows with clients and edges, from the file that ``benchmarks/scaling.py --json`` wrote."""
    header = ("clients", "edges", "s a round", "µs per sample-step", *(f"{part} %" for part in PARTS), "peak MiB")
    return f"\n{table(header, [_scaled(row) for row in _read(folder / 'scaling.json')])}\n\n"


def _scaled(row: Row) -> tuple[str, ...]:
    shares = (f"{100 * sum(row['share'].get(name, 0) for name in names):.1f}" for names in PARTS.values())
    seconds, each = _number(row["seconds_per_round"]), _number(row["us_per_sample_step"])
    return f"{row['clients']:,}", f"{row['edges']:,}", seconds, each, *shares, f"{row['peak_memory_mib']:,.0f}"


def _number(value: float | None) -> str:
    """Return a number with three digits that count."""
    return NONE if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _read(file: Path) -> list[Row]:
    found: list[Row] = json.loads(file.read_text(encoding="utf-8"))
    return found
