"""Result files: what runs showed, as small JSON files, one per artefact; a page is rendered from them alone."""

import json
from pathlib import Path

from pydantic import Field

from fedbac.config.explain import parse
from fedbac.core.settings import Settings
from fedbac.errors import ConfigError
from fedbac.files import make_folder, read_json, write_whole


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


def write_results(results: Results, folder: Path) -> Path:
    """Write an artefact's results, one finding a line."""
    make_folder(folder)
    plain = results.model_dump(mode="json")
    for item in plain["findings"]:
        if item["curve"] is None:
            del item["curve"]
    lines = ",\n".join(f"  {json.dumps(item, ensure_ascii=False)}" for item in plain.pop("findings"))
    head = json.dumps(plain, indent=1, ensure_ascii=False).removesuffix("\n}")
    path = folder / f"{results.artefact}.json"
    write_whole(path, f'{head},\n "findings": [\n{lines}\n ]\n}}\n')
    return path


def read_results(artefact: str, folder: Path) -> Results | None:
    """Return an artefact's results, or None where there are none."""
    path = folder / f"{artefact}.json"
    try:
        results = parse(Results, read_json(path), str(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: it cannot be read as results ({error}); remove it and collect again") from error
    if results.artefact != artefact:
        raise ConfigError(f"{path}: it holds the results of {results.artefact!r}")
    return results
