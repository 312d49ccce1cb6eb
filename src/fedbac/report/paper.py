"""Tables for a paper: methods by tasks, mean ± deviation over seeds, the best in bold where a test names them."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from fedbac.errors import ConfigError, unknown, visible
from fedbac.report.groups import last_rounds, summarized
from fedbac.report.outcome import too_early, warnings
from fedbac.report.table import NONE, human_bytes, plain
from fedbac.rounds.metrics import JUDGED_AT
from fedbac.runs.store import StoredRun
from fedbac.runs.summary import leaves
from fedbac.statistics import Ranking, standing

NAMES = {"method": "method.name", "task": "task.dataset"}
"""What stands for a whole branch of the settings: its name, and the settings that differ under one name."""
MOST = 3
"""Settings that an error names."""
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "σ": r"$\sigma$", "–": "--",
}  # fmt: skip


class PaperColumn(NamedTuple):
    """A number of a run."""

    title: str
    value: Callable[[StoredRun], float | None]
    share: bool = True
    """Whether it is a share of 1, shown in percent, rather than a count."""
    lowest: bool = False
    """Whether less is better."""
    unit: Callable[[float], str] | None = None
    """How it is written, where it is no plain number; there is no ± then."""


def _summary(key: str) -> Callable[[StoredRun], float | None]:
    """Return what looks up a number; also the accuracy before or after local training."""
    return lambda run: (run.summary[key] or {}).get("accuracy") if key in JUDGED_AT else run.summary[key]


def _reached(run: StoredRun) -> float | None:
    """Return the rounds to the highest target, which is what papers quote."""
    targets: Mapping[str, float | None] = run.summary["rounds_to_target"]
    return targets[max(targets, key=float)] if targets else None


COLUMNS = {
    "accuracy": PaperColumn("accuracy", _summary("accuracy")),
    "last": PaperColumn("last round", lambda run: run.records[-1]["accuracy"]),
    "best": PaperColumn("best round", _summary("accuracy_best")),
    **{moment: PaperColumn(moment.replace("_", " "), _summary(moment)) for moment in JUDGED_AT},
    "worst_edge": PaperColumn("worst edge", _summary("edge_min")),
    "sigma": PaperColumn("σ over edges", _summary("edge_std"), lowest=True),
    "rounds_to_target": PaperColumn("rounds to target", _reached, share=False, lowest=True),
    "clusters": PaperColumn("clusters", _summary("active_clusters"), share=False),
    "bytes": PaperColumn("bytes", _summary("bytes_total"), lowest=True, unit=human_bytes),
    "seconds": PaperColumn("seconds", _summary("seconds"), share=False, lowest=True),
}
JUDGED = {name for name in COLUMNS if name != "clusters"}
"""Columns in which one number is better than another."""


class Cell(NamedTuple):
    """What runs of several seeds come to."""

    text: str
    spread: str | None
    bold: bool
    mean: float | None = None
    deviation: float | None = None
    seeds: int = 0


class PaperTable(NamedTuple):
    """A table of cells, by row, and by block and column."""

    corner: str
    rows: list[str]
    heads: list[tuple[str, str]]
    """The block and the title of every column of cells."""
    cells: list[list[Cell]]
    notes: list[str]
    """What the numbers are, and what was unequal."""

    def latex(self) -> str:
        """Return a tabular for booktabs."""
        blocks = [(name, len(list(some))) for name, some in groupby(self.heads, itemgetter(0))]
        lines = [*(f"% {_escaped(note)}" for note in self.notes), r"{\small\setlength{\tabcolsep}{3pt}%"]
        lines.append(rf"\begin{{tabular}}{{l{' '.join('r' * count for _, count in blocks)}}}")
        lines.append(r"\toprule")
        if len(blocks) > 1:
            lines.append("".join(rf" & \multicolumn{{{n}}}{{c}}{{{_escaped(name)}}}" for name, n in blocks) + r" \\")
            at = 2
            for _, count in blocks:
                lines.append(rf"\cmidrule(lr){{{at}-{at + count - 1}}}")
                at += count
        titles = [r"\shortstack[r]{" + _escaped(title).replace(" ", r"\\") + "}" for _, title in self.heads]
        lines.append(" & ".join([_escaped(self.corner), *titles]) + r" \\")
        lines.append(r"\midrule")
        for name, cells in zip(self.rows, self.cells, strict=True):
            lines.append(" & ".join([_escaped(name), *map(_in_latex, cells)]) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}}", ""])

    def markdown(self) -> str:
        """Return a table for a README."""
        one = len({block for block, _ in self.heads}) == 1
        heads = [self.corner, *(title if one else f"{block}, {title}" for block, title in self.heads)]
        lines = [heads, ["---", *["---:"] * len(self.heads)]]
        for name, cells in zip(self.rows, self.cells, strict=True):
            texts = [cell.text if cell.spread is None else f"{cell.text} ± {cell.spread}" for cell in cells]
            bold = [f"**{text}**" if cell.bold else text for text, cell in zip(texts, cells, strict=True)]
            lines.append([name, *bold])
        text = "\n".join(f"| {' | '.join(visible(cell).replace('|', '&#124;') for cell in line)} |" for line in lines)
        return "\n\n".join([text, *map(visible, self.notes)]) + "\n"

    def csv(self) -> str:
        """Return a line per cell, with all digits."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([self.corner, "block", "column", "mean", "deviation", "seeds", "bold"])
        for name, cells in zip(self.rows, self.cells, strict=True):
            for (block, title), cell in zip(self.heads, cells, strict=True):
                writer.writerow([name, block, title, cell.mean, cell.deviation, cell.seeds, int(cell.bold)])
        return text.getvalue()


