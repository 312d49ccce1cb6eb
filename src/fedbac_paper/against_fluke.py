"""What benchmarks/against_fluke.py found, in words and tables for docs/methods/against-fluke.md."""

import json
from pathlib import Path

import numpy as np

from fedbac.statistics import gap

WIDE = 2.0
"""Points; half an interval that is wider could hide a difference that matters."""


def verdict(file: Path) -> str:
    """Return what docs/methods/against-fluke.md begins with: the verdict and both tables."""
    told = json.loads(file.read_text(encoding="utf-8"))
    late, agreeing = [], []
    for method, seeds in told["late"].items():
        ours, theirs = (100 * np.array(column) for column in zip(*seeds.values(), strict=True))
        apart = ours - theirs
        noise = gap(apart.tolist()).half
        agrees = "no" if abs(apart.mean()) > noise else "yes" if noise <= WIDE else "too wide to tell"
        agreeing += [f"`{method}`"] * (agrees == "yes")
        cells = (f"{ours.mean():.1f}", f"{theirs.mean():.1f}", f"{apart.mean():+.1f} ± {noise:.1f}")
        late.append(f"| `{method}` | {' | '.join(cells)} | {agrees} |")
    early, same = [], set()
    for found in told["early"]:
        numbers = [f"{100 * found[key]:.2f}" for key in ("ours", "theirs", "apart")]
        name = f"`{found['method']}`" + ", with momentum" * (found["optimizer"] == "momentum")
        early.append(f"| {name} | {found['change'] or 'none'} | {' | '.join(numbers)} |")
        if numbers[-1] == "0.00":
            same.add((found["method"], found["change"] is not None))
    named = {method: f"`{method}`" for method in told["late"]}
    alike = [name for method, name in named.items() if (method, False) in same]
    mended = [name for method, name in named.items() if (method, False) not in same and (method, True) in same]
    left = [name for name in named.values() if name not in alike + mended]
    setting, weights = told["setting"], max(told["first_average"].values())
    return "\n".join(
        [
            "",
            f"**Verdict.** With plain SGD, {len(alike)} of {len(named)} methods compute the same in both packages: "
            f"{_listed(alike)}.",
            f"{len(mended)} agree exactly once fluke is changed to do what ours does differently: {_listed(mended)}.",
            f"Differences left unexplained: {_listed(left) or 'none'}.",
            f"After {setting['rounds']} rounds, {len(agreeing)} of {len(named)} agree within noise without any change: "
            f"{_listed(agreeing)}.",
            "",
            f"The control: after one round the weights that FedAvg has averaged differ by {weights:.0e} at most.",
            "",
            f"After {setting['rounds']} rounds of plain SGD, seeds {_listed(list(told['late']['fedavg']))}: "
            "mean accuracy of clients, %.",
            "The difference is ours less fluke's, ± half its 95 % interval over seeds, which are paired.",
            f"An interval wider than ± {WIDE:.0f} points is too wide to show agreement.",
            "",
            f"| method | fedbac | fluke {told['versions']['fluke']} | difference | within noise |",
            "|---|---|---|---|---|",
            *late,
            "",
            f"After {setting['early']} rounds with seed 0, before rounding errors grow; some rows change fluke's code.",
            "The last column is the mean absolute difference per client, in points.",
            "",
            "| method | change in fluke | fedbac | fluke | clients apart |",
            "|---|---|---|---|---|",
            *early,
            "",
            "",
        ]
    )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:-1]) + " and " * (len(names) > 1) + "".join(names[-1:])
