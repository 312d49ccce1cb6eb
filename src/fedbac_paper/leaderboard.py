"""The leaderboard: what ``fedbac benchmark`` wrote of many methods, beside each other."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedbac.data import load
from fedbac.data.catalog import SOURCES
from fedbac.presets.tasks import TASKS
from fedbac.statistics import standing
from fedbac_paper import benchmark, tables
from fedbac_paper.clocks import read as read_lines
from fedbac_paper.confirmed import OURS, SIMPLE

NONE = "–"
ABROAD = ("insteval", "chem97")
"""Natural tasks whose data are not in the package, and so not in the protocol."""


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
    """Return all measures, means over seeds, as a file."""
    lines = [["method", "task", "seeds", "target (%)", *benchmark.COLUMNS]]
    for row in read(folder):
        for task, judged in benchmark.protocol().tasks.items():
            if task in row["tasks"]:
                found = [_of(row, task, key) for key, _ in benchmark.COLUMNS.values()]
                scales = [scale for _, scale in benchmark.COLUMNS.values()]
                cells = [benchmark.cell(each, scale).split(" ±")[0] for each, scale in zip(found, scales, strict=True)]
                lines.append([row["method"], task, str(len(found[0])), f"{100 * judged.target:g}", *cells])
    return lines


def sizes(name: str, data_folder: Path | None = None) -> dict[str, Any]:
    """Return what the data card of a natural task says of its data."""
    task = TASKS[name]
    dataset = load(task.dataset, data_folder)
    guess = np.bincount(dataset.y_test, minlength=dataset.num_classes).max() / len(dataset.y_test)
    return {
        "edges": task.num_edges,
        "clients": sum(task.clients()),
        "training": len(dataset.y_train),
        "test": len(dataset.y_test),
        "classes": dataset.num_classes,
        "guess": round(float(guess), 5),
    }


def cards(folder: Path, abroad: Path) -> str:
    """Return the data cards of natural tasks: sizes, licence, and the best simple answer; ``abroad`` has those of data
    that are not in the package."""
    scores = {
        task: {row["method"]: _of(row, task, "accuracy") for row in read(folder) if row["method"] in SIMPLE}
        for task in benchmark.protocol().tasks
    }
    known = {name: sizes(name) for name in scores if TASKS[name].partition.natural}
    for row in read_lines(abroad):
        known[row["task"]] = row
        scores[row["task"]] = row["accuracy"]
    lines = []
    for name, card in known.items():
        best = max(scores[name], key=lambda method: float(np.mean(scores[name][method])))
        lines.append([
            f"`{name}`", *(f"{card[key]:,}" for key in ("edges", "clients", "training", "test", "classes")),
            f"{100 * card['guess']:.1f}", f"{100 * float(np.mean(scores[name][best])):.1f} (`{best}`)",
            SOURCES[TASKS[name].dataset].licence,
        ])  # fmt: skip
    head = ["task", "edges", "clients", "training", "test", "classes", "guessing, %"]
    head += ["best simple answer, %", "licence"]
    return f"\n{tables.table(head, lines)}\n\n"


def told(folder: Path, file: Path) -> str:
    """Return what edges reach that are told their groups, beside our method and simple answers, which are not."""
    informed = json.loads(file.read_text(encoding="utf-8"))
    (task,) = informed["tasks"]
    rows = [informed, *(row for row in read(folder) if row["method"] in (OURS, *SIMPLE))]
    rows.sort(key=lambda row: -float(np.mean(_of(row, task, "accuracy"))))
    bold = _leaders(rows, task)
    names = {informed["method"]: "told the groups"}
    lines = [[names.get(row["method"], f"`{row['method']}`"), _cell(row, task, row["method"] in bold)] for row in rows]
    return f"\n{tables.table(['', f'`{task}`'], lines)}\n\n"


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
    told = ", ".join(f"`{method}` {count or 'none'}" for method, count in sorted(below.items(), key=lambda p: p[1]))
    names = ", ".join(f"`{name}`" for name in SIMPLE)
    where = f"On how many of the {len(tasks)} tasks a method run on all of them is significantly below a simple answer"
    return f"\n{where} ({names}): {told}.\n" if below else ""


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
