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
METHODS = {"fedfork": "fedfork", "fed-bac": "Fed-BAC", "hierfavg": "HierFAVG"}
Found = Mapping[tuple[str, str, str, str], Mapping[str, Any]]


def tables(folder: Path) -> str:
    """Return by setting and rule the accuracies on seed 0, and the largest loss to a lie; "–" was not run."""
    found, rows = _found(folder), []
    for setting, title in SETTINGS.items():
        for method in (method for method in METHODS if (setting, method, "mean", "none") in found):
            honest = found[setting, method, "mean", "none"]["accuracy"]
            for rule in (rule for rule in SHOWN if (setting, method, rule, "none") in found):
                ran = [found.get((setting, method, rule, lie)) for lie in ATTACKS]
                reached = [NONE if row is None else fixed(100 * row["accuracy"], 1) for row in ran]
                lost = [honest - row["accuracy"] for row in ran[1:] if row is not None]
                worst = fixed(100 * max(lost), 1) if lost else NONE
                rows.append([f"{title}, {METHODS[method]}: {rule}", *reached, worst])
    return f"\n{table(['', *ATTACKS.values(), 'largest loss'], rows)}\n\n"


def numbers(folder: Path) -> list[list[str]]:
    """Return the accuracies of the tables, and those at the worst edge."""
    rows = [
        [SETTINGS[where[0]], *where[1:], *(fixed(100 * row[name], 1) for name in ("accuracy", "edge_min"))]
        for where, row in _found(folder).items()
    ]
    return [["setting", "method", "rule", "attack", "accuracy (%)", "worst edge (%)"], *rows]


def _found(folder: Path) -> Found:
    """Return the runs on seed 0 by setting, method, rule and attack."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jsonl"))]
    rows = [json.loads(line) for text in texts for line in text.splitlines()]
    return {(row["setting"], row["method"], row["rule"], row["attack"]): row for row in rows if row["seed"] == 0}
