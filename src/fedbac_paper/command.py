"""The command ``fedbac reproduce``: run what is missing, collect what it showed, render the pages."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.markup import escape
from rich.table import Table

from fedbac.cli.terminal import (
    DataOption,
    DeviceOption,
    OutOption,
    SetOption,
    TrainerOption,
    err,
    out,
    progress_bars,
    say_if_runs_take_turns,
)
from fedbac.config.experiment import Runtime, parse
from fedbac.errors import ConfigError, unknown
from fedbac.local import num_cores
from fedbac.runs import sweep
from fedbac.runs.play import Stop
from fedbac.runs.sweep import Point
from fedbac_paper import results
from fedbac_paper.artefacts import ARTEFACTS, EVERYTHING, Artefact
from fedbac_paper.plan import Filter, Pass, points, seconds_left, status, work

SAY_SECONDS = 60
"""Where nobody watches a progress bar, how often to say how far things are."""
NAMES = ", ".join((*ARTEFACTS, "all"))


def reproduce(
    names: Annotated[list[str], typer.Argument(metavar="ARTEFACT...", help=f"{NAMES} (all but calibration).")],
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds 0 to n − 1; they set partition and start.")] = 3,
    first_seed: Annotated[
        int, typer.Option("--first-seed", min=0, help="Run only seeds from this one on; earlier results stay.")
    ] = 0,
    out_folder: OutOption = None,
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, help="A quick pass: so many rounds.")] = None,
    fraction: Annotated[
        float | None, typer.Option("--fraction-of-data", help="A quick pass: this share of every class.")
    ] = None,
    settings: SetOption = [],  # noqa: B006 (typer reads it)
    datasets: Annotated[list[str], typer.Option("--data-set", help="Only runs on this data set; repeatable.")] = [],  # noqa: B006
    tasks: Annotated[list[str], typer.Option("--task", help="Only runs of this task; repeatable.")] = [],  # noqa: B006
    variants: Annotated[list[str], typer.Option("--variant", help="Only this row of the artefact; repeatable.")] = [],  # noqa: B006
    minutes: Annotated[float | None, typer.Option("--minutes", help="Stop after so long; again to go on.")] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Runs at a time; 1 on a GPU, else one per core.")
    ] = None,
    device: DeviceOption = "auto",
    trainer: TrainerOption = "auto",
    data_folder: DataOption = None,
    results_folder: Annotated[
        Path | None, typer.Option("--results", help="Folder of the result files; by default OUT/results.")
    ] = None,
    pages_folder: Annotated[
        Path | None, typer.Option("--pages", help="Folder of the pages; by default OUT/pages.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Only list the runs and what they would take.")] = False,
    collect_only: Annotated[
        bool, typer.Option("--collect-only", help="Run nothing: result files and pages from finished runs in OUT.")
    ] = False,
    render_only: Annotated[
        bool, typer.Option("--render-only", help="Run nothing: pages from the result files.")
    ] = False,
) -> None:
    """Reproduce the paper's tables and figures: run what is missing, go on with what was interrupted, render."""
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
        before = {artefact.name: results.read(artefact.name, place) for artefact in artefacts}
        for known in before.values():
            results.check_pass(known, change)
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
            found = results.collect(artefact, seeds, change, parent, before[artefact.name])
            out.print(f"Results: {results.write(found, place)}", highlight=False, soft_wrap=True)
    from fedbac_paper import pages  # matplotlib is slow to import and needed only here

    for path in pages.write([artefact.name for artefact in artefacts], place, pages_place):
        out.print(f"Page: {path}", highlight=False, soft_wrap=True)
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
    sweep.lay_out(todo, runtime)
    stop, failures = Stop(), dict[Path, Exception]()
    total = sum(point.experiment.task.rounds for point in todo)
    finished: set[Path] = set()
    said = time.monotonic()
    with stop.caught(), progress_bars() as progress:
        line = progress.add_task(f"{len(todo)} runs", total=total, note="")
        playing = sweep.run_all([point.folder for point in todo], runtime, jobs, data_folder, failures)
        for done in playing:
            ended = {p.folder.path for p in todo if done[p.folder.path] >= p.experiment.task.rounds}
            note = f"{len(ended)} of {len(todo)} runs, {sum(done.values())} of {total} rounds"
            progress.update(line, completed=sum(done.values()), note=note)
            if not out.is_terminal and (ended != finished or time.monotonic() - said > SAY_SECONDS):
                out.print(note, highlight=False)
                said = time.monotonic()
            finished = ended
            late = deadline is not None and time.monotonic() > deadline
            if stop.wanted or late:
                playing.close()
                break
    left = [point for point in todo if status(point) != "finished"]
    for point in todo:
        if point not in left:
            point.folder.drop_checkpoints()
    _say_what_is_left(left, {} if stop.wanted else failures)
    return stop.wanted and bool(left), bool(failures) and not stop.wanted


def _say_what_is_left(left: Sequence[Point], failures: dict[Path, Exception]) -> None:
    together: dict[str, list[str]] = {}
    for path, error in failures.items():
        together.setdefault(str(error) or type(error).__name__, []).append(path.name)
    for text, failed in together.items():
        err.print(
            f"[bold red]failed:[/] {escape(', '.join(failed))}\n  {escape(text)}", highlight=False, soft_wrap=True
        )
    waiting = [point for point in left if point.folder.path not in failures]
    if waiting:
        out.print(f"{len(waiting)} runs are not finished; the same command goes on with them:", highlight=False)
        for point in (point for point in waiting if status(point) == "begun"):
            done = f"{len(point.folder.read_records())} of {point.experiment.task.rounds} rounds"
            out.print(f"  {point.folder.path.name}: {done}", highlight=False, soft_wrap=True)


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
        table.add_row(escape(point.folder.path.name), *cells)
    out.print(table)
    seconds = {p.folder.path: float(json.loads(p.folder.summary_file.read_text())["seconds"]) for p in finished}
    left = seconds_left(todo, seconds, finished)
    guess = "no finished run here to judge the time by"
    if left is not None:
        guess = f"about {left / 3600:.1f} h one after another, judged by the finished ones"
    steps = sum(work(point.experiment) for point in todo) / 1e9
    out.print(f"\n{len(todo)} of {len(wanted)} runs to go, {steps:.0f} · 10⁹ sample-steps; {guess}", highlight=False)
