"""What benchmarks/against_fluke.py found, in words and tables for docs/methods/against-fluke.md."""

import json
from pathlib import Path

import numpy as np

from fedbac.statistics import gap
from fedbac_paper.tables import table

EARLY = "against-fluke.csv"
WIDE = 2.0
"""Points; half an interval that is wider could hide a difference that matters."""


def early(file: Path) -> list[list[str]]:
    """Return accuracies after few rounds, method by method and change by change, the header first."""
    header = ["method", "optimizer", "change in fluke", "fedbac", "fluke", "clients apart"]
    return [header] + [
        [found["method"], found["optimizer"], found["change"] or "none"]
        + [f"{100 * found[key]:.2f}" for key in ("ours", "theirs", "apart")]
        for found in json.loads(file.read_text(encoding="utf-8"))["early"]
    ]


def verdict(file: Path) -> str:
    """Return what docs/methods/against-fluke.md begins with: the verdict, and the accuracies at the end."""
    told = json.loads(file.read_text(encoding="utf-8"))
    late, agreeing = [], []
    for method, seeds in told["late"].items():
        ours, theirs = (100 * np.array(column) for column in zip(*seeds.values(), strict=True))
        apart = ours - theirs
        noise = gap(apart.tolist()).half
        agrees = "no" if abs(apart.mean()) > noise else "yes" if noise <= WIDE else "too wide to tell"
        agreeing += [f"`{method}`"] * (agrees == "yes")
        cells = (f"{ours.mean():.1f}", f"{theirs.mean():.1f}", f"{apart.mean():+.1f} ± {noise:.1f}")
        late.append([f"`{method}`", *cells, agrees])
    same = {(method, change != "none") for method, _, change, *_, apart in early(file)[1:] if apart == "0.00"}
    named = {row[0]: f"`{row[0]}`" for row in early(file)[1:]}
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
            f"Not shown to be the same: {_listed(left) or 'none'}.",
            f"Unchanged, {len(agreeing)} of {len(late)} agree within noise after {setting['rounds']} rounds: "
            f"{_listed(agreeing)}.",
            "",
            f"As a control, the first weights that FedAvg averages differ by {weights:.0e} at most.",
            "",
            f"Mean accuracy of clients (%) after {setting['rounds']} rounds of plain SGD, seeds "
            f"{_listed(list(told['late']['fedavg']))}; the difference ± half its 95 % interval over paired seeds, "
            f"which is too wide to tell beyond ± {WIDE:.0f} points:",
            "",
            table(["method", "fedbac", f"fluke {told['versions']['fluke']}", "difference", "within noise"], late),
            "",
            f"[After {setting['early']} rounds with seed 0]({EARLY}), before rounding errors grow: a row per change to "
            "fluke's code, and the mean absolute difference per client in points.",
            "",
            "",
        ]
    )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:-1]) + " and " * (len(names) > 1) + "".join(names[-1:])
