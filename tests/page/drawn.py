"""What figures of the page show, read back from what is drawn: places become numbers by the labels of the axes."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from playwright.sync_api import Locator, Page

NUMBER = r"-?[\d.]+"
BLOCK = re.compile(rf"M({NUMBER}) ({NUMBER})H({NUMBER})v({NUMBER})H{NUMBER}z")
RIBBON = re.compile(rf"M{NUMBER} ({NUMBER})C{NUMBER} {NUMBER} {NUMBER} {NUMBER} {NUMBER} ({NUMBER})v({NUMBER})C")
HEAT = re.compile(r"var\(--heat\) (\d+)%")
CLUSTER = re.compile(r"var\(--c(\d+)\)")


@dataclass(frozen=True)
class Block:
    """A rectangle, from its left to its right and from its top to its bottom."""

    left: float
    right: float
    top: float
    bottom: float
    fill: str

    @property
    def middle(self) -> float:
        return (self.top + self.bottom) / 2

    @property
    def height(self) -> float:
        return self.bottom - self.top

    def holds(self, top: float, bottom: float) -> bool:
        return self.top - 0.3 <= top <= bottom <= self.bottom + 0.3  # places are rounded to a tenth


def attribute(mark: Locator, name: str) -> str:
    value = mark.get_attribute(name)
    assert value is not None
    return value


def percents(page: Page, figure: str) -> Callable[[float], float]:
    """Return what a height means, by the grid lines and the numbers beside them."""
    lines = page.locator(f"#figure-{figure} line.grid").all()
    numbers = page.locator(f"#figure-{figure} text.tick[text-anchor=end]").all()
    slope, start = np.polyfit(
        [float(attribute(line, "y1")) for line in lines], [float(text.inner_html()) for text in numbers], 1
    )
    return lambda place: float(start + slope * place)


def rounds(page: Page, figure: str) -> dict[int, float]:
    """Return where rounds are, by the numbers below."""
    marks = page.locator(f"#figure-{figure} text.tick[text-anchor=middle]").all()
    return {int(m.inner_html()): float(attribute(m, "x")) for m in marks if m.inner_html().isdigit()}


def points(path: str) -> list[tuple[float, float]]:
    """Return the corners of a path of straight lines."""
    return [(float(x), float(y)) for x, y in re.findall(rf"({NUMBER}) ({NUMBER})", path)]


def blocks(marks: Locator) -> list[Block]:
    """Return the rectangles of paths that consist of them."""
    found = []
    for mark in marks.all():
        for left, top, right, height in BLOCK.findall(attribute(mark, "d")):
            bottom = float(top) + float(height)
            found.append(Block(float(left), float(right), float(top), bottom, attribute(mark, "style")))
    return found


def ribbons(marks: Locator) -> list[tuple[float, float, float, str]]:
    """Return the ribbons of paths: the top at their left and at their right, how thick they are, and the colour."""
    return [
        (float(start), float(end), float(thick), attribute(mark, "style"))
        for mark in marks.all()
        for start, end, thick in RIBBON.findall(attribute(mark, "d"))
    ]


def heat_of(style: str) -> float:
    """Return how hot a colour is, from 0 to 1."""
    found = HEAT.search(style)
    assert found, style
    return int(found[1]) / 100


def cluster_of(style: str) -> int:
    """Return the cluster whose colour it is, of up to nine."""
    found = CLUSTER.search(style)
    assert found, style
    return int(found[1])
