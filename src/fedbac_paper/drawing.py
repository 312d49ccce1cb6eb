"""How the figures of the study are drawn: in the paper's form, with its own curves faintly behind ours.

Only this module of the study imports matplotlib, which is slow; a figure imports it when it is drawn.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from fedbac.core.settings import FloatArray
from fedbac.report import canvas
from fedbac.report.groups import own_look
from fedbac.report.theme import MUTED, SURFACE, Look
from fedbac_paper.results import Curve, Results

LOOKS = {
    "hierfavg": own_look("hierfavg"),
    "ifca-paper": own_look("ifca-edges"),
    "paper-figures": own_look("fed-bac"),
    "paper-text": replace(own_look("fed-bac"), dash="--"),
    "fed-bac": replace(own_look("fed-bac"), dash=":"),
}
"""Fed-BAC keeps its colour in all its readings, which differ in their dashes."""
THOMPSON, RANDOM = Look.at(0), Look.at(6)
"""The two ways to choose clients."""
FAINT = 0.25
KEY_INCHES = 0.4


def panels(
    rows: int, columns: int, height: float, top: float = KEY_INCHES, left: float = canvas.LEFT
) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure with rows of equally large panels, and room for a key above them; sizes in inches."""
    between, gap, right, full = 0.5, canvas.GAP + 0.3, 0.15, canvas.WIDTH
    total = top + canvas.TOP + rows * height + gap * (rows - 1) + canvas.BOTTOM
    width = (full - left - right - between * (columns - 1)) / columns
    figure = canvas.Picture(figsize=(full, total), facecolor=SURFACE)
    axes = []
    for row in range(rows):
        lower = total - top - canvas.TOP - (row + 1) * height - row * gap
        boxes = [(left + column * (width + between), lower, width, height) for column in range(columns)]
        places = [(x / full, y / total, w / full, h / total) for x, y, w, h in boxes]
        axes.append([canvas.styled(figure.add_axes(place)) for place in places])
    return figure, axes


def key(figure: Figure, handles: Sequence[Line2D]) -> None:
    """Write one legend for all panels along the top of the figure."""
    inset = 0.12 / figure.get_size_inches()[1]
    place = {"bbox_to_anchor": (canvas.LEFT / canvas.WIDTH, 1 - inset), "ncols": len(handles)}
    figure.legend(handles=handles, loc="upper left", **place, **canvas.LEGEND, handlelength=2.2, columnspacing=1.6)


def label_x(axes: Axes, text: str) -> None:
    """Write what the horizontal axis shows."""
    axes.set_xlabel(text, fontsize=canvas.TEXT, color=MUTED)


def label_y(axes: Axes, text: str) -> None:
    """Write what the vertical axis shows."""
    axes.set_ylabel(text, fontsize=canvas.TEXT, color=MUTED)


def paper_curve(axes: Axes, curve: Sequence[Sequence[float]], method: str) -> None:
    """Draw a curve of the paper."""
    x, y = zip(*curve, strict=True)
    axes.plot(x, y, color=LOOKS[method].colour, linewidth=4.5, alpha=FAINT)


def our_curve(
    axes: Axes, results: Results, task: str, variant: str, number: Callable[[Curve], Sequence[float]]
) -> float:
    """Draw the mean over the seeds, and each seed thinly if there are several; return the highest value."""
    curves = [found.curve for found in results.of(task, variant).values() if found.curve is not None]
    if not curves:
        return 0.0
    look = LOOKS[variant]
    rounds = sorted(set.intersection(*(set(curve.round) for curve in curves)))
    value_RT: FloatArray = np.array([[number(c)[c.round.index(r)] for r in rounds] for c in curves], dtype=float)
    if len(curves) > 1:
        for row in value_RT:
            axes.plot(rounds, row, color=look.colour, linewidth=0.6, alpha=0.4)
    axes.plot(rounds, value_RT.mean(axis=0), color=look.colour, linewidth=1.7, linestyle=look.dash)
    return float(value_RT.max())


def round_axis(axes: Axes, results: Results, task: str, last_of_paper: float) -> None:
    """Make the horizontal axis one of rounds, as long as the longest run of ours or the paper's."""
    last = max([last_of_paper, *(found.rounds for found in results.findings if found.task == task)])
    canvas.round_axis(axes, last)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))  # the panels are narrow


def log_axis(axes: Axes) -> None:
    """Make the vertical axis logarithmic, with plain numbers at its ticks."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def variant_lines(variants: Iterable[str]) -> list[Line2D]:
    """Return what the key shows for variants."""
    return [Line2D([], [], color=LOOKS[v].colour, ls=LOOKS[v].dash, lw=1.7, label=v) for v in variants]


def paper_line() -> Line2D:
    """Return what the key shows for the paper's curves."""
    return Line2D([], [], color=MUTED, linewidth=4.5, alpha=FAINT, label="faint: the paper")


def marker(shape: str, text: str) -> Line2D:
    """Return what the key shows for a shape of marker."""
    return Line2D([], [], color=MUTED, marker=shape, ls="", ms=4.5, label=text)


def line(look: Look, text: str) -> Line2D:
    """Return what the key shows for a line of this look."""
    return Line2D([], [], color=look.colour, lw=2, label=text)


def differences(
    shown: Mapping[str, Sequence[tuple[str, float, float]]],
    margins: Mapping[str, float],
    label: str = "points above the best rival",
) -> Figure:
    """Draw a panel for each title: rows of a name, a difference and half of its interval; faint is what counts as 0."""
    figure, ((*axes,),) = panels(1, len(shown), 0.3 * max(map(len, shown.values())), top=0, left=2.2)
    for panel, (title, rows) in zip(axes, shown.items(), strict=True):
        place = -np.arange(len(rows))
        names, mean, half = zip(*rows, strict=True)
        panel.axvspan(-margins[title], 0, color=MUTED, alpha=FAINT / 2, linewidth=0)
        panel.axvline(0, color=MUTED, linewidth=1)
        panel.errorbar(mean, place, xerr=half, fmt="o", color=LOOKS["fed-bac"].colour, markersize=5, linewidth=1.5)
        panel.set_yticks(place, names if panel is axes[0] else [""] * len(names))
        panel.set_title(title, fontsize=canvas.TEXT, loc="left")
        label_x(panel, label)
    return figure
