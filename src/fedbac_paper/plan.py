"""Which runs a reproduction needs, where each one is, and how far it is."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedbac.config.experiment import Experiment
from fedbac.config.explain import parse
from fedbac.core.settings import Settings
from fedbac.errors import ConfigError
from fedbac.runs.configure import configure
from fedbac.runs.store import RunFolder
from fedbac.runs.sweep import Point
from fedbac.sharing import TowardsMean
from fedbac_paper.artefact import Artefact, Cell
from fedbac_paper.settings import CALIBRATED

TRAINING_EXAMPLES = {"cifar10": 50_000, "svhn": 73_257, "fashion-mnist": 60_000}
"""For estimates of the work before any data are read."""
Status = Literal["finished", "begun", "missing"]
SALT = "each network is clipped by itself"
"""Every hash contains it. Choose another one when a default changes: a hash leaves defaults out, so earlier runs and
results would be taken for runs under the new default. ``tests/golden/test_golden_defaults.py`` watches over that, and
says of each default that changed under this salt why the runs are the same."""
REVISIONS = {
    "merging": "the running reward starts at 0, on all data; each merger counts by itself; who is given another "
    "network has moved",
    "once_overfitted": "all clusters share or none, and for good, from the first half on",
    "credit_thompson": "who holds little is not judged",
}
"""Rules that have changed, by the kind of policy or of sharing that follows them. The hash of an experiment that uses
such a kind contains the text, so that runs under the old rule are not found."""

FIRST_NAMES = {"ifca-paper": "ifca", "fed-cam-edges": "fed-cam"}
"""What presets were called when their runs were first hashed and their folders named; both still go by that."""

ALWAYS_STATED = {
    "task",
    "task.partition",
    "task.network",
    "task.training",
    "method",
    "method.topology",
    "method.clustering",
    "method.selection",
    "method.selection.shared",  # of the kind credit_thompson
    "method.personalization",
    "method.measurement",
    "evaluation",
}
"""Groups of settings that every hash covers even at their defaults, because the first hashes did; do not add to them.

