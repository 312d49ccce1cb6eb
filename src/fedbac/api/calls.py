"""What to call: ``run``, ``play``, ``compare``, ``sweep``, ``tune``, ``resume``, ``verify``, ``load``, ``report``."""

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import wraps
from importlib import import_module
from numbers import Integral
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from fedbac.api.playing import Playing, Show, bar
from fedbac.api.results import Run, Runs
from fedbac.config.experiment import Experiment, Method, Runtime, Task
from fedbac.config.explain import changes_of, parse
from fedbac.core.settings import MOST_JOBS
from fedbac.data import Dataset, Shards
from fedbac.errors import ConfigError, quoted
from fedbac.models import UserNetwork
from fedbac.runs import play as playing
from fedbac.runs import replay
from fedbac.runs import tune as tuning
from fedbac.runs.configure import (
    Changes,
    Inputs,
    called,
    check_ready,
    common_file,
    configure,
    experiment_in,
    is_file,
    reached,
    refuse_another,
    refuse_runtime,
    with_settings,
)
from fedbac.runs.folders import usable
from fedbac.runs.replay import Verdict
from fedbac.runs.store import RunFolder, StoredRun, Tail, runs_in
from fedbac.runs.sweep import Laid, Point, each_with_news, folder_name, full_name, lay_out, names_beside, run_all

MethodLike = str | Method | Path
TaskLike = str | Task | Path
P = ParamSpec("P")
Played = TypeVar("Played")


def _settings_apart(call: Callable[P, Played]) -> Callable[P, Played]:
    """Say of an argument that there is none of, but a setting, how the setting is given."""
    known = inspect.signature(call).parameters

    @wraps(call)
    def checked(*args: P.args, **kwargs: P.kwargs) -> Played:
        for name, value in kwargs.items():
            if name not in known and (meant := called(name)):
                raise ConfigError(
                    f"{name}: there is no such argument; write settings={{{meant[0]!r}: {quoted(value)}}}"
                )
        return call(*args, **kwargs)

    return checked


@_settings_apart
def run(
    method: MethodLike = "fed-bac",
    task: TaskLike | None = None,
    *,
    dataset: Dataset | str | None = None,
    shards: Shards | None = None,
    network: UserNetwork | None = None,
    rounds: int | None = None,
    settings: Changes = (),
    seed: int | None = None,
    out: Path | str | None = None,
    overwrite: bool = False,
    device: str = "auto",
    workers: int | None = None,
    memory_gib: float | None = None,
    trainer: str = "auto",
    precision: str = "float32",
    track: str | None = None,
    data_folder: Path | str | None = None,
    progress: bool | None = None,
) -> Run:
    """Run one method on one task and return the run; with ``out`` it is also saved, and the same call resumes it.

    ``method`` is a name, a ``Method``, or a file that ``fedbac show`` wrote. ``dataset`` and ``network`` are objects of
    yours, or names: of ones at hand, ``mine.npz``, ``file.py:name`` or ``package.module:name``. ``settings`` changes
    single settings: ``{"task.training.epochs": 2}``. ``progress`` switches the bar on or off; by default it is on in a
    terminal and in a notebook.
    """
    inputs = Inputs(dataset, shards, network, data_folder)
    experiment = configure(method, task, seed=seed, rounds=rounds, settings=settings, inputs=inputs)
    runtime = _runtime(device, workers, memory_gib, trainer, precision, track, settings)
    with bar(progress) as show:
        return _play(experiment, runtime, inputs, out, overwrite, show).finish()


@_settings_apart
def play(
    method: MethodLike = "fed-bac",
    task: TaskLike | None = None,
    *,
    dataset: Dataset | str | None = None,
    shards: Shards | None = None,
    network: UserNetwork | None = None,
    rounds: int | None = None,
    settings: Changes = (),
    seed: int | None = None,
    out: Path | str | None = None,
    overwrite: bool = False,
    device: str = "auto",
    workers: int | None = None,
    memory_gib: float | None = None,
    trainer: str = "auto",
    precision: str = "float32",
    track: str | None = None,
    data_folder: Path | str | None = None,
) -> Playing:
    """Return an iterator over the rounds of a run: each record as soon as its round is done.

    After the last, ``run`` of the iterator is what ``fedbac.run`` returns. The arguments are those of ``run``.
    """
    inputs = Inputs(dataset, shards, network, data_folder)
    experiment = configure(method, task, seed=seed, rounds=rounds, settings=settings, inputs=inputs)
    runtime = _runtime(device, workers, memory_gib, trainer, precision, track, settings)
    return _play(experiment, runtime, inputs, out, overwrite, None)


