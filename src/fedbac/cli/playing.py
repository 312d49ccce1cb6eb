"""Playing runs before a person's eyes: progress, Ctrl-C and failures are the same for every command."""

import gc
import os
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.progress import Progress

from fedbac.cli.streams import never_wait
from fedbac.cli.terminal import ROOMY, err, out, progress_bars, say, shown
from fedbac.config.experiment import Runtime
from fedbac.core.settings import MAX_ROUNDS
from fedbac.errors import Error, visible
from fedbac.packages import VARIABLE
from fedbac.runs import sweep
from fedbac.runs.configure import Inputs
from fedbac.runs.stopping import Interrupted, Stop
from fedbac.runs.store import StoredRun, Tail
from fedbac.runs.sweep import Laid, Point

FEW = 10
"""Up to so many runs have a line each; more share one."""
SAY_SECONDS = 60
"""Where nobody watches a progress bar, how often to say how far many runs are."""


def play_all(
    points: Sequence[Point],
    parent: Path | None,
    *,
    inputs: Inputs,
    laid: Laid = Laid(),  # noqa: B008 (frozen)
    jobs: int = 1,
    spread: Runtime | None = None,
    until: int | None = None,
) -> list[StoredRun]:
    """Run, or resume, what has been laid out, up to a round or its end, and return the runs that did not fail.

    A single run's error is raised; of several, the others continue and errors are shown at the end. A signal stops all
    of them when their rounds in hand are saved, and ends the command, which says how to resume them from ``parent``, if
    that can be done. If all are refused, what was laid out for them is withdrawn.
    """
    never_wait()
    gc.freeze()  # the collector took a tenth of a second, again and again, to look at modules that stay anyway
    stop, failures = Stop(), dict[Path, Exception]()
    folders = [point.folder for point in points]
    before = [folder.finished(until) for folder in folders]
    try:
        with stop.caught(), progress_bars() as bars:
            board = RunBoard(points, jobs, bars, until)
            caught = failures if len(points) > 1 else None
            for done in sweep.run_all(folders, spread or Runtime(), jobs, inputs, caught, stop, until):
                board.update(done, failures, stop.wanted)
    except Interrupted:
        raise _stopped("Stopped at once; saved rounds are safe", parent) from None
    except Exception:
        laid.withdraw()
        raise
    show_failures(failures)
    if stop.wanted and not all(folder.finished(until) for folder in folders if folder.path not in failures):
        raise _stopped("Stopped; all complete rounds are saved", parent)
    if failures:
        laid.withdraw()
    runs = [folder.read() for folder in folders if folder.path not in failures]
    if not runs:
        raise typer.Exit(1)
    if before == [True]:  # a command that is repeated would seem to have done the work
        say("This run was finished already, so nothing was run again.")
    elif any(before):
        say(f"{sum(before)} of {len(before)} runs were finished already and were not run again.")
    return runs


def _stopped(how: str, folder: Path | None) -> typer.Exit:
    """Say what was stopped and how to resume; return what ends the command."""
    say(f"{how}.", err)
    typed = "".join(f" --allow {code}" for code in filter(None, os.environ.get(VARIABLE, "").split(",")))
    command = (
        "the same command"
        if folder is None
        else f"fedbac resume {folder}{typed}, or the same command without --overwrite"
    )
    say(f"To resume: {command}.", err)
    return typer.Exit(130)


def show_failures(failures: Mapping[Path, Exception]) -> None:
    """Show every error once, with the runs that it ended; also the traceback of one that should not be."""
    together: dict[str, list[str]] = {}
    for path, error in failures.items():
        text = str(error) if isinstance(error, Error) else "".join(traceback.format_exception(error))
        together.setdefault(text.strip(), []).append(path.name)
    for text, names in together.items():
        err.print(f"[bold red]failed:[/] {shown(', '.join(names))}", highlight=False, soft_wrap=True)
        err.print(visible(text), highlight=False, markup=False, soft_wrap=True)


