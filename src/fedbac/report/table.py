"""The numbers of a report as text: the final table, means over seeds, the byte ledger."""

import math
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from fedbac.core.links import DIRECTIONS, PURPOSES, TIERS, Tier
from fedbac.report.groups import Group, labels, last_rounds, look_up, summarized
from fedbac.rounds.metrics import JUDGED_AT
from fedbac.runs.store import StoredRun

Table = tuple[list[str], list[list[str]]]
NONE = "–"
ACCURACY = "accuracy (%)"


def table(runs: Sequence[StoredRun]) -> Table:
    """Return header and rows of the final table, one row per run in the order given."""
    runs = summarized(runs)
    columns = _columns(runs)
    rows = [
        [
            label,
            percent(run.summary["accuracy"], run.summary["accuracy_std_last"] if last_rounds(run) > 1 else None),
            *(_cell(column, [run.summary]) for column in columns),
        ]
        for label, run in zip(labels(runs), runs, strict=True)
    ]
    return ["method", ACCURACY, *(column.title for column in columns)], rows


def seeds_table(together: Sequence[Group]) -> Table:
    """Return means over the seeds of each method; of the accuracy, ± its standard deviation over them."""
    columns = _columns([run for group in together for run in group.runs])
    rows = [
        [
            group.label,
            str(group.num_seeds),
            percent(group.accuracy, group.spread if group.num_seeds > 1 else None),
            *(_cell(column, [run.summary for run in group.runs]) for column in columns),
        ]
        for group in together
    ]
    return ["method", "seeds", ACCURACY, *(column.title for column in columns)], rows


def ledger_table(runs: Sequence[StoredRun]) -> Table:
    """Return the bytes of every run by tier, direction and purpose, and their total."""
    header = ["between", "direction", "purpose", *labels(runs)]
    flat = any(look_up(run.config, "experiment.method.topology.kind") == "flat" for run in runs)
    rows = [
        [
            f"{lower} and {upper}" + " (flat: and cloud)" * (flat and tier == "client"),
            direction,
            purpose,
            *(human_bytes(_entry(run, tier, direction, purpose)) for run in runs),
        ]
        for tier, (lower, upper) in ends(runs).items()
        for direction in DIRECTIONS
        for purpose in PURPOSES
    ]
    return header, [*rows, ["total", "", "", *(human_bytes(run.summary["bytes_total"]) for run in runs)]]


def ends(runs: Sequence[StoredRun]) -> dict[Tier, tuple[str, str]]:
    """Return the tiers of some runs, from below, and who is at the lower and the upper end of each."""
    found: dict[Tier, tuple[dict[str, None], str]] = {}
    for run in runs:
        below = "client"
        for place, tier in enumerate(tier for tier in TIERS if tier in run.summary["bytes"]):
            upper = tier if place else "edge"
            found.setdefault(tier, ({}, upper))[0][below] = None
            below = upper
    return {tier: ("/".join(found[tier][0]), found[tier][1]) for tier in TIERS if tier in found}


def traffic(run: StoredRun, tier: str, purpose: str) -> int:
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


class Column(NamedTuple):
    """One column of the table: a number of a summary, and how it is written; None is written as a dash."""

    title: str
    value: Callable[[Mapping[str, Any]], float | None]
    written: Callable[[float], str]


def _columns(runs: Sequence[StoredRun]) -> list[Column]:
    """Return what follows the accuracy; what only runs on devices have is shown where one has it."""
    summaries = [run.summary for run in runs]
    targets = sorted(set.intersection(*(set(summary["rounds_to_target"]) for summary in summaries)), key=float)
    columns = [
        Column("last round (%)", itemgetter("accuracy_last"), percent),
        *(
            Column(f"{name.replace('_', ' ')} (%)", _at(name), percent)
            for name in JUDGED_AT
            if any(summary[name] and summary[name]["accuracy"] != summary["accuracy"] for summary in summaries)
        ),
        Column("σ over edges (points)", itemgetter("edge_std"), percent),
        Column("worst edge (%)", itemgetter("edge_min"), percent),
        *(Column(f"rounds to {100 * float(target):g} %", _reached(target), plain) for target in targets),
        Column("training bytes", _training_bytes, human_bytes),
        Column("total bytes", itemgetter("bytes_total"), human_bytes),
        *([Column("decisions", itemgetter("decisions"), plain)] * any(summary["decisions"] for summary in summaries)),
        Column("moves", itemgetter("moves"), plain),
        Column("clusters", itemgetter("active_clusters"), plain),
    ]
    if any(_lost(summary) for summary in summaries):
        columns.append(Column("dropped or late", _lost, plain))
    if any(summary["simulated_seconds"] is not None for summary in summaries):
        columns.append(Column("simulated time", itemgetter("simulated_seconds"), duration))
    if any(summary.get("epsilon") is not None for summary in summaries):
        columns.append(Column("ε", lambda summary: summary.get("epsilon"), "{:.3g}".format))
    return [*columns, Column("seconds", itemgetter("seconds"), _seconds)]


def _cell(column: Column, summaries: Sequence[Mapping[str, Any]]) -> str:
    values = [column.value(summary) for summary in summaries]
    known = [value for value in values if value is not None]
    return column.written(float(np.mean(known))) if len(known) == len(values) else NONE


def _at(moment: str) -> Callable[[Mapping[str, Any]], float | None]:
    return lambda summary: (summary[moment] or {}).get("accuracy")


def _reached(target: str) -> Callable[[Mapping[str, Any]], float | None]:
    return lambda summary: summary["rounds_to_target"][target]


def _lost(summary: Mapping[str, Any]) -> int:
    """Count the selected clients whose update was not waited for."""
    return int(summary["dropped_clients"]) + int(summary["late_clients"])


def _training_bytes(summary: Mapping[str, Any]) -> int:
    return sum(int(by[direction]["train"]) for by in summary["bytes"].values() for direction in DIRECTIONS)


def duration(seconds: float) -> str:
    """Return a time in the largest unit of which there is at least one."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds < 100 else f"{seconds:.0f}"


def plain(value: float) -> str:
    """Return a count, or a mean of counts with one digit."""
    return f"{value:.1f}".removesuffix(".0")


def _entry(run: StoredRun, tier: str, direction: str, purpose: str) -> int:
    """Return some bytes of a run; none of a tier that it has not."""
    return int(run.summary["bytes"][tier][direction][purpose]) if tier in run.summary["bytes"] else 0
