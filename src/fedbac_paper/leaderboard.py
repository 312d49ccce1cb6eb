"""The leaderboard: what ``fedbac benchmark`` wrote of many methods, beside each other."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedbac.data import load
from fedbac.presets.tasks import TASKS
from fedbac.statistics import standing
from fedbac_paper import benchmark, tables
from fedbac_paper.confirmed import SIMPLE

NONE = "–"


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a folder that followed this protocol; others are of an earlier one, and not compared."""
    found = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    return [row for row in found if row["protocol"]["sha256"] == benchmark.protocol().sha256]


def table(folder: Path) -> str:
    """Return the tables of all parts: accuracy and worst edge of every method and task."""
    rows, parts = read(folder), []
    for name, tasks in benchmark.protocol().parts.items():
        there = [row for row in rows if not set(tasks).isdisjoint(row["tasks"])]
        if not there:
            continue
        shown = [task for task in tasks if any(task in row["tasks"] for row in there)]
        bold = {task: _leaders(there, task) for task in shown}
        head = ["", *(f"{task}: {tasks[task].regime}" for task in shown)]
        lines = [
            [f"`{row['method']}`{_effort(row)}", *(_cell(row, task, row["method"] in bold[task]) for task in shown)]
            for row in there
        ]
        parts += [f"\n### Part {name}\n\n{tables.table(head, lines)}\n", _harm(there, shown)]
    return "".join(parts) + "\n"


def numbers(folder: Path) -> list[list[str]]:
    """Return bytes to the target accuracy, and how well clusters agree with known groups, as a file."""
    lines = [["method", "task", "target (%)", "MB to the target", "adjusted Rand index"]]
    for row in read(folder):
        for task, judged in benchmark.protocol().tasks.items():
            reached, agreed = _of(row, task, "bytes_to_target"), _of(row, task, "rand_index")
            if reached:
                megabytes = NONE if None in reached else f"{float(np.mean(reached)) / 1e6:.0f}"
                index = NONE if None in agreed else f"{float(np.mean(agreed)):.2f}"
                lines.append([row["method"], task, f"{100 * judged.target:g}", megabytes, index])
    return lines


def cards() -> str:
    """Return the sizes of the protocol's natural tasks."""
    lines = []
    for name in benchmark.protocol().tasks:
        task = TASKS[name]
        if not task.partition.natural:
            continue
        dataset = load(task.dataset)
        guess = np.bincount(dataset.y_test, minlength=dataset.num_classes).max() / len(dataset.y_test)
        lines.append([
            f"`{name}`", str(task.num_edges), str(sum(task.clients())), f"{len(dataset.y_train):,}",
            f"{len(dataset.y_test):,}", str(dataset.num_classes), f"{100 * guess:.1f}",
        ])  # fmt: skip
    head = ["task", "edges", "clients", "training", "test", "classes", "most frequent class, %"]
    return f"\n{tables.table(head, lines)}\n\n"


def _effort(row: dict[str, Any]) -> str:
    points = {found["points"] for found in row["tasks"].values()}
    return "" if points == {1} else f" (tuned, {max(points)} points)"


def _of(row: dict[str, Any], task: str, key: str) -> list[Any]:
    return [run[key] for run in row["tasks"].get(task, {"runs": []})["runs"]]


def _harm(rows: list[dict[str, Any]], tasks: list[str]) -> str:
    """Return in how many tasks a simple answer is significantly above each method that was run on all of them."""
    simple = [row for row in rows if row["method"] in SIMPLE]
    below = {
        row["method"]: sum(row["method"] not in _leaders([*simple, row], task) for task in tasks)
        for row in rows
        if row["method"] not in SIMPLE and set(tasks) <= set(row["tasks"])
    }
    told = ", ".join(f"`{method}` {count or 'in none'}" for method, count in sorted(below.items(), key=lambda p: p[1]))
    names = ", ".join(f"`{name}`" for name in SIMPLE)
    return f"\nSignificantly below a simple answer ({names}), of {len(tasks)} tasks: {told}.\n" if below else ""


def _leaders(rows: list[dict[str, Any]], task: str) -> tuple[str, ...]:
    """Return the methods that nobody is significantly above; nobody where seeds are too few."""
    scores = {
        row["method"]: dict(zip(_of(row, task, "seed"), _of(row, task, "accuracy"), strict=True))
        for row in rows
        if task in row["tasks"]
    }
    found = standing(scores)
    return () if found.few else found.leaders


def _cell(row: dict[str, Any], task: str, bold: bool) -> str:
    accuracy, edge = _of(row, task, "accuracy"), _of(row, task, "edge_min")
    if not accuracy:
        return NONE
    text = f"{100 * float(np.mean(accuracy)):.1f} / {100 * float(np.mean(edge)):.1f}"
    few = (
        f" ({len(accuracy)} seed{'s' * (len(accuracy) > 1)})" if len(accuracy) < len(benchmark.protocol().seeds) else ""
    )
    return f"**{text}**{few}" if bold else text + few
