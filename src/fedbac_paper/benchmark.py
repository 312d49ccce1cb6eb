"""The frozen protocol for anybody's method: tuned alike on every task, judged on the same seeds by the same measures.

    TASK/            of every task what ``fedbac tune`` leaves there: the points, the frozen method, the runs
    benchmark.json   what was measured, with the version and the hash of the protocol
    benchmark.md     the same as a page

The protocol is data: ``benchmark.yaml``.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fedbac import data
from fedbac.config.experiment import Experiment, Method
from fedbac.config.explain import parse
from fedbac.core.settings import Settings
from fedbac.data import Dataset
from fedbac.errors import ConfigError, unknown
from fedbac.files import make_folder, read_json, read_lines, write_whole
from fedbac.rounds import metrics
from fedbac.runs import tune
from fedbac.runs.configure import Inputs, configure, is_file
from fedbac.runs.store import RunFolder, StoredRun, runs_in
from fedbac.statistics import deviation

FILE, PAGE = "benchmark.json", "benchmark.md"


class Judged(Settings):
    """A task of the protocol."""

    regime: str
    """What is known to be best: one model for all, each edge alone, or known groups."""
    target: float
    bytes: int


class Protocol(Settings):
    """What every method is put to."""

    version: int
    settings: dict[str, Any]
    points: int
    tuning_seeds: tuple[int, ...]
    seeds: tuple[int, ...]
    parts: dict[str, dict[str, Judged]]

    @property
    def tasks(self) -> dict[str, Judged]:
        """Those of all parts by their names."""
        return {name: task for part in self.parts.values() for name, task in part.items()}

    @property
    def sha256(self) -> str:
        """What two protocols have in common only if they ask for the same."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()


@cache
def protocol() -> Protocol:
    """Return the protocol of this version of the package."""
    text = resources.files("fedbac_paper").joinpath("benchmark.yaml").read_text(encoding="utf-8")
    return Protocol.model_validate(yaml.safe_load(text))


def plans(
    method: str | Method | Path, out: Path, chosen: Sequence[str], points: int | None = None,
    inputs: Inputs = Inputs(),  # noqa: B008 (frozen)
) -> dict[str, tune.Plan]:  # fmt: skip
    """Return by task what is to be run, all of it checked before any of it is; ``chosen`` are parts or tasks."""
    asked = protocol()
    for name in chosen:
        if name not in asked.parts and name not in asked.tasks:
            raise ConfigError(unknown("part or task of the benchmark", name, [*asked.parts, *asked.tasks]))
    names = dict.fromkeys(task for name in chosen for task in asked.parts.get(name, [name]))
    if is_file(method):  # which has a task of its own
        method = configure(method, inputs=inputs).method
    return {
        task: tune.plan(
            [method], task, out / task, budget=points or asked.points, seeds=asked.tuning_seeds, confirm=asked.seeds,
            settings=asked.settings, inputs=inputs,
        )
        for task in names
    }  # fmt: skip


def benchmark(plans: Mapping[str, tune.Plan], out: Path, play: tune.Play, tell: Callable[[str], None]) -> Path:
    """Tune and judge on one task after another, and return the page, which is written anew after each."""
    for task, plan in plans.items():
        tell(f"{task}: {protocol().tasks[task].regime}")
        tune.tune(plan, play, tell)
        collect(out)
    return collect(out)


def judged_runs(out: Path, task: str | None = None) -> list[RunFolder]:
    """Return the finished runs that a benchmark, or one task of it, is judged by."""
    folders = [out / name / "confirmed" for name in ([task] if task else protocol().tasks)]
    return [run for folder in folders if folder.exists() for run in runs_in(folder) if run.finished()]


def stated(out: Path) -> dict[str, Any]:
    """Return what the file of a benchmark says, by task and seed; nothing if there is none."""
    file = out / FILE
    try:
        notes = read_json(file)
        return {"method": notes["method"], "protocol": notes["protocol"]} | {
            task: {"points": found["points"], "settings": found["settings"]}
            | {"seeds": [row["seed"] for row in found["runs"]]}
            | {f"seed {row['seed']}": row for row in found["runs"]}
            for task, found in notes["tasks"].items()
        }
    except FileNotFoundError:
        return {}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file}: no benchmark wrote it like this; delete it, and --so-far writes it anew") from error


def collect(out: Path) -> Path:
    """Write what the finished runs of a benchmark say, as notes and as a page, and return the page."""
    asked = protocol()
    found: dict[str, Any] = {}
    for task in asked.tasks:
        runs = [run.read() for run in judged_runs(out, task)]
        if runs:
            told = read_json(out / task / tune.NOTES)
            (method,) = told["frozen"]
            point = told["points"][method][told["frozen"][method]]
            found[task] = {"points": told["budget"], "settings": point["settings"], "runs": measure(task, runs)}
            name = method
    if not found:
        raise ConfigError(f"--out: no run of a benchmark is finished in {out}; leave --so-far out, or name another")
    stated = {"version": asked.version, "sha256": asked.sha256}
    notes = {"method": name, "protocol": stated, "tasks": found}
    write_whole(make_folder(out) / FILE, json.dumps(notes, indent=1) + "\n")
    write_whole(out / PAGE, page(notes))
    return out / PAGE