A group that came later is left out at its default, like any single setting. If it were stated, its arrival would
change every hash, and no earlier run or result would be found again."""


@dataclass(frozen=True)
class Pass:
    """What one pass changes for every run; a pass that changes anything is no reproduction and says so."""

    rounds: int | None = None
    fraction: float | None = None
    settings: tuple[str, ...] = ()

    @property
    def changes(self) -> tuple[str, ...]:
        """The changes in words."""
        rounds = () if self.rounds is None else (f"{self.rounds} round{'' if self.rounds == 1 else 's'}",)
        fraction: tuple[str, ...] = ()
        if self.fraction is not None:
            fraction = (f"{100 * self.fraction:g} % of the data", "minimums of the partition at 1")
        return (*rounds, *fraction, *self.settings)

    def overrides(self) -> list[str]:
        """The changes as settings."""
        few = [] if self.fraction is None else [f"task.data_fraction={self.fraction}"]
        if few:  # the usual minimums are for whole data sets
            few += ["task.partition.min_edge_test=1", "task.partition.min_client_samples=1"]
        return [*few, *self.settings]


def experiment_of(cell: Cell, seed: int, change: Pass) -> Experiment:
    """Return the experiment of a cell with one seed."""
    fixed = CALIBRATED[cell.dataset] if cell.calibrated else ()
    settings = [*fixed, *cell.settings, *change.overrides()]
    return configure(cell.method, cell.task, seed=seed, rounds=change.rounds, settings=settings)


def point_of(cell: Cell, seed: int, change: Pass, parent: Path) -> Point:
    """Return the run of a cell with one seed: its experiment and its folder, named by the hash of the experiment."""
    experiment = experiment_of(cell, seed, change)
    name = f"{cell.task}_{_first_named(experiment).method.name}_seed{seed}_{identity(experiment)}"
    return Point(experiment, RunFolder(parent / name), cell.settings)


def points(artefacts: Sequence[Artefact], seeds: range, change: Pass, parent: Path, keep: "Filter") -> list[Point]:
    """Return every run once, all of the first seed before the second, so that a part of them is of use."""
    found: dict[Path, Point] = {}
    for seed in seeds:
        for artefact in artefacts:
            for cell in artefact.cells:
                if keep.wants(cell):
                    point = point_of(cell, seed, change, parent)
                    found.setdefault(point.folder.path, point)
    return list(found.values())


@dataclass(frozen=True)
class Filter:
    """Which cells to run: those of these data sets, tasks and variants; nothing named means all."""

    datasets: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()

    def wants(self, cell: Cell) -> bool:
        """Whether a cell passes."""
        pairs = ((self.datasets, cell.dataset), (self.tasks, cell.task), (self.variants, cell.variant))
        return all(not names or own in names for names, own in pairs)

    def check(self, artefacts: Sequence[Artefact]) -> None:
        """Refuse names that no artefact has."""
        cells = [cell for artefact in artefacts for cell in artefact.cells]
        for option, names, known in (
            ("--data-set", self.datasets, {cell.dataset for cell in cells}),
            ("--task", self.tasks, {cell.task for cell in cells}),
            ("--variant", self.variants, {cell.variant for cell in cells}),
        ):
            for name in names:
                if name not in known:
                    raise ConfigError(f"{option} {name!r}: there is none in these artefacts; one of {sorted(known)}")


def identity(experiment: Experiment) -> str:
    """Return the hash of an experiment. It leaves out what is at its default, so a new setting changes no hash."""
    method = experiment.method
    kinds = (method.clustering.kind, method.selection.kind, method.personalization.kind, method.sharing.kind)
    revised = "".join(REVISIONS.get(kind, "") for kind in kinds)
    stated = _stated(_first_named(experiment))
    if isinstance(method.sharing, TowardsMean):
        stated["method"]["sharing"] = method.sharing.share  # as the first hashes stated it, when it was one number
    return hashlib.sha256((SALT + revised + json.dumps(stated, sort_keys=True)).encode()).hexdigest()[:12]


def _first_named(experiment: Experiment) -> Experiment:
    method = experiment.method
    first = method.model_copy(update={"name": FIRST_NAMES.get(method.name, method.name)})
    return experiment.model_copy(update={"method": first})


def _stated(settings: Settings, path: str = "") -> dict[str, Any]:
    """Return the settings that the hash covers; ``path`` says where in the experiment they are."""
    plain = settings.model_dump(mode="json")
    stated: dict[str, Any] = {}
    for name, field in type(settings).model_fields.items():
        value, place = getattr(settings, name), f"{path}{name}"
        always = place in ALWAYS_STATED or name in {"kind", "name"}
        if always or value != field.get_default(call_default_factory=True):
            stated[name] = _stated(value, f"{place}.") if isinstance(value, Settings) else plain[name]
    return stated


def status(point: Point) -> Status:
    """Return how far a run is; a folder whose configuration is not the one that its name promises is refused."""
    if not point.folder.has_run():
        return "missing"
    found = parse(Experiment, point.folder.read_config()["experiment"])
    if _first_named(found) != _first_named(point.experiment):
        raise ConfigError(
            f"{point.folder.path}: the run in it has another configuration, perhaps from before a default changed; "
            "remove the folder or choose another --out"
        )
    if point.folder.finished():
        return "finished"
    return "begun" if point.folder.rounds_file.exists() else "missing"


def work(experiment: Experiment) -> float:
    """Return the sample-steps of a run: one example forward and backward through one network."""
    task, method = experiment.task, experiment.method
    examples = TRAINING_EXAMPLES.get(task.dataset, 10_000) * task.data_fraction
    examples *= 1 - task.partition.validation_fraction
    per_round = task.training.epochs * examples * method.selection.fraction * len(method.personalization.parts)
    return task.rounds * per_round


def seconds_left(todo: Sequence[Point], seconds: Mapping[Path, float], finished: Sequence[Point]) -> float | None:
    """Return the time that runs will take, judged by finished ones of the same data set, or of any; None without."""
    rates: dict[str, list[float]] = {}
    for point in finished:
        rates.setdefault(point.experiment.task.dataset, []).append(seconds[point.folder.path] / work(point.experiment))
    if not rates:
        return None
    usual = [rate for some in rates.values() for rate in some]
    total = 0.0
    for point in todo:
        own = rates.get(point.experiment.task.dataset, usual)
        total += work(point.experiment) * sum(own) / len(own)
    return total
