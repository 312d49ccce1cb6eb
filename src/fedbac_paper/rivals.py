"""Our method beside its rivals, from the runs that ``benchmarks/tuning.py`` keeps."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbac.presets.methods import METHODS
from fedbac_paper.confirmed import CONTROLS, OURS, SETTINGS, read
from fedbac_paper.tables import table

LABELS = dict(zip(SETTINGS, (
    "CIFAR-10, α = 0.5", "0.1", "SVHN, 0.5", "0.1", "Fashion-MNIST, 0.5", "0.1", "0.5, per class", "planted", "noisy",
), strict=True))  # fmt: skip
"""The settings in the head of a wide table."""
HEADER = ["", *LABELS.values()]
NOT_RUN = "–"
SMALL_LEAD, LEVEL = 0.005, 0.0005
"""A lead that means little on one seed, and a difference that no table shows."""
YARDSTICK = "hierfavg"
"""The method whose total bytes others are compared with."""


Runs = Mapping[tuple[str, str], Mapping[str, Any]]
"""Of each method, by the name in its table, and setting: the run that is shown."""


def best_runs(file: Path, again: Path, seed: int = 0) -> Runs:
    """Return the run of one seed that is shown of each method and control in each setting.

    A method is shown with the best of its points that were run in a setting, ours with the same one everywhere. Of one
    that was run again, since it had been weaker than its paper, only those runs count.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    newer = list(read(again))
    replaced = {row["method"] for row in newer}
    for row in [*(row for row in read(file) if row["method"] not in replaced), *newer]:
        method = row["method"]
        key = CONTROLS.get(method, f"`{method}`"), row["setting"]
        shown = method in CONTROLS or (method in METHODS and not (method == OURS and row["point"]))
        counts = shown and row["seed"] == seed
        if counts and row["accuracy"] > found.get(key, {"accuracy": -1})["accuracy"]:
            found[key] = row
    return found


def headline(found: Runs) -> str:
    """Return where ours leads the rivals that were run, who was not run, and where a control is level."""
    own, methods = f"`{OURS}`", {method for method, _ in found}
    rivals = sorted(methods - {own, *CONTROLS.values()})
    ours = {setting: found[own, setting]["accuracy"] for setting in LABELS if (own, setting) in found}
    best = {
        setting: max((found[rival, setting]["accuracy"], rival) for rival in rivals if (rival, setting) in found)
        for setting in ours
    }
    above = {
        setting: f"{rival} in {SETTINGS[setting]}" for setting, (rate, rival) in best.items() if rate >= ours[setting]
    }
    missing = {rival: sum((rival, setting) not in found for setting in ours) for rival in rivals}
    absent = ", ".join(f"{rival} in {count}" for rival, count in missing.items() if count)
    small = sum(0 < ours[setting] - rate < SMALL_LEAD for setting, (rate, _) in best.items())
    level = [
        SETTINGS[setting]
        for (method, setting), row in found.items()
        if method in CONTROLS.values() and setting in ours and row["accuracy"] >= ours[setting] - LEVEL
    ]
    told = [
        f"**On seed 0 {own} has a higher mean accuracy than every rival{' that was run' if absent else ''} in "
        f"{len(ours) - len(above)} of {len(ours)} settings.**",
        f"Not ahead of: {', '.join(above.values())}." if above else "",
        f"Not run: {absent} of them." if absent else "",
        f"The lead over the best of them is less than {100 * SMALL_LEAD:g} points in {small}.",
        f"A control is level within {100 * LEVEL:g} points: {'; '.join(level)}." if level else "",
    ]
    return "\n" + "\n".join(filter(None, told)) + "\n\n"


def best_points(found: Runs) -> list[list[str]]:
    """Return all methods and controls, a row each: mean over edges / worst edge, in percent."""
    methods = sorted({method for method, _ in found}, key=lambda method: (-_mean(found, method), method))
    rows = [
        [method.replace("`", ""), *(_cell(found.get((method, setting))) for setting in LABELS)] for method in methods
    ]
    return [["", *(SETTINGS[setting] for setting in LABELS)], *rows]


def cost(*files: Path, seed: int = 0) -> str:
    """Return a table of the bytes that ours moves in a run, as a multiple of what the yardstick moves in that setting.

    A run that a later file has again counts as that file has it: the first runs did not keep their bytes.
    """
    moved = {
        (row["method"], row["setting"]): row["bytes_total"]
        for file in files
        for row in read(file)
        if row["seed"] == seed and not row["point"] and "bytes_total" in row
    }
    times = {
        setting: moved[OURS, setting] / moved[YARDSTICK, setting]
        for setting in LABELS
        if (OURS, setting) in moved and (YARDSTICK, setting) in moved
    }
    cells = [f"{times[setting]:.1f}×" if setting in times else NOT_RUN for setting in LABELS]
    return f"\n{table(HEADER, [[f'`{OURS}`', *cells]])}\n\n"


def _mean(found: Runs, method: str) -> float:
    """Return what a method is above the mean of all that were run in the same settings."""
    above = [
        row["accuracy"] - _average([other["accuracy"] for (_, there), other in found.items() if there == setting])
        for (name, setting), row in found.items()
        if name == method
    ]
    return _average(above)


def _average(values: list[float]) -> float:
    return sum(values) / len(values)


def _cell(row: Mapping[str, Any] | None) -> str:
    return NOT_RUN if row is None else f"{100 * row['accuracy']:.1f} / {100 * row['edge_min']:.1f}"
