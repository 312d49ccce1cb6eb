"""Tables of the pages: how numbers stand in them, and the tables that several pages share."""

import html
import math
import re
from collections.abc import Collection, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal

import numpy as np

from fedbac.errors import visible
from fedbac.statistics import deviation
from fedbac_paper.artefact import Artefact
from fedbac_paper.paper import look_up, printed_as
from fedbac_paper.results import Results
from fedbac_paper.tasks import task_name
from fedbac_paper.verdicts import Bound, geometric

NONE = "–"
ACCURACY = "Distributed accuracy in percent: the mean over seeds of the mean over the last ten rounds."
SPREADS = ["std over seeds", "std over the last ten rounds"]
ACCURACY_HEADER = ["method", "paper", "ours", *SPREADS, "difference", "seeds"]
OURS = ["ours", "std over seeds", "difference"]


def literal(text: str) -> str:
    """Return text of a result file for a page: one line, in which nothing is HTML, a link, emphasis or a new cell."""
    line = html.escape(visible(" ".join(text.split())), quote=False)
    return re.sub(r"([\\`*|\[\]])", r"\\\1", line)


def code(text: str) -> str:
    """Return text of a result file as code, unless it holds what could end the code."""
    return literal(text) if re.search(r"[<>&`|\n\r\t]", text) else f"`{visible(text)}`"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [list(header), ["---"] * len(header), *map(list, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def details(summary: str, text: str) -> str:
    """Return text that is folded away under its summary."""
    return f'<details markdown="1">\n<summary>{summary}</summary>\n\n{text}\n\n</details>'


def fixed(number: float, digits: int = 2) -> str:
    """Return a number with so many decimals, a half rounded up as a reader does it: 88.85 is 88.9."""
    exact = Decimal(repr(round(number, 9))).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    return f"{exact:f}"


def mean(shares: Sequence[float], scale: float = 100, digits: int = 2) -> str:
    """Return the mean, by default in percent."""
    return fixed(scale * float(np.mean(shares)), digits) if shares else NONE


def std(shares: Sequence[float], scale: float = 100, digits: int = 2) -> str:
    """Return the standard deviation over seeds, by default in points; there is none of one seed."""
    return NONE if (found := deviation(shares)) is None else fixed(scale * found, digits)


def difference(shares: Sequence[float], paper: float | None, scale: float = 100, digits: int = 2) -> str:
    """Return how far the mean is above the paper's number, by default in points."""
    if not shares or paper is None:
        return NONE
    off = scale * float(np.mean(shares)) - paper
    return f"{'−' if off < 0 else '+'}{fixed(abs(off), digits)}"


def paper_number(number: float | None, spread: float | None = None) -> str:
    """Return a number of the paper, or that it has none."""
    if number is None:
        return NONE
    return fixed(number) if spread is None else f"{fixed(number)} ± {fixed(spread)}"


def each(numbers: Sequence[int | None]) -> str:
    """Return the number of every seed, or that no seed has one."""
    if all(number is None for number in numbers):
        return NONE
    return ", ".join(NONE if number is None else str(number) for number in numbers)


def runs_in_words(count: int) -> str:
    """Return a number of runs in words."""
    return f"{count} run{'' if count == 1 else 's'}"


def size(amounts: Sequence[int]) -> str:
    """Return a mean number of bytes."""
    from fedbac.report.table import human_bytes

    return human_bytes(float(np.mean(amounts))) if amounts else NONE


def at_least(text: str, reached: Sequence[bool]) -> str:
    """Mark a mean in which a seed that never reached the target counts with its whole run; – if none reached it."""
    if not any(reached):
        return NONE
    return text if all(reached) else f"> {text}"


def ratio(ratios: Collection[float], bound: Bound = "") -> str:
    """Return the geometric mean of ratios, marked if it is only a bound, and times or by what they spread."""
    if not ratios:
        return NONE
    middle = f"{bound} {fixed(geometric(list(ratios)))}".strip()
    spread = math.exp(float(np.std(np.log(list(ratios)), ddof=1))) if len(ratios) > 1 else None
    return middle if spread is None else f"{middle} ×/÷ {fixed(spread)}"


def accuracy_tables(artefact: Artefact, results: Results) -> list[str]:
    """Return a table of accuracies for each task."""
    by_task = {task: _accuracy_rows(artefact, results, task) for task in artefact.tasks}
    return [
        f"{ACCURACY}{_uneven(artefact, results)}",
        *_in_short(artefact, by_task),
        *(details(task_name(task), table(ACCURACY_HEADER, rows)) for task, rows in by_task.items()),
    ]


def accuracy_tables_with_moves(artefact: Artefact, results: Results) -> list[str]:
    """Return the same with how often edges were assigned to another cluster."""
    moved = "Moves: how often an edge was assigned to another cluster, the mean over seeds."
    by_task = {task: _accuracy_rows(artefact, results, task) for task in artefact.tasks}
    parts = [f"{ACCURACY} {moved}{_uneven(artefact, results)}", *_in_short(artefact, by_task)]
    for task, accuracies in by_task.items():
        moves = [mean([f.moves for f in results.of(task, v).values()], 1, 1) for v in artefact.variants_on(task)]
        rows = [[*row, count] for row, count in zip(accuracies, moves, strict=True)]
        parts.append(details(task_name(task), table([*ACCURACY_HEADER, "moves"], rows)))
    return parts


def _in_short(artefact: Artefact, by_task: Mapping[str, Sequence[Sequence[str]]]) -> list[str]:
    """Return our accuracies in one table, a column for each task; of one task there is nothing to shorten."""
    if len(by_task) == 1:
        return []
    ours = {(task, row[0]): row[2] for task, rows in by_task.items() for row in rows}
    rows = [[variant, *(ours.get((task, variant), NONE) for task in by_task)] for variant in artefact.variants]
    return [table(["method, ours", *map(task_name, by_task)], rows), "Spreads, seeds and the paper's numbers:"]


def _accuracy_rows(artefact: Artefact, results: Results, task: str) -> list[list[str]]:
    rows = []
    for variant in artefact.variants_on(task):
        runs = list(results.of(task, variant).values())
        shares = [found.accuracy for found in runs]
        paper = look_up("accuracy", task, printed_as(variant))
        spread = look_up("accuracy_pm", task, printed_as(variant))
        last = mean([found.accuracy_std_last for found in runs])
        numbers = [paper_number(paper, spread), mean(shares), std(shares), last, difference(shares, paper)]
        rows.append([variant, *numbers, str(len(runs))])
    return rows


def _uneven(artefact: Artefact, results: Results) -> str:
    """Return a warning if rows of one table are over different seeds, which have different data."""
    for task in artefact.tasks:
        seeds = {frozenset(results.of(task, variant)) for variant in artefact.variants_on(task)} - {frozenset()}
        if len(seeds) > 1:
            return " Rows with other seeds have other data: compare them by the verdicts, seed by seed."
    return ""


def small_task_table(artefact: Artefact, results: Results) -> list[str]:
    """Return the table of an artefact with one task, on the embedded data."""
    (task,) = artefact.tasks
    settled = ["moves", "last move in round", "clusters at the end"]
    header = ["method", "accuracy", *SPREADS, "worst edge", *settled, "GB", "seeds"]
    rows = []
    for variant in artefact.variants:
        runs = list(results.of(task, variant).values())
        shares = [found.accuracy for found in runs]
        last_moves = [found.curve.last_move() if found.curve else None for found in runs]
        moves, clusters = each([found.moves for found in runs]), each([found.active_clusters for found in runs])
        amount = mean([found.bytes.everything for found in runs], 1e-9)
        worst = mean([found.edge_min for found in runs])
        spreads = [std(shares), mean([found.accuracy_std_last for found in runs])]
        numbers = [mean(shares), *spreads, worst, moves, each(last_moves), clusters, amount]
        rows.append([variant, *numbers, str(len(runs))])
    about = (
        f"{task_name(task)}. Accuracies in percent over the last ten rounds, and gigabytes of all traffic, "
        "are means over seeds. Moves, the round of the last move and clusters are listed seed by seed. docs/plus.md "
        "says how fedbac-plus works; docs/decisions/0011-how-fedbac-plus-was-chosen.md says what else was tried."
    )
    return [about, table(header, rows)]
