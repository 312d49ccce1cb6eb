"""Figures that carry the hash of the results they show, so that a stale one is found."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from fedbac.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save(figure: "Figure", to: Path, results: Path) -> None:
    """Write a figure with the mark of its results."""
    from fedbac.report import canvas

    canvas.save(figure, to)
    write_whole(to, to.read_text(encoding="utf-8").replace("</svg>", f"<!-- {_mark(results)} -->\n</svg>"))


def current(figure: Path, results: Path) -> bool:
    """Whether a figure is there and shows these results."""
    return figure.exists() and _mark(results) in figure.read_text(encoding="utf-8")


def _mark(results: Path) -> str:
    return f"results sha256 {hashlib.sha256(results.read_bytes()).hexdigest()}"
