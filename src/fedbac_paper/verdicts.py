"""The rules by which a claim is judged, the same for every claim."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedbac.statistics import FEWEST_SEEDS, LEVEL, gap, holm

TOLERANCE = 0.1
MARGIN = 0.01
"""How much lower an accuracy may be and still pass as "not worse"."""

Word = Literal["holds", "does not hold", "not clear", "too few seeds", "not run"]
Bound = Literal["", ">", "<", "~"]
"""What a mean of ratios is where a run never got there: exact, a lower bound, an upper one, or neither."""

_PERCENT = f"{100 * LEVEL:.0f} %"
RULES = "\n".join(
    [
        "- **A comparison** is made seed by seed, on the same data (except between values of α or N), by a two-sided t "
        f"test at {_PERCENT}. It **holds** if the mean difference has the claimed sign and is significant, **does not "
        "hold** if the opposite is significant, and is otherwise **not clear**.",
        "- **A claim of several parts** holds if every part holds; “4/6” counts those that do. It does not hold if a "
        "part fails after Holm's correction for the judged parts. A part that was not run leaves it not clear.",
        f"- **Fewer than {FEWEST_SEEDS} seeds** give no verdict.",
        f"- **A number or range of the paper** is widened by {100 * TOLERANCE:.0f} % to each side (a ratio by a factor "
        f"of {1 + TOLERANCE:g}). It holds if our mean is inside and its standard error is at most half the width. "
        f"Outside, it does not hold if a two-sided t test at {_PERCENT} tells our mean from the paper's; ours may be "
        "the better one.",
        "- **Ratios** are averaged and tested as logarithms. A bound decides only what lies beyond it.",
        "- **A yes or no of every seed** holds if always yes, and does not hold if always no. A target that only the "
        "paper's method reaches does not hold.",
        f"- **“Not worse”** holds if the {100 - 100 * LEVEL:.0f} % interval of the difference is above "
        f"−{100 * MARGIN:g} point and not wholly below zero; it does not hold if the mean is at most "
        f"−{100 * MARGIN:g} point and the interval wholly below zero.",
        "- **Accuracies** are means over seeds and the last ten rounds.",
        f"- **±** is half the {100 - 100 * LEVEL:.0f} % interval over seeds (of a ratio: the factor ×/÷).",
    ]
)


@dataclass(frozen=True)
class Verdict:
    """A word, and what it rests on."""

    word: Word
    detail: str = ""
    doubt: float = 0.0
    """Of a part that does not hold: how often chance alone would say so (the p-value)."""


def above(a: Mapping[int, float], b: Mapping[int, float], unit: str = "points", scale: float = 100) -> Verdict:
    """Judge "a is above b", values by seed."""
    return positive(_differences(a, b), unit, scale)


def below(a: Mapping[int, float], b: Mapping[int, float], unit: str = "points", scale: float = 100) -> Verdict:
    """Judge "a is below b", values by seed; what is shown is a − b."""
    return positive(_differences(a, b), unit, scale, claimed=-1)


def positive(
    differences: Sequence[float], unit: str = "points", scale: float = 100, claimed: Literal[1, -1] = 1
) -> Verdict:
    """Judge "these differences, one per seed, are positive", or negative where that is claimed."""
    if not differences:
        return Verdict("not run")
    found = gap(differences)
    if len(differences) < FEWEST_SEEDS:
        few = f", {_seeds(len(differences))}"
        return Verdict("too few seeds", f"{_signed(scale * found.mean)} {unit}".strip() + few)
    detail = f"{_signed(scale * found.mean)} ± {scale * found.half:.2f} {unit}".strip()
    if found.chance > LEVEL:
        return Verdict("not clear", detail)
    return Verdict("holds", detail) if claimed * found.mean > 0 else Verdict("does not hold", detail, found.chance)


def not_worse(differences: Sequence[float], unit: str = "points", scale: float = 100) -> Verdict:
    """Judge "a is not worse than b by more than noise" on a − b, one per seed.

    That it is not lower is not enough: any difference would pass if only it is noisy enough.
    """
    verdict = positive(differences, unit, scale)
    if verdict.word in {"not run", "too few seeds"}:
        return verdict
    found = gap(differences)
    if found.mean - found.half > -MARGIN and verdict.word != "does not hold":
        return Verdict("holds", verdict.detail)
    if found.mean > -MARGIN or verdict.word != "does not hold":
        return Verdict("not clear", verdict.detail)
    return verdict


def faster(ratios: Sequence[float], bound: Bound = "") -> Verdict:
    """Judge "these ratios, one per seed, are above 1"; judged and averaged as logarithms."""
    verdict = positive([math.log(ratio) for ratio in ratios])
    few = f", {_seeds(len(ratios))}" if verdict.word == "too few seeds" else ""
    return replace(verdict, detail=_times(ratios, bound) + few) if ratios else verdict


def near(ours: Sequence[float], paper: float) -> Verdict:
    """Judge "the paper's number is ours", values one per seed."""
    return between(ours, paper, paper)


def between(ours: Sequence[float], low: float, high: float) -> Verdict:
    """Judge "our number is in the paper's range", values one per seed."""
    if not ours:
        return Verdict("not run")
    found = gap(ours)
    if len(ours) < FEWEST_SEEDS:
        return Verdict("too few seeds", f"{_number(found.mean)} against {_range(low, high)}, {_seeds(len(ours))}")
    word, doubt = _placed(ours, (low, high), (low - TOLERANCE * abs(low), high + TOLERANCE * abs(high)), "")
    return Verdict(word, f"{_number(found.mean)} ± {_number(found.half)} against {_range(low, high)}", doubt)


def ratio_between(ratios: Sequence[float], low: float, high: float, bound: Bound = "") -> Verdict:
    """Judge "our ratio is in the paper's range", values one per seed."""
    if not ratios:
        return Verdict("not run")
    detail = f"{_times(ratios, bound)} against {_range(low, high)}"
    if len(ratios) < FEWEST_SEEDS:
        return Verdict("too few seeds", f"{detail}, {_seeds(len(ratios))}")
    edges = (math.log(low), math.log(high))
    slack = math.log(1 + TOLERANCE)
    word, doubt = _placed([math.log(ratio) for ratio in ratios], edges, (edges[0] - slack, edges[1] + slack), bound)
    return Verdict(word, detail, doubt)


def always(answers: Sequence[bool], detail: str = "") -> Verdict:
    """Judge a yes or no of every seed."""
    if not answers:
        return Verdict("not run")
    detail = f"{detail} in {sum(answers)} of {_seeds(len(answers))}".strip()
    if len(answers) < FEWEST_SEEDS:
        return Verdict("too few seeds", detail)
    if all(answers):
        return Verdict("holds", detail)
    return Verdict("not clear" if any(answers) else "does not hold", detail)


def every(parts: Mapping[str, Verdict]) -> Verdict:
    """Judge a claim of several parts."""
    words = {verdict.word for verdict in parts.values()}
    if not words - {"not run"}:
        return Verdict("not run")
    told = [verdict.word for verdict in parts.values()]
    against = f", refuted in {told.count('does not hold')}" if "does not hold" in told else ""
    count = f"holds in {told.count('holds')} of {len(parts)}{against}; " if len(parts) > 1 else ""
    detail = (count + "; ".join(f"{name}: {_told(verdict)}" for name, verdict in parts.items())).removesuffix("; ")
    judged = [verdict for verdict in parts.values() if verdict.word in {"holds", "does not hold", "not clear"}]
    if any(holm([verdict.doubt if verdict.word == "does not hold" else 1.0 for verdict in judged])):
        return Verdict("does not hold", detail)
    if "too few seeds" in words:
        return Verdict("too few seeds", detail)
    return Verdict("holds" if words == {"holds"} else "not clear", detail)


def geometric(ratios: Sequence[float]) -> float:
    """Return the mean of ratios."""
    return math.exp(float(np.mean(np.log(ratios))))


def _differences(a: Mapping[int, float], b: Mapping[int, float]) -> list[float]:
    return [a[seed] - b[seed] for seed in sorted(set(a) & set(b))]


def _placed(
    values: Sequence[float], edges: tuple[float, float], wide: tuple[float, float], bound: Bound
) -> tuple[Word, float]:
    """Judge whether the mean lies between the edges, those of the tolerance being wider."""
    mean, error, *_ = gap(values)
    if wide[0] <= mean <= wide[1]:
        steady = error <= (wide[1] - wide[0]) / 2  # else the mean is there by chance
        return ("holds" if steady and not bound else "not clear"), 0.0
    low = mean < edges[0]
    doubt = gap([value - edges[0 if low else 1] for value in values]).chance
    beyond = bound == "" or bound == ("<" if low else ">")
    return ("does not hold", doubt) if beyond and doubt < LEVEL else ("not clear", 0.0)


def _times(ratios: Sequence[float], bound: Bound) -> str:
    text = f"{bound} {geometric(ratios):.2f}".strip()
    if len(ratios) < FEWEST_SEEDS:
        return f"{text} times"
    return f"{text} times (×/÷ {math.exp(gap(np.log(ratios).tolist()).half):.2f})"


def _told(verdict: Verdict) -> str:
    return f"{verdict.word} ({verdict.detail})" if verdict.detail else verdict.word


def _range(low: float, high: float) -> str:
    if low == high:
        return f"{low:g}"
    return f"at least {low:g}" if math.isinf(high) else f"{low:g} to {high:g}"


def _number(number: float) -> str:
    """Return a number in three figures, never as a power of ten."""
    size = abs(number)
    return f"{number:.{0 if size >= 100 else 1 if size >= 10 else 2}f}".replace("-", "−")


def _signed(number: float) -> str:
    return f"{number:+.2f}".replace("-", "−")


def _seeds(count: int) -> str:
    return f"{count} seed{'' if count == 1 else 's'}"
