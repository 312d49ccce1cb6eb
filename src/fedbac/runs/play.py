"""Playing an experiment: the consumer of the round loop that saves, resumes and sums up."""

import logging
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbac.config.experiment import Experiment, Runtime
from fedbac.core import trees
from fedbac.core.parts import Scope, judged_parts, moving_parts
from fedbac.core.queries import Moment
from fedbac.core.runtime import sealed
from fedbac.core.state import State
from fedbac.engines import Prefetching, check_room, connect, played
from fedbac.federation import Assembled, assemble
from fedbac.local import describe
from fedbac.rounds.messages import Edges
from fedbac.rounds.start import start
from fedbac.runs import checkpoints
from fedbac.runs.configure import Inputs, experiment_in, refuse_federation
from fedbac.runs.models import Models, models_of
from fedbac.runs.provenance import admit, environment
from fedbac.runs.records import Segment
from fedbac.runs.replay import first_state, frozen_of, replay_last, within
from fedbac.runs.stopping import Stop
from fedbac.runs.store import FORMAT, RunFolder, StoredRun
from fedbac.runs.summary import long_periods, summarize, written
from fedbac.runs.tracking import Tracking, check_tracker
from fedbac.version import full_version

log = logging.getLogger("fedbac")

Record = dict[str, Any]

SECONDS_APART = 0.5
"""Between checkpoints where a device plays many rounds a second: the host would keep it waiting to save each."""
UNMOVED = (
    "round %d: clients trained, but no gradient moved a weight of part %s in any client; is the network's output "
    "multiplied by 0, rounded or detached, or task.training.learning_rate far too small?"
)
ONE_CLASS = (
    "every training label is class %d, so a model that always answers it scores 100 %% on such data; are the labels "
    "right?"
)
ROUNDING, OF_DECAY = 2e-4, 0.1
"""What the rounding of many steps may add to a weight, as a share of it, and of what decay took away."""
MOST_CLASS_TEXT = 100_000
"""Characters of the class mix in config.yaml (a line per edge: examples of each class), a tenth of what it may hold."""


def play(
    experiment: Experiment,
    *,
    folder: RunFolder | Path | str | None = None,
    runtime: Runtime = Runtime(),  # noqa: B008 (frozen)
    inputs: Inputs = Inputs(),  # noqa: B008 (frozen)
    overwrite: bool = False,
    stop: Stop | None = None,
) -> Generator[Record, None, StoredRun]:
    """Run an experiment, yielding each round's record once it is safe on the disk; return the run.

    Rounds that are in the folder already are kept and not yielded again, unless they are to be overwritten. Without a
    folder nothing is written.
    """
    if isinstance(folder, Path | str):
        folder = RunFolder(folder)
    refuse_federation(runtime, "runtime.engine")
    check_tracker(runtime.track)
    with sealed():
        federation = assemble(experiment, **vars(inputs))
        check_room(experiment, federation)
        edges = connect(experiment, federation, runtime)
    with_data = inputs.with_data

    def replay() -> str | None:
        assert folder is not None, "there is something to resume"
        return replay_last(experiment, federation, runtime, folder, with_data)

    options = (with_data, folder, overwrite, stop, sealed, replay)
    return (yield from conduct(experiment, federation, edges, runtime, *options))


