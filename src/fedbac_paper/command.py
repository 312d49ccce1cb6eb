"""The command ``fedbac reproduce``: run what is missing, collect what it showed, render the pages."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table

from fedbac.cli.playing import Board, show_failures
from fedbac.cli.terminal import (
    DataOption,
    DeviceOption,
    SetOption,
    TrainerOption,
    out,
    progress_bars,
    say,
    say_if_runs_take_turns,
    shown,
)
from fedbac.config.experiment import Runtime
from fedbac.config.explain import parse
from fedbac.errors import ConfigError, unknown
from fedbac.local import num_cores
from fedbac.runs import sweep
from fedbac.runs.configure import Inputs
from fedbac.runs.stopping import Stop
from fedbac.runs.sweep import MOST_JOBS, Point
from fedbac_paper.artefact import Artefact
from fedbac_paper.artefacts import ARTEFACTS, EVERYTHING
from fedbac_paper.collect import check_pass, collect
from fedbac_paper.pages import write_pages
from fedbac_paper.plan import Filter, Pass, points, seconds_left, status, work
from fedbac_paper.results import read_results, write_results

MOST_SEEDS = 1000
NAMES = ", ".join((*ARTEFACTS, "all"))


def reproduce(
    names: Annotated[list[str], typer.Argument(metavar="ARTEFACT...", help=f"{NAMES}. 'all' leaves out calibration.")],
    seeds: Annotated[
        int,
        typer.Option(
            "--seeds", min=1, max=MOST_SEEDS, help="Number of seeds. Every run is repeated with seeds 0, 1, …"
        ),
    ] = 3,
    first_seed: Annotated[
        int, typer.Option("--first-seed", min=0, help="Skip the seeds before this one. Their results are kept.")
    ] = 0,
    out_folder: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder to write to. Default: runs/reproduce; runs/reproduce-quick for a quick look."
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="For a quick look: stop after this many rounds.")
    ] = None,
    fraction: Annotated[
        float | None,
        typer.Option("--fraction-of-data", help="For a quick look: use only this share of the data, such as 0.1."),
    ] = None,
    settings: SetOption = [],  # noqa: B006 (typer reads it)
    datasets: Annotated[list[str], typer.Option("--data-set", help="Run only on this data set. Repeatable.")] = [],  # noqa: B006
    tasks: Annotated[list[str], typer.Option("--task", help="Run only this task. Repeatable.")] = [],  # noqa: B006
    variants: Annotated[
        list[str], typer.Option("--variant", help="Run only this row of the artefact. Repeatable.")
    ] = [],  # noqa: B006
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", min=0, max=1e9, help="Stop after this many minutes. The same command resumes."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", min=1, max=MOST_JOBS, help="Number of runs at a time. Default: 1 on a GPU, else one per core."
        ),
    ] = None,
    device: DeviceOption = "auto",
    trainer: TrainerOption = "auto",
    data_folder: DataOption = None,
    results_folder: Annotated[
        Path | None, typer.Option("--results", help="Folder for the result files. Default: OUT/results.")
    ] = None,
    pages_folder: Annotated[
        Path | None, typer.Option("--pages", help="Folder for the pages. Default: OUT/pages.")
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="List the runs, and estimate how long they would take, without running them.")
    ] = False,
    collect_only: Annotated[
        bool,
        typer.Option("--collect-only", help="Run nothing. Write result files and pages from the finished runs in OUT."),
    ] = False,
    render_only: Annotated[
        bool, typer.Option("--render-only", help="Run nothing. Write the pages from the result files.")
    ] = False,
) -> None:
    """Reproduce the paper's tables and figures: run what is missing or unfinished, then write the pages."""
    started = time.monotonic()
    stopped = failed = False
    artefacts = _artefacts(names)
    change = Pass(rounds, fraction, tuple(settings))
    parent = out_folder or Path("runs") / ("reproduce-quick" if change.changes else "reproduce")
    place, pages_place = results_folder or parent / "results", pages_folder or parent / "pages"
    keep = Filter(tuple(datasets), tuple(tasks), tuple(variants))
    keep.check(artefacts)
    if first_seed >= seeds:
        raise ConfigError(f"--first-seed {first_seed}: the last of --seeds {seeds} is {seeds - 1}; choose more seeds")
    if not render_only:
        wanted = points(artefacts, range(first_seed, seeds), change, parent, keep)
        before = {artefact.name: read_results(artefact.name, place) for artefact in artefacts}
        for known in before.values():
            check_pass(known, change)
        if plan:
            _show_plan(wanted)
            return
        jobs = jobs or (1 if device != "cpu" and torch.cuda.is_available() else num_cores())
        alone = parse(Runtime, {"device": device, "trainer": trainer, "workers": 1 if jobs > 1 else None}, "runtime")
        deadline = None if minutes is None else started + 60 * minutes
        if not collect_only:
            say_if_runs_take_turns(device, jobs)
            stopped, failed = _run(wanted, alone, jobs, data_folder, deadline)
        for artefact in artefacts:
            found = collect(artefact, seeds, change, parent, before[artefact.name])
            say(f"Results: {write_results(found, place)}")
    for path in write_pages([artefact.name for artefact in artefacts], place, pages_place):
        say(f"Page: {path}")
    if stopped:
        raise typer.Exit(130)
    if failed:
        raise typer.Exit(1)


