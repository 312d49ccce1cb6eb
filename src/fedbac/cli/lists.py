"""What there is to choose from: ``fedbac methods``, ``show``, ``tasks`` and ``data``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedbac.cli.terminal import (
    METHOD_HELP,
    DataOption,
    NetworkOption,
    SetOption,
    SourceOption,
    TaskOption,
    chosen,
    data_names,
    err,
    method_names,
    needed_width,
    out,
    say,
    shown,
)
from fedbac.errors import ConfigError
from fedbac.presets import DEFAULT_TASK

COLUMNS = ("method", "tiers", "clustering", "selection", "adaptive", "sharing", "personal", "aggregation")
DROPPED = ("adaptive", "aggregation", "tiers")
"""Columns that the table may lack for want of room, the first to go first."""


def methods(
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Say where each method comes from, and where ours differs from the original."
        ),
    ] = False,
) -> None:
    """List the methods, one per row, with the choices that each consists of (as in the paper's Table I)."""
    from fedbac.presets import methods as rows
    from fedbac.presets.notes import NOTES
    from fedbac.presets.table import row
    from fedbac.presets.tasks import task

    any_task, presets = task(DEFAULT_TASK), rows.known()
    if verbose:
        for name in presets:
            _describe(name)
        return
    lines = []
    for name in presets:
        try:
            lines.append((name, *row(rows.method(name, any_task))))
        except ConfigError as error:  # another package's, which must not hide the others
            say(str(error), err)
    for count in range(len(DROPPED) + 1):
        table = _table_one(lines, [i for i, title in enumerate(COLUMNS) if title not in DROPPED[:count]])
        needed = needed_width(table)
        if needed.minimum <= out.width:  # no word need be broken
            break
    if needed.maximum > out.width:
        for column in table.columns:  # left to itself, rich breaks words of one column to give another more room
            column.max_width = column.min_width
    out.print(table)
    if count:
        say(f"Left out, as the terminal is narrow: {', '.join(DROPPED[:count])}.")
    readings = [name for name in presets if name in NOTES and NOTES[name].interpretation]
    say(f"Our reading, because no full definition could be found: {', '.join(readings)}.")
    say("fedbac methods --verbose says where each comes from; fedbac show METHOD prints one with every setting.")


def _table_one(lines: Sequence[Sequence[str]], kept: Sequence[int]) -> Table:
    table = Table(box=None, pad_edge=False)
    for i in kept:
        longest = max(len(word) for line in (COLUMNS, *lines) for word in line[i].split())
        table.add_column(COLUMNS[i], no_wrap=COLUMNS[i] == "method", min_width=longest, overflow="fold")
    for line in lines:
        table.add_row(*(shown(line[i]) for i in kept))
    return table


def _describe(name: str) -> None:
    """Say where a method comes from, what it does, and what it does otherwise."""
    from fedbac.presets import methods as rows
    from fedbac.presets.notes import NOTES

    out.print(f"[bold]{shown(name)}[/]", highlight=False)
    note = NOTES.get(name)
    if note is None:
        say(f"  {(rows.known()[name].__doc__ or 'A method of another package.').strip().splitlines()[0]}")
        return
    say(f"  {note.summary}")
    say(f"  From: {note.reference}")
    for difference in note.differences:
        say(f"  - {difference.words}")
    if note.interpretation:
        say("  - This is our reading: a full definition could not be found.")


def show(
    method: Annotated[str, typer.Argument(help=METHOD_HELP, autocompletion=method_names)],
    task: TaskOption = None,
    settings: SetOption = [],  # noqa: B006 (typer reads it)
    data: SourceOption = None,
    network: NetworkOption = None,
) -> None:
    """Print every setting of a method on a task, as a file that run, compare and sweep accept in place of a method."""
    from fedbac.config.text import to_yaml
    from fedbac.presets import methods as rows
    from fedbac.runs.configure import configure

    settings, _ = chosen(settings, network, data)
    experiment = configure(method, task, settings=settings)
    same = not any(setting.startswith("method") for setting in settings)
    if method in rows.known() and same:  # else it is no longer what its preset says of itself
        about = (rows.known()[method].__doc__ or "").strip().splitlines()
        typer.echo("".join(f"# {line}\n" for line in about[:1]), nl=False)
    if experiment.promise is not None:
        typer.echo(f"# {experiment.promise}")
    typer.echo(to_yaml({"experiment": experiment.model_dump(mode="json")}), nl=False)


def tasks() -> None:
    """List the tasks, each a data set with its federation and training."""
    from fedbac.presets.tasks import TASKS

    table = Table(box=None, pad_edge=False)
    for title in ("task", "data set", "M", "N", "α M", "α N", "T", "E", "batch"):
        table.add_column(title, no_wrap=title in {"task", "data set"})
    for name, task in TASKS.items():
        spread = (task.partition.dirichlet_server, task.partition.dirichlet_client)
        drawn = ["–", "–"] if task.partition.natural else [f"{alpha:g}" for alpha in spread]
        work = (task.rounds, task.training.epochs, task.training.batch_size)
        members = (task.num_edges, sum(task.clients()))
        table.add_row(name, task.dataset, *map(str, members), *drawn, *map(str, work))
    out.print(table)
    legend = "α of the Dirichlet draw of classes over edges (M) and over an edge's clients (N), T rounds of E epochs."
    out.print(f"M edges, N clients, {legend}", highlight=False)


def data_list(data_folder: DataOption = None) -> None:
    """List the data sets and where each was found."""
    from fedbac import data

    entries = data.available(data_folder)
    table = Table(box=None, pad_edge=False)
    for title in ("data set", "what it is", "licence"):
        table.add_column(title, no_wrap=title == "data set")
    for entry in entries:
        table.add_row(entry.name, entry.description, entry.licence)
    out.print(table)
    out.print()
    for entry in entries:  # on lines of their own, so that no path is broken
        say(f"{entry.name}: {'not here' if entry.where is None else entry.where}")


def data_get(
    name: Annotated[str, typer.Argument(help="Name of a data set (see: fedbac data list).", autocompletion=data_names)],
    folder: Annotated[
        Path | None, typer.Option("--to", help="Folder to write to. Default: the cache, where fedbac looks by itself.")
    ] = None,
) -> None:
    """Download a data set from its official source and verify it."""
    from fedbac import data

    say(f"{name} is in {data.fetch(name, folder)}")