def conduct(
    experiment: Experiment,
    federation: Assembled,
    edges: Edges,
    runtime: Runtime,
    given_in_python: bool = False,
    folder: RunFolder | None = None,
    overwrite: bool = False,
    stop: Stop | None = None,
    seal: Callable[[], AbstractContextManager[None]] = nullcontext,
    replay: Callable[[], str | None] | None = None,
) -> Generator[Record, None, StoredRun]:
    """Run an experiment on edges, wherever they are; otherwise like ``play``. The edges are closed at the end.

    ``seal`` surrounds what is computed, where others may use torch in this process. ``replay`` plays the last saved
    round again, where that can be done, and says in what it differs.
    """
    frozen = frozen_of(experiment, federation, given_in_python)
    whole = federation.source_sha256  # of all the data, by which seeds that use a sample each are of one task
    config: dict[str, Any] = {
        "fedbac": full_version(),
        "format": FORMAT,
        "experiment": frozen["experiment"],
        "runtime": runtime.model_dump(mode="json"),
        "trainer": edges.path,
        "machine": describe(edges.device),
        "data": frozen["data"] | ({} if whole is None else {"source_sha256": whole}),
        "written": written(),
        "measured_on": {field: sorted(experiment.method.splits(field)) for field in experiment.method.needs},
    }
    if experiment.promise is not None:
        config["privacy"] = str(experiment.promise)
    if federation.edge_names:
        config["edge_names"] = list(federation.edge_names)
    count_MK = federation.classes_per_edge()
    mix = [" ".join(map(str, counts)) for counts in count_MK.tolist()]
    if experiment.promise is None and sum(map(len, mix)) <= MOST_CLASS_TEXT:  # else it would tell too much, or a book
        config["classes_per_edge"] = mix
    records: list[Record] = []
    now = environment(edges, runtime)
    segments = [Segment(1, now)]
    ahead = edges if isinstance(edges, Prefetching) else None
    apart = 0.0 if ahead is None else SECONDS_APART
    tracking: Tracking | None = None
    try:
        with seal():
            state = first_state(experiment, federation, edges)
        judged = (state.parts[part] for part in judged_parts(experiment.method.personalization))
        config["weights"] = sum(value[0].numel() for stack in judged for value in stack.values())
        with folder.locked() if folder is not None else nullcontext():
            if folder is not None:
                folder.keep = checkpoints.Keep(runtime.keep_last, runtime.keep_every)
                state, records = _open(folder, state, config, frozen, overwrite)
                stated = folder.read_config()
                config["written"] = stated.get("written")  # where the run comes from, not this process
                if records:
                    before = folder.segments[-1].by if folder.segments else {"trainer": stated.get("trainer")}
                    admit(before, now, runtime.mixed, folder.path, replay)
                folder.computed_by = now
            if experiment.promise is not None:
                log.warning("%s", config["privacy"])
            if not records:
                for warning in long_periods(config["experiment"]):
                    log.warning(warning)
                there = np.flatnonzero(count_MK.sum(axis=0))
                if experiment.task.loss.labels == "classes" and there.size == 1 and experiment.promise is None:
                    log.warning(ONE_CLASS, there[0])
            tracking = Tracking(runtime.track, folder.path if folder else None, config)
            for record in records:
                tracking.log(record)
            playing = played(experiment, federation, edges, state)
            untrained = all(record["loss"] is None for record in records)
            for record, after in within(seal, playing):
                if untrained and record["loss"] is not None:
                    untrained = False
                    with seal(), ahead.copying() if ahead else nullcontext():
                        trainable = {name for name, _ in federation.network.named_parameters()}
                        still = unmoved_parts(experiment, state, after, trainable, edges.keeps)
                    if still:
                        log.warning(UNMOVED, after.round, " and ".join(still))
                records.append(record)
                state = after
                if folder is not None:
                    due = after.round == experiment.task.rounds or folder.keep.whole(after.round)
                    with ahead.copying() if ahead else nullcontext():
                        folder.append(record, after, frozen, 0.0 if due else apart)
                tracking.log(record)
                yield record
                if stop is not None and stop.wanted:
                    break
            summary = summarize(config["experiment"], records)
            if folder is not None:
                folder.save()
                folder.write_summary(summary)
                segments = folder.segments
    finally:
        edges.close()
        if tracking is not None:
            tracking.close()
    models = models_of(experiment, federation, state, records, edges.keeps)
    return StoredRun(folder.path if folder else None, config, records, summary, segments, models)


def _open(
    folder: RunFolder, state: State, config: dict[str, Any], frozen: Mapping[str, Any], overwrite: bool
) -> tuple[State, list[Record]]:
    if overwrite:
        folder.clear()
    state, records = folder.restore(state, frozen)
    if not records:
        before = folder.read_config() if folder.has_run() else {}
        folder.write_config(config | {"written": before.get("written", config["written"])})
    return state, records


def play_folder(
    folder: RunFolder,
    inputs: Inputs = Inputs(),  # noqa: B008 (frozen)
    stop: Stop | None = None,
) -> Generator[Record, None, StoredRun]:
    """Start or resume the run that a folder's configuration describes; otherwise like ``play``."""
    experiment, runtime = experiment_in(folder, with_data=inputs.with_data)
    return play(experiment, folder=folder, runtime=runtime, inputs=inputs, stop=stop)


def finish(playing: Generator[Record, None, StoredRun]) -> StoredRun:
    """Play to the end and return the run."""
    while True:
        try:
            next(playing)
        except StopIteration as done:
            run: StoredRun = done.value
            return run


def saved_models(
    folder: RunFolder,
    inputs: Inputs = Inputs(),  # noqa: B008 (frozen)
    federation: Assembled | None = None,
    elsewhere: frozenset[Scope] = frozenset(),
) -> Models:
    """Return the models of the run in a folder, from its last checkpoint; ``elsewhere`` as of ``models_of``."""
    experiment, _ = experiment_in(folder, with_data=inputs.with_data)
    federation = federation or assemble(experiment, **vars(inputs))
    template = start(experiment, federation.build, federation.sites)
    records, state = folder.last(template, frozen_of(experiment, federation, inputs.with_data))
    return models_of(experiment, federation, state, records, elsewhere)


def unmoved_parts(
    experiment: Experiment, before: State, after: State, trainable: Collection[str], elsewhere: Collection[Scope]
) -> list[str]:
    """Return the parts of a round in which clients trained that no gradient moved, for any owner. Those that never
    leave their owners (``elsewhere``) are not known here."""
    scheme = experiment.method.personalization
    moving = moving_parts(scheme, Moment(after.round, experiment.task.rounds))
    found = []
    for part, spec in scheme.parts.items():
        names = [name for name in before.parts[part] if name in trainable]
        if part in moving and spec.networks and spec.scope not in elsewhere and names:
            old_KD, new_KD = (trees.rows({n: parts[part][n] for n in names}) for parts in (before.parts, after.parts))
            if not any(_learned(old_D, new_D) for old_D, new_D in zip(old_KD, new_KD, strict=True)):
                found.append(part)
    return found


def _learned(old_D: Tensor, new_D: Tensor) -> bool:
    """Whether more happened to weights than weight decay, which shrinks all by one factor, and rounding."""
    if torch.equal(old_D, new_D):
        return False
    old_D, new_D = old_D.double(), new_D.double()
    square = float((old_D * old_D).sum())
    kept = min(float((old_D * new_D).sum()) / square, 1.0) if square and old_D.numel() > 1 else 1.0
    return bool(((new_D - kept * old_D).abs() > (ROUNDING + OF_DECAY * (1 - kept)) * old_D.abs()).any())
