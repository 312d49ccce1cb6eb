"""Several runs as one: a grid over methods, settings and seeds, run here or in parallel, resumed, collected."""

import itertools
import logging
import math
import re
import shlex
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil

from fedbac.config.experiment import Experiment, Runtime
from fedbac.core import signals
from fedbac.errors import ConfigError, EngineError, FederationError, quoted
from fedbac.files import read_lines, remove_empty
from fedbac.local.pool import RESTARTS, start_pool
from fedbac.runs.configure import (
    Inputs,
    common_file,
    configure,
    is_file,
    refuse_another,
    refuse_federation,
    refuse_runtime,
)
from fedbac.runs.folders import list_runs, listed, shortened
from fedbac.runs.play import play_folder
from fedbac.runs.stopping import Stop
from fedbac.runs.store import RunFolder, StoredRun, Tail
from fedbac.runs.summary import leaves, written
from fedbac.statistics import deviation, standing

log = logging.getLogger("fedbac")

T = TypeVar("T")

POLL_SECONDS = 0.2
FROZEN_SECONDS, IDLE_SHARE, LOOK_SECONDS = 300, 0.01, 5
"""A worker that used less than this share of a core for so long is frozen; how often to look whether it is stopped."""
MOST_POINTS = 10_000
PLAIN, STRANGE = r"[\w.=+-]+", r"[^\w.=+-]+"
"""Signs that names of folders consist of, and all others."""

Submit = Callable[..., Any]
"""Starts a run elsewhere and returns its future."""
Fail = Callable[[Path, Exception], None]
"""What to do about a run that failed."""


@dataclass(frozen=True)
class Point:
    """One run of a sweep: its experiment, its folder, and the settings that set it apart."""

    experiment: Experiment
    folder: RunFolder
    settings: tuple[str, ...]

    @property
    def label(self) -> str:
        """The method's name, the settings that set it apart, and the seed where it is not 0."""
        seed = [f"seed {self.experiment.seed}"] * (self.experiment.seed != 0)
        return " ".join([self.experiment.method.name, *map(_short, self.settings), *seed])


def full_name(method: str, settings: Sequence[str], seed: int) -> str:
    """Return the name of a run's folder, with its seed also where there is only one: others may be added later."""
    return "_".join([method, *map(_short, settings), f"seed{seed}"])


def names_beside(num_seeds: int) -> Callable[[str, Sequence[str], int], str]:
    """Return what names the folders of a comparison: the method alone, unless there are several seeds."""
    return lambda method, settings, seed: method if num_seeds <= 1 else f"{method}-seed{seed}"


def folder_name(text: str) -> str:
    """Return a text as the name of a folder."""
    return shortened(re.sub(STRANGE, "-", text))


def grid(
    names: Sequence[str], task: str | Path | None, axes: Sequence[str], listed: Sequence[str], seeds: Sequence[int],
    rounds: int | None, fixed: Sequence[str], parent: Path,
    named: Callable[[str, Sequence[str], int], str] = full_name,
) -> list[Point]:  # fmt: skip
    """Return every combination of methods, axis values and seeds, each checked before any of them runs.

    An axis is ``path=v1,v2,…``; a value with commas of its own is written in brackets. Where points are listed, each
    as ``path=value path=value …``, one after another of them is combined with the axes. A method may be a file, whose
    task the others take, and whose seed if none is given.
    """
    refuse_repeats("METHOD", names)
    refuse_repeats("--seed", map(str, seeds))
    beside = common_file(names)
    choices: list[list[tuple[str, ...]]] = [[(value,) for value in values_of(axis, "--grid")] for axis in axes]
    if listed:
        choices.insert(0, [_point(point) for point in listed])
    count = math.prod(map(len, (seeds or (None,), names, *choices)))
    if count > MOST_POINTS:
        raise ConfigError(f"--grid, --point, --seed: they make {count:,} runs; a sweep has at most {MOST_POINTS:,}")
    points = []
    for seed, name, chosen in itertools.product(seeds or (None,), names, itertools.product(*choices)):
        settings = tuple(itertools.chain(*chosen))
        refuse_runtime("--grid, --point", settings)
        experiment = configure(name, task, seed=seed, rounds=rounds, settings=[*fixed, *settings], beside=beside)
        own = Path(name).stem if is_file(name) else name
        folder = RunFolder(parent / folder_name(named(own, settings, experiment.seed)))
        points.append(Point(experiment, folder, settings))
    refuse_repeats("METHOD, --grid, --point", (point.folder.path.name for point in points))
    return points