@_settings_apart
def compare(
    methods: Sequence[MethodLike],
    task: TaskLike | None = None,
    *,
    dataset: Dataset | str | None = None,
    shards: Shards | None = None,
    network: UserNetwork | None = None,
    rounds: int | None = None,
    settings: Changes = (),
    seed: int | Sequence[int] | None = None,
    out: Path | str | None = None,
    overwrite: bool = False,
    device: str = "auto",
    workers: int | None = None,
    memory_gib: float | None = None,
    trainer: str = "auto",
    precision: str = "float32",
    track: str | None = None,
    data_folder: Path | str | None = None,
    progress: bool | None = None,
) -> Runs:
    """Run several methods on the same task, one after another, and return the runs.

    ``seed`` may be several: every method runs with each. With ``out`` each run is saved in a folder of its own there,
    and what is there already of the same comparison is resumed. The other arguments are those of ``run``.
    """
    return sweep(
        methods, task, dataset=dataset, shards=shards, network=network, rounds=rounds, settings=settings, seed=seed,
        out=out, overwrite=overwrite, device=device, workers=workers, memory_gib=memory_gib, trainer=trainer,
        precision=precision, track=track, data_folder=data_folder, progress=progress,
    )  # fmt: skip


@_settings_apart
def sweep(
    methods: MethodLike | Sequence[MethodLike],
    task: TaskLike | None = None,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    dataset: Dataset | str | None = None,
    shards: Shards | None = None,
    network: UserNetwork | None = None,
    rounds: int | None = None,
    settings: Changes = (),
    seed: int | Sequence[int] | None = None,
    out: Path | str | None = None,
    overwrite: bool = False,
    device: str = "auto",
    workers: int | None = None,
    memory_gib: float | None = None,
    trainer: str = "auto",
    precision: str = "float32",
    track: str | None = None,
    data_folder: Path | str | None = None,
    progress: bool | None = None,
    jobs: int = 1,
) -> Runs:
    """Run every combination of methods, seeds and values of settings and return the runs.

    ``grid`` names the values to try: ``{"method.selection.fraction": [0.3, 0.8]}``. With ``jobs`` that many runs are
    played at a time, each in a process of its own with one core; they are saved, so ``out`` must be given, and
    policies of your own must be plug-ins. The other arguments are those of ``compare``.
    """
    inputs = Inputs(dataset, shards, network, data_folder)
    names, parent = _names(methods), None if out is None else usable(out)
    seeds = [None] if seed is None else _seeds(seed)
    points = _points(names, task, _axes(grid), seeds, rounds, settings, inputs, parent)
    if _jobs(jobs) > 1 and parent is None:
        raise ConfigError("jobs: runs in other processes are handed over as files; give out=, the folder to save them")
    jobs = min(jobs, len(points))
    workers = 1 if workers is None and jobs > 1 else workers
    runtime = _runtime(device, workers, memory_gib, trainer, precision, track, settings)
    check_ready([point.experiment for point in points], runtime, inputs)
    laid = Laid() if parent is None else lay_out(points, runtime, overwrite, parent)
    try:
        with bar(progress) as show:
            if jobs > 1:
                return Runs(_play_side_by_side(points, runtime, inputs, jobs, show))
            places = [None if parent is None else point.folder.path for point in points]
            with closing(each_with_news(zip(points, places, strict=True))) as each:
                return Runs(
                    _play(point.experiment, runtime, inputs, place, False, show, point.label).finish()
                    for point, place in each
                )
    except Exception:
        laid.withdraw()
        raise


