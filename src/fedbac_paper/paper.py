"""The numbers that the paper printed; accuracies in percent, spreads in points."""

import itertools
import json
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

READINGS = ("paper-figures", "paper-text", "fed-bac")
"""Our readings of Fed-BAC: as the paper's figures show it, as its text says, and without its test data (C.21, C.29)."""

BASELINES = {"hierfavg": "HierFAVG", "ifca-paper": "IFCA"}
"""What the paper compares Fed-BAC with, and how it writes their names."""


@cache
def all_numbers() -> dict[str, Any]:
    """Return every printed number."""
    numbers: dict[str, Any] = json.loads(resources.files(__package__).joinpath("paper.json").read_text("utf-8"))
    return numbers


def printed_as(variant: str) -> str:
    """Return what the paper calls a variant: all readings of Fed-BAC are its one Fed-BAC."""
    return "fed-bac" if variant in READINGS else variant


def period_of(variant: str) -> int:
    """Return how many rounds lie between two decisions of a reading (C.21)."""
    return 1 if variant == "paper-figures" else 20


def look_up(table: str, *keys: str) -> Any:
    """Return a printed number, or None where the paper has none."""
    node: Any = all_numbers()[table]
    for key in keys:
        node = node.get(key) if isinstance(node, dict) else None
    return node


def rounds_to(task: str, method: str, target: float) -> float | None:
    """Return where the paper's smoothed curve crosses a target, between its points; None if it never does (C.37)."""
    curve = look_up("curves", task, method)
    if curve is None:
        return None
    for (left, low), (right, high) in itertools.pairwise(curve):
        if high >= 100 * target:
            return float(left if low >= 100 * target else np.interp(100 * target, (low, high), (left, right)))
    return None
