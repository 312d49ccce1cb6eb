"""The rules by which a claim is judged, the same for every claim."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

FEWEST_SEEDS = 3
TOLERANCE = 0.1
MOST_SHOWN = 6
"""Settings of a claim up to which each is named; of more, only those in which it does not hold."""

Word = Literal["holds", "does not hold", "not clear", "too few seeds", "not run"]

RULES = (
    "A comparison is made seed by seed, on the same data. It **holds** if the difference has the claimed sign in every "
    "seed and its mean is more than twice its standard error; it **does not hold** if both are so with the opposite "
    "sign; otherwise it is **not clear**. A claim about several settings holds if it holds in each, does not hold if "
    f"it fails in one, and is otherwise not clear. Fewer than {FEWEST_SEEDS} seeds give no verdict. A printed count or "
    f"ratio **holds** if it is within {100 * TOLERANCE:.0f} % of our mean, or within two standard errors of it, and "
    "does not hold otherwise. ± is the standard error over seeds."
)


@dataclass(frozen=True)
class Verdict:
    """A word, and what it rests on."""

    word: Word
    detail: str = ""


def above(a: Mapping[int, float], b: Mapping[int, float], unit: str = "points", scale: float = 100) -> Verdict:
    """Judge "a is above b", values by seed."""
    seeds = sorted(set(a) & set(b))
    return positive([a[seed] - b[seed] for seed in seeds], unit, scale)


def positive(differences: Sequence[float], unit: str = "points", scale: float = 100) -> Verdict:
    """Judge "these differences, one per seed, are positive"."""
    if not differences:
        return Verdict("not run")
    mean = float(np.mean(differences))
    detail = f"{_signed(scale * mean)} {unit}".strip()
    if len(differences) < FEWEST_SEEDS:
        return Verdict("too few seeds", f"{detail}, {_seeds(len(differences))}")
    error = float(np.std(differences, ddof=1)) / math.sqrt(len(differences))
    detail = f"{_signed(scale * mean)} ± {scale * error:.2f} {unit}".strip()
    if min(differences) > 0 and mean > 2 * error:
        return Verdict("holds", detail)
    if max(differences) < 0 and -mean > 2 * error:
        return Verdict("does not hold", detail)
    return Verdict("not clear", detail)


def faster(ratios: Sequence[float]) -> Verdict:
    """Judge "these ratios, one per seed, are above 1"; judged and averaged as logarithms."""
    verdict = positive([math.log(ratio) for ratio in ratios])
    if not ratios:
        return verdict
    detail = f"{math.exp(float(np.mean(np.log(ratios)))):.2f} times"
    return Verdict(verdict.word, detail if len(ratios) >= FEWEST_SEEDS else f"{detail}, {_seeds(len(ratios))}")


def near(ours: Sequence[float], paper: float) -> Verdict:
    """Judge "the paper's number is ours", values one per seed."""
    return between(ours, paper, paper)


def between(ours: Sequence[float], low: float, high: float) -> Verdict:
    """Judge "our number is in the paper's range", values one per seed."""
    if not ours:
        return Verdict("not run")
    paper = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    mean = float(np.mean(ours))
    if len(ours) < FEWEST_SEEDS:
        return Verdict("too few seeds", f"{mean:.3g} against {paper}, {_seeds(len(ours))}")
    error = float(np.std(ours, ddof=1)) / math.sqrt(len(ours))
    slack = max(TOLERANCE * abs(mean), 2 * error)
    inside = low - slack <= mean <= high + slack
    return Verdict("holds" if inside else "does not hold", f"{mean:.3g} ± {error:.2g} against {paper}")


def every(parts: Mapping[str, Verdict]) -> Verdict:
    """Judge a claim about several settings."""
    words = {verdict.word for verdict in parts.values()}
    if not words - {"not run"}:
        return Verdict("not run")
    shown = (
        parts if len(parts) <= MOST_SHOWN else {n: verdict for n, verdict in parts.items() if verdict.word != "holds"}
    )
    count = f"holds in {len(parts) - len(shown)} of {len(parts)}; " if len(parts) > MOST_SHOWN else ""
    detail = (count + "; ".join(f"{name}: {_told(verdict)}" for name, verdict in shown.items())).removesuffix("; ")
    order: tuple[Word, ...] = ("does not hold", "too few seeds", "not clear")
    for word in order:
        if word in words:
            return Verdict(word, detail)
    return Verdict("not clear" if "not run" in words else "holds", detail)


def _told(verdict: Verdict) -> str:
    return f"{verdict.word} ({verdict.detail})" if verdict.detail else verdict.word


def _signed(number: float) -> str:
    return f"{number:+.2f}".replace("-", "−")


def _seeds(count: int) -> str:
    return f"{count} seed{'s' if count > 1 else ''}"
