"""From run folders to results: what each finished run showed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedbac.config.experiment import Experiment
from fedbac.config.explain import parse
from fedbac.core.links import DIRECTIONS
from fedbac.errors import ConfigError
from fedbac.rounds.metrics import rounds_to_target, total_bytes
from fedbac.runs.store import StoredRun
from fedbac_paper.artefact import Artefact
from fedbac_paper.plan import Pass, identity, point_of, status
from fedbac_paper.results import Bytes, Curve, Finding, Results, Target
from fedbac_paper.settings import CALIBRATED

CURVE_POINTS = 50
LANDMARKS = (1, 10, 20)
"""Rounds that every curve keeps, beside half time and the end."""


def finding_of(run: StoredRun, task: str, variant: str, curves: bool) -> Finding:
    """Return what a finished run showed."""
    experiment = parse(Experiment, run.config["experiment"])
    accuracy_T = [record["accuracy"] for record in run.records]
    bytes_T = _cumulative([record["bytes"] for record in run.records])
    reached = {
        f"{target:g}": rounds_to_target(accuracy_T, target, experiment.evaluation.target_patience)
        for target in experiment.task.targets
    }
    return Finding(
        task=task,
        variant=variant,
        seed=experiment.seed,
        config=identity(experiment),
        data=run.config["data"]["sha256"][:12],
        rounds=len(run.records),
        accuracy=_short(run.summary["accuracy"]),
        accuracy_std_last=_short(run.summary["accuracy_std_last"]),
        edge_min=_short(run.summary["edge_min"]),
        edge_max=_short(run.summary["edge_max"]),
        edge_std=_short(run.summary["edge_std"]),
        moves=run.summary["moves"],
        active_clusters=run.summary["active_clusters"],
        targets={key: Target(round=at, bytes=None if at is None else bytes_T[at - 1]) for key, at in reached.items()},
        bytes=bytes_T[-1],
        trainer=run.config["trainer"],
        machine=run.config.get("machine", "not recorded"),
        seconds=round(run.summary["seconds"], 1),
        curve=curve_of(run.records) if curves else None,
    )


def check_pass(before: Results | None, change: Pass) -> None:
    """Refuse to mix the results of two passes that change different things."""
    if before is not None and before.changes != change.changes:
        kind = "another" if before.changes else "a full"
        raise ConfigError(f"--results: {before.artefact}.json there is of {kind} pass; choose another folder")


def collect(artefact: Artefact, seeds: int, change: Pass, parent: Path, before: Results | None) -> Results:
    """Return the findings of an artefact's finished runs, and those known before whose configuration is unchanged.

    What was known before counts, as data sets may be run one at a time on different machines.
    """
    check_pass(before, change)
    known = {(f.task, f.variant, f.seed): f for f in (before.findings if before else ())}
    findings = []
    for cell in artefact.cells:
        for seed in sorted({*range(seeds), *(before.of(cell.task, cell.variant) if before else ())}):
            point = point_of(cell, seed, change, parent)
            old = known.get((cell.task, cell.variant, seed))
            if status(point) == "finished":
                findings.append(finding_of(point.folder.read(), cell.task, cell.variant, artefact.curves))
            elif old is not None and old.config == identity(point.experiment):
                findings.append(old)
    calibrated = {cell.dataset for cell in artefact.cells if cell.calibrated}
    settings = {dataset: chosen for dataset, chosen in CALIBRATED.items() if dataset in calibrated}
    return Results(artefact=artefact.name, changes=change.changes, settings=settings, findings=tuple(findings))


def curve_of(records: Sequence[Mapping[str, Any]]) -> Curve:
    """Return the curve of a run at some of its rounds."""
    last = len(records)
    kept = {*np.linspace(1, last, min(CURVE_POINTS, last)).round().astype(int).tolist(), *LANDMARKS, last // 2, last}
    rounds = sorted(round_ for round_ in kept if 1 <= round_ <= last)
    moves_T = np.cumsum([record["moves"] for record in records])
    return Curve(
        round=tuple(rounds),
        accuracy=tuple(_short(records[round_ - 1]["accuracy"]) for round_ in rounds),
        moves=tuple(int(moves_T[round_ - 1]) for round_ in rounds),
        active_clusters=tuple(records[round_ - 1]["active_clusters"] for round_ in rounds),
    )


def _cumulative(ledgers: Sequence[Mapping[str, Any]]) -> list[Bytes]:
    totals, client, train, everything = [], 0, 0, 0
    for ledger in ledgers:
        client += sum(ledger["client"][direction]["train"] for direction in DIRECTIONS)
        train += sum(by[direction]["train"] for by in ledger.values() for direction in DIRECTIONS)
        everything += total_bytes(ledger)
        totals.append(Bytes(client_train=client, train=train, everything=everything))
    return totals


def _short(number: float) -> float:
    return round(float(number), 5)
