"""What runs show: ``fedbac report``, the page while they run, and numbers for other programs (``export``)."""

import csv
import io
import json
import logging
import os
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fedbac.cli.terminal import err, extra, needed_width, out, say, shown
from fedbac.errors import ConfigError
from fedbac.files import replacing, write_whole
from fedbac.runs.folders import NAME as LIST
from fedbac.runs.folders import listed
from fedbac.runs.stopping import Interrupted

if TYPE_CHECKING:
    from fedbac.runs.store import RunFolder, StoredRun

log = logging.getLogger("fedbac")

PAPER_COLUMNS = (
    "accuracy", "last", "best", "before_training", "after_training", "worst_edge", "sigma", "rounds_to_target",
    "clusters", "bytes", "seconds",
)  # fmt: skip
"""Named here too, so that the help needs no matplotlib."""

PAGES = {".html", ".htm"}
"""How the name of the page may end."""
TALL = 4
"""Up to so many runs may stand side by side where lines are too long; more have a line each, with fewer columns."""
DROPPED = (
    "decisions", "moves", "clusters", "seconds", "last round", "dropped or late", "simulated time", "rounds to",
    "training bytes", "total bytes", "σ over edges", "before training", "after training", "worst edge",
)  # fmt: skip
"""Columns that a table may lack for want of room, the first to go first."""


def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders that contain run folders.")],
    out_file: Annotated[
        Path | None,
        typer.Option(
            "--out", help="File to write the page to. Default: report.html in the folder, or here if there are several."
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            "--figures",
            help="Also write the figures (accuracy, clusters, edges, bytes, assignment) to this folder as SVG and PNG.",
        ),
    ] = None,
) -> None:
    """Print the table of runs, finished or not, and write their report page."""
    if out_file is not None and out_file.suffix.lower() not in PAGES:
        raise ConfigError(f"--out {out_file}: the page is HTML, so give it a name that ends in .html")
    if figures is not None and os.path.lexists(figures) and not figures.is_dir():
        raise ConfigError(f"--figures {figures}: it is a file; name a folder for the figures to be written into")
    from fedbac.report.groups import begun

    runs = begun([place.read() for place in run_folders(folders)])
    # A page about several folders is nobody's own: it goes where the command was typed.
    _show(runs, out_file or (folders[0] if len(folders) == 1 else Path()) / "report.html")
    if figures is not None:
        from fedbac.report.figures import save_figures  # matplotlib is slow to import and needed only here

        for path in save_figures(runs, figures):
            say(f"Figure: {path}")


def conclude(runs: Sequence["StoredRun"], folder: Path) -> None:
    """Show runs that have just been played, and write their report into a folder."""
    _show(runs, folder / "report.html")
    say(f"Runs: {folder}")


def conclude_sweep(runs: Sequence["StoredRun"], folder: Path) -> None:
    """Do so best first, and write means and deviations over seeds as data too."""
    from fedbac.runs.sweep import collect

    rows = collect(runs)
    by_name = {run.folder.name: run for run in runs if run.folder is not None}
    conclude([by_name[name] for row in rows for name in row["runs"]], folder)
    write_whole(folder / "sweep.json", json.dumps(rows, indent=1) + "\n")
    say(f"Table: {folder / 'sweep.json'}")


def run_folders(folders: Sequence[Path]) -> list["RunFolder"]:
    """Return the run folders among these and directly below them; say which of those listed are missing."""
    from fedbac.runs.store import runs_in

    found = []
    for folder in folders:
        here = runs_in(folder)
        if not here:
            raise ConfigError(f"{folder}: neither it nor a folder in it holds a run (no config.yaml)")
        found += here
        there = {place.path.name for place in here}
        if missing := [name for name in listed(folder) if name not in there]:
            log.warning(
                "%s: of the runs listed in %s these are missing: %s; the command that began them lays them out again",
                folder, LIST, ", ".join(map(repr, missing)),
            )  # fmt: skip
    return found