@_settings_apart
def tune(
    methods: MethodLike | Sequence[MethodLike],
    task: TaskLike | None = None,
    *,
    out: Path | str,
    budget: int = tuning.BUDGET,
    over: Mapping[str, Sequence[Any]] | None = None,
    seed: int | Sequence[int] = tuning.SEEDS,
    confirm: int | Sequence[int] = tuning.CONFIRM,
    dataset: Dataset | str | None = None,
    shards: Shards | None = None,
    network: UserNetwork | None = None,
    rounds: int | None = None,
    settings: Changes = (),
    device: str = "auto",
    workers: int | None = None,
    memory_gib: float | None = None,
    trainer: str = "auto",
    precision: str = "float32",
    data_folder: Path | str | None = None,
    progress: bool | None = None,
    jobs: int = 1,
) -> Runs:
    """Tune every method with the same effort, compare the best points on other seeds, and return the runs that do.

    Of each method ``budget`` points are tried on the tuning seeds (``seed``), by successive halving: the preset, and
    others that are drawn, or combinations of values that ``over`` names. The best are written into ``out`` as files,
    then compared on the seeds of ``confirm``. The same call resumes. The other arguments are those of ``sweep``;
    policies of your own must be registered.
    """
    inputs, jobs = Inputs(dataset, shards, network, data_folder), _jobs(jobs)
    workers = 1 if workers is None and jobs > 1 else workers
    runtime = _runtime(device, workers, memory_gib, trainer, precision, None, settings)
    check_ready((), runtime, inputs)
    plan = tuning.plan(
        _names(methods), task, usable(out), budget=budget, over=_axes(over, "over"), seeds=_seeds(seed),
        confirm=_seeds(confirm, "confirm"), rounds=rounds, settings=settings, inputs=inputs,
    )  # fmt: skip
    with bar(progress) as show:

        def play(points: Sequence[Point], folder: Path, until: int | None) -> list[StoredRun]:
            lay_out(points, runtime, parent=folder)
            return _play_side_by_side(points, runtime, inputs, min(jobs, len(points)), show, until)

        return Runs(tuning.tune(plan, play, lambda line: None))


def resume(
    folder: Path | str,
    *,
    dataset: Dataset | str | None = None,
    shards: Shards | None = None,
    network: UserNetwork | None = None,
    data_folder: Path | str | None = None,
    address: str | None = None,
    progress: bool | None = None,
) -> Run:
    """Resume the run in a folder and return it; data and networks given in Python, and an address, are given again."""
    place, inputs = RunFolder(folder), Inputs(dataset, shards, network, data_folder)
    experiment, runtime = experiment_in(place, with_data=inputs.with_data)
    runtime = reached(runtime, address, place.config_file)
    with bar(progress) as show:
        return _play(experiment, runtime, inputs, folder, False, show).finish()


def verify(
    folder: Path | str,
    *,
    rounds: int | None = None,
    dataset: Dataset | str | None = None,
    shards: Shards | None = None,
    network: UserNetwork | None = None,
    data_folder: Path | str | None = None,
) -> list[Verdict]:
    """Replay rounds of a saved run, so many at random or all, and say of each whether it has the same bits."""
    return list(replay.verify(RunFolder(folder), Inputs(dataset, shards, network, data_folder), rounds))


def load(folder: Path | str) -> Any:
    """Return a saved run (``Run``), or those of a folder that holds several, such as a comparison's (``Runs``)."""
    place = RunFolder(folder)
    if place.has_run() or not (runs := runs_in(place.path) if place.path.is_dir() else []):
        return Run.of(place.read())
    return Runs(run.read() for run in runs)


def report(runs: StoredRun | Sequence[StoredRun], path: Path | str = "report.html") -> Path:
    """Write the report of runs, one self-contained page, and return its path."""
    written: Path = import_module("fedbac.report")(runs, path)  # type: ignore[operator]
    return written


def _play(
    experiment: Experiment,
    runtime: Runtime,
    inputs: Inputs,
    out: Path | str | None,
    overwrite: bool,
    show: Show | None,
    label: str | None = None,
) -> Playing:
    folder = None if out is None else RunFolder(out)
    if folder is not None and not overwrite:
        refuse_another(folder, experiment)
    rounds = playing.play(experiment, folder=folder, runtime=runtime, inputs=inputs, overwrite=overwrite)
    return Playing(rounds, label or experiment.method.name, experiment.task.rounds, show)