def paper_table(
    runs: Sequence[StoredRun],
    columns: Sequence[str] = ("accuracy", "worst_edge"),
    rows: Sequence[str] = ("method",),
    by: Sequence[str] = ("task",),
    digits: int = 1,
) -> PaperTable:
    """Return a table of runs.

    Args:
        runs: Runs with at least one complete round. Those that differ in their seed only make a cell.
        columns: Names of numbers (``COLUMNS``).
        rows: What a row is about: ``method``, ``task``, or paths of settings.
        by: What each column stands once for, like that.
        digits: Behind the point.
    """
    for name in columns:
        if name not in COLUMNS:
            raise ConfigError(f"--columns: {unknown('column', name, COLUMNS)}")
    runs = summarized(runs)
    settings = [leaves({key: tree for key, tree in run.config["experiment"].items() if key != "seed"}) for run in runs]
    blocks = _labels(settings, by, [""] * len(runs), "--by")
    names = _labels(settings, rows, blocks, "--rows")
    cells: dict[tuple[str, str], dict[int, StoredRun]] = {}
    first: dict[tuple[str, str], dict[str, Any]] = {}
    for run, mine, where in zip(runs, settings, zip(names, blocks, strict=True), strict=True):
        _check_alike(where, first.setdefault(where, mine), mine)
        cells.setdefault(where, {})[int(run.config["experiment"]["seed"])] = run
    row_names, block_names = list(dict.fromkeys(names)), list(dict.fromkeys(blocks))
    heads, found, unequal = [], {}, []
    for block in block_names:
        here = {name: by_seed for name in row_names if (by_seed := cells.get((name, block)))}
        together = [run for by_seed in here.values() for run in by_seed.values()]
        early = too_early(together)
        unequal += [f"{block}: {note}" if len(block_names) > 1 else note for note in warnings(together)]
        for key in columns:
            column = COLUMNS[key]
            heads.append((block, column.title))
            scores = {name: _scores(column, by_seed) for name, by_seed in here.items()}
            known = {name: of for name, of in scores.items() if of}
            stand = standing(known, column.lowest) if known else None
            judged = stand is not None and len(known) > 1 and not stand.few and not early and key in JUDGED
            for name, of in known.items():
                assert stand is not None
                found[name, len(heads)] = _cell(column, digits, of, stand, name, judged)
    blank = Cell(NONE, None, bold=False)
    last, seeds = {last_rounds(run) for run in runs}, {len(by_seed) for by_seed in cells.values()}
    note = (
        f"Accuracies in percent. Means over the last {_span(last, 'round')} and {_span(seeds, 'seed')}; ± is the "
        "standard deviation over seeds. Bold: the best and all that are not significantly worse (paired t tests, Holm, "
        "5 %); nothing is bold with fewer than three seeds."
    )
    lines = [[found.get((name, at), blank) for at in range(1, len(heads) + 1)] for name in row_names]
    return PaperTable(", ".join(rows), row_names, heads, lines, [note, *unequal])