def _artefacts(names: Sequence[str]) -> list[Artefact]:
    wanted = [name for given in names for name in (EVERYTHING if given == "all" else (given,))]
    for name in wanted:
        if name not in ARTEFACTS:
            raise ConfigError(unknown("artefact", name, (*ARTEFACTS, "all")))
    return [ARTEFACTS[name] for name in dict.fromkeys(wanted)]


def _run(
    wanted: Sequence[Point], runtime: Runtime, jobs: int, data_folder: Path | None, deadline: float | None
) -> tuple[bool, bool]:
    """Run what is not finished; return whether a person stopped it, and whether runs failed."""
    todo = [point for point in wanted if status(point) != "finished"]
    out.print(f"{len(wanted) - len(todo)} of {len(wanted)} runs are finished, {len(todo)} to go", highlight=False)
    if not todo:
        return False, False
    sweep.lay_out(todo, runtime, parent=todo[0].folder.path.parent)
    stop, late, failures = Stop(), False, dict[Path, Exception]()
    inputs = Inputs(data_folder=data_folder)
    with stop.caught(), progress_bars() as bars:
        board = Board(todo, jobs, bars)
        for done in sweep.run_all([point.folder for point in todo], runtime, jobs, inputs, failures, stop):
            board.update(done, failures, stop.wanted)
            if not stop.wanted and deadline is not None and time.monotonic() > deadline:
                stop.wanted = late = True
    left = [point for point in todo if status(point) != "finished"]
    for point in todo:
        if point not in left:
            point.folder.drop_checkpoints()
    show_failures(failures)
    _say_what_is_left([point for point in left if point.folder.path not in failures])
    return stop.wanted and not late and bool(left), bool(failures)


def _say_what_is_left(waiting: Sequence[Point]) -> None:
    if waiting:
        out.print(f"{len(waiting)} runs are not finished; the same command resumes them:", highlight=False)
        for point in (point for point in waiting if status(point) == "begun"):
            done = f"{len(point.folder.read_records())} of {point.experiment.task.rounds} rounds"
            say(f"  {point.folder.path.name}: {done}")


def _show_plan(wanted: Sequence[Point]) -> None:
    states = {point.folder.path: status(point) for point in wanted}
    finished = [point for point in wanted if states[point.folder.path] == "finished"]
    todo = [point for point in wanted if states[point.folder.path] != "finished"]
    table = Table(box=None, pad_edge=False)
    for title in ("run", "state", "rounds", "10⁹ sample-steps"):
        table.add_column(title, justify="left" if title in {"run", "state"} else "right", overflow="fold")
    for point in wanted:
        experiment = point.experiment
        cells = (states[point.folder.path], str(experiment.task.rounds), f"{work(experiment) / 1e9:.2f}")
        table.add_row(shown(point.folder.path.name), *cells)
    out.print(table)
    seconds = {p.folder.path: float(p.folder.read().summary["seconds"]) for p in finished}
    left = seconds_left(todo, seconds, finished)
    guess = "no finished run here to judge the time by"
    if left is not None:
        guess = f"about {left / 3600:.1f} h one after another, judged by the finished ones"
    steps = sum(work(point.experiment) for point in todo) / 1e9
    out.print(f"\n{len(todo)} of {len(wanted)} runs to go, {steps:.0f} · 10⁹ sample-steps; {guess}", highlight=False)
