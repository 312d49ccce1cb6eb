"""Our method beside its rivals, from the runs that ``benchmarks/tuning.py`` keeps."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbac.presets.methods import METHODS
from fedbac_paper.confirmed import CONTROLS, OURS, SETTINGS, read

NOT_RUN = "–"
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


def best_points(found: Runs) -> list[list[str]]:
    """Return all methods and controls, a row each: mean over edges / worst edge, in percent."""
    methods = sorted({method for method, _ in found}, key=lambda method: (-_mean(found, method), method))
    rows = [
        [method.replace("`", ""), *(_cell(found.get((method, setting))) for setting in SETTINGS)] for method in methods
    ]
    return [["", *SETTINGS.values()], *rows]


def cost(*files: Path, seed: int = 0) -> str:
    """Return how many times the yardstick's bytes ours moves in a run: the least and the most over the settings.

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
        for setting in SETTINGS
        if {(OURS, setting), (YARDSTICK, setting)} <= moved.keys()
    }
    return (
        f"\n`{OURS}` sends {min(times.values()):.1f} to {max(times.values()):.1f} times as many bytes in total as "
        f"`{YARDSTICK}`: two networks double those for training, measuring before mergers and blends adds more.\n\n"
    )


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
