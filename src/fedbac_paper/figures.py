"""The paper's figures in its form, with its own curves drawn faintly behind ours."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from fedbac.core.settings import FloatArray
from fedbac.report import canvas
from fedbac.report.theme import MUTED, Look
from fedbac_paper.artefacts import FRACTIONS, MODERATE, RANDOM_CLIENTS, SELECTION_TASKS, SEVERE
from fedbac_paper.claims import targets_of
from fedbac_paper.names import task_name
from fedbac_paper.paper import look_up
from fedbac_paper.results import Bytes, Curve, Results

LOOKS = {
    "hierfavg": Look.at(2),
    "ifca": Look.at(1),
    "paper-figures": Look.at(0),
    "paper-text": replace(Look.at(0), dash="--"),
    "fed-bac": replace(Look.at(0), dash=":"),
}
"""Fed-BAC keeps its colour in all its readings, which differ in their dashes."""
FAINT = 0.25
KEY_INCHES = 0.4


def has_figure(results: Results) -> bool:
    """Whether there is anything to draw."""
    return results.artefact in _DRAWN and bool(results.findings)


def figure(results: Results) -> Figure:
    """Return the figure of an artefact that has one."""
    return _DRAWN[results.artefact](results)


def _convergence(results: Results) -> Figure:
    figure_, rows = canvas.grid(2, 3, 2.3, top=KEY_INCHES)
    for panels, tasks in zip(rows, (MODERATE, SEVERE), strict=True):
        for axes, task in zip(panels, tasks, strict=True):
            for method in ("hierfavg", "ifca", "fed-bac"):
                _faint(axes, look_up("curves", task, method), method)
            last = max(point[0] for point in look_up("curves", task, "hierfavg"))
            for variant in LOOKS:
                _ours(axes, results, task, variant, lambda curve: [100 * share for share in curve.accuracy])
            canvas.title(axes, task_name(task, full=True))
            _round_axis(axes, _last(results, task, last))
            axes.autoscale_view(scalex=False)
            canvas.percent_axis(axes)
        panels[0].set_ylabel("distributed accuracy (%)", fontsize=canvas.TEXT, color=MUTED)
    for axes in rows[0]:
        axes.set_xlabel("")
    canvas.key(figure_, _handles(LOOKS))
    return figure_


def _dynamics(results: Results) -> Figure:
    figure_, rows = canvas.grid(2, 3, 2.1, top=KEY_INCHES)
    shown = [variant for variant in LOOKS if variant != "hierfavg"]
    kinds: tuple[tuple[str, str, Callable[[Curve], Sequence[float]]], ...] = (
        ("moves", "reassignments so far", lambda curve: curve.moves),
        ("active_clusters", "active clusters", lambda curve: curve.active_clusters),
    )
    for panels, (key, words, number) in zip(rows, kinds, strict=True):
        for axes, task in zip(panels, MODERATE, strict=True):
            curves = {method: look_up("dynamics", task, method, key) for method in ("ifca", "fed-bac")}
            highest = max(value for curve in curves.values() for _, value in curve)
            for method, curve in curves.items():
                _faint(axes, curve, method)
            for variant in shown:
                highest = max(highest, _ours(axes, results, task, variant, number))
            canvas.whole_numbers(axes, highest)
            canvas.title(axes, task_name(task, full=True))
            _round_axis(axes, _last(results, task, curves["ifca"][-1][0]))
        panels[0].set_ylabel(words, fontsize=canvas.TEXT, color=MUTED)
    for axes in rows[0]:
        axes.set_xlabel("")
    canvas.key(figure_, _handles(shown))
    return figure_


def _communication(results: Results) -> Figure:
    figure_, rows = canvas.grid(2, 3, 2.3, top=KEY_INCHES)
    counts: tuple[tuple[Callable[[Bytes], int], str, float], ...] = (
        (lambda sent: sent.client_train, "o", 1.0),
        (lambda sent: sent.everything, "x", 0.6),
    )
    for panels, tasks in zip(rows, (MODERATE, SEVERE), strict=True):
        for axes, task in zip(panels, tasks, strict=True):
            for variant, look in LOOKS.items():
                for count, marker, alpha in counts:
                    x, y = _gigabytes(results, task, variant, count)
                    axes.plot(x, y, marker, ls=look.dash, color=look.colour, alpha=alpha, lw=1.4, ms=4.5)
            _log_axis(axes)
            canvas.title(axes, task_name(task, full=True))
            axes.set_xlabel("target accuracy (%)", fontsize=canvas.TEXT, color=MUTED)
        panels[0].set_ylabel("GB to the target", fontsize=canvas.TEXT, color=MUTED)
    for axes in rows[0]:
        axes.set_xlabel("")
    kinds = [
        Line2D([], [], color=MUTED, marker="o", ls="", ms=4.5, label="as the paper counts"),
        Line2D([], [], color=MUTED, marker="x", ls="", ms=4.5, label="everything"),
    ]
    canvas.key(figure_, [*_handles(LOOKS, paper=False), *kinds])
    return figure_


def _gigabytes(
    results: Results, task: str, variant: str, count: Callable[[Bytes], int]
) -> tuple[list[float], list[float]]:
    """Return targets that every seed reached, and the mean bytes until then."""
    x, y = [], []
    for target in targets_of(results, task):
        sent = [found.targets[target].bytes for found in results.of(task, variant).values()]
        known = [count(one) for one in sent if one is not None]
        if known and len(known) == len(sent):
            x.append(100 * float(target))
            y.append(float(np.mean(known)) / 1e9)
    return x, y


def _participation(results: Results) -> Figure:
    figure_, (panels,) = canvas.grid(1, 2, 2.8, top=KEY_INCHES)
    looks = {"": ("Thompson sampling", Look.at(0)), RANDOM_CLIENTS: ("random clients", Look.at(6))}
    for axes, task in zip(panels, SELECTION_TASKS, strict=True):
        for ending, (_, look) in looks.items():
            cells = {p: list(results.of(task, f"p = {p:g}{ending}").values()) for p in FRACTIONS}
            some = {p: [100 * found.accuracy for found in cell] for p, cell in cells.items() if cell}
            axes.plot(list(some), [float(np.mean(cell)) for cell in some.values()], color=look.colour, lw=2)
            for p, cell in some.items():
                axes.plot([p] * len(cell), cell, look.marker, color=look.colour, ms=4, alpha=0.6)
        canvas.title(axes, f"{task_name(task, full=True)}: distributed accuracy (%)")
        axes.set_xlabel("share of clients that train, p", fontsize=canvas.TEXT, color=MUTED)
    canvas.key(figure_, [Line2D([], [], color=look.colour, lw=2, label=name) for name, look in looks.values()])
    return figure_


_DRAWN: dict[str, Callable[[Results], Figure]] = {
    "figure-convergence": _convergence,
    "figure-dynamics": _dynamics,
    "communication": _communication,
    "participation": _participation,
}


def _faint(axes: Axes, curve: Sequence[Sequence[float]], method: str) -> None:
    """Draw a curve of the paper."""
    x, y = zip(*curve, strict=True)
    axes.plot(x, y, color=LOOKS[method].colour, linewidth=4.5, alpha=FAINT)


def _ours(axes: Axes, results: Results, task: str, variant: str, number: Callable[[Curve], Sequence[float]]) -> float:
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


def _round_axis(axes: Axes, last: float) -> None:
    canvas.round_axis(axes, last)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))  # the panels are narrow


def _log_axis(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _last(results: Results, task: str, printed: float) -> float:
    return max([printed, *(found.rounds for found in results.findings if found.task == task)])


def _handles(variants: Sequence[str] | dict[str, Look], paper: bool = True) -> list[Line2D]:
    ours = [Line2D([], [], color=LOOKS[v].colour, ls=LOOKS[v].dash, lw=1.7, label=v) for v in variants]
    faint = Line2D([], [], color=MUTED, linewidth=4.5, alpha=FAINT, label="faint: the paper")
    return [*ours, faint] if paper else ours