def refuse_repeats(option: str, values: Iterable[str]) -> None:
    """Refuse a value that is given twice."""
    repeated = [value for value, count in Counter(values).items() if count > 1]
    if repeated:
        raise ConfigError(f"{option}: {repeated[0]} is given twice; give every value once")


def _short(setting: str) -> str:
    path, _, value = setting.partition("=")
    return f"{path.rpartition('.')[2]}={value}"


def _point(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"--point {quoted(text)}: it cannot be taken apart ({error}); close its quotes") from error


def values_of(axis: str, option: str) -> list[str]:
    """Return the settings that ``path=v1,v2,…`` names."""
    path, equals, text = axis.partition("=")
    values = re.findall(r"\[[^\]]*\]|\{[^}]*\}|[^,]+", text)
    if not equals or not path or not values:
        raise ConfigError(
            f"{option} {quoted(axis)}: write it as path=value,value, such as method.selection.fraction=0.3,0.8"
        )
    return [f"{path}={value}" for value in values]


# --------------------------------------------------------------------------------------------------- folders


@dataclass(frozen=True)
class Laid:
    """What was laid out that was not there before."""

    folders: Sequence[RunFolder] = ()
    """In which there was no run."""
    made: Sequence[Path] = ()
    """All folders that there were not, those inside others first."""
    parent: Path | None = None
    listed: Sequence[str] = ()

    def withdraw(self) -> None:
        """Remove it, unless one of the runs has a round: a command that was refused leaves nothing for the next."""
        if not self.folders or any(folder.has_rounds() for folder in self.folders):
            return
        with suppress(FederationError, OSError):  # what cannot be removed is not worth another error
            for folder in self.folders:
                folder.withdraw()
            if self.parent is not None:
                list_runs(self.parent, self.listed, anew=True)
            for path in self.made:
                remove_empty(path)


def lay_out(points: Sequence[Point], runtime: Runtime, overwrite: bool = False, parent: Path | None = None) -> Laid:
    """Write every point's configuration, so that all of them can be run, and resumed, from their folders alone.

    A folder that holds the same experiment already is resumed, wherever it ran before; one that holds another, or the
    run of a federation, is refused, unless it is to be overwritten. Nothing is written before all folders have been
    looked at. ``parent`` is the folder of a comparison or sweep, which lists its runs; where it is overwritten, runs
    that it listed and that are not among these points are removed. What is returned can be withdrawn.
    """
    refuse_federation(runtime, "runtime.engine")
    now = runtime.model_dump(mode="json")
    names = [point.folder.path.name for point in points]
    others = _others(parent, names) if overwrite and parent is not None else []
    for folder in [*(point.folder for point in points), *others] if overwrite else []:
        if folder.has_run():
            with folder.locked():  # refused where somebody is running, before a run in any other is removed
                pass
    for point in () if overwrite else points:
        refuse_another(point.folder, point.experiment)
    new = [point.folder for point in points if overwrite or not point.folder.has_run()]
    above = {path for folder in new for path in (folder.path, *folder.path.parents) if not path.exists()}
    made = sorted(above, key=lambda path: -len(path.parts))
    before = [] if overwrite or parent is None else listed(parent)
    for folder in others:
        with folder.locked():
            folder.clear()
        folder.leave("report.html")
    if parent is not None:
        list_runs(parent, names, anew=overwrite)
    for point in points:
        with point.folder.locked():
            if overwrite:
                point.folder.clear()
            config: dict[str, Any] = {"experiment": point.experiment.model_dump(mode="json"), "written": written()}
            if point.folder.has_run():
                config = point.folder.read_config()
            if config.get("runtime") != now:
                point.folder.write_config(config | {"runtime": now})
    return Laid(new, made, parent, before)


