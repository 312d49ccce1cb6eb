"""Tables of the pages: how numbers stand in them, and the tables that several pages share."""

import csv
import html
import io
import math
import re
from collections.abc import Collection, Sequence
from decimal import ROUND_HALF_UP, Decimal

import numpy as np

from fedbac.errors import visible
from fedbac.statistics import deviation
from fedbac_paper.artefact import Artefact, Body
from fedbac_paper.paper import look_up, printed_as
from fedbac_paper.results import Results
from fedbac_paper.tasks import task_name
from fedbac_paper.verdicts import Bound, geometric

NONE = "–"
ACCURACY = "Distributed accuracy in percent."
MOST_ROWS = 10
"""Methods in a table of accuracies; more are for a spreadsheet."""
SPREADS = ["std over seeds", "std over the last ten rounds"]
ACCURACY_HEADER = ["setting", "method", "paper", "paper's ±", "ours", *SPREADS, "difference", "moves", "seeds"]
"""Moves: how often an edge was assigned to another cluster."""
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
    head, *lines = (f"| {' | '.join(line)} |" for line in (header, *rows))
    return "\n".join([head, f"|{'---|' * len(header)}", *lines])


def fixed(number: float, digits: int = 2) -> str:
    """Return a number with so many decimals, a half rounded up as a reader does it: 88.85 is 88.9."""
    exact = Decimal(repr(round(number, 9))).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    return f"{exact + 0:f}"  # of which −0 is 0


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


def comma_separated(rows: Sequence[Sequence[str]]) -> str:
    """Return rows, the header first, as a file that other programs read: a minus is a hyphen, nothing an empty cell."""
    file = io.StringIO()
    plain = (["" if cell == NONE else cell.replace("−", "-") for cell in row] for row in rows)
    csv.writer(file, lineterminator="\n").writerows(plain)
    return file.getvalue()


def side_by_side(rows: Sequence[Sequence[str]], column: str, paper: str = "paper", title: str = "method") -> str:
    """Return one number of every method in every setting, the paper's in brackets."""
    cells = {}
    for row in rows[1:]:
        numbers = dict(zip(rows[0], row, strict=True))
        theirs = numbers[paper]
        cells[row[0], row[1]] = numbers[column] if theirs == NONE else f"{numbers[column]} ({theirs})"
    settings, methods = (list(dict.fromkeys(key[place] for key in cells)) for place in (0, 1))
    shown = [[method, *(cells.get((setting, method), NONE) for setting in settings)] for method in methods]
    return table([f"{title}, ours (paper)", *_heads(settings)], shown)


def _heads(settings: Sequence[str]) -> list[str]:
    """Return the heads of columns: of a setting that differs from the one before by α alone, only its α."""
    data = [
        name if re.fullmatch(r"[\d.]+", rest) else "" for name, _, rest in (one.partition(", α = ") for one in settings)
    ]
    return [
        one.partition(" = ")[2] if before == name != "" else one
        for before, name, one in zip(["", *data], data, settings, strict=False)
    ]


def accuracies(artefact: Artefact, results: Results) -> Body:
    """Return accuracies side by side, and all numbers of each row."""
    rows = [ACCURACY_HEADER]
    for cell in artefact.cells:
        runs = list(results.of(cell.task, cell.variant).values())
        shares = [found.accuracy for found in runs]
        paper, spread = (look_up(key, cell.task, printed_as(cell.variant)) for key in ("accuracy", "accuracy_pm"))
        spreads = [std(shares), mean([found.accuracy_std_last for found in runs])]
        numbers = [paper_number(paper), paper_number(spread), mean(shares), *spreads, difference(shares, paper)]
        moves = mean([found.moves for found in runs], 1, 1)
        rows.append([task_name(cell.task), cell.variant, *numbers, moves, str(len(runs))])
    if len(artefact.variants) > MOST_ROWS:
        return Body([warning] if (warning := _uneven(artefact, results)) else [], rows)
    return Body([f"{ACCURACY} {_uneven(artefact, results)}".strip(), side_by_side(rows, "ours")], rows)


def _uneven(artefact: Artefact, results: Results) -> str:
    """Return a warning if rows of one table are over different seeds, which have different data."""
    for task in artefact.tasks:
        seeds = {frozenset(results.of(task, variant)) for variant in artefact.variants_on(task)} - {frozenset()}
        if len(seeds) > 1:
            return "Rows with other seeds have other data: compare them by the verdicts."
    return ""


def small_task(artefact: Artefact, results: Results) -> Body:
    """Return the accuracies of an artefact with one task, on the embedded data, and all its numbers."""
    (task,) = artefact.tasks
    header = ["setting", "method", "accuracy", *SPREADS, "worst edge", "GB", "moves", "last move in round"]
    rows = [[*header, "clusters at the end", "seeds"]]
    for variant in artefact.variants:
        runs = list(results.of(task, variant).values())
        shares = [found.accuracy for found in runs]
        amount = mean([found.bytes.everything for found in runs], 1e-9)
        numbers = [mean(shares), std(shares), mean([found.accuracy_std_last for found in runs])]
        moves = each([found.curve.last_move() if found.curve else None for found in runs])
        seeds = [each([found.moves for found in runs]), moves, each([found.active_clusters for found in runs])]
        worst = mean([found.edge_min for found in runs])
        rows.append([task_name(task), variant, *numbers, worst, amount, *seeds, str(len(runs))])
    about = f"{task_name(task)}. Accuracies in percent, means over seeds."
    shown = [[*row[1:4], *row[5:7]] for row in rows]
    return Body([about, table(shown[0], shown[1:])], rows)
