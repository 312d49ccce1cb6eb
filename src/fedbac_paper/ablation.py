"""For docs/fedfork.md: what benchmarks/ablation.py found.

    python -m fedbac_paper.ablation

draws the figure anew from results/fedfork/ablation.jsonl.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedbac.statistics import Gap, gap
from fedbac_paper import marks, tables
from fedbac_paper.clocks import read

KEPT, FIGURE = Path("results/fedfork/ablation.jsonl"), Path("docs/images/ablation.svg")
WHOLE, BLEND = "fedfork", ", blend"
"""The row that others are compared with, and what the name of a rival that blends ends with."""
Scores = Mapping[str, Mapping[str, Mapping[int, float]]]
"""Accuracy in percent by task, name and seed."""


def scores(file: Path, part: str) -> Scores:
    """Return one part of the runs."""
    found: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in read(file):
        if row["part"] == part:
            found[row["task"]][row["name"]][row["seed"]] = 100 * row["accuracy"]
    return found


def less(found: Scores, task: str, name: str, other: str) -> Gap | None:
    """Return what one is above another, seed by seed; None where one was not run."""
    mine, theirs = (found[task].get(one, {}) for one in (name, other))
    both = sorted(mine.keys() & theirs.keys())
    return gap([mine[seed] - theirs[seed] for seed in both]) if both else None


def rules(file: Path) -> str:
    """Return by rule what fedfork loses without it."""
    found = scores(file, "rules")
    lines = [[f"`{WHOLE}`", *(_mean(found, task, WHOLE) for task in found)]]
    lines += [[name, *(_cell(less(found, task, name, WHOLE)) for task in found)] for name in _names(found)]
    picture = f"![What fedfork gains or loses without each rule]({FIGURE.relative_to('docs')})"
    return f"\n{picture}\n\n{tables.table(['', *found], lines)}\n\n"


def blends(file: Path) -> str:
    """Return by rival what the blend adds, and what then is left to fedfork."""
    found, ours = scores(file, "blends"), scores(file, "rules")
    rivals = dict.fromkeys(name for by in found.values() for name in by if not name.endswith(BLEND))
    lines = [[f"`{WHOLE}`", *(_mean(ours, task, WHOLE) for task in found)]]
    for rival in rivals:
        pairs = [[_mean(found, task, name) for name in (rival, rival + BLEND)] for task in found]
        lines.append([f"`{rival}`", *(" → ".join(pair) for pair in pairs)])
    heads = [f"{task}, seeds: {min(map(len, by.values()))}" for task, by in found.items()]
    return f"\n{tables.table(['', *heads], lines)}\n\n"


def sums(file: Path) -> str:
    """Return by network and learning rate one network, two that sum, and one of twice the weights."""
    found = scores(file, "sums")
    cases = dict.fromkeys((task, name.rpartition(", ")[2]) for task, by in found.items() for name in by)
    forms = dict.fromkeys(name.rpartition(", ")[0] for by in found.values() for name in by)
    lines = [
        [f"{task}, {rate}", *(_mean(found, task, f"{form}, {rate}") for form in forms),
         _cell(less(found, task, f"two networks, {rate}", f"one network, {rate}")),
         str(len(found[task][f"one network, {rate}"]))]
        for task, rate in cases
    ]  # fmt: skip
    return f"\n{tables.table(['network, learning rate', *forms, 'two − one', 'seeds'], lines)}\n\n"


def draw(file: Path, figure: Path) -> None:
    """Draw what each rule is worth, a panel for each task."""
    from fedbac_paper.drawing import differences

    found = scores(file, "rules")
    shown = {}
    for task in found:
        gaps = ((name, less(found, task, name, WHOLE)) for name in _names(found))
        shown[task] = [(name, *((one.mean, one.half) if one else (math.nan, math.nan))) for name, one in gaps]
    marks.save(differences(shown, dict.fromkeys(shown, 0.0), "points above fedfork"), figure, file)


def _names(found: Scores) -> list[str]:
    return [name for name in dict.fromkeys(name for by in found.values() for name in by) if name != WHOLE]


def _mean(found: Scores, task: str, name: str) -> str:
    by_seed = found.get(task, {}).get(name, {})
    return f"{np.mean(list(by_seed.values())):.1f}" if by_seed else tables.NONE


def _cell(one: Gap | None) -> str:
    if one is None:
        return tables.NONE
    return f"{one.mean:+.1f}" + (f" ± {one.half:.1f}" if math.isfinite(one.half) else "")


if __name__ == "__main__":
    draw(KEPT, FIGURE)
