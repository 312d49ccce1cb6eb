"""Paper to draw on: panels of a fixed size in one style, and labels at the ends of lines that do not overlap."""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedbac.core.settings import FloatArray
from fedbac.files import replacing
from fedbac.report.theme import GRID, INK, MUTED, SURFACE

WIDTH, LEFT, TOP, BOTTOM, GAP = 11.0, 0.55, 0.42, 0.55, 0.5
"""Inches."""
TEXT = 9.5
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": TEXT, "labelcolor": INK, "borderpad": 0}
LEADER_FROM, LEADER_TO, LABELS_FROM = 1.004, 1.025, 1.03
"""Of the width of a panel: where lines to labels are, and the labels."""
LONGEST = 26
"""Characters of a name in a figure."""


@dataclass(frozen=True)
class End:
    """Where a line ends and what to write there."""

    text: str
    x: float
    y: float
    colour: str


class Picture(Figure):
    """A figure that a notebook shows, whatever backend it has set up."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=80)
        return buffer.getvalue()


def panels(
    heights: Sequence[float], *, right: float, left: float = LEFT, top: float = TOP, bottom: float = BOTTOM
) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels of these heights below each other; sizes in inches."""
    total = top + sum(heights) + GAP * (len(heights) - 1) + bottom
    figure = Picture(figsize=(WIDTH, total), facecolor=SURFACE)
    axes: list[Axes] = []
    upper = total - top
    for height in heights:
        box = (left / WIDTH, (upper - height) / total, (WIDTH - left - right) / WIDTH, height / total)
        axes.append(styled(figure.add_axes(box, sharex=axes[0] if axes else None)))
        upper -= height + GAP
    for panel in axes[:-1]:
        panel.tick_params(labelbottom=False)
        panel.spines["bottom"].set_visible(False)
    return figure, axes


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the file's name; the same figure gives the same bytes."""
    kind = path.suffix.removeprefix(".")
    stamp = {"Date": None} if kind == "svg" else {"CreationDate": None} if kind == "pdf" else None
    with matplotlib.rc_context({"svg.hashsalt": path.stem}), replacing(path) as partial:
        figure.savefig(partial, format=kind, dpi=150, metadata=stamp)


def title(axes: Axes, text: str) -> None:
    """Write above the panel, at its left, what it shows."""
    axes.set_title(text, loc="left", fontsize=TEXT + 0.5, color=INK, pad=9)


def round_axis(axes: Axes, last: float) -> None:
    """Make the horizontal axis that of rounds 1 to ``last``."""
    axes.set_xlim((1, last) if last > 1 else (0.5, 1.5))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True, min_n_ticks=1))
    axes.set_xlabel("cloud round", fontsize=TEXT, color=MUTED)


def whole_numbers(axes: Axes, highest: float) -> None:
    """Make the vertical axis one of counts from 0."""
    top = 1.12 * max(highest, 1)
    axes.set_ylim(-0.03 * top, top)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))


def percent_axis(axes: Axes) -> None:
    """Keep the vertical axis within 0 to 100, with room for a dot at either end."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -2), min(high, 102))


def margin(texts: Sequence[str]) -> float:
    """Return the inches that labels at the right need."""
    return 0.4 + 0.083 * max((len(text) for text in texts), default=0)


def label_ends(axes: Axes, ends: Sequence[End]) -> None:
    """Write each line's label at the right of the panel, moved apart where lines end close together.

    A line to the label is drawn beside the panel only: in it, it would look like data. A line that ends early has a
    dot where it ends, and a dash of its colour before its label.
    """
    ends = sorted((end for end in ends if math.isfinite(end.y)), key=lambda end: end.y)
    if not ends:
        return
    low, high = axes.get_ylim()
    left, right = axes.get_xlim()
    box, figure = axes.get_position(), axes.get_figure(root=True)
    assert figure is not None
    gap = 1.35 * TEXT / 72 / (box.height * figure.get_size_inches()[1])
    wanted = np.array([(end.y - low) / (high - low) for end in ends])
    for end, at, place in zip(ends, wanted.tolist(), apart(wanted, gap).tolist(), strict=True):
        early = end.x < right - 0.002 * (right - left)
        ys = [place if early else at, place]
        style: dict[str, Any] = {"transform": axes.transAxes, "color": end.colour, "linewidth": 1.2, "clip_on": False}
        axes.add_artist(Line2D([LEADER_FROM, LEADER_TO], ys, **style))
        if early:
            axes.plot([end.x], [end.y], "o", color=end.colour, markersize=4.5)
        axes.text(LABELS_FROM, place, plain(end.text), transform=axes.transAxes, va="center", fontsize=TEXT, color=INK)


def apart(wanted: FloatArray, gap: float) -> FloatArray:
    """Return ascending places at least ``gap`` apart, near those wanted, not above 1 unless there are too many."""
    places = wanted.copy()
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + gap)
    ceiling = max(1.0, gap * (len(places) - 1))
    for i in reversed(range(len(places))):
        places[i] = min(places[i], ceiling)
        ceiling = places[i] - gap
    return places


def plain(text: str) -> str:
    """Return a name as text that the font can show: one line, not too long, no mathematics."""
    text = " ".join(text.split())
    text = "".join(sign if _font().get_char_index(ord(sign)) else "□" for sign in text)
    return text.replace("$", r"\$")


def short(name: str) -> str:
    """Return a name that is not too long for a figure."""
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


@cache
def _font() -> FT2Font:
    return font_manager.get_font(font_manager.findfont("DejaVu Sans"))


def styled(axes: Axes) -> Axes:
    """Return a panel without a frame, with faint lines for its heights."""
    axes.set_facecolor("none")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)
    axes.spines["bottom"].set_linewidth(0.8)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=TEXT, labelcolor=MUTED, color=MUTED, length=0)
    return axes