def _labels(
    settings: Sequence[Mapping[str, Any]], paths: Sequence[str], within: Sequence[str], option: str
) -> list[str]:
    """Return what each run is called: values at the paths; under a name, with the settings that differ beside it."""
    known = {path for mine in settings for path in mine}
    for path in paths:
        if path not in known and path not in NAMES:
            raise ConfigError(f"{option}: {unknown('setting', path, [*NAMES, *sorted(known)])}")
    labels = [
        ", ".join(str(mine.get(path, NONE)) if len(paths) == 1 else f"{path}={mine.get(path, NONE)}" for path in plain)
        for plain in [[NAMES.get(path, path) for path in paths]]
        for mine in settings
    ]
    for branch in (path for path in paths if path in NAMES):
        together: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for label, where, mine in zip(labels, within, settings, strict=True):
            together.setdefault((label, where), []).append(mine)
        apart = {
            path
            for some in together.values()
            for path in {path for mine in some for path in mine if path.startswith(f"{branch}.")}
            if len({json.dumps(mine.get(path), default=str) for mine in some}) > 1
        }
        for at, mine in enumerate(settings):
            words = [f"{path.rpartition('.')[2]}={mine[path]}" for path in sorted(apart) if path in mine]
            labels[at] += f" [{', '.join(words)}]" * bool(words)
    return labels


def _check_alike(where: tuple[str, str], one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    apart = [path for path in dict.fromkeys([*one, *other]) if one.get(path) != other.get(path)]
    if apart:
        raise ConfigError(
            f"the cell of {where[0]} and {where[1]} has runs that differ in {', '.join(apart[:MOST])}"
            f"{' and more' * (len(apart) > MOST)}; name one of these in --rows or --by, or leave some runs out"
        )


def _scores(column: PaperColumn, by_seed: Mapping[int, StoredRun]) -> dict[int, float]:
    """Return a number of each seed; none if one of them lacks it, as a mean over the others would flatter."""
    values = {seed: column.value(run) for seed, run in by_seed.items()}
    return (
        {} if None in values.values() else {seed: float(value) for seed, value in values.items() if value is not None}
    )


def _cell(column: PaperColumn, digits: int, of: Mapping[int, float], stand: Ranking, name: str, judged: bool) -> Cell:
    mean, spread = stand.mean[name], stand.spread[name]
    written = column.unit or (lambda value: f"{100 * value:.{digits}f}" if column.share else plain(value))
    return Cell(
        text=written(mean) if mean == mean else NONE,
        spread=None if spread is None or column.unit else written(spread),
        bold=judged and name in stand.leaders,
        mean=mean,
        deviation=spread,
        seeds=len(of),
    )


def _span(values: set[int], unit: str) -> str:
    span = str(min(values)) if len(values) == 1 else f"{min(values)} to {max(values)}"
    return f"{span} {unit}{'s' * (max(values) > 1)}"


def _in_latex(cell: Cell) -> str:
    text = rf"\textbf{{{_escaped(cell.text)}}}" if cell.bold else _escaped(cell.text)
    return text if cell.spread is None else rf"{text}{{\scriptsize\,$\pm$\,{cell.spread}}}"


def _escaped(text: str) -> str:
    return "".join(LATEX.get(sign, sign) for sign in visible(text).replace("\n", " "))
