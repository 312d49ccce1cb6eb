"""Runs with made-up but realistic records, for tests of the report."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedbac.config.experiment import Experiment, Task
from fedbac.core.links import Ledger
from fedbac.presets.methods import method
from fedbac.presets.tasks import SEVERE
from fedbac.report import write_report
from fedbac.rounds import metrics
from fedbac.runs.store import StoredRun

TOP = {"fed-bac": 0.88, "ifca-edges": 0.8, "hierfavg": 0.7}


def fake(
    name: str = "fed-bac", *, seed: int = 0, rounds: int = 12, edges: int = 5, top: float | None = None, **changes: Any
) -> StoredRun:
    """Return a run with made-up but realistic records; ``changes`` replace fields of every record."""
    settings = Task(rounds=rounds, num_edges=edges, partition=SEVERE, targets=(0.6, 0.7, 0.8, 0.85))
    experiment = Experiment(seed=seed, task=settings, method=method(name, settings))
    rng = np.random.default_rng([seed, *name.encode()])
    num_clusters = experiment.method.clustering.clusters(edges)
    records = [_record(t, edges, num_clusters, top or TOP.get(name, 0.75), rng) | changes for t in range(1, rounds + 1)]
    config = {"experiment": experiment.model_dump(mode="json"), "runtime": {"device": "cpu"}, "trainer": "batched"}
    return StoredRun(None, config, records, _summary(config, records))


def _record(round_: int, edges: int, num_clusters: int, top: float, rng: np.random.Generator) -> dict[str, Any]:
    accuracy_M = np.clip(top * (1 - np.exp(-round_)) + rng.normal(0, 0.02, edges), 0, 1)
    label_M = (np.arange(edges) + (round_ > 6)) % num_clusters
    ledger = Ledger()
    ledger.add("client", "down", "train", 1_000_000 * edges)
    ledger.add("cloud", "up", "train", 250_000)
    ledger.add("client", "up", "evaluate", 40_000)
    return {
        "round": round_,
        **metrics.distributed(accuracy_M, np.ones(edges, dtype=np.int64)),
        "accuracy_per_edge": accuracy_M.tolist(),
        "accuracy_global": 0.5,
        "loss": 1 / round_,
        "assignment": label_M.tolist(),
        "assignment_next": label_M.tolist(),
        "moves": edges if round_ == 6 and num_clusters > 1 else 0,
        "entered_empty": 0,
        "active_clusters": int(np.unique(label_M).size),
        "selected": [[0]] * edges,
        "failed": [],
        "bytes": ledger.nested(),
        "seconds": 0.5,
    }


def _summary(config: dict[str, Any], records: list[dict[str, Any]]) -> dict[str, Any]:
    if any(record["loss"] is None for record in records):
        return {}
    experiment = config["experiment"]
    judge = experiment["evaluation"]
    shown = metrics.summarize(records, experiment["task"]["targets"], judge["last_rounds"], judge["target_patience"])
    return {"method": experiment["method"]["name"], "seed": experiment["seed"], **shown}


def renamed(run: StoredRun, name: str) -> StoredRun:
    experiment = run.config["experiment"]
    return replace(
        run, config={**run.config, "experiment": {**experiment, "method": {**experiment["method"], "name": name}}}
    )


def with_task(run: StoredRun, **changes: Any) -> StoredRun:
    experiment = run.config["experiment"]
    return replace(run, config={**run.config, "experiment": {**experiment, "task": {**experiment["task"], **changes}}})


def page_of(runs: list[StoredRun], folder: Path, title: str = "Report") -> str:
    return write_report(runs, folder / "report.html", title).read_text(encoding="utf-8")
