"""What a table or figure of the study is: the runs it needs, its page, its figure and its claims."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from fedbac.presets.tasks import TASKS
from fedbac_paper.claims import Claim
from fedbac_paper.results import Results

if TYPE_CHECKING:  # matplotlib is slow to import, and only drawing needs it
    from matplotlib.figure import Figure

RANDOM_CLIENTS = ", random clients"
"""Ends the name of a variant that differs from the one before it in its client selection only."""


@dataclass(frozen=True)
class Cell:
    """One configuration, run once per seed: a method on a task, with settings of its own."""

    task: str
    variant: str
    method: str
    settings: tuple[str, ...] = ()
    calibrated: bool = True
    """Whether the data set's settings apply; not to candidates of the calibration and tasks of our own."""

    @property
    def dataset(self) -> str:
        """The data set's name."""
        return TASKS[self.task].dataset


class Body(NamedTuple):
    """The numbers of an artefact."""

    shown: list[str]
    """The paragraphs and tables of its page."""
    rows: list[list[str]]
    """All numbers, the header first, for the file beside the page."""


@dataclass(frozen=True)
class Artefact:
    """A table or figure of the study."""

    name: str
    """On the command line, and of its result file and page."""
    title: str
    place: str
    """Where it is in the paper."""
    cells: tuple[Cell, ...]
    body: "Callable[[Artefact, Results], Body]"
    """Returns its numbers."""
    claims: Callable[[Results], list[Claim]] = lambda _: []
    """Returns its claims with their verdicts; the same claims in the same order, whatever was run."""
    figure: "Callable[[Results], Figure] | None" = None
    """Draws its figure, if it has one."""
    curves: bool = False
    """Whether its results keep curves over the rounds."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks, in their order."""
        return tuple(dict.fromkeys(cell.task for cell in self.cells))

    @property
    def variants(self) -> tuple[str, ...]:
        """The variants, in their order."""
        return tuple(dict.fromkeys(cell.variant for cell in self.cells))

    def variants_on(self, task: str) -> list[str]:
        """Return the variants that are run on a task."""
        return [cell.variant for cell in self.cells if cell.task == task]


def presets(tasks: tuple[str, ...], *methods: str) -> tuple[Cell, ...]:
    """Return a cell for each of these methods, as they are, on each of these tasks."""
    return tuple(Cell(task, method, method) for task in tasks for method in methods)
