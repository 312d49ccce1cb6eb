"""What ``fedbac reproduce`` does with its runs: play those that are missing, or list them."""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from fedbac.cli.playing import RunBoard, show_failures
from fedbac.cli.terminal import out, progress_bars, say, shown
from fedbac.config.experiment import Runtime
from fedbac.errors import ConfigError, DataNotFoundError, unknown
from fedbac.runs import sweep
from fedbac.runs.configure import Inputs, check_ready
from fedbac.runs.stopping import Stop
from fedbac.runs.sweep import Point
from fedbac_paper.artefact import Artefact
from fedbac_paper.artefacts import ARTEFACTS, EVERYTHING
from fedbac_paper.plan import seconds_left, status, work


def artefacts_named(names: Sequence[str]) -> list[Artefact]:
    """Return tables and figures by name, each once."""
    wanted = [name for given in names for name in (EVERYTHING if given == "all" else (given,))]
    for name in wanted:
        if name not in ARTEFACTS:
            raise ConfigError(unknown("artefact", name, (*ARTEFACTS, "all")))
    return [ARTEFACTS[name] for name in dict.fromkeys(wanted)]


def run_missing(
    wanted: Sequence[Point], runtime: Runtime, jobs: int, data_folder: Path | None, deadline: float | None
) -> tuple[bool, bool]:
    """Run what is not finished; return whether a person stopped it, and whether runs failed."""
    todo = [point for point in wanted if status(point) != "finished"]
    out.print(f"{len(wanted) - len(todo)} of {len(wanted)} runs are finished, {len(todo)} to go", highlight=False)
    if not todo:
        return False, False
    inputs = Inputs(data_folder=data_folder)
    try:
        check_ready([point.experiment for point in todo], runtime, inputs)
    except DataNotFoundError as error:
        raise DataNotFoundError(
            f"{error}\nTo run only what needs other data sets, name them with --data-set."
        ) from error
    laid = sweep.lay_out(todo, runtime, parent=todo[0].folder.path.parent)
    stop, late, failures = Stop(), False, dict[Path, Exception]()
    with stop.caught(), progress_bars() as bars:
        board = RunBoard(todo, jobs, bars)
        for done in sweep.run_all([point.folder for point in todo], runtime, jobs, inputs, failures, stop):
            board.update(done, failures, stop.wanted)
            if not stop.wanted and deadline is not None and time.monotonic() > deadline:
                stop.wanted = late = True
    left = [point for point in todo if status(point) != "finished"]
    for point in todo:
        if point not in left:
            point.folder.drop_checkpoints()
    if failures and not stop.wanted:
        laid.withdraw()
    show_failures(failures)
    _say_what_is_left([point for point in left if point.folder.path not in failures])
    return stop.wanted and not late and bool(left), bool(failures)


def _say_what_is_left(waiting: Sequence[Point]) -> None:
    if waiting:
        out.print(f"{len(waiting)} runs are not finished; the same command resumes them:", highlight=False)
        for point in (point for point in waiting if status(point) == "begun"):
            done = f"{len(point.folder.read_records())} of {point.experiment.task.rounds} rounds"
            say(f"  {point.folder.path.name}: {done}")


def show_plan(wanted: Sequence[Point]) -> None:
    """Print the runs, which of them are finished, and what the others would take."""
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
