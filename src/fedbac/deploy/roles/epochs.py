"""A run goes on under another charter: with members that came or left, more rounds, or other data.

The run as it was is kept whole in ``epochs/N`` of its folder. In its place comes the same run with places for everybody
of the new charter, as if those who came had been away until now. Whoever dies meanwhile finds ``epochs/next.json``, and
does it again from what is kept.
"""

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fedbac.config.experiment import Experiment
from fedbac.core.state import State, flatten, unflatten
from fedbac.deploy import log
from fedbac.deploy.roles.edges import Newcomers, Remote
from fedbac.deploy.roles.enrolment import AGAIN, FILE, Enrolled, Roll, newcomers, next_charter, stored
from fedbac.deploy.settings import MemberChanges, SiteConfig
from fedbac.deploy.transports.base import Children
from fedbac.errors import DeployError, unknown
from fedbac.files import make_folder, opened, remove, write_copy
from fedbac.rounds.start import start
from fedbac.runs import checkpoints
from fedbac.runs.replay import frozen_of
from fedbac.runs.store import RunFolder, StoredRun, differences

EPOCHS, NEXT = "epochs", "next.json"
Record = dict[str, Any]


def advance(folder: RunFolder, after: Enrolled, moved: Mapping[str, str]) -> None:
    """Put a run under its next charter."""
    epochs = folder.path / EPOCHS
    with folder.locked():
        kept, partial = epochs / str(after.charter.epoch - 1), epochs / "partial"
        remove(kept)
        remove(partial)
        make_folder(partial / "checkpoint")
        newest = checkpoints.found(folder.checkpoints)[:1]
        of_run = [folder.config_file, folder.rounds_file, folder.path / FILE]
        for file in (*of_run, *newest, *(one.with_suffix(".safetensors") for one in newest)):
            with suppress(FileNotFoundError), opened(file) as content:
                write_copy(partial / file.relative_to(folder.path), content)
        partial.rename(kept)
        _put(folder, kept, after, moved)


def advanced(folder: RunFolder, moved: Mapping[str, str]) -> Enrolled:
    """Return the charter of the run in a folder; a step that was not finished is done again."""
    begun = stored(folder.path / EPOCHS, NEXT)
    if begun is not None:
        with folder.locked():
            _put(folder, folder.path / EPOCHS / str(begun.charter.epoch - 1), begun, moved)
    found, epoch = stored(folder.path), 1 + len(folder.read_config().get("epochs", ()))
    if found is None or found.charter.epoch != epoch:
        what = "is missing" if found is None else f"is of epoch {found.charter.epoch}"
        raise DeployError(
            f"{folder.path / FILE}: it {what}, and the run is of epoch {epoch}; restore the file that belongs to the "
            "run, or start anew with --overwrite"
        )
    return found


def _put(folder: RunFolder, kept: Path, after: Enrolled, moved: Mapping[str, str]) -> None:
    """Put the run that is kept into its folder, under the next charter."""
    before, source = stored(kept), RunFolder(kept)
    if before is None:
        raise DeployError(f"{kept}: it is missing, and with it the run as it was; restore it from a backup")
    first = start(after.charter.experiment, after.build, after.sites)
    frozen, was = (frozen_of(one.charter.experiment, one) for one in (after, before))
    config, records = source.read_config(), list[Record]()
    state = first
    if checkpoints.found(source.checkpoints):
        began = start(before.charter.experiment, before.build, before.sites)
        records, state = source.last(began, was)
        state = grown(state, began, first, before, after, moved)
    told = {
        "epoch": before.charter.epoch,
        "rounds": after.charter.after,
        "charter": before.charter.id,
        "members": sorted(before.charter.commitments),
    }
    clients = [list(numbers) for numbers in after.charter.clients]
    mix = [" ".join(map(str, counts)) for counts in after.classes_per_edge().tolist()]
    more = {"classes_per_edge": mix} if "classes_per_edge" in config else {}
    after.save(kept.parent, NEXT)  # what cannot be was said by now, and leaves the run as it is
    folder.clear()
    folder.write_config(config | frozen | more | {"clients": clients, "epochs": [*config.get("epochs", ()), told]})
    folder.restore(first, frozen)
    run = source.read()
    for record in records:
        folder.computed_by = dict(run.computed_by(record["round"])) or None
        folder.append(_padded(record, after, state), state, frozen, math.inf)
    folder.save()
    after.save(folder.path)
    remove(kept.parent / NEXT)


def grown(
    state: State, began: State, first: State, before: Enrolled, after: Enrolled, moved: Mapping[str, str]
) -> State:
    """Return a state with places for new members, who are as they would have been at the beginning of the run.

    ``began`` and ``first`` are the states before round 1 of the run as it was, and with everybody: where their arrays
    differ in size, there are members, edges or clusters, and new ones come last.
    """
    old, like, fresh = flatten(state), flatten(began), flatten(first)
    whole = {path: _longer(path, old[path], like[path], new) if path in old else new for path, new in fresh.items()}
    taken: State = unflatten(first, whole)
    taken = replace(taken, round=state.round)
    number = {name: client for client, name in enumerate(after.charter.names)}
    method = after.charter.experiment.method
    new_places = {number[new]: number[old] for new, old in moved.items() if new in number.keys() - before.charter.names}
    for new, place in sorted(new_places.items()):  # who moved twice has moved to the lower one first
        if method.unit == "client":
            taken.label_N[new] = taken.label_N[place]
        for part, trained in taken.trained.items():
            if method.personalization.parts[part].scope == "client":
                trained[new] = trained[place]
    return taken


