"""How numbers stand in the tables of the pages."""

import math
from collections.abc import Collection, Sequence
from decimal import ROUND_HALF_UP, Decimal

import numpy as np

from fedbac.report.table import human_bytes
from fedbac_paper.verdicts import Bound, geometric

NONE = "–"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [list(header), ["---"] * len(header), *map(list, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def fixed(number: float, digits: int = 2) -> str:
    """Return a number with so many decimals, a half rounded up as a reader does it: 88.85 is 88.9."""
    exact = Decimal(repr(round(number, 9))).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    return f"{exact:f}"


def mean(shares: Sequence[float], scale: float = 100, digits: int = 2) -> str:
    """Return the mean, by default in percent."""
    return fixed(scale * float(np.mean(shares)), digits) if shares else NONE


def std(shares: Sequence[float], scale: float = 100, digits: int = 2) -> str:
    """Return the standard deviation over seeds, by default in points; there is none of one seed."""
    return fixed(scale * float(np.std(shares, ddof=1)), digits) if len(shares) > 1 else NONE


def difference(shares: Sequence[float], printed: float | None, scale: float = 100, digits: int = 2) -> str:
    """Return how far the mean is above the printed number, by default in points."""
    if not shares or printed is None:
        return NONE
    off = scale * float(np.mean(shares)) - printed
    return f"{'−' if off < 0 else '+'}{fixed(abs(off), digits)}"


def printed(number: float | None, spread: float | None = None) -> str:
    """Return a number of the paper, or that it has none."""
    if number is None:
        return NONE
    return fixed(number) if spread is None else f"{fixed(number)} ± {fixed(spread)}"


def each(numbers: Sequence[int | None]) -> str:
    """Return the number of every seed, or that no seed has one."""
    if all(number is None for number in numbers):
        return NONE
    return ", ".join(NONE if number is None else str(number) for number in numbers)


def runs(count: int) -> str:
    """Return a number of runs in words."""
    return f"{count} run{'' if count == 1 else 's'}"


def size(amounts: Sequence[int]) -> str:
    """Return a mean number of bytes."""
    return human_bytes(float(np.mean(amounts))) if amounts else NONE


def at_least(text: str, reached: Sequence[bool]) -> str:
    """Mark a mean in which a seed that never reached the target counts with its whole run; – if none reached it."""
    if not any(reached):
        return NONE
    return text if all(reached) else f"> {text}"


def ratio(ratios: Collection[float], bound: Bound = "") -> str:
    """Return the geometric mean of ratios, marked if it is only a bound, and times or by what they spread."""
    if not ratios:
        return NONE
    middle = f"{bound} {fixed(geometric(list(ratios)))}".strip()
    spread = math.exp(float(np.std(np.log(list(ratios)), ddof=1))) if len(ratios) > 1 else None
    return middle if spread is None else f"{middle} ×/÷ {fixed(spread)}"