def _others(parent: Path, names: Sequence[str]) -> list[RunFolder]:
    """Return the listed runs that are none of these; not what is no run of this comparison, or no plain folder."""
    # Whatever somebody wrote into the list.
    plain = [name for name in listed(parent) if re.fullmatch(PLAIN, name) is not None and name != ".."]
    places = [parent / name for name in plain if name not in names]
    return [folder for place in places if not place.is_symlink() and (folder := RunFolder(place)).has_run()]


# --------------------------------------------------------------------------------------------------- running


def run_all(
    folders: Sequence[RunFolder],
    runtime: Runtime,
    jobs: int,
    inputs: Inputs = Inputs(),  # noqa: B008 (frozen)
    failures: dict[Path, Exception] | None = None,
    stop: Stop | None = None,
    until: int | None = None,
) -> Generator[dict[Path, int], None, None]:
    """Run all folders in their order, ``jobs`` at a time, yielding now and then how many rounds each has completed.

    One at a time they run in this process, else in others: of this machine, or of a Ray cluster if the runtime says
    so. What a run raises is raised here, or with ``failures`` put there while the other runs continue. Once ``stop``
    is wanted, the rounds in hand are finished and saved. Closing the generator ends everything at once. ``until`` is a
    round after which runs pause, to be resumed.
    """
    stop = stop or Stop()

    def fail(path: Path, error: Exception) -> None:
        if failures is None:
            raise error
        failures[path] = error

    if jobs == 1 and runtime.engine != "ray":
        running = _run_here(folders, inputs, stop, fail, until)
    else:
        running = _run_elsewhere(folders, inputs, stop, fail, until, _workers(runtime, jobs))
    tails = {folder.path: Tail(folder) for folder in folders}
    with closing(running):
        for _ in running:
            yield {path: tail.refresh() for path, tail in tails.items()}
    yield {path: tail.refresh() for path, tail in tails.items()}


def _run_here(
    folders: Sequence[RunFolder], inputs: Inputs, stop: Stop, fail: Fail, until: int | None
) -> Generator[None, None, None]:
    with closing(each_with_news(folders)) as each:
        for folder in each:
            yield  # before the first round, so that whoever watches sees it begin
            if stop.wanted:
                return
            try:
                with closing(_rounds(folder, inputs, stop, until)) as playing:
                    for _ in playing:
                        yield
            except Exception as error:
                fail(folder.path, error)


def each_with_news(runs: Iterable[T]) -> Generator[T, None, None]:
    """Yield what is played one after another; a warning that came with an earlier one is kept back."""
    news = _News()
    log.addFilter(news)
    try:
        for run in runs:
            yield run
            news.known |= news.said
    finally:
        log.removeFilter(news)


class _News(logging.Filter):
    """Keeps back what is known: most warnings are of a method or a network, and every seed would repeat them."""

    def __init__(self) -> None:
        super().__init__()
        self.known, self.said = set[str](), set[str]()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this line is new."""
        self.said.add(line := record.getMessage())
        return line not in self.known


def _run_elsewhere(
    folders: Sequence[RunFolder], inputs: Inputs, stop: Stop, fail: Fail, until: int | None,
    workers: AbstractContextManager[Submit],
) -> Generator[None, None, None]:  # fmt: skip
    # A file tells workers to stop, as they may be on other machines of which only the disk is shared. Its name is
    # never used again, so that one left behind by a crash stops nobody.
    sign = folders[0].path.parent / f".stop-{uuid.uuid4().hex}"
    heard, known = _warnings_of(sign), set[bytes]()
    try:
        with workers as submit:
            pending = {folder.path: submit(str(folder.path), inputs, str(sign), until) for folder in folders}
            while pending:
                yield
                time.sleep(POLL_SECONDS)
                if stop.wanted:
                    sign.touch()
                for path, future in list(pending.items()):
                    if future.done():
                        del pending[path]
                        try:
                            future.result()  # raises what the run raised
                        except Exception as error:
                            fail(path, error)
                for line in read_lines(heard) if heard.exists() else ():
                    if line not in known:
                        known.add(line)
                        log.warning("%s", line.decode(errors="replace"))
    finally:
        sign.unlink(missing_ok=True)
        heard.unlink(missing_ok=True)


def _warnings_of(sign: Path) -> Path:
    """Return the file into which workers warn: on the terminal their lines would break the parent's progress bars."""
    return sign.with_name(f"{sign.name}.warnings")


