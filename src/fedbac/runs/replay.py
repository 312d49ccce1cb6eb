"""Rounds of a saved run, played again from its checkpoints: anybody can check that they give the same bits."""

import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from safetensors.torch import load_file

from fedbac.config.experiment import Experiment, Runtime
from fedbac.core import trees
from fedbac.core.runtime import sealed
from fedbac.core.state import State, flatten
from fedbac.engines import connect, played
from fedbac.errors import ConfigError, quoted
from fedbac.federation import Assembled, Federation, assemble
from fedbac.models import frozen_sha256
from fedbac.packages import fingerprint, is_file
from fedbac.rounds.messages import Edges
from fedbac.rounds.start import start
from fedbac.runs import checkpoints
from fedbac.runs.configure import Inputs, experiment_in, refuse_federation
from fedbac.runs.provenance import environment
from fedbac.runs.records import Record
from fedbac.runs.store import RunFolder, differences

Played = tuple[Record, State]


@dataclass(frozen=True)
class Verdict:
    """What became of rounds that were played again."""

    first: int
    last: int
    difference: str | None
    """What was not the same, bit for bit; None if all was."""
    weights: bool
    """Whether there was a checkpoint to compare the whole state with, beside the records."""
    by: Mapping[str, Any]
    """What played them."""


def verify(
    folder: RunFolder,
    inputs: Inputs = Inputs(),  # noqa: B008 (frozen)
    count: int | None = None,
) -> Iterator[Verdict]:
    """Play rounds of a folder again: so many of those that follow a checkpoint or the start, or all there are."""
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ConfigError(f"rounds: {quoted(count)} is no whole number from 1 on")
    experiment, runtime = experiment_in(folder, with_data=inputs.with_data)
    refuse_federation(runtime, str(folder.path))
    runtime = runtime.model_copy(update={"engine": "simulator", "address": None})
    with sealed():
        federation = assemble(experiment, **vars(inputs))
    played = len(folder.read().records)
    begins = [0, *sorted(n for n in checkpoints.rounds_in(folder.checkpoints) if n < played)] if played else []
    spans = list(itertools.pairwise([*begins, played]))
    if count is not None:
        spans = [(begin, begin + 1) for begin in sorted(random.sample(begins, min(count, len(begins))))]
    return replayed(experiment, federation, runtime, folder, inputs.with_data, spans)


def replay_last(
    experiment: Experiment, federation: Federation, runtime: Runtime, folder: RunFolder, given_in_python: bool
) -> str | None:
    """Return in what the rounds between the last two checkpoints, or the only one and the start, differ if replayed."""
    begin, end = ([0, *sorted(checkpoints.rounds_in(folder.checkpoints))])[-2:]
    return next(replayed(experiment, federation, runtime, folder, given_in_python, [(begin, end)])).difference


def replayed(
    experiment: Experiment, federation: Federation, runtime: Runtime, folder: RunFolder, given_in_python: bool,
    spans: Iterable[tuple[int, int]],
) -> Iterator[Verdict]:  # fmt: skip
    """Play the rounds after one number up to another, for each span, each from its checkpoint."""
    records = folder.read_records()
    frozen = frozen_of(experiment, federation, given_in_python)
    for begin, end in spans:
        with sealed():
            edges = connect(experiment, federation, runtime)  # anew, as one that works ahead is in the next round
        try:
            with sealed():
                state = first_state(experiment, federation, edges)
            if begin:
                state = folder.state_at(begin, state, frozen)
            playing = within(sealed, played(experiment, federation, edges, state))
            difference = None
            for record, state in itertools.islice(playing, end - begin):  # noqa: B007
                difference = next(iter(differences(_lasting(records[record["round"] - 1]), _lasting(record))), None)
                if difference is not None:
                    difference = f"round {record['round']}, {difference}"
                    break
            weights = end in checkpoints.rounds_in(folder.checkpoints)
            if weights and difference is None:
                difference = _other_tensor(folder, end, state)
            yield Verdict(begin + 1, end, difference, weights, environment(edges, runtime))
        finally:
            edges.close()


def _lasting(record: Mapping[str, Any]) -> Any:
    """Return a record as its file has it, less how long it took."""
    return json.loads(json.dumps({key: value for key, value in record.items() if key != "seconds"}))


def _other_tensor(folder: RunFolder, round_: int, state: State) -> str | None:
    """Return what differs between a state and the checkpoint of its round."""
    saved, here = load_file(checkpoints.checked(folder.checkpoints, round_).tensors), flatten(state)
    if saved.keys() != here.keys():
        return (
            f"checkpoint of round {round_}: it has other tensors ({', '.join(sorted(saved.keys() ^ here.keys())[:3])})"
        )
    for name, value in saved.items():
        if value.dtype != here[name].dtype or value.numpy().tobytes() != here[name].numpy().tobytes():
            return f"checkpoint of round {round_}: {name} differs"
    return None


def within(seal: Callable[[], AbstractContextManager[None]], playing: Iterator[Played]) -> Iterator[Played]:
    """Yield rounds, each computed within a seal; whoever takes them is outside."""
    while True:
        with seal():
            played = next(playing, None)
        if played is None:
            return
        yield played


def first_state(experiment: Experiment, federation: Assembled, edges: Edges) -> State:
    """Return the state before the first round, its networks where the edges want them."""
    state = start(experiment, federation.build, federation.sites)
    return replace(state, parts={part: trees.to(params, edges.device) for part, params in state.parts.items()})


def frozen_of(experiment: Experiment, federation: Assembled, given_in_python: bool = False) -> dict[str, Any]:
    """Return what must not change during a run."""
    still = frozen_sha256(federation.network)
    code = {one.package: fingerprint(one.package) for one in experiment.packages.values() if is_file(one.package)}
    return {
        "experiment": experiment.model_dump(mode="json"),
        "data": {"sha256": federation.fingerprint, "given_in_python": given_in_python},
        **({} if still is None else {"frozen_weights": {"sha256": still}}),
        **({"code": code} if code else {}),
    }
