"""What the figures of the page show, as one JSON document: everything that the script knows of the runs.

It is kept short, as it is part of the page. Accuracies are whole numbers in hundredths of a percent. What stays the
same from round to round is written once: an assignment only where it changes. Who was selected is one hexadecimal
number a round, with bit i for client i. Beliefs are one character a client, from # (0) to [ (1).
"""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from fedbac.core.links import DIRECTIONS, PURPOSES, TIERS
from fedbac.report.groups import edge_names, groups, labels, last_rounds, look_up
from fedbac.report.sections import printable
from fedbac.runs.store import StoredRun

SCALE = 10_000
"""Of accuracies."""
FIRST, LEVELS = ord("#"), ord("[") - ord("#")
"""The character of the belief 0, and how many steps lead from it to that of 1; none of them needs escaping."""
MOST_CLIENTS = 1_000
"""Rows that a figure of clients can have; of more, nothing about single clients is written."""
DIGITS = 5
"""Significant ones, of bytes and seconds."""

Json = dict[str, Any]


def document(runs: Sequence[StoredRun]) -> Json:
    """Return what there is to show of summarized runs."""
    together = groups(runs) if runs else []
    mixes: list[list[list[int]]] = []
    shown = []
    for label, run in zip(labels(runs), runs, strict=True):
        group = next(index for index, group in enumerate(together) if any(run is member for member in group.runs))
        mix = class_mix(run)
        if mix is not None and mix not in mixes:
            mixes.append(mix)
        place = None if mix is None else mixes.index(mix)
        shown.append({"label": printable(label), "group": group, "mix": place, **run_data(run)})
    return {
        "scale": SCALE,
        "groups": [{"label": printable(group.label), "look": group.look.index} for group in together],
        "runs": shown,
        "mixes": mixes,
    }


def run_data(run: StoredRun) -> Json:
    """Return what there is to show of one run."""
    records, sites = run.records, site_sizes(run)
    num_clients = sum(sites)
    return {
        "seed": look_up(run.config, "experiment.seed", 0),
        "last": last_rounds(run),
        "accuracy": [_scaled(record["accuracy"]) for record in records],
        "worst": [_scaled(record["accuracy_min"]) for record in records],
        "names": edge_names(run),
        "edges": [[_scaled(accuracy) for accuracy in record["accuracy_per_edge"]] for record in records],
        "assignment": changes([record["assignment"] for record in records]),
        "sites": sites,
        "selected": selections(records, num_clients, run.config.get("clients")),
        "beliefs": beliefs(records) if num_clients <= MOST_CLIENTS else None,
        "traffic": traffic(records),
        "seconds": seconds(records),
        "gaps": gaps(records),
    }


def class_mix(run: StoredRun) -> list[list[int]] | None:
    """Return how many examples of each class every edge holds; None of runs that did not write it down."""
    lines = run.config.get("classes_per_edge")
    if not isinstance(lines, list):
        return None
    try:
        mix = [[int(count) for count in str(line).split()] for line in lines]
    except ValueError:
        return None
    return mix if len({len(row) for row in mix}) == 1 and mix[0] else None


def changes(assignments: Sequence[Sequence[int]]) -> list[tuple[int, list[int]]]:
    """Return the labels of the first round, and of every round in which they are others than in the one before."""
    return [
        (number, list(labels_N))
        for number, labels_N in enumerate(assignments, start=1)
        if number == 1 or labels_N != assignments[number - 2]
    ]


def site_sizes(run: StoredRun) -> list[int]:
    """Return how many clients each edge has, as the task says."""
    edges, clients = (look_up(run.config, f"experiment.task.{key}") for key in ("num_edges", "clients_per_edge"))
    if isinstance(clients, list | tuple):
        return [int(count) for count in clients]
    return [clients] * edges if isinstance(clients, int) and isinstance(edges, int) else []


def selections(records: Sequence[Mapping[str, Any]], num_clients: int, clients: Any = None) -> list[str] | None:
    """Return who was selected in each round; None where records do not say, or speak of clients that are not there.

    ``clients`` are the numbers of each edge's, where they are not counted edge by edge.
    """
    row = {number: place for place, number in enumerate(n for own in clients for n in own)} if clients else {}
    known = range(num_clients)
    if num_clients > MOST_CLIENTS:
        return None
    try:
        clients_T = [[client for site in record["selected"] for client in site] for record in records]
    except (KeyError, TypeError):
        return None
    if any(client not in known for clients in clients_T for client in clients):
        return None
    return [f"{sum(1 << int(row.get(client, client)) for client in set(clients)):x}" for clients in clients_T]


def beliefs(records: Sequence[Mapping[str, Any]]) -> list[str] | None:
    """Return what was expected of every client after each round; None where nothing was, or records do not say."""
    try:
        levels = [[min(max(x or 0.0, 0.0), 1.0) for site in record["beliefs"] for x in site] for record in records]
        return ["".join(chr(FIRST + round(LEVELS * level)) for level in levels_N) for levels_N in levels]
    except (KeyError, TypeError, ValueError):
        return None


def gaps(records: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Return the gaps between clusters in the rounds in which they were compared."""
    found = []
    for record in records:
        match record.get("gaps"):
            case {"clusters": list(clusters), "gap": list(gap)} if len(gap) == len(clusters):
                if all(isinstance(row, list) for row in gap):
                    rows, limit = [[_short(value) for value in row] for row in gap], _short(record["gaps"].get("limit"))
                    found.append({"round": record["round"], "clusters": clusters, "gap": rows, "limit": limit})
    return found


def traffic(records: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """Return the bytes so far by tier and purpose, both directions together, without what is never sent."""
    found = {}
    for tier in (tier for tier in TIERS if records and tier in records[0]["bytes"]):
        for purpose in PURPOSES:
            each = [sum(record["bytes"][tier][direction][purpose] for direction in DIRECTIONS) for record in records]
            if any(each):
                found[f"{tier}-{purpose}"] = [_short(total) for total in accumulate(each)]
    return found


def seconds(records: Sequence[Mapping[str, Any]]) -> list[float | None] | None:
    """Return the simulated seconds so far; None where there are no devices to take any."""
    each = [record.get("simulated_seconds") for record in records]
    known = [value for value in each if value is not None]
    return [_short(total) for total in accumulate(known)] if len(known) == len(each) else None


def _scaled(accuracy: float | None) -> int | None:
    return round(SCALE * accuracy) if accuracy is not None and math.isfinite(accuracy) else None


def _short(number: float | None) -> float | None:
    if number is None or not math.isfinite(number):
        return None
    short = float(f"{number:.{DIGITS}g}")
    return int(short) if short.is_integer() else short