def _longer(path: str, old: Tensor, like: Tensor, new: Tensor) -> Tensor:
    if like.shape == new.shape:
        return old
    if old.shape != like.shape or old.dim() != new.dim():
        raise DeployError(f"the method's memory {path} cannot take new members; start another run with --overwrite")
    longer = new.clone()
    longer[tuple(slice(0, size) for size in old.shape)] = old
    return longer


def _padded(record: Record, after: Enrolled, state: State) -> Record:
    """Return the record of a round with places for everybody: who was not there has trained nothing."""
    padded = {name: value for name, value in record.items() if name != "check"}
    new = range(len(record["selected"]), len(after.sites))
    padded["selected"] = [*record["selected"], *([] for _ in new)]
    padded["absent"] = [*record["absent"], *new]
    padded["accuracy_per_edge"] = _filled(record["accuracy_per_edge"], len(after.charter.clients))
    for name in ("assignment", "assignment_next"):
        padded[name] = record[name] + state.label_N[len(record[name]) :].tolist()
    if record.get("beliefs") is not None:
        rows = [*record["beliefs"], *([] for _ in new)]
        padded["beliefs"] = [_filled(row, len(site.clients)) for row, site in zip(rows, after.sites, strict=True)]
    return padded


def _filled(values: list[Any], count: int) -> list[Any]:
    return values + [None] * (count - len(values))


def continued(
    before: Enrolled,
    experiment: Experiment,
    folder: RunFolder,
    site: SiteConfig,
    children: Children,
    refreshed: Sequence[str],
    waiting: Callable[[str], None],
    stopped: Callable[[], bool],
) -> Enrolled:
    """Return the charter of a run that is taken up again: another one, where the operator has changed what may change.

    Those whose data are ``refreshed`` must be there to say what they hold now.
    """
    began, now = (one.model_dump(mode="json") for one in (before.charter.experiment, experiment))
    members = site.members
    may_change = {name: now["task"][name] for name in ("rounds", "num_edges", "clients_per_edge")}
    if found := differences({**began, "task": {**began["task"], **may_change}}, now):
        raise DeployError(
            f"{folder.path}: the run in this folder is another experiment ({'; '.join(found[:3])}); undo the change, "
            "choose another --out, or replace the run with --overwrite"
        )
    played = checkpoints.newest(folder.checkpoints)
    if experiment.task.rounds < played:
        raise DeployError(f"task.rounds: {played} rounds are played already; give as many at least")
    for name in refreshed:
        if name not in before.charter.holdings or members.gone(name):
            raise DeployError(f"--refresh: {unknown('site', name, before.charter.holdings)}")
    roll = Roll({}, {}, {}, {})
    while missing := [name for name in refreshed if name not in {**roll.clients, **roll.edges}]:
        if stopped():
            raise DeployError("stopped before the first round")
        waiting(f"waiting for {', '.join(missing)}, whose data are to be refreshed")
        new = newcomers(before, experiment, site, children, refreshed)
        roll = Roll(roll.clients | new.clients, roll.edges | new.edges, {}, {})
        time.sleep(AGAIN if missing else 0)
    return _next(before, experiment, folder, members, roll, played)


def play_epochs(
    enrolled: Enrolled,
    site: SiteConfig,
    children: Children,
    play: Callable[[Enrolled, set[str]], Generator[Record, None, StoredRun]],
    connected: Callable[[], Remote | None],
    folder: RunFolder,
) -> Generator[Record, None, StoredRun]:
    """Play a run to its end; whoever comes that belongs to the federation joins it after the round.

    ``connected`` returns the edges with which it is being played; they name nobody who was declined and did not go.
    """
    declined: set[str] = set()
    while True:
        playing, over = play(enrolled, declined), False
        experiment, played = enrolled.charter.experiment, checkpoints.newest(folder.checkpoints)
        roll = Roll({}, {}, {}, {})
        while not over and not roll.clients:
            try:
                record = next(playing)
            except Newcomers as waiting:
                new, over = waiting.names, True
            except StopIteration as done:
                run: StoredRun = done.value
                return run
            else:
                yield record
                played, remote = record["round"], connected()
                assert remote is not None
                new = remote.newcomers() if played < experiment.task.rounds else []
            if new:
                roll = newcomers(enrolled, experiment, site, children, new)
                declined |= roll.declined
        playing.close()
        try:
            if roll.clients:
                enrolled = _next(enrolled, experiment, folder, site.members, roll, played)
        except DeployError as error:
            log.warning("%s cannot join: %s", ", ".join(roll.clients), error)
            declined |= roll.clients.keys()


def _next(
    before: Enrolled, experiment: Experiment, folder: RunFolder, members: MemberChanges, roll: Roll, round_: int
) -> Enrolled:
    after = next_charter(before, experiment, members, roll, round_)
    if (experiment, after.charter.holdings) == (before.charter.experiment, before.charter.holdings):
        return before
    advance(folder, after, members.moved)
    was, now = before.charter.commitments, after.charter.commitments
    news = {
        "joined": sorted(now.keys() - was.keys()),
        "left": sorted(was.keys() - now.keys()),
        "with other data": sorted(name for name in was.keys() & now.keys() if was[name] != now[name]),
    }
    said = [f"{what}: {', '.join(names)}" for what, names in news.items() if names]
    said.append(f"places for {len(after.charter.names)} clients, {experiment.task.rounds} rounds")
    log.warning("epoch %d after round %d (%s): %s", after.charter.epoch, round_, after.charter.id, "; ".join(said))
    return after
