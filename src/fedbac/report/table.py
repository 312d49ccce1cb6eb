"""The numbers of a report as text: the final table, means over seeds, the byte ledger."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedbac.core.links import DIRECTIONS, PURPOSES, TIERS
from fedbac.report.groups import Group, groups, labels, look_up, summarized
from fedbac.runs.store import Run

Table = tuple[list[str], list[list[str]]]
NONE = "–"


def final(runs: Sequence[Run]) -> tuple[Table, int]:
    """Return the table that ends a command, and which of its rows is the best, or -1.

    One row per run; one per method, over its seeds, when a method ran with several.
    """
    together = groups(summarized(runs))
    if all(group.num_seeds == 1 for group in together):
        return table(runs), best(runs) if len(runs) > 1 else -1
    return seeds_table(together), _highest([group.accuracy for group in together]) if len(together) > 1 else -1


def table(runs: Sequence[Run]) -> Table:
    """Return header and rows of the final table, one row per run in the order given."""
    runs = summarized(runs)
    targets = _common_targets(runs)
    return _header(targets), [_row(label, run.summary, targets) for label, run in zip(labels(runs), runs, strict=True)]


def best(runs: Sequence[Run]) -> int:
    """Return which run, counted from 0, has the highest final accuracy."""
    return _highest([float(run.summary["accuracy"]) for run in summarized(runs)])


def seeds_table(together: Sequence[Group]) -> Table:
    """Return means over the seeds of each method; of the accuracy, ± its standard deviation over them."""
    targets = _common_targets([run for group in together for run in group.runs])
    method, *others = _header(targets)
    return [method, "seeds", *others], [_mean_row(group, targets) for group in together]


def ledger_table(runs: Sequence[Run]) -> Table:
    """Return the bytes of every run by tier, direction and purpose, and their total."""
    header = ["between", "direction", "purpose", *labels(runs)]
    flat = any(look_up(run.config, "experiment.method.topology.kind") == "flat" for run in runs)
    between = {"client": "client and edge" + " (flat: and cloud)" * flat, "cloud": "edge and cloud"}
    rows = [
        [between[tier], direction, purpose, *(human_bytes(_entry(run, tier, direction, purpose)) for run in runs)]
        for tier in TIERS
        for direction in DIRECTIONS
        for purpose in PURPOSES
    ]
    return header, [*rows, ["total", "", "", *(human_bytes(run.summary["bytes_total"]) for run in runs)]]


def traffic(run: Run, tier: str, purpose: str) -> int:
    """Return a run's bytes of a tier and purpose, both directions together."""
    return sum(_entry(run, tier, direction, purpose) for direction in DIRECTIONS)


def percent(share: float, spread: float | None = None) -> str:
    """Return a share of 1 in percent, with its spread in points."""
    if not math.isfinite(share):
        return NONE
    return f"{100 * share:.1f}" if spread is None else f"{100 * share:.1f} ± {100 * spread:.1f}"


def human_bytes(num_bytes: float) -> str:
    """Return bytes in decimal units with three digits; a dash for none."""
    if num_bytes == 0:
        return NONE
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if num_bytes < 999.5 or unit == "TB":
            break
        num_bytes /= 1000
    digits = 0 if unit == "B" or num_bytes >= 99.95 else 1 if num_bytes >= 9.995 else 2
    return f"{num_bytes:,.{digits}f} {unit}"


def _header(targets: Sequence[str]) -> list[str]:
    return [
        "method",
        "accuracy (%)",
        "σ over edges (points)",
        "worst edge (%)",
        *(f"rounds to {100 * float(target):g} %" for target in targets),
        "training bytes",
        "total bytes",
        "moves",
        "clusters",
        "seconds",
    ]


def _row(label: str, summary: Mapping[str, Any], targets: Sequence[str]) -> list[str]:
    reached = [summary["rounds_to_target"][target] for target in targets]
    return [
        label,
        percent(summary["accuracy"], summary["accuracy_std_last"]),
        percent(summary["edge_std"]),
        percent(summary["edge_min"]),
        *(NONE if at is None else str(at) for at in reached),
        human_bytes(_training_bytes(summary)),
        human_bytes(summary["bytes_total"]),
        str(summary["moves"]),
        str(summary["active_clusters"]),
        _seconds(summary["seconds"]),
    ]


def _mean_row(group: Group, targets: Sequence[str]) -> list[str]:
    summaries = [run.summary for run in group.runs]

    def mean(key: str) -> float:
        return float(np.mean([summary[key] for summary in summaries]))

    def rounds_to(target: str) -> str:
        reached = [summary["rounds_to_target"][target] for summary in summaries]
        return NONE if None in reached else f"{np.mean(reached):g}"

    return [
        group.label,
        str(group.num_seeds),
        percent(group.accuracy, group.spread if group.num_seeds > 1 else None),
        percent(mean("edge_std")),
        percent(mean("edge_min")),
        *map(rounds_to, targets),
        human_bytes(float(np.mean([_training_bytes(summary) for summary in summaries]))),
        human_bytes(mean("bytes_total")),
        f"{mean('moves'):g}",
        f"{mean('active_clusters'):g}",
        _seconds(mean("seconds")),
    ]


def _training_bytes(summary: Mapping[str, Any]) -> int:
    return sum(int(summary["bytes"][tier][direction]["train"]) for tier in TIERS for direction in DIRECTIONS)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds < 100 else f"{seconds:.0f}"


def _highest(accuracy: Sequence[float]) -> int:
    return max(range(len(accuracy)), key=lambda i: accuracy[i] if math.isfinite(accuracy[i]) else -math.inf)


def _common_targets(runs: Sequence[Run]) -> list[str]:
    common = set.intersection(*(set(run.summary["rounds_to_target"]) for run in runs))
    return sorted(common, key=float)


def _entry(run: Run, tier: str, direction: str, purpose: str) -> int:
    return int(run.summary["bytes"][tier][direction][purpose])