# ------------------------------------------------------------------------------------------------- measures


def measure(task: str, runs: Sequence[StoredRun]) -> list[dict[str, Any]]:
    """Return what counts of the runs of a task, a row for each seed."""
    experiment = parse(Experiment, runs[0].config["experiment"])
    groups = truth(experiment, data.load(experiment.task.dataset))
    return sorted((_row(run, protocol().tasks[task], groups) for run in runs), key=lambda row: int(row["seed"]))


def truth(experiment: Experiment, dataset: Dataset) -> Sequence[Any] | None:
    """Return the group that each edge is known to belong to; None if nobody knows, or edges are not clustered."""
    method, num_edges = experiment.method, experiment.task.num_edges
    if method.unit != "edge" or len(method.topology.sites(num_edges)) != num_edges:
        return None
    if experiment.task.partition.natural:
        return dataset.tiers.groups or None if dataset.tiers is not None else None
    mixes = experiment.task.partition.edge_distributions
    return None if mixes is None else [edge % mixes for edge in range(experiment.task.num_edges)]


def _row(run: StoredRun, judged: Judged, groups: Sequence[Any] | None) -> dict[str, Any]:
    summary, experiment, records = run.summary, run.config["experiment"], run.records
    evaluation = experiment["evaluation"]
    bytes_T = np.cumsum([metrics.total_bytes(record["bytes"]) for record in records])
    seconds_T = np.cumsum([record["simulated_seconds"] for record in records])
    accuracy_T = [record["accuracy"] for record in records]
    reached = metrics.rounds_to_target(accuracy_T, judged.target, evaluation["target_patience"])
    affordable = int(np.searchsorted(bytes_T, judged.bytes, side="right"))
    within = accuracy_T[max(0, affordable - evaluation["last_rounds"]) : affordable]
    after = summary["after_training"] or {}
    return {
        "seed": experiment["seed"],
        "accuracy": summary["accuracy"],
        "edge_min": summary["edge_min"],
        "after_training": after.get("accuracy"),
        "after_training_edge_min": after.get("edge_min"),
        "accuracy_for_bytes": float(np.mean(within)) if within else None,
        "bytes": int(bytes_T[-1]),
        "bytes_to_target": None if reached is None else int(bytes_T[reached - 1]),
        "simulated_seconds_to_target": None if reached is None else float(seconds_T[reached - 1]),
        "clusters": summary["active_clusters"],
        "rand_index": None if groups is None else agreement(groups, records[-1]["assignment"]),
        "computed_by": [dict(segment.by) for segment in run.segments],
        "check": _check(run),
    }


def _check(run: StoredRun) -> str | None:
    """Return the checksum of a run's last record, which continues those of all before it."""
    if run.folder is None:
        return None
    *_, last = read_lines(RunFolder(run.folder).rounds_file)
    found: str | None = json.loads(last).get("check")
    return found


def agreement(groups: Sequence[Any], assignment: Sequence[int]) -> float:
    """Return the adjusted Rand index of clusters and known groups: 1 if they are the same, about 0 by chance."""
    from sklearn.metrics import adjusted_rand_score  # slow to import

    return float(adjusted_rand_score(list(map(str, groups)), list(assignment)))


# ----------------------------------------------------------------------------------------------------- page

COLUMNS: dict[str, tuple[str, float]] = {
    "accuracy (%)": ("accuracy", 100),
    "worst edge (%)": ("edge_min", 100),
    "after training (%)": ("after_training", 100),
    "worst edge after training (%)": ("after_training_edge_min", 100),
    "accuracy for HierFAVG's bytes (%)": ("accuracy_for_bytes", 100),
    "MB": ("bytes", 1e-6),
    "MB to the target": ("bytes_to_target", 1e-6),
    "simulated seconds to the target": ("simulated_seconds_to_target", 1),
    "agreement with known groups": ("rand_index", 1),
}


def page(notes: Mapping[str, Any]) -> str:
    """Return what was measured as Markdown."""
    asked = protocol()
    lines = [
        f"# Benchmark of {notes['method']}",
        "",
        f"Protocol {notes['protocol']['version']} (`{notes['protocol']['sha256'][:12]}`). Means over seeds ± their "
        "standard deviation; – where there is no such number, or a seed misses the target. *Points* are those of "
        "tuning: 1 is the method as it is.",
        "",
        "| task | best is | points | seeds | " + " | ".join(COLUMNS) + " |",
        "|---|---|---|---|" + "---|" * len(COLUMNS),
    ]
    for task, found in notes["tasks"].items():
        seeds = ", ".join(str(row["seed"]) for row in found["runs"])
        cells = [cell([row[key] for row in found["runs"]], scale) for key, scale in COLUMNS.values()]
        first = [task, asked.tasks[task].regime, str(found["points"]), seeds]
        lines.append(f"| {' | '.join([*first, *cells])} |")
    return "\n".join(lines) + "\n"


def cell(values: Sequence[float | None], scale: float) -> str:
    """Return a mean over seeds and its spread; a dash where a number is missing."""
    known = [value * scale for value in values if value is not None]
    if not known or len(known) < len(values):
        return "–"
    mean, spread = float(np.mean(known)), deviation(known)
    digits = 2 if scale == 1 and abs(mean) <= 1 else 1
    return f"{mean:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")
