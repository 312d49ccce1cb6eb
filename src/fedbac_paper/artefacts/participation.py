"""The paper's future work: how many clients train in a round."""

from typing import TYPE_CHECKING

import numpy as np

from fedbac_paper.artefact import RANDOM_CLIENTS, Artefact, Body, Cell
from fedbac_paper.artefacts.selection import SELECTION_TASKS
from fedbac_paper.claims import Claim, in_all
from fedbac_paper.measures import gap
from fedbac_paper.results import Results
from fedbac_paper.tables import SPREADS, mean, std
from fedbac_paper.tasks import task_name
from fedbac_paper.verdicts import above, every

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FRACTIONS = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0)
FEW, MANY = 0.2, 0.8
"""The participation rates whose gains are compared."""


def _thompson(fraction: float) -> str:
    return f"p = {fraction:g}"


def _random(fraction: float) -> str:
    return f"p = {fraction:g}{RANDOM_CLIENTS}"


def _cells(task: str) -> tuple[Cell, ...]:
    cells = []
    for fraction in FRACTIONS:
        bandit = (f"method.selection.fraction={fraction:g}",)
        random = (f"method.selection={{kind: random, fraction: {fraction:g}}}",)
        cells.append(Cell(task, _thompson(fraction), "fed-bac", bandit))
        if fraction < 1:  # else there is nothing to choose
            cells.append(Cell(task, _random(fraction), "fed-bac", random))
    return tuple(cells)


def body(artefact: Artefact, results: Results) -> Body:
    """Return the accuracy at each participation rate."""
    rows = [["setting", "clients", "accuracy", *SPREADS, "σ over edges", "seeds"]]
    for cell in artefact.cells:
        runs = list(results.of(cell.task, cell.variant).values())
        shares = [found.accuracy for found in runs]
        numbers = [mean(shares), std(shares), mean([found.accuracy_std_last for found in runs])]
        sigma = mean([found.edge_std for found in runs])
        rows.append([task_name(cell.task), cell.variant, *numbers, sigma, str(len(runs))])
    return Body(["`fed-bac` with Thompson sampling, unless clients are random."], rows)


def figure(results: Results) -> "Figure":
    """Draw accuracy over the participation rate, for both ways to choose clients."""
    from fedbac.report import canvas
    from fedbac_paper import drawing

    drawn, (panels,) = drawing.panels(1, 2, 2.8)
    shown = (("Thompson sampling", _thompson, drawing.THOMPSON), ("random clients", _random, drawing.RANDOM))
    for axes, task in zip(panels, SELECTION_TASKS, strict=True):
        for _, name, look in shown:
            runs = {p: list(results.of(task, name(p)).values()) for p in FRACTIONS}
            shares = {p: [100 * found.accuracy for found in some] for p, some in runs.items() if some}
            axes.plot(list(shares), [float(np.mean(some)) for some in shares.values()], color=look.colour, lw=2)
            for p, some in shares.items():
                axes.plot([p] * len(some), some, look.marker, color=look.colour, ms=4, alpha=0.6)
        canvas.title(axes, f"{task_name(task)}: distributed accuracy (%)")
        drawing.label_x(axes, "share of clients that train, p")
    drawing.key(drawn, [drawing.line(look, words) for words, _, look in shown])
    return drawn


def claims(results: Results) -> list[Claim]:
    """How much Thompson sampling gives at each p; "larger gains are expected at lower participation rates"."""
    out = []
    for fraction in FRACTIONS[:-1]:
        text = f"at {_thompson(fraction)} Thompson sampling is above random clients"
        verdict = in_all(results, SELECTION_TASKS, _thompson(fraction), _random(fraction))
        out.append(Claim(f"participation-thompson-above-random-at-{100 * fraction:.0f}", text, verdict))
    parts = {}
    for task in SELECTION_TASKS:
        few, many = (gap(results, task, _thompson(p), _random(p)) for p in (FEW, MANY))
        parts[task_name(task)] = above(few, many)
    text = f"“larger gains are expected at lower participation rates”: at p = {FEW:g} than at p = {MANY:g}"
    return [*out, Claim("participation-larger-gains-at-lower-rates", text, every(parts))]


ARTEFACT = Artefact(
    "participation",
    "How many clients train",
    "Named as future work in the paper",
    tuple(cell for task in SELECTION_TASKS for cell in _cells(task)),
    body,
    claims,
    figure,
)
