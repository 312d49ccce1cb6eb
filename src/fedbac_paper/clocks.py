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
    """Return how many times as fast the best buffer is as the best of what loses late work, and by clock, method and
    clients the simulated seconds to the target."""
    found: dict[tuple[str, str], dict[str, dict[int, float | None]]] = defaultdict(lambda: defaultdict(dict))
    for row in read(file):
        found[row["method"], row["clients"]][row["clock"]][row["seed"]] = row["seconds"]
    clocks = list(dict.fromkeys(clock for by_clock in found.values() for clock in by_clock))
    seeds = sorted({seed for by_clock in found.values() for by_seed in by_clock.values() for seed in by_seed})
    head, lines = ["an edge waits"], [[clock] for clock in clocks]
    for (method, clients), by_clock in found.items():
        head += [f"`{method}`, clients {clients}: seeds {', '.join(map(str, seeds))}", "mean"]
        for clock, line in zip(clocks, lines, strict=True):
            seconds = [by_clock[clock].get(seed) for seed in seeds]
            reached = [value for value in seconds if value is not None]
            line.append(" / ".join(tables.NONE if value is None else f"{value:.0f}" for value in seconds))
            line.append(f"{np.mean(reached):.0f}" if len(reached) == len(seeds) else tables.NONE)
    return f"\n{_verdict(next(iter(found.values())))}\n\n{tables.table(head, lines)}\n\n"


def beliefs(file: Path) -> str:
    """Return by seed how far belief in stragglers is above that in others."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in read(file):
        found[row["waiting"]].append(row["stragglers"] - row["others"])
    lines = [(waiting, " / ".join(f"{gap:+.2f}" for gap in gaps)) for waiting, gaps in found.items()]
    return f"\n{tables.table(('an edge waits', 'stragglers less others: seeds 0, 1, 2'), lines)}\n\n"


def _verdict(by_clock: dict[str, dict[int, float | None]]) -> str:
    buffer = _best(by_clock, "buffered")
    ratios = [
        value / buffer[seed] for kind in ("deadline", "over-selection") for seed, value in _best(by_clock, kind).items()
    ]
    return (
        f"**A buffer needs {1 / max(ratios):.0%} to {1 / min(ratios):.0%} of the time of a deadline or over-selection**"
        ", seed by seed, each at the setting that is fastest on average over these seeds. A faster setting on one "
        "seed may fail on another."
    )


def _best(by_clock: dict[str, dict[int, float | None]], kind: str) -> dict[int, float]:
    """Return the seconds by seed of the clock of a kind that is fastest on average."""
    reached = [
        {seed: value for seed, value in by_seed.items() if value is not None}
        for clock, by_seed in by_clock.items()
        if clock.startswith(kind) and None not in by_seed.values()
    ]
    return min(reached, key=lambda seconds: float(np.mean(list(seconds.values()))))