def run_folder(folder: str, inputs: Inputs, sign: str, until: int | None = None) -> None:
    """Start or resume the run of one folder, until it ends or there is a sign to stop; the work of one worker."""
    stop, stopped = Stop(), Path(sign).exists
    if stopped():
        return
    handler = logging.FileHandler(_warnings_of(Path(sign)), encoding="utf-8", delay=True)
    log.addHandler(handler)
    log.propagate = False
    try:
        for _ in _rounds(RunFolder(folder), inputs, stop, until):
            stop.wanted = stopped()
    finally:
        log.propagate = True
        log.removeHandler(handler)
        handler.close()


def _rounds(folder: RunFolder, inputs: Inputs, stop: Stop, until: int | None) -> Generator[None, None, None]:
    """Start or resume the run of a folder, yielding after every round; it ends as soon as ``until`` is saved."""
    if until is not None and folder.finished(until):
        return
    with closing(play_folder(folder, inputs, stop)) as playing:
        for record in playing:
            yield
            if record["round"] == until:
                return


class Watch:
    """Notices that a process stands still: it is stopped, or has done next to nothing for a long time."""

    def __init__(self, pid: int, patience: float = FROZEN_SECONDS) -> None:
        self.process, self.patience = psutil.Process(pid), patience
        self._since, self._worked = time.monotonic(), self._work()

    def _work(self) -> float:
        return float(sum(self.process.cpu_times()[:2]))

    def still(self) -> bool:
        """Whether it does so now."""
        if self.process.status() == psutil.STATUS_STOPPED:
            return True
        since, worked = self._since, self._worked
        if time.monotonic() < since + self.patience:
            return False
        self._since, self._worked = time.monotonic(), self._work()
        return self._worked - worked < IDLE_SHARE * (self._since - since)


class RunPool:
    """Worker processes, each a pool of its own: when one dies, only the run in its hands is begun again."""

    def __init__(self, size: int) -> None:
        self.threads = ThreadPoolExecutor(size)
        """Each waits for one worker."""
        self.mine = threading.local()
        self.pools: list[Any] = []
        self.closed, self.lock = False, threading.Lock()

    def submit(self, work: Callable[..., None], folder: str, *words: Any) -> Future[None]:
        """Have a worker do ``work(folder, *words)``, which must be able to go on where a dead worker left it."""
        return self.threads.submit(self._do, work, folder, *words)

    def close(self) -> None:
        """Kill the workers."""
        with self.lock:
            self.closed = True
        self.threads.shutdown(wait=False, cancel_futures=True)
        for pool in self.pools:
            pool.shutdown(wait=True, kill_workers=True)
        self.threads.shutdown(wait=True)

    def _do(self, work: Callable[..., None], folder: str, *words: Any) -> None:
        from loky.process_executor import TerminatedWorkerError

        for _ in range(1 + RESTARTS):
            pool = self._pool()
            if pool is None:
                return
            try:
                with signals.held():
                    future = pool.submit(work, folder, *words)
                _await(future, pool, folder)
            except TerminatedWorkerError:
                with self.lock:
                    self.mine.pool = None
                    if not self.closed:  # else it is dealt with already
                        self.pools.remove(pool)
                pool.shutdown(wait=True, kill_workers=True)
                if not self.closed:
                    log.warning("%s: its process died; it resumes from its last checkpoint", folder)
            else:
                return
        raise EngineError(
            f"{folder}: its process died {1 + RESTARTS} times; if it was killed for lack of memory, run fewer at a "
            "time (--jobs). The same command resumes from its last checkpoint"
        )

    def _pool(self) -> Any:
        """Return the pool of this thread, or nothing once all is to end."""
        with self.lock:
            if not self.closed and getattr(self.mine, "pool", None) is None:
                self.mine.pool = start_pool(1)
                self.pools.append(self.mine.pool)
            return None if self.closed else self.mine.pool