def _show(runs: Sequence["StoredRun"], page: Path) -> None:
    from fedbac.report import final, outcome, warnings, write_report

    (header, rows), leaders = final(runs)
    out.print()
    shown_table, missing = fitting(header, rows, leaders)
    out.print(shown_table)
    if missing:
        names = ", ".join(map(shown, missing))
        out.print(f"Left out, as the terminal is narrow: {names}. The report has them.", highlight=False)
    out.print(f"\n{shown(outcome(runs))}", highlight=False)
    for note in warnings(runs):
        out.print(f"[yellow]{shown(note)}[/]", highlight=False)
    for run in runs:
        wanted = run.config["experiment"]["task"]["rounds"]
        if len(run.records) < wanted:
            out.print(f"{shown(run.name)}: stopped after {len(run.records)} of {shown(wanted)} rounds", highlight=False)
    write_report(runs, page)
    out.print()
    say(f"Report: {page}")


def fitting(header: Sequence[str], rows: Sequence[Sequence[str]], leaders: Collection[int]) -> tuple[Table, list[str]]:
    """Return the table in the form that fits the terminal, and the columns that had to be left out of it."""
    table = _line_each(header, rows, leaders)
    if needed_width(table).maximum <= out.width:
        return table, []
    if len(rows) <= TALL and needed_width(beside := _column_each(header, rows, leaders)).maximum <= out.width:
        return beside, []
    order = [i for name in DROPPED for i, title in enumerate(header) if title.startswith(name)]
    for count in range(len(order) + 1):
        kept = [i for i in range(len(header)) if i not in order[:count]]
        widths = [max(10, *(len(row[i]) for row in rows)) for i in kept]
        titles = ["\n".join(textwrap.wrap(header[i], width)) for i, width in zip(kept, widths, strict=True)]
        table = _line_each(titles, [[row[i] for i in kept] for row in rows], leaders)
        if needed_width(table).maximum <= out.width:
            break
    return table, [header[i] for i in sorted(order[:count])]


def _line_each(header: Sequence[str], rows: Sequence[Sequence[str]], leaders: Collection[int]) -> Table:
    """One run, or method, per line."""
    table = Table(box=None, pad_edge=False)
    for index, title in enumerate(header):
        lines = "\n".join(map(shown, title.split("\n")))
        table.add_column(lines, justify="left" if index == 0 else "right", overflow="fold")
    for index, row in enumerate(rows):
        table.add_row(*map(shown, row), style="bold green" if index in leaders else "")
    return table


def _column_each(header: Sequence[str], rows: Sequence[Sequence[str]], leaders: Collection[int]) -> Table:
    """One run, or method, per column."""
    table = Table(box=None, pad_edge=False)
    table.add_column(shown(header[0]))
    for index, row in enumerate(rows):
        table.add_column(shown(row[0]), justify="right", style="bold green" if index in leaders else "")
    for line, title in enumerate(header[1:], start=1):
        table.add_row(shown(title), *(shown(row[line]) for row in rows))
    return table


Format = StrEnum("Format", ["CSV", "PARQUET"])
"""How rounds are written."""
Form = StrEnum("Form", ["LATEX", "MARKDOWN", "CSV"])
"""How a table is written."""
Per = StrEnum("Per", {"ROUND": "round", "EDGE": "edge"})
"""What a row is about."""
RunsArgument = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders that contain run folders.")
]


def export(
    folders: RunsArgument,
    format_: Annotated[Format, typer.Option("--format", help="What to write: csv or parquet.")] = Format.CSV,
    per: Annotated[Per, typer.Option("--per", help="What a row is: a round, or an edge in a round.")] = Per.ROUND,
    out_file: Annotated[
        Path | None,
        typer.Option("--out", help="File to write to, or folder for --snapshot. Default: print to the terminal."),
    ] = None,
    snapshot: Annotated[
        bool,
        typer.Option("--snapshot", help="Copy a run folder as of its newest checkpoint, even while it is running."),
    ] = False,
) -> None:
    """Export the rounds of runs, finished or not, for use in other programs, or a copy that can be resumed."""
    if snapshot:
        places = run_folders(folders)
        if out_file is None or len(places) > 1:
            raise ConfigError("--snapshot: it is of one run, into a new folder; name both, as RUN --out FOLDER")
        say(f"Snapshot of round {places[0].snapshot(out_file)}: {out_file}", err)
        return
    from fedbac.api.results import pandas, rows
    from fedbac.report.groups import begun, labels

    runs = begun([place.read() for place in run_folders(folders)])
    if format_ is Format.PARQUET:
        if out_file is None:
            raise ConfigError("--out: a parquet file cannot be printed; name the file")
        frame = pandas().DataFrame(rows(runs, labels(runs), per.value))
        try:
            with replacing(out_file) as partial:
                frame.to_parquet(partial, engine="pyarrow", index=False)
        except ImportError as error:
            raise ConfigError("parquet needs pyarrow, which is not installed: pip install pyarrow") from error
    else:
        text = _csv(rows(runs, labels(runs), per.value))
        if out_file is None:
            typer.echo(text, nl=False)
            return
        write_whole(out_file, text)
    say(f"Exported: {out_file}", err)


