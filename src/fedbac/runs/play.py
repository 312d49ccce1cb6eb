"""Running experiments: the consumer of the round loop that saves, resumes and sums up."""

import logging
import signal
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from fedbac.presets import methods
from fedbac.rounds import metrics
from fedbac.presets import tasks
from fedbac.core import trees
from fedbac.data import Dataset, Shards
from fedbac.engines import connect
from fedbac.errors import ConfigError, RunFolderError, unknown
from fedbac.config.experiment import Experiment, Method, Runtime, Task, override, parse
from fedbac.federation import assemble
from fedbac.local import describe
from fedbac.models import Custom, UserNetwork
from fedbac.rounds.cloud import State, rounds, start
from fedbac.runs.store import Run, RunFolder
from fedbac.core.settings import Settings
from fedbac.version import __version__

Record = dict[str, Any]

log = logging.getLogger("fedbac")


@dataclass(frozen=True)
class Inputs:
    """What a configuration cannot hold: data and networks handed over in Python, and where to look for data."""

    dataset: Dataset | None = None
    shards: Shards | None = None
    network: UserNetwork | None = None
    data_folder: Path | str | None = None


# ------------------------------------------------------------------------------------ names → configurations


def configure(
    method: str | Method,
    task: str | Task | Path = tasks.DEFAULT_TASK,
    *,
    seed: int = 0,
    num_rounds: int | None = None,
    settings: Sequence[str] = (),
    inputs: Inputs = Inputs(),  # noqa: B008 (frozen)
) -> Experiment:
    """Return the experiment that names, files and ``path=value`` settings describe, checked before any work."""
    chosen = _task(task)
    changes: dict[str, Any] = {}
    if inputs.dataset is not None:
        if not isinstance(inputs.dataset, Dataset):
            kind = type(inputs.dataset).__name__
            raise ConfigError(f"dataset: use fedbac.Dataset.from_arrays or from_torch to make one of this {kind}")
        changes["dataset"] = inputs.dataset.name
    if inputs.shards is not None:
        changes |= {
            "num_edges": len(inputs.shards.clients),
            "clients_per_edge": tuple(len(clients) for clients in inputs.shards.clients),
        }
    if inputs.network is not None:
        if not callable(inputs.network):
            kind = type(inputs.network).__name__
            raise ConfigError(f"network: it must be an nn.Module or a function that returns one, not {kind}")
        changes["network"] = Custom(name=getattr(inputs.network, "__name__", type(inputs.network).__name__))
    if num_rounds is not None:
        changes["rounds"] = num_rounds
    # Task settings come first: some methods look at the task.
    plain = chosen.model_dump(mode="json") | {
        key: value.model_dump() if isinstance(value, Custom) else value for key, value in changes.items()
    }
    own = [setting for setting in settings if setting.startswith("task.")]
    final_task = parse(Task, override({"task": plain}, own)["task"], "task")
    row = _checked(method) if isinstance(method, Method) else methods.method(method, final_task)
    tree = {"seed": seed, "task": final_task, "method": row}
    others = [setting for setting in settings if not setting.startswith("task.")]
    if not others:
        return parse(Experiment, tree)
    plain_tree = {"seed": seed, "task": final_task.model_dump(mode="json"), "method": row.model_dump(mode="json")}
    return parse(Experiment, override(plain_tree, others))


def _checked(method: Method) -> Method:
    """Check a method handed over in Python: ``model_copy(update=...)`` looks at nothing."""
    strange = sorted(set(vars(method)) - set(Method.model_fields))
    if strange:
        raise ConfigError(f"method: {unknown('field', strange[0], Method.model_fields)}")
    fields = {name: getattr(method, name) for name in Method.model_fields}
    for name, value in fields.items():
        if isinstance(value, Settings):
            fields[name] = parse(type(value), value.model_dump(warnings=False), f"method.{name}")
    return parse(Method, fields, "method")


def _task(task: str | Task | Path) -> Task:
    if isinstance(task, Task):
        return task
    if isinstance(task, str) and not task.endswith((".yaml", ".yml")):
        return tasks.task(task)
    return parse(Task, _yaml(Path(task)), "task")


def read_experiment(
    path: Path | str, settings: Sequence[str] = (), with_data: bool = False
) -> tuple[Experiment, Runtime]:
    """Return the experiment, with settings changed, and the runtime of a ``config.yaml``."""
    tree = _yaml(Path(path))
    if "experiment" not in tree:
        raise ConfigError(f"{path}: it has no 'experiment'; a run's config.yaml does, and a task file goes with --task")
    if tree.get("data", {}).get("given_in_python") and not with_data:
        raise ConfigError(
            f"{path}: the data of this run were given in Python; give them again, fedbac.resume(folder, dataset=...)"
        )
    return parse(Experiment, override(tree["experiment"], settings)), parse(Runtime, tree.get("runtime", {}), "runtime")


