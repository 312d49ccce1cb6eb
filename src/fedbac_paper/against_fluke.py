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
            table(["method", "fedbac", f"fluke {told['versions']['fluke']}", "difference", "within noise"], late),
            "",
            f"[After {setting['early']} rounds with seed 0]({EARLY}), before rounding errors grow, every change to "
            "fluke's code is a row. The last column is the mean absolute difference per client, in points.",
            "",
            "",
        ]
    )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:-1]) + " and " * (len(names) > 1) + "".join(names[-1:])
