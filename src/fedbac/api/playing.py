"""Rounds as they are played, one after another; and a bar that shows how far they are."""

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, Self

from fedbac.api.results import Run
from fedbac.errors import Error
from fedbac.runs.store import StoredRun

Record = dict[str, Any]
Show = Callable[[str, Record | None, int], None]
"""Shows a round, or that a run begins: its label, the record, and how many rounds there will be."""


class Playing(Iterator[Record]):
    """An iterator over the rounds of a run: each record comes once its round is done, and saved where it is.

    After the last round ``run`` is the whole run. To stop early, leave the loop and call ``close``, or use ``with``.
    """

    def __init__(self, rounds: Generator[Record, None, StoredRun], label: str, total: int, show: Show | None) -> None:
        self._rounds, self._label, self._total, self._show = rounds, label, total, show
        self._run: Run | None = None
        self._begun = False

    def __next__(self) -> Record:
        if self._show is not None and not self._begun:
            self._show(self._label, None, self._total)
        self._begun = True
        try:
            record = next(self._rounds)
        except StopIteration as end:
            if end.value is not None:  # it is None at a second end, and after a run that was stopped or failed
                self._run = Run.of(end.value)
            raise StopIteration from None
        if self._show is not None:
            self._show(self._label, record, self._total)
        return record

    @property
    def run(self) -> Run:
        """The whole run, once all its rounds have been played."""
        if self._run is None and getgeneratorstate(self._rounds) == GEN_CLOSED:
            raise Error(
                f"{self._label}: it ended before its last round, because it was closed or failed; play it again, or "
                "resume it from its folder if it has one (fedbac.resume)"
            )
        if self._run is None:
            raise Error(f"{self._label}: its last round has not been played yet; go on to the end of the loop first")
        return self._run

    def finish(self) -> Run:
        """Play all rounds that are left and return the run."""
        for _ in self:
            pass
        return self.run

    def close(self) -> None:
        """Stop here; what was saved stays, and can be resumed."""
        self._rounds.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@contextmanager
def bar(wanted: bool | None) -> Iterator[Show | None]:
    """Yield what shows rounds: a bar for every run, in a terminal or a notebook; nothing where nobody watches."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    notebook = hasattr(shell, "kernel")  # whose cells show more than text
    if wanted is False or (wanted is None and not notebook and not sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console  # slow to import, and needed only here
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )
    console = Console(stderr=True, emoji=False, force_terminal=None if wanted is None else True)
    progress = Progress(*columns, console=console, auto_refresh=not notebook)
    tasks: dict[str, Any] = {}
    cell: Any = None

    def show(label: str, record: Record | None, total: int) -> None:
        nonlocal cell
        if label not in tasks:
            tasks[label] = progress.add_task(label, total=total, note="")
        if record is not None:
            note = f"accuracy {100 * record['accuracy']:.1f} %"
            progress.update(tasks[label], completed=record["round"], note=note)
        if cell is not None:
            cell.update(progress)
        elif notebook:
            cell = import_module("IPython.display").display(progress, display_id=True)

    if notebook:  # rich's own live display would need another package there
        yield show
        return
    with progress:
        yield show
