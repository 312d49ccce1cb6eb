"""Calibration: HierFAVG alone under each candidate for what the paper leaves open. It claims nothing."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedbac_paper.artefact import Artefact, Body, Cell
from fedbac_paper.paper import look_up
from fedbac_paper.results import Finding, Results
from fedbac_paper.settings import CALIBRATED
from fedbac_paper.tables import NONE, difference, each, fixed, mean, paper_number
from fedbac_paper.tasks import SIX, task_name

CANDIDATES: dict[str, tuple[str, ...]] = {
    "batch 32": ("task.training.batch_size=32",),
    "batch 64": ("task.training.batch_size=64",),
    "batch 128": ("task.training.batch_size=128",),
    "batch 192": ("task.training.batch_size=192",),
    "batch 256": ("task.training.batch_size=256",),
    "batch 64, crops and flips": ("task.training.batch_size=64", "task.augment={}"),
    "batch 48, crops and flips": ("task.training.batch_size=48", "task.augment={}"),
    "batch 32, crops and flips": ("task.training.batch_size=32", "task.augment={}"),
    "batch 16, crops and flips": ("task.training.batch_size=16", "task.augment={}"),
    "batch 64, per-class Dirichlet": ("task.training.batch_size=64", "task.partition.mode=per_class"),
    "batch 256, per-class Dirichlet": ("task.training.batch_size=256", "task.partition.mode=per_class"),
}
"""The rows; a candidate stands alone, without the settings that were chosen in the end."""


def body(artefact: Artefact, results: Results) -> Body:
    """Return a list of the candidates per data set."""
    shown = [
        "How far HierFAVG's accuracy is from the paper's under each candidate that was run in all settings of a data "
        "set: the root mean square (RMS) of the differences in points.",
    ]
    rows = [["setting", "candidate", "paper", "ours", "difference", "distance of curves", "seeds", "settings"]]
    for dataset in CALIBRATED:
        tasks = [task for task in artefact.tasks if task.startswith(dataset)]
        shown += [f"### {task_name(dataset, alpha=False)}", _compared(results, tasks)]
        for task in tasks:
            for name in CANDIDATES:
                runs = results.of(task, name).values()
                shares = [found.accuracy for found in runs]
                distances = [d for found in runs if (d := _curve_distance(found)) is not None]
                numbers = [mean(shares), difference(shares, _anchor(task)), mean(distances, 1), str(len(runs))]
                numbers += [" ".join(CANDIDATES[name])]
                rows += [[task_name(task), name, paper_number(_anchor(task)), *numbers]] if runs else []
    return Body(shown, rows)


def _compared(results: Results, tasks: Sequence[str]) -> str:
    common = _common_seeds(results, tasks)
    told = {name: _distance({task: results.of(task, name) for task in tasks}, common) for name in CANDIDATES}
    lines = (f"- {name}: {distance}" for name, distance in told.items() if distance != NONE)
    return "\n".join([f"Over seeds {each(common)}:", "", *lines])


def _common_seeds(results: Results, tasks: Sequence[str]) -> list[int]:
    """Return the seeds that all candidates share on all anchors, leaving out candidates that lack an anchor."""
    seeds = [[set(results.of(task, name)) for task in tasks] for name in CANDIDATES]
    complete = [some for candidate in seeds if all(candidate) for some in candidate]
    return sorted(set.intersection(*complete)) if complete else []


def _distance(runs: Mapping[str, Mapping[int, Finding]], seeds: Sequence[int]) -> str:
    """Return the root of the mean square of the differences from the anchors over these seeds, if all were run."""
    if not seeds or not all(set(seeds) <= set(by_seed) for by_seed in runs.values()):
        return NONE
    off = [
        100 * float(np.mean([by_seed[seed].accuracy for seed in seeds])) - _anchor(task)
        for task, by_seed in runs.items()
    ]
    return fixed(float(np.sqrt(np.mean(np.square(off)))))


def _anchor(task: str) -> float:
    return float(look_up("accuracy", task, "hierfavg"))


def _curve_distance(found: Finding) -> float | None:
    """Return the mean distance in points from the paper's curve, between our points where they fall apart."""
    paper = look_up("curves", found.task, "hierfavg")
    if paper is None or found.curve is None:
        return None
    common = [(round_, value) for round_, value in paper if round_ <= found.rounds]
    ours = np.interp([round_ for round_, _ in common], found.curve.round, found.curve.accuracy)
    return float(np.mean(np.abs(100 * ours - np.array([value for _, value in common]))))


ARTEFACT = Artefact(
    "calibration",
    "Calibration on HierFAVG",
    "Not in the paper",
    tuple(
        Cell(task, name, "hierfavg", settings, calibrated=False)
        for task in (*SIX, "cifar10-500")
        for name, settings in CANDIDATES.items()
    ),
    body,
    curves=True,
)