class RunBoard:
    """Shows how far runs are: by a bar, or in lines of text where there is no terminal."""

    def __init__(self, points: Sequence[Point], jobs: int, bars: Progress, until: int | None = None) -> None:
        self.points, self.jobs, self.bars = points, jobs, bars
        self.tails = [Tail(point.folder) for point in points]
        self.seen = [tail.refresh() for tail in self.tails]
        self.labels = [point.label for point in points]
        if len(set(self.labels)) < len(points):  # resumed runs do not know what sets them apart
            self.labels = [point.folder.path.name for point in points]
        self.totals = [min(point.experiment.task.rounds, until or MAX_ROUNDS) for point in points]
        self.begun = self.over = 0
        self.reported = time.monotonic()
        self.lines = []
        if len(points) <= FEW:
            hidden: dict[str, Any] = {"note": "", "start": False, "visible": False}
            each = zip(self.labels, self.totals, self.seen, strict=True)
            self.lines = [bars.add_task(shown(label), total=n, completed=seen, **hidden) for label, n, seen in each]
        else:
            self.line = bars.add_task(f"{len(points)} runs", total=sum(self.totals), completed=sum(self.seen), note="")

    def update(self, done: Mapping[Path, int], failures: Mapping[Path, Exception], stopping: bool) -> None:
        """Show how many rounds each run has completed, which have failed, and whether the rest is stopping."""
        rounds = [done[point.folder.path] for point in self.points]
        failed = [point.folder.path in failures for point in self.points]
        ended = [bad or count >= total for total, count, bad in zip(self.totals, rounds, failed, strict=True)]
        suffix = " [yellow]stopping" if stopping else ""
        if self.lines:
            self._begin(sum(ended) + self.jobs)
            for index, count in enumerate(rounds):
                if count != self.seen[index]:
                    self._round(index, suffix)
                elif failed[index]:
                    self.bars.update(self.lines[index], note="[red]failed")
        else:
            self._many(sum(rounds), sum(ended), sum(failed), suffix)
        self.seen = rounds

    def _begin(self, count: int) -> None:
        """Show the lines of the first runs: they begin in their order, so many at a time."""
        for index in range(self.begun, min(count, len(self.points))):
            self.bars.start_task(self.lines[index])
            record = self.tails[index].record()
            self.bars.update(self.lines[index], visible=True, note=_note(record) if record else "")
            self.begun = index + 1

    def _round(self, index: int, suffix: str) -> None:
        count, total = self.tails[index].refresh(), self.totals[index]
        record = self.tails[index].record()
        if record is None:
            return
        note = _note(record)
        self.bars.update(self.lines[index], completed=count, note=note + (suffix if count < total else ""))
        tenth = max(1, total // 10)
        if self.bars.disable and (count // tenth > self.seen[index] // tenth or count == 1):
            out.print(f"{shown(self.labels[index])}: round {count}/{total}, {note}", highlight=False, soft_wrap=True)

    def _many(self, rounds: int, over: int, failed: int, suffix: str) -> None:
        note = f"{over - failed} of {len(self.points)} runs finished" + (f", {failed} failed" if failed else "")
        self.bars.update(self.line, completed=rounds, note=note + suffix)
        if self.bars.disable and (over != self.over or time.monotonic() - self.reported > SAY_SECONDS):
            out.print(f"{note}, round {rounds} of {sum(self.totals)}", highlight=False)
            self.reported = time.monotonic()
        self.over = over


def _note(record: Mapping[str, Any]) -> str:
    clusters = int(record["active_clusters"])
    text = f"{100 * record['accuracy']:.2f} %"
    if not err.is_terminal or err.width >= ROOMY:
        text = f"accuracy {text}, {clusters} cluster{'s' if clusters > 1 else ''}"
    if record.get("epsilon") is not None:
        text += f", ε {record['epsilon']:.3g}"
    return text + (f", [red]{len(record['failed'])} clients failed[/]" if record["failed"] else "")
