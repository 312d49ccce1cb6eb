"""Rounds as TensorBoard, MLflow and Weights & Biases show them: one small adapter each over the records of a run.

A tracker is told of all rounds again when a run is resumed, so that none is missing if a run dies between the two.
"""

import logging
import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from fedbac.errors import ConfigError, Error
from fedbac.files import write_whole
from fedbac.rounds.metrics import total_bytes

Record = Mapping[str, Any]
log = logging.getLogger("fedbac")
NUMBERS = {
    "accuracy/mean": "accuracy",
    "accuracy/worst_edge": "accuracy_min",
    "accuracy/best_edge": "accuracy_max",
    "accuracy/global": "accuracy_global",
    "loss": "loss",
    "clusters/active": "active_clusters",
    "clusters/moves": "moves",
    "time/seconds": "seconds",
    "time/simulated_seconds": "simulated_seconds",
}
"""What a tracker shows of a record, and where it stands there."""


OF_TRACKERS = EVENTS, MLFLOW_RUN = "tensorboard", "mlflow-run"
"""What trackers keep in a run's folder, which goes when the run is replaced."""


class Tracker(Protocol):
    """Shows a run somewhere."""

    def log(self, round_: int, numbers: Mapping[str, float]) -> None:
        """Show the numbers of a round."""

    def close(self) -> None:
        """Write what is left and let go."""


def numbers(record: Record) -> dict[str, float]:
    """Return the numbers of a record by the names that trackers show; what is missing is left out."""
    found = {name: record.get(key) for name, key in NUMBERS.items()}
    found |= {f"edge/{m}": accuracy for m, accuracy in enumerate(record["accuracy_per_edge"])}
    found["bytes/total"] = total_bytes(record["bytes"])
    return {name: float(value) for name, value in found.items() if value is not None}


class Tracking:
    """Tells a tracker of rounds, if one is wanted. One that fails is given up, with a warning: the run goes on."""

    def __init__(self, kind: str | None, folder: Path | None, config: Mapping[str, Any]) -> None:
        self.kind = kind
        self.tracker: Tracker | None = None
        if kind is None:
            return
        if folder is None:
            raise ConfigError(f"runtime.track: {kind!r} needs a folder to keep the run in; give out=")
        self._try(partial(self._begin, kind, folder, config))

    def log(self, record: Record) -> None:
        """Show a round."""
        if self.tracker is not None:
            self._try(partial(self.tracker.log, record["round"], numbers(record)))

    def close(self) -> None:
        """Write what is left and let go."""
        if self.tracker is not None:
            self._try(self.tracker.close)

    def _begin(self, kind: str, folder: Path, config: Mapping[str, Any]) -> None:
        self.tracker = TRACKERS[kind](folder, config)

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Error:
            raise
        except Exception as error:
            log.warning("%s shows no more of this run: %s", self.kind, error)
            self.tracker = None


def flat(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return the settings of a tree by their paths."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        here = f"{path}.{name}" if path else name
        found |= flat(value, here) if isinstance(value, Mapping) else {here: value}
    return found


class TensorBoard:
    """Event files in the run's folder: ``tensorboard --logdir FOLDER``."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        writer = check_tracker("tensorboard")
        place = folder / EVENTS
        for old in place.glob("events.out.tfevents.*"):  # everything is written again
            old.unlink()
        self.writer = writer.SummaryWriter(str(place))

    def log(self, round_: int, numbers: Mapping[str, float]) -> None:
        """Show the numbers of a round."""
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, round_)

    def close(self) -> None:
        """Write what is left."""
        self.writer.close()


class MLflow:
    """A run of MLflow, in the store that MLFLOW_TRACKING_URI names."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        mlflow = check_tracker("mlflow")
        self.client = mlflow.MlflowClient()
        known = folder / MLFLOW_RUN
        if known.exists():
            self.run = known.read_text(encoding="utf-8").strip()
            return
        name = config["experiment"]["task"]["dataset"]
        experiment = self.client.get_experiment_by_name(f"fedbac-{name}")
        place = experiment.experiment_id if experiment else self.client.create_experiment(f"fedbac-{name}")
        self.run = self.client.create_run(place, run_name=folder.name).info.run_id
        for path, value in flat(config["experiment"]).items():
            self.client.log_param(self.run, path, str(value)[:500])
        write_whole(known, f"{self.run}\n")

    def log(self, round_: int, numbers: Mapping[str, float]) -> None:
        """Show the numbers of a round."""
        for name, value in numbers.items():
            self.client.log_metric(self.run, name, value, step=round_)

    def close(self) -> None:
        """Say that the run has ended, for now."""
        self.client.set_terminated(self.run)


class WandB:
    """A run of Weights & Biases; without an account, WANDB_MODE=offline keeps it in the run's folder."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        wandb = check_tracker("wandb")
        name = re.sub(r"[^A-Za-z0-9_-]", "-", folder.resolve().name)
        self.run = wandb.init(
            project="fedbac", dir=str(folder), name=name, config=flat(config["experiment"]), reinit="create_new"
        )

    def log(self, round_: int, numbers: Mapping[str, float]) -> None:
        """Show the numbers of a round."""
        self.run.log(dict(numbers), step=round_)

    def close(self) -> None:
        """Send or write what is left."""
        self.run.finish()


TRACKERS: dict[str, Callable[[Path, Mapping[str, Any]], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}


LIBRARIES = {"tensorboard": "torch.utils.tensorboard", "mlflow": "mlflow", "wandb": "wandb"}


def check_tracker(kind: str | None) -> Any:
    """Return the library of a tracker, if one is wanted; refuse one that is not installed."""
    try:
        return None if kind is None else import_module(LIBRARIES[kind])
    except ImportError as error:
        raise ConfigError(
            f"runtime.track: {kind!r} needs a package that is not installed; pip install 'fedbac[{kind}]'"
        ) from error