def table(
    folders: RunsArgument,
    columns: Annotated[
        str, typer.Option("--columns", help=f"Numbers to show, with commas between: {', '.join(PAPER_COLUMNS)}.")
    ] = "accuracy,worst_edge",
    rows: Annotated[
        str, typer.Option("--rows", help="What a row is: method, task, or paths of settings with commas between.")
    ] = "method",
    by: Annotated[str, typer.Option("--by", help="What the columns are repeated for, like --rows.")] = "task",
    format_: Annotated[Form, typer.Option("--format", help="latex (booktabs), markdown or csv.")] = Form.MARKDOWN,
    digits: Annotated[int, typer.Option("--digits", min=0, max=6, help="Digits behind the point.")] = 1,
    out_file: Annotated[Path | None, typer.Option("--out", help="File to write to. Default: print it.")] = None,
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Also write the figures to this folder, as PDF.")
    ] = None,
) -> None:
    """Print a table for a paper: mean ± deviation over seeds, in bold what a test finds best."""
    from fedbac.report.figures import save_figures  # matplotlib is slow to import
    from fedbac.report.groups import begun
    from fedbac.report.paper import paper_table

    runs = begun([place.read() for place in run_folders(folders)])
    shown, about, repeated = ([word.strip() for word in text.split(",")] for text in (columns, rows, by))
    text = getattr(paper_table(runs, shown, about, repeated, digits), format_.value)()
    if out_file is None:
        typer.echo(text, nl=False)
    else:
        write_whole(out_file, text)
        say(f"Table: {out_file}", err)
    if figures is not None:
        for path in save_figures(runs, figures, ["pdf"]):
            say(f"Figure: {path}", err)


def _csv(found: Sequence[Mapping[str, object]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in found for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue()


MOST_PORT = 65535
LiveOption = Annotated[
    bool, typer.Option("--live", help="Also show progress on a local web page, as fedbac watch does.")
]


def watch(
    folders: Annotated[
        list[Path], typer.Argument(help="Run folders, or folders that contain run folders, now or later.")
    ],
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=1, max=MOST_PORT, help="Port to listen on, on this machine only. Default: any free one."
        ),
    ] = None,
) -> None:
    """Follow runs on a local web page that updates as rounds finish. It only reads files."""
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: there is no such folder; name one that runs are, or will be, written to")
    with extra("watch", "the live page"):
        from fedbac.report.live import Live, following  # slow to import
    from fedbac.report.beside import address, listen, new_path

    live = Live(following(folders), listen(port), new_path())
    say(f"Open {address(live.socket, live.path)} in a browser. Ctrl-C ends the page, not the runs.")
    try:
        live.serve()
    except Interrupted:
        say("The page has ended; runs are not affected.")


@contextmanager
def shown_live(folder: Path, wanted: bool) -> Iterator[None]:
    """Show the runs in a folder on a page while they are running, if that is wanted."""
    if not wanted:
        yield
        return
    with extra("watch", "the live page"):
        from fedbac.report.beside import page_beside
    with page_beside(folder) as address:
        say(f"Live page: {address} (it ends with this command)")
        yield
    say(f"The live page has ended. Open browsers keep it; the same figures are in {folder / 'report.html'}")