def _await(future: Future[None], pool: Any, folder: str) -> None:
    """Wait for a worker, and say so once if it stands still."""
    watch, told = None, False
    while not wait([future], timeout=LOOK_SECONDS).done:
        with suppress(psutil.Error, StopIteration):  # it is just being replaced
            watch = watch or Watch(next(iter(pool._processes)))
            if not told and watch.still():
                told = True
                log.warning(
                    "%s: its process %d is frozen (%s); continue it, or kill it: then it resumes from its checkpoint",
                    folder, watch.process.pid, watch.process.status(),
                )  # fmt: skip
    future.result()


@contextmanager
def _workers(runtime: Runtime, jobs: int) -> Iterator[Submit]:
    """Yield a function that starts a run elsewhere: in a process of this machine, or anywhere on a Ray cluster."""
    if runtime.engine == "ray":
        from fedbac.engines.ray import tasks

        with tasks(runtime, run_folder) as submit:
            yield submit
        return
    pool = RunPool(jobs)
    try:
        yield lambda *words: pool.submit(run_folder, *words)
    finally:
        pool.close()  # a killed run resumes from its last checkpoint


# ------------------------------------------------------------------------------------------------ collecting


def collect(runs: Sequence[StoredRun]) -> list[dict[str, Any]]:
    """Return one row per configuration: its settings that others do not have, and means over its seeds.

    ``leads`` says whether nothing is significantly better; None where seeds are too few to say.
    """
    together: dict[str, list[StoredRun]] = {}
    for run in runs:
        same = {key: value for key, value in run.config["experiment"].items() if key != "seed"}
        together.setdefault(repr(same), []).append(run)
    apart = _differing([group[0].config["experiment"] for group in together.values()])
    rows: list[dict[str, Any]] = []
    scores: dict[str, dict[int, float]] = {}
    for group, settings in zip(together.values(), apart, strict=True):
        accuracy = {run.config["experiment"]["seed"]: run.summary["accuracy"] for run in group}
        scores[str(len(rows))] = accuracy
        rows.append(
            {
                "method": group[0].config["experiment"]["method"]["name"],
                "settings": settings,
                "runs": [str(run.folder.name) for run in group if run.folder is not None],
                "seeds": list(accuracy),
                "accuracy": float(np.mean(list(accuracy.values()))),
                "accuracy_std_seeds": deviation(list(accuracy.values())),
                "edge_std": float(np.mean([run.summary["edge_std"] for run in group])),
                "edge_min": float(np.mean([run.summary["edge_min"] for run in group])),
                "bytes_total": int(np.mean([run.summary["bytes_total"] for run in group])),
            }
        )
    found = standing(scores) if rows else None
    for place, row in enumerate(rows):
        row["leads"] = None if found is None or found.few else str(place) in found.leaders
    return sorted(rows, key=lambda row: -row["accuracy"])


def _differing(experiments: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return of each experiment the settings, by their paths, that are not the same in all; seeds apart."""
    trees = [leaves({key: value for key, value in tree.items() if key != "seed"}) for tree in experiments]
    paths = dict.fromkeys(path for tree in trees for path in tree)
    shown = [path for path in paths if any(tree.get(path) != trees[0].get(path) for tree in trees)]
    return [{path: tree[path] for path in shown if path in tree and path != "method.name"} for tree in trees]
