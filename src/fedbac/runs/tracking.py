"""Rounds as TensorBoard, MLflow and Weights & Biases show them: one small adapter each over the records of a run.

A tracker gets all rounds again when a run is resumed, so that none is missing if a run dies between the two.
"""

import logging
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fedbac.errors import ConfigError, Error
from fedbac.files import read_bytes, write_whole
from fedbac.rounds.metrics import total_bytes
from fedbac.runs.summary import leaves

Record = Mapping[str, Any]
T = TypeVar("T")
log = logging.getLogger("fedbac")
NUMBERS = {
    "accuracy/mean": "accuracy",
    "accuracy/lowest": "accuracy_min",  # of this round; the worst edge is the lowest of the edges' means over several
    "accuracy/highest": "accuracy_max",
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


class Tracker(NamedTuple):
    """Shows a run somewhere."""

    log: Callable[[int, Mapping[str, float]], None]
    """Show the numbers of a round."""
    close: Callable[[], None]
    """Write what is left and let go."""


def numbers(record: Record) -> dict[str, float]:
    """Return the numbers of a record by the names that trackers show; what is missing is left out."""
    found = {name: record.get(key) for name, key in NUMBERS.items()}
    found |= {f"edge/{m}": accuracy for m, accuracy in enumerate(record["accuracy_per_edge"])}
    found["bytes/total"] = total_bytes(record["bytes"])
    return {name: float(value) for name, value in found.items() if value is not None}


class Tracking:
    """Hands rounds to a tracker, if one is wanted. One that fails is given up, with a warning: the run goes on."""

    def __init__(self, kind: str | None, folder: Path | None, config: Mapping[str, Any]) -> None:
        self.kind = kind
        self.tracker: Tracker | None = None
        if kind is not None and folder is None:
            raise ConfigError(f"runtime.track: {kind!r} needs a folder to keep the run in; give out=")
        if kind is not None and folder is not None:
            self.tracker = self._try(partial(TRACKERS[kind], folder, config))

    def log(self, record: Record) -> None:
        """Show a round."""
        if self.tracker is not None:
            self._try(partial(self.tracker.log, record["round"], numbers(record)))

    def close(self) -> None:
        """Write what is left and let go."""
        if self.tracker is not None:
            self._try(self.tracker.close)

    def _try(self, step: Callable[[], T]) -> T | None:
        try:
            return step()
        except Error:
            raise
        except Exception as error:
            log.warning("%s shows no more of this run: %s", self.kind, error)
            self.tracker = None
            return None


def tensorboard(folder: Path, config: Mapping[str, Any]) -> Tracker:
    """Write event files in the run's folder: ``tensorboard --logdir FOLDER``."""
    library, place = check_tracker("tensorboard"), folder / EVENTS
    for old in place.glob("events.out.tfevents.*"):  # everything is written again
        old.unlink()
    writer = library.SummaryWriter(str(place))

    def log(at: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, at)

    return Tracker(log, writer.close)


def mlflow(folder: Path, config: Mapping[str, Any]) -> Tracker:
    """Keep a run of MLflow, in mlflow.db or what MLFLOW_TRACKING_URI names; when it is closed, it has ended for now."""
    library, known = check_tracker("mlflow"), folder / MLFLOW_RUN
    client = library.MlflowClient()
    shown = set()
    if known.exists():
        run = read_bytes(known).decode().strip()
        shown = {metric.step for metric in client.get_metric_history(run, "accuracy/mean")}
    else:
        name = f"fedbac-{config['experiment']['task']['dataset']}"
        experiment = client.get_experiment_by_name(name)
        place = experiment.experiment_id if experiment else client.create_experiment(name)
        run = client.create_run(place, run_name=folder.name).info.run_id
        for path, value in leaves(config["experiment"]).items():
            client.log_param(run, path, str(value)[:500])
        write_whole(known, f"{run}\n")

    def log(at: int, numbers: Mapping[str, float]) -> None:
        now = time.time_ns() // 1_000_000
        if at not in shown:  # a round is one batch: it is there as a whole, or not at all
            client.log_batch(run, [library.entities.Metric(name, value, now, at) for name, value in numbers.items()])

    return Tracker(log, partial(client.set_terminated, run))


def wandb(folder: Path, config: Mapping[str, Any]) -> Tracker:
    """Keep a run of Weights & Biases; without an account, WANDB_MODE=offline keeps it in the run's folder."""
    name, settings = re.sub(r"[^A-Za-z0-9_-]", "-", folder.resolve().name), leaves(config["experiment"])
    run = check_tracker("wandb").init(
        project="fedbac", dir=str(folder), name=name, config=settings, reinit="create_new"
    )
    return Tracker(lambda at, numbers: run.log(dict(numbers), step=at), run.finish)


TRACKERS = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}
LIBRARIES = {"tensorboard": "torch.utils.tensorboard", "mlflow": "mlflow", "wandb": "wandb"}


def check_tracker(kind: str | None) -> Any:
    """Return the library of a tracker, if one is wanted; refuse one that is not installed."""
    try:
        return None if kind is None else import_module(LIBRARIES[kind])
    except ImportError as error:
        raise ConfigError(
            f"runtime.track: {kind!r} needs a package that is not installed; pip install 'fedbac[{kind}]'"
        ) from error