def _yaml(path: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: the file cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: it is not readable YAML: {error}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: it must hold settings as 'name: value', not {type(tree).__name__}")
    return tree


# ------------------------------------------------------------------------------------------------ playing


class Stop:
    """A wish to stop after the current round: by Ctrl-C or SIGTERM while ``caught`` is in force, or by setting it."""

    def __init__(self) -> None:
        self.wanted = False

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Turn the first Ctrl-C or SIGTERM into the wish to stop; a second one interrupts at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, frame: object) -> None:
            self.wanted = True
            log.warning("stopping when this round is saved; Ctrl-C again stops at once")
            restore()
            if before[signal.SIGINT] == signal.SIG_IGN:  # as shells start background jobs
                signal.signal(signal.SIGINT, signal.default_int_handler)

        def restore() -> None:
            for known, handler in before.items():
                signal.signal(known, handler)

        before = {known: signal.signal(known, handle) for known in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            restore()


def play(
    experiment: Experiment,
    *,
    folder: RunFolder | None = None,
    runtime: Runtime = Runtime(),  # noqa: B008 (frozen)
    inputs: Inputs = Inputs(),  # noqa: B008 (frozen)
    continued: bool = False,
    overwrite: bool = False,
    stop: Stop | None = None,
) -> Generator[Record, None, Run]:
    """Run an experiment, yielding each round's record once it is safe on the disk; return the run.

    With ``continued`` the rounds already in the folder are kept and not yielded again. Without a folder nothing is
    written.
    """
    federation = assemble(
        experiment,
        dataset=inputs.dataset,
        shards=inputs.shards,
        network=inputs.network,
        data_folder=inputs.data_folder,
    )
    state = start(experiment, federation.build, federation.sites)
    edges = connect(experiment, federation, runtime)
    config = {
        "fedbac": __version__,
        "experiment": experiment.model_dump(mode="json"),
        "runtime": runtime.model_dump(mode="json"),
        "trainer": edges.path,
        "machine": describe(edges.device),
        "data": {"sha256": federation.dataset.fingerprint, "given_in_python": inputs.dataset is not None},
    }
    frozen = {"experiment": config["experiment"], "data": config["data"]}
    records: list[Record] = []
    try:
        state = replace(state, parts={part: trees.to(params, edges.device) for part, params in state.parts.items()})
        with _held(folder):
            if folder is not None:
                state, records = _open(folder, state, config, frozen, continued, overwrite)
            for record, after in rounds(experiment, federation.sites, edges, state):
                records.append(record)
                if folder is not None:
                    folder.append(record, after, frozen)
                yield record
                if stop is not None and stop.wanted:
                    break
            summary = summarize(experiment, records)
            if folder is not None:
                folder.write_summary(summary)
    finally:
        edges.close()
    return Run(folder.path if folder else None, config, records, summary)


@contextmanager
def _held(folder: RunFolder | None) -> Iterator[None]:
    if folder is None:
        yield
    else:
        with folder.locked():
            yield


def _open(
    folder: RunFolder,
    state: State,
    config: Mapping[str, Any],
    frozen: Mapping[str, Any],
    continued: bool,
    overwrite: bool,
) -> tuple[State, list[Record]]:
    if folder.has_run() and not continued and not overwrite:
        raise RunFolderError(
            f"{folder.path}: there is a run in this folder already; go on with it (fedbac resume {folder.path}), "
            "replace it (--overwrite), or choose another --out"
        )
    if overwrite:
        folder.clear()
    state, records = folder.restore(state, frozen)
    if not records:
        folder.write_config(config)
    return state, records


def summarize(experiment: Experiment, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a run's summary."""
    judge = experiment.evaluation
    return {
        "method": experiment.method.name,
        "dataset": experiment.task.dataset,
        "seed": experiment.seed,
        "finished": len(records) == experiment.task.rounds,
        **metrics.summarize(records, experiment.task.targets, judge.last_rounds, judge.target_patience),
    }


def finish(playing: Generator[Record, None, Run]) -> Run:
    """Play to the end and return the run."""
    while True:
        try:
            next(playing)
        except StopIteration as done:
            run: Run = done.value
            return run


def run(
    method: str | Method = "fed-bac",
    task: str | Task | Path = tasks.DEFAULT_TASK,
    *,
    seed: int = 0,
    num_rounds: int | None = None,
    settings: Sequence[str] = (),
    out: Path | str | None = None,
    overwrite: bool = False,
    device: str = "auto",
    workers: int | None = None,
    memory_gib: float | None = None,
    trainer: str = "auto",
    dataset: Dataset | None = None,
    shards: Shards | None = None,
    network: UserNetwork | None = None,
    data_folder: Path | str | None = None,
) -> Run:
    """Run one method on one task and return the run; with ``out`` it is also saved and can be resumed."""
    inputs = Inputs(dataset, shards, network, data_folder)
    experiment = configure(method, task, seed=seed, num_rounds=num_rounds, settings=settings, inputs=inputs)
    return finish(
        play(
            experiment,
            folder=RunFolder(out) if out is not None else None,
            runtime=parse(
                Runtime,
                {"device": device, "workers": workers, "memory_gib": memory_gib, "trainer": trainer},
                "runtime",
            ),
            inputs=inputs,
            overwrite=overwrite,
        )
    )


def resume(
    folder: Path | str,
    *,
    dataset: Dataset | None = None,
    shards: Shards | None = None,
    network: UserNetwork | None = None,
    data_folder: Path | str | None = None,
) -> Run:
    """Go on with the run in a folder and return it; data and networks that were given in Python are given again."""
    place = RunFolder(folder)
    place.read_config()
    experiment, runtime = read_experiment(place.config_file, with_data=dataset is not None)
    inputs = Inputs(dataset, shards, network, data_folder)
    return finish(play(experiment, folder=place, runtime=runtime, inputs=inputs, continued=True))


def load(folder: Path | str) -> Run:
    """Return a saved run."""
    return RunFolder(folder).read()
