"""What runs showed, as small JSON files: one per artefact, enough to render its page without the run folders."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from fedbac.config.experiment import Experiment, parse
from fedbac.core.links import DIRECTIONS, PURPOSES, TIERS
from fedbac.core.settings import Settings
from fedbac.errors import ConfigError
from fedbac.rounds.metrics import rounds_to_target
from fedbac.runs.store import Run
from fedbac_paper.artefacts import ARTEFACTS, Artefact
from fedbac_paper.plan import Pass, identity, point_of, status
from fedbac_paper.settings import SETTINGS

CURVE_POINTS = 50
LANDMARKS = (1, 10, 20)
"""Rounds that every curve keeps, beside half time and the end."""


class Bytes(Settings):
    """Traffic: of training between clients and edges (all that the paper counts), of training, of everything."""

    client_train: int
    train: int
    everything: int


class Target(Settings):
    """When a target was reached and what had been sent until then; None if it never was."""

    round: int | None
    bytes: Bytes | None


class Curve(Settings):
    """Some rounds of a run."""

    round: tuple[int, ...]
    accuracy: tuple[float, ...]
    moves: tuple[int, ...]
    """Reassignments so far."""
    active_clusters: tuple[int, ...]

    def at(self, round_: int) -> float | None:
        """Return the accuracy at a round that the curve keeps."""
        return self.accuracy[self.round.index(round_)] if round_ in self.round else None

    def last_move(self) -> int | None:
        """Return the first round kept by which all reassignments were made; None if there were none."""
        return self.round[self.moves.index(self.moves[-1])] if self.moves[-1] else None


class Finding(Settings):
    """What one run showed; accuracies are shares of 1, edges are judged by their mean over the last rounds."""

    task: str
    variant: str
    seed: int
    config: str
    """The hash of the experiment."""
    data: str
    """The beginning of the hash of the data."""
    rounds: int
    accuracy: float
    accuracy_std_last: float
    edge_min: float
    edge_max: float
    edge_std: float
    moves: int
    active_clusters: int
    targets: dict[str, Target]
    bytes: Bytes
    trainer: str
    machine: str
    seconds: float
    curve: Curve | None = None


class Results(Settings):
    """All findings of an artefact, and what a reader must know about them."""

    artefact: str
    changes: tuple[str, ...] = ()
    """What made the pass a quick or changed one; empty for a reproduction."""
    settings: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """The calibrated settings per data set."""
    findings: tuple[Finding, ...] = ()

    @property
    def kind(self) -> str:
        """What a pass that changes something is called: one of settings alone (``PATH=VALUE``) need not be quick."""
        return "Changed settings" if all("=" in change for change in self.changes) else "Quick pass"

    def of(self, task: str, variant: str) -> dict[int, Finding]:
        """Return a cell's findings by seed."""
        return {f.seed: f for f in self.findings if (f.task, f.variant) == (task, variant)}


def finding(run: Run, task: str, variant: str, curves: bool) -> Finding:
    """Return what a finished run showed."""
    experiment = parse(Experiment, run.config["experiment"])
    tail = run.records[-experiment.evaluation.last_rounds :]
    edge_M = np.mean([record["accuracy_per_edge"] for record in tail], axis=0)
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
        edge_min=_short(edge_M.min()),
        edge_max=_short(edge_M.max()),
        edge_std=_short(edge_M.std()),
        moves=run.summary["moves"],
        active_clusters=run.summary["active_clusters"],
        targets={key: Target(round=at, bytes=None if at is None else bytes_T[at - 1]) for key, at in reached.items()},
        bytes=bytes_T[-1],
        trainer=run.config["trainer"],
        machine=run.config.get("machine", "not recorded"),
        seconds=round(run.summary["seconds"], 1),
        curve=_curve(run.records) if curves else None,
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
                findings.append(finding(point.folder.read(), cell.task, cell.variant, artefact.curves))
            elif old is not None and old.config == identity(point.experiment):
                findings.append(old)
    calibrated = {cell.dataset for cell in artefact.cells if cell.calibrated}
    settings = {dataset: chosen for dataset, chosen in SETTINGS.items() if dataset in calibrated}
    return Results(artefact=artefact.name, changes=change.changes, settings=settings, findings=tuple(findings))


def write(results: Results, folder: Path) -> Path:
    """Write an artefact's results, one finding a line."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = results.model_dump(mode="json")
    for item in plain["findings"]:
        if item["curve"] is None:
            del item["curve"]
    lines = ",\n".join(f"  {json.dumps(item, ensure_ascii=False)}" for item in plain.pop("findings"))
    head = json.dumps(plain, indent=1, ensure_ascii=False).removesuffix("\n}")
    path = folder / f"{results.artefact}.json"
    path.write_text(f'{head},\n "findings": [\n{lines}\n ]\n}}\n', encoding="utf-8")
    return path


def read(artefact: str, folder: Path) -> Results | None:
    """Return an artefact's results, or None where there are none."""
    path = folder / f"{artefact}.json"
    if not path.exists():
        return None
    try:
        results = parse(Results, json.loads(path.read_text(encoding="utf-8")), str(path))
    except ValueError as error:
        raise ConfigError(f"{path}: it cannot be read as results ({error}); remove it and collect again") from error
    if results.artefact != artefact or artefact not in ARTEFACTS:
        raise ConfigError(f"{path}: it holds the results of {results.artefact!r}")
    return results


def _curve(records: Sequence[Mapping[str, Any]]) -> Curve:
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
        train += sum(ledger[tier][direction]["train"] for tier in TIERS for direction in DIRECTIONS)
        everything += sum(ledger[t][d][purpose] for t in TIERS for d in DIRECTIONS for purpose in PURPOSES)
        totals.append(Bytes(client_train=client, train=train, everything=everything))
    return totals


def _short(number: float) -> float:
    return round(float(number), 5)
