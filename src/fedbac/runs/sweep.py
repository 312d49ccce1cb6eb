"""Sweeps: a grid over settings and seeds, run in parallel, resumed where it stopped, collected into one table."""

import itertools
import re
import shlex
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedbac.errors import ConfigError
from fedbac.config.experiment import Experiment, Runtime, parse
from fedbac.runs.play import Inputs, configure, finish, play, read_experiment
from fedbac.runs.store import Run, RunFolder

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Point:
    """One run of a sweep: its experiment, its folder, and the settings that set it apart."""

    experiment: Experiment
    folder: RunFolder
    settings: tuple[str, ...]


def grid(
    names: Sequence[str], task: str | Path, axes: Sequence[str], listed: Sequence[str], seeds: Sequence[int],
    rounds: int | None, fixed: Sequence[str], parent: Path,
) -> list[Point]:  # fmt: skip
    """Return every combination of methods, axis values and seeds, each checked before any of them runs.

    An axis is ``path=v1,v2,…``; a value with commas of its own is written in brackets. Where points are listed, each
    as ``path=value path=value …``, one after another of them is combined with the axes.
    """
    choices: list[list[tuple[str, ...]]] = [[(value,) for value in _values(axis)] for axis in axes]
    if listed:
        choices.insert(0, [tuple(shlex.split(point)) for point in listed])
    points = []
    for seed, name, chosen in itertools.product(seeds, names, itertools.product(*choices)):
        settings = tuple(itertools.chain(*chosen))
        experiment = configure(name, task, seed=seed, num_rounds=rounds, settings=[*fixed, *settings])
        short = "_".join([name, *map(_short, settings), f"seed{seed}"])
        points.append(Point(experiment, RunFolder(parent / re.sub(r"[^\w.=+-]+", "-", short)), settings))
    folders = [point.folder.path for point in points]
    if len(set(folders)) < len(folders):
        raise ConfigError("--grid, --point: two points are the same; give every value once")
    return points


def _short(setting: str) -> str:
    path, _, value = setting.partition("=")
    return f"{path.rpartition('.')[2]}={value}"


def _values(axis: str) -> list[str]:
    path, equals, text = axis.partition("=")
    values = re.findall(r"\[[^\]]*\]|\{[^}]*\}|[^,]+", text)
    if not equals or not path or not values:
        raise ConfigError(f"--grid {axis!r}: write it as path=value,value, such as method.selection.fraction=0.3,0.8")
    return [f"{path}={value}" for value in values]


def lay_out(points: Sequence[Point], runtime: Runtime) -> None:
    """Write every point's configuration, so that the sweep can be resumed as a whole.

    What is there already stays, but for where it runs: a run may go on elsewhere than it began.
    """
    now = runtime.model_dump(mode="json")
    for point in points:
        with point.folder.locked():
            config: dict[str, Any] = {"experiment": point.experiment.model_dump(mode="json")}
            if point.folder.has_run():
                config = point.folder.read_config()
                if parse(Experiment, config["experiment"]) != point.experiment:
                    raise ConfigError(f"{point.folder.path}: there is another run in this folder; choose another --out")
            if config.get("runtime") != now:
                point.folder.write_config(config | {"runtime": now})


def run_folder(folder: str, data_folder: str | None) -> None:
    """Play, or go on with, the run of one folder; the work of one worker."""
    place = RunFolder(folder)
    experiment, runtime = read_experiment(place.config_file)
    finish(play(experiment, folder=place, runtime=runtime, inputs=Inputs(data_folder=data_folder), continued=True))


def run_all(
    folders: Sequence[RunFolder],
    runtime: Runtime,
    jobs: int,
    data_folder: Path | None,
    failures: dict[Path, Exception] | None = None,
) -> Generator[dict[Path, int], None, None]:
    """Run all folders in their order, ``jobs`` at a time, yielding now and then how many rounds each has completed.

    What a run raises is raised here, or with ``failures`` put there while the other runs go on. Closing the generator
    ends the workers; their runs go on from their last round another time.
    """
    place = None if data_folder is None else str(data_folder)
    with _workers(runtime, jobs) as submit:
        pending = {folder.path: submit(str(folder.path), place) for folder in folders}
        while pending:
            time.sleep(POLL_SECONDS)
            for path, future in list(pending.items()):
                if future.done():
                    del pending[path]
                    try:
                        future.result()  # raises what the run raised
                    except Exception as error:
                        if failures is None:
                            raise
                        failures[path] = error
            yield {folder.path: _rounds_in(folder) for folder in folders}


@contextmanager
def _workers(runtime: Runtime, jobs: int) -> Iterator[Any]:
    """Yield a function that starts a run elsewhere: in a process of this machine, or anywhere on a Ray cluster."""
    if runtime.engine == "ray":
        from fedbac.engines.ray import tasks

        with tasks(runtime, run_folder) as submit:
            yield submit
        return
    from loky import ProcessPoolExecutor

    pool = ProcessPoolExecutor(max_workers=jobs, timeout=60)
    try:
        yield lambda *words: pool.submit(run_folder, *words)
    finally:
        pool.shutdown(wait=True, kill_workers=True)  # a killed run goes on from its last round


def _rounds_in(folder: RunFolder) -> int:
    return folder.rounds_file.read_bytes().count(b"\n") if folder.rounds_file.exists() else 0


def collect(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return one row per configuration: mean and standard deviation of the accuracy over its seeds."""
    together: dict[str, list[Run]] = {}
    for run in runs:
        together.setdefault(_but_seed(run.config["experiment"]), []).append(run)
    rows = []
    for group in together.values():
        accuracy = [run.summary["accuracy"] for run in group]
        rows.append(
            {
                "method": group[0].config["experiment"]["method"]["name"],
                "runs": [str(run.folder.name) for run in group if run.folder is not None],
                "seeds": [run.config["experiment"]["seed"] for run in group],
                "accuracy": float(np.mean(accuracy)),
                "accuracy_std_seeds": float(np.std(accuracy, ddof=1)) if len(group) > 1 else None,
                "edge_std": float(np.mean([run.summary["edge_std"] for run in group])),
                "edge_min": float(np.mean([run.summary["edge_min"] for run in group])),
                "bytes_total": int(np.mean([run.summary["bytes_total"] for run in group])),
            }
        )
    return sorted(rows, key=lambda row: -row["accuracy"])


def _but_seed(experiment: Mapping[str, Any]) -> str:
    return repr({key: value for key, value in experiment.items() if key != "seed"})
