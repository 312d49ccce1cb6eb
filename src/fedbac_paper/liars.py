"""What benchmarks/liars.py found, for docs/liars.md."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbac_paper.tables import NONE, fixed, table

SETTINGS = {
    "cifar10": "CIFAR-10, α = 0.5",
    "cifar10-severe": "CIFAR-10, α = 0.1",
    "fashion-mnist-mini": "Fashion-MNIST mini, small",
}
ATTACKS = {
    "none": "nobody lies",
    **{name: f"`{name}`" for name in ("label_flip", "sign_flip", "gaussian", "alie", "min_max")},
}
SHOWN = ("mean", "nnm+trimmed", "one-voice+median", "no-voice+trimmed-median-losses")
"""The rules in the table; the file has all."""
NUMBERS = "liars.csv"
Found = Mapping[tuple[str, str, str], Mapping[str, Any]]


def tables(folder: Path) -> str:
    """Return by setting and rule the accuracies on seed 0, and the largest loss to a lie; "–" was not run."""
    found, rows = _found(folder), []
    for setting, title in SETTINGS.items():
        honest = found[setting, "mean", "none"]["accuracy"]
        for rule in (rule for rule in SHOWN if (setting, rule, "none") in found):
            reached = [
                found[setting, rule, lie]["accuracy"] if (setting, rule, lie) in found else None for lie in ATTACKS
            ]
            lost = max(honest - one for one in reached if one is not None)
            told = [NONE if one is None else fixed(100 * one, 1) for one in reached]
            rows.append([f"{title}: {rule}", *told, fixed(100 * lost, 1)])
    return f"\n{table(['', *ATTACKS.values(), 'largest loss'], rows)}\n\n"


def numbers(folder: Path) -> list[list[str]]:
    """Return the accuracies of the tables, and those at the worst edge."""
    shares = {where: (row["accuracy"], row["edge_min"]) for where, row in _found(folder).items()}
    rows = [
        [SETTINGS[where[0]], *where[1:], *(fixed(100 * share, 1) for share in both)] for where, both in shares.items()
    ]
    return [["setting", "rule", "attack", "accuracy (%)", "worst edge (%)"], *rows]


def _found(folder: Path) -> Found:
    """Return the runs on seed 0 by setting, rule and attack."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jsonl"))]
    rows = [json.loads(line) for text in texts for line in text.splitlines()]
    return {(row["setting"], row["rule"], row["attack"]): row for row in rows if row["seed"] == 0}
