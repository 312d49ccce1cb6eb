"""What benchmarks/privacy.py found, for docs/privacy.md."""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np


def table(path: Path) -> str:
    """Return the accuracy after the last round by clients and method, the mean over seeds; "–" was not run."""
    found: dict[tuple[int, str, float | None], list[float]] = defaultdict(list)
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        found[row["clients"], row["method"], row["epsilon"]].append(row["accuracy"][-1])
    epsilons: list[float | None] = [*sorted({e for _, _, e in found if e is not None}), None]
    head = ["clients", "method", *("no privacy" if e is None else f"ε = {e:g}" for e in epsilons)]
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for clients, method in dict.fromkeys((count, name) for count, name, _ in sorted(found, key=lambda key: key[0])):
        runs = [found.get((clients, method, e)) for e in epsilons]
        cells = [f"{100 * np.mean(one):.1f}" if one else "–" for one in runs]
        lines.append(f"| {clients:,} | `{method}` | {' | '.join(cells)} |")
    return "\n\n" + "\n".join(lines) + "\n\n"