def _play_side_by_side(
    points: Sequence[Point], runtime: Runtime, inputs: Inputs, jobs: int, show: Show | None, until: int | None = None
) -> list[StoredRun]:
    """Play saved points, up to a round or their end, several in other processes, showing each round that they save."""
    tails, seen = [Tail(point.folder) for point in points], dict[Path, int]()
    for done in run_all([point.folder for point in points], runtime, jobs, inputs, until=until):
        for point, tail in zip(points, tails, strict=True):
            path = point.folder.path
            if show is not None and done[path] != seen.get(path, 0):
                tail.refresh()
                show(point.label, tail.record(), point.experiment.task.rounds)
        seen = done
    return [point.folder.read() for point in points]


def _runtime(
    device: str, workers: int | None, memory_gib: float | None, trainer: str, precision: str, track: str | None,
    settings: Changes,
) -> Runtime:  # fmt: skip
    chosen = {"device": device, "workers": workers, "memory_gib": memory_gib, "trainer": trainer, "track": track}
    return with_settings(parse(Runtime, chosen | {"precision": precision}, "runtime"), settings)


def _names(methods: MethodLike | Sequence[MethodLike]) -> list[MethodLike]:
    if isinstance(methods, str | Method | Path):
        return [methods]
    if not isinstance(methods, Sequence) or not methods:
        raise ConfigError(f"methods: {quoted(methods)} is neither a method nor a list of some")
    return list(methods)


def _seeds(seed: int | Sequence[int], name: str = "seed") -> list[int]:
    if isinstance(seed, int):
        return [seed]
    if not isinstance(seed, Sequence) or not seed or not all(isinstance(one, Integral) for one in seed):
        raise ConfigError(f"{name}: {quoted(seed)} is neither a seed nor a list of some")
    return list(seed)


def _jobs(jobs: int) -> int:
    if isinstance(jobs, bool) or not isinstance(jobs, int) or not 1 <= jobs <= MOST_JOBS:
        raise ConfigError(f"jobs: {quoted(jobs)} is no whole number from 1 to {MOST_JOBS}")
    return jobs


def _axes(grid: Mapping[str, Sequence[Any]] | None, name: str = "grid") -> list[list[tuple[str, Any]]]:
    grid = {} if grid is None else grid
    if not isinstance(grid, Mapping):
        raise ConfigError(f"{name}: {quoted(grid)} is no mapping from settings to lists of values")
    refuse_runtime(name, map(str, grid))
    for path, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ConfigError(f"{name}: {quoted(path)} must have a list of values, not {quoted(values)}")
    return [[(path, value) for value in values] for path, values in grid.items()]


def _points(
    names: Sequence[MethodLike],
    task: TaskLike | None,
    axes: Sequence[Sequence[tuple[str, Any]]],
    seeds: Sequence[int | None],
    rounds: int | None,
    settings: Changes,
    inputs: Inputs,
    parent: Path | None,
) -> list[Point]:
    """Return every combination, checked before any of them runs."""
    beside, named = common_file(names, inputs), full_name if axes else names_beside(len(seeds))
    fixed = {change.path: change.value for change in changes_of(settings)}
    points = []
    for seed, name, chosen in itertools.product(seeds, names, itertools.product(*axes)):
        experiment = configure(
            name, task, seed=seed, rounds=rounds, settings={**fixed, **dict(chosen)}, inputs=inputs, beside=beside
        )
        own = Path(str(name)).stem if is_file(name) else experiment.method.name
        apart = tuple(f"{path}={value}" for path, value in chosen)
        folder = folder_name(named(own, apart, experiment.seed))
        points.append(Point(experiment, RunFolder((parent or Path()) / folder), apart))
    if parent is not None and len({point.folder.path for point in points}) < len(points):
        raise ConfigError("methods, seed, grid: they name the same run twice; give every one once")
    return points
