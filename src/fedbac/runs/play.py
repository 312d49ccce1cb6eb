"""Playing an experiment: the consumer of the round loop that saves, resumes and sums up."""

import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedbac.config.experiment import Experiment, Method, Runtime, Task
from fedbac.config.explain import parse
from fedbac.core import trees
from fedbac.core.state import State
from fedbac.data import Dataset, Shards
from fedbac.engines import check_room, connect
from fedbac.errors import RunFolderError
from fedbac.federation import Federation, assemble
from fedbac.local import describe
from fedbac.models import UserNetwork
from fedbac.presets import tasks
from fedbac.rounds.beginning import start
from fedbac.rounds.cloud import rounds
from fedbac.runs.configure import Inputs, configure, experiment_in, reached
from fedbac.runs.stopping import Stop
from fedbac.runs.store import FORMAT, Run, RunFolder
from fedbac.runs.summary import summarize
from fedbac.version import __version__

Record = dict[str, Any]

log = logging.getLogger("fedbac")

MOST_CLASS_TEXT = 100_000
"""Characters of the class mix in config.yaml, which holds a tenth of what may be in it."""


def play(
    experiment: Experiment,
    *,
    folder: RunFolder | Path | str | None = None,
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
    if isinstance(folder, Path | str):
        folder = RunFolder(folder)
    federation = assemble(
        experiment,
        dataset=inputs.dataset,
        shards=inputs.shards,
        network=inputs.network,
        data_folder=inputs.data_folder,
    )
    check_room(experiment, federation)
    state = start(experiment, federation.build, federation.sites)
    edges = connect(experiment, federation, runtime)
    config: dict[str, Any] = {
        "fedbac": __version__,
        "format": FORMAT,
        "experiment": experiment.model_dump(mode="json"),
        "runtime": runtime.model_dump(mode="json"),
        "trainer": edges.path,
        "machine": describe(edges.device),
        "data": {"sha256": federation.dataset.fingerprint, "given_in_python": inputs.dataset is not None},
        "measured_on": {field: sorted(experiment.method.splits(field)) for field in experiment.method.needs},
        **_class_mix(federation),
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
            summary = summarize(config["experiment"], records)
            if folder is not None:
                folder.write_summary(summary)
    finally:
        edges.close()
    return Run(folder.path if folder else None, config, records, summary)


def _class_mix(federation: Federation) -> dict[str, list[str]]:
    """Return how many examples of each class every edge holds, a line per edge; nothing where that would be a book."""
    lines = [" ".join(map(str, counts)) for counts in federation.classes_per_edge().tolist()]
    return {"classes_per_edge": lines} if sum(map(len, lines)) <= MOST_CLASS_TEXT else {}


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
            f"{folder.path}: there is a run in this folder already; resume it (fedbac resume {folder.path}), "
            "replace it (--overwrite), or choose another --out"
        )
    if overwrite:
        folder.clear()
    state, records = folder.restore(state, frozen)
    if not records:
        folder.write_config(config)
        return state, records
    began = folder.read_config().get("trainer")
    if began != config["trainer"]:
        log.warning(
            "%s: the run began with the trainer %s and goes on with %s, which may round differently",
            folder.path, began, config["trainer"],
        )  # fmt: skip
    return state, records


def play_folder(
    folder: RunFolder,
    inputs: Inputs = Inputs(),  # noqa: B008 (frozen)
    stop: Stop | None = None,
) -> Generator[Record, None, Run]:
    """Start or resume the run that a folder's configuration describes; otherwise like ``play``."""
    experiment, runtime = experiment_in(folder, with_data=inputs.dataset is not None)
    return play(experiment, folder=folder, runtime=runtime, inputs=inputs, continued=True, stop=stop)


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
    address: str | None = None,
) -> Run:
    """Resume the run in a folder and return it; data and networks given in Python, and an address, are given again."""
    place, inputs = RunFolder(folder), Inputs(dataset, shards, network, data_folder)
    experiment, runtime = experiment_in(place, with_data=dataset is not None)
    runtime = reached(runtime, address, place.config_file)
    return finish(play(experiment, folder=place, runtime=runtime, inputs=inputs, continued=True))


def load(folder: Path | str) -> Run:
    """Return a saved run."""
    return RunFolder(folder).read()
