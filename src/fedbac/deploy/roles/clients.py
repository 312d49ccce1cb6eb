"""How a site reaches its clients: one request becomes a message to each, and their answers one result."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedbac.core import trees
from fedbac.core.aggregation import EdgeAverage
from fedbac.core.links import Link
from fedbac.core.parts import Params, Parts
from fedbac.core.queries import Moment
from fedbac.core.requests import Average, Averaged, Evaluate, Measured, Train, Trained, gathered
from fedbac.core.secret import Secret
from fedbac.core.settings import BoolArray
from fedbac.deploy import log
from fedbac.deploy.protocol.charter import Charter
from fedbac.deploy.protocol.failures import Failure, SiteError
from fedbac.deploy.protocol.messages import (
    Expectations,
    Expected,
    evaluation_of,
    fit_request,
    read_evaluation,
    read_update,
    sent,
    start_of,
    training_of,
    work_of,
)
from fedbac.deploy.protocol.wire import WireError, decode
from fedbac.deploy.roles.calls import Silences, ask_with_retry
from fedbac.deploy.roles.secret_sums import Outcome, Summing
from fedbac.deploy.roles.standing import STANDING, Drift, Standing
from fedbac.deploy.spool import Spool
from fedbac.deploy.transports.base import Answered
from fedbac.engines.secret import Summed, measurement_of
from fedbac.errors import OutputError
from fedbac.files import make_folder, why


class TooFewClientsError(SiteError):
    """Too few clients answered for a site to take part in a round."""


class Reach(Protocol):
    """A way to the clients of a site, and to the test data of its edges."""

    def clients(self) -> frozenset[int]:
        """Return the clients that are there now."""

    def ask(self, messages: Mapping[int, bytes]) -> Answered[int]:
        """Send clients their messages and wait for the answers."""

    def ask_edges(self, messages: Mapping[int, bytes]) -> Answered[int]:
        """The same for edges that hold test data."""


class Updates:
    """What clients came back with, on the disk; none that is not finite."""

    def __init__(self, folder: Path) -> None:
        try:
            self._spool = Spool(make_folder(folder))
        except (OSError, OutputError) as error:
            raise TooFewClientsError(Failure.NO_ROOM, detail=str(error)) from error
        self._at: dict[tuple[int, str], tuple[int, torch.dtype]] = {}
        self._clients: set[int] = set()

    def __contains__(self, client: int) -> bool:
        return client in self._clients

    def put(self, client: int, parts: Parts) -> None:
        """Keep the update of a client."""
        if parts and not trees.finite_rows(parts).all():
            return
        for part, params in parts.items():
            row = trees.rows(params).contiguous()
            self._at[client, part] = len(self._spool), row.dtype
            try:
                self._spool.add(row.view(torch.uint8).reshape(-1).numpy().data)
            except OSError as error:
                raise TooFewClientsError(Failure.NO_ROOM, detail=why(error)) from error
        self._clients.add(client)

    def columns(self, client: int, part: str, cut: slice) -> Tensor:
        """Return some columns of a part of an update, as a row."""
        at, dtype = self._at[client, part]
        found = self._spool[at + cut.start * dtype.itemsize : at + cut.stop * dtype.itemsize]
        return torch.frombuffer(bytearray(found), dtype=dtype)[None]


class Clients:
    """The clients of a site: what a trainer would compute for all of them, each computes for itself."""

    def __init__(self, charter: Charter, reach: Reach, folder: Path, outlier_factor: float = 0.0) -> None:
        """In a folder updates are kept while a round is averaged, and which clients misbehaved."""
        self.charter, self.reach, self.folder = charter, reach, folder
        self.standing = Standing.kept(outlier_factor, folder / charter.run / STANDING)
        self.silences = Silences()
        self.scheme = charter.experiment.method.personalization
        self.before: tuple[int, int] = (0, 0)
        """What clients own is measured as they had it before this round and edge round."""
        self.expected: Expectations = {}
        """What they must have kept."""
        self.broken: set[int] = set()
        """Clients whose answers to the last training do not count."""

    def average(self, request: Average) -> Averaged:
        """Have clients train, and average what they come back with; one that does not has failed."""
        if request.secret is not None:
            return self._summed(request)
        train, updates = request.train, Updates(self.folder)
        found = gathered(self._trained(request, updates))
        self.before = (train.round, train.edge_round + 1)
        healthy_C = np.isfinite(found.loss_C) & [client in updates for client in train.clients]
        self.broken &= {client for client, good in zip(train.clients, healthy_C, strict=True) if not good}
        counted_C = np.where(healthy_C, request.size_C, 0)
        passing = self.charter.without(train.bank, "client")
        return Averaged(
            bank=train.bank | {part: self._mean(part, request, updates, healthy_C) for part in passing},
            weight={
                part: np.bincount(train.row_C[part], counted_C, trees.count(rows)).astype(np.int64)
                for part, rows in train.bank.items()
            },
            healthy_C=healthy_C,
            loss_C=found.loss_C,
            square_C=found.square_C,
            epoch_CE=found.epoch_CE,
            kept=found.parts_C,
        )

    def _summed(self, request: Average) -> Averaged:
        """The same where only sums of clients may be known: nobody's update is here, nor its loss."""
        train, summed = request.train, Summed(request)
        members = set(self._awake(train.clients))
        fit = self._fits(request)
        groups = [[c for c in (train.clients[place] for place in group) if c in members] for group in summed.groups]
        numbers = 2 + (self.charter.epochs(train.phases) if "epochs" in train.keep else 0)
        secret = request.secret
        assert secret is not None

        def asked(client: int) -> Train:
            return training_of(train, train.clients.index(client), self.charter)

        again = partial(fit, whole=True)
        outcome = self._sums(groups, "secret_fit", secret, fit, again, asked, (summed.width, numbers))
        self.before, self.broken = (train.round, train.edge_round + 1), set()
        for group, total in outcome.totals.items():
            if int(total.numbers[0]) > int(request.size_C[summed.groups[group]].sum()):  # nobody can tell who lied
                raise TooFewClientsError(Failure.NOT_SOUND, 1, len(groups[group]))
        return summed.averaged(outcome.totals, np.isin(train.clients, list(outcome.added)))

    def _sums(
        self,
        groups: Sequence[Sequence[int]],
        kind: str,
        secret: Secret,
        payload: Callable[[int], bytes],
        whole: Callable[[int], bytes],
        asked: Callable[[int], Train | Evaluate],
        size: tuple[int, int],
    ) -> Outcome:
        def work(client: int) -> bytes:
            return work_of(asked(client), secret.fixed, self.charter)

        outcome = Summing(self.charter, self.reach.ask, groups).play(kind, secret.fixed, payload, whole, work, size)
        if not outcome.totals:
            few = max(outcome.few, key=lambda one: one.numbers[1])
            raise TooFewClientsError(Failure.FEW_IN_SUM, *few.numbers)
        self.standing.strike_late(outcome.reasons, self.charter.names.__getitem__)
        self._note([client for group in groups for client in group], outcome.reasons)
        return outcome

    def _mean(self, part: str, request: Average, updates: "Updates", healthy_C: BoolArray) -> Params:
        """Average a part a few columns at a time, as memory need not hold more of all clients; a rule wants all."""
        train, before, loss_C = request.train, request.train.bank[part], np.where(healthy_C, 0.0, np.nan)
        rules, cuts = {name: rule for name, rule in request.rules.items() if name == part}, trees.cuts(before)
        means = []
        for cut in [slice(0, cuts[-1].stop)] if rules else cuts:
            start = trees.columns(before, cut)
            average = EdgeAverage(request.size_C, {part: {"": start}}, {part: train.row_C[part]}, rules)
            for place, client in enumerate(train.clients):
                row = updates.columns(client, part, cut) if healthy_C[place] else torch.zeros_like(start[:1])
                average.add({part: {"": row}}, loss_C[place : place + 1])
            means.append(average.bank[part][""])
        return trees.shaped(torch.cat(means, 1), before)

    def evaluate(self, request: Evaluate) -> Measured:
        """Have clients, or edges that hold test data, measure; who gives no answer holds no examples."""
        if request.level == "edge":
            return self._asked_of_edges(request)
        found = self._asked_of_clients(request)
        if found and not any(measured.count_G.any() for measured in found):
            raise TooFewClientsError(Failure.NONE_MEASURED)
        nothing = np.zeros((1 if request.paired else request.num_models, 0))
        return _side_by_side(found) if found else Measured(nothing, nothing, np.zeros(0, dtype=np.int64))

    def _trained(self, request: Average, updates: "Updates") -> list[Trained]:
        """Have clients train; return what they come back with, of their networks only those that are to be kept."""
        train = request.train
        link = Link("client", self.scheme, Moment(train.round, self.charter.experiment.task.rounds))
        up = link.passing["up"]
        fit = self._fits(request)
        messages = {client: fit(client) for client in self._awake(train.clients)}
        said, reasons = ask_with_retry(self.reach.ask, messages, lambda client: fit(client, whole=True))
        self.standing.strike_late(reasons, self.charter.names.__getitem__)
        num_epochs, names, sizes = self.charter.epochs(train.phases), self.charter.names, self.charter.held("train")
        usual_size = np.median([size for size in sizes if size] or [1])
        lost = {client: _lost_update(train, place, num_epochs) for place, client in enumerate(train.clients)}
        results, changes, passing = dict(lost), dict[int, Drift](), self.charter.without(train.bank, "client")
        answers = dict(said)
        del said
        for client in [client for client in lost if client in answers]:
            try:
                found = read_update(decode(answers.pop(client), ("update",)), lost[client], up, self.charter)
            except WireError as error:
                reasons[client] = self.standing.strike(names[client], Failure.UNUSABLE, detail=str(error))
                continue
            unit = train.learning_rate * max(1.0, sizes[client] / usual_size)
            parts_C = link.with_twins(found.parts_C)
            updates.put(client, {part: parts_C[part] for part in passing})
            results[client] = replace(found, parts_C={part: trees.join([parts_C[part]]) for part in request.keep})
            change = Drift.of({part: found.parts_C[part] for part in up}, lost[client].parts_C, unit)
            changes |= {} if change is None else {client: change}
        self.broken = {client for client in lost if results[client] is not lost[client]}
        named = {names[client]: change for client, change in changes.items()}
        far = self.standing.outliers(train.phases, named)
        for client in changes:
            if names[client] in far:
                results[client] = lost[client]
                reasons[client] = self.standing.strike(names[client], Failure.OUTLIER, far[names[client]])
            else:
                self.standing.trust(names[client])
        self._note(messages, reasons)
        return [replace(one, parts_C={part: one.parts_C[part] for part in request.keep}) for one in results.values()]

    def _fits(self, request: Average) -> Callable[..., bytes]:
        """Return what makes the message by which a client trains, or the whole of it for one that lacks networks whose
        changes it was sent; clients that start alike are sent the same bytes."""
        train, made = request.train, dict[tuple[tuple[int, ...], Expected], bytes]()
        shared = [rows for part, rows in train.row_C.items() if self.charter.scopes[part] != "client"]
        placed = {client: place for place, client in enumerate(train.clients)}

        def fit(client: int, whole: bool = False) -> bytes:
            place, expected = placed[client], self._expected(client)
            if whole:
                return fit_request(train, place, self.charter, expected)
            same = (tuple(int(rows[place]) for rows in shared), expected)
            if train.teachers is not None or same not in made:
                made[same] = fit_request(train, place, self.charter, expected, request.broadcast)
            return made[same]

        return fit

    def _awake(self, clients: Iterable[int]) -> list[int]:
        names, members = self.charter.names, self.charter.commitments.keys() - self.standing.back.keys()
        return [client for client in clients if names[client] in members]

    def _summed_measurement(self, request: Evaluate) -> list[Measured]:
        """Have clients measure where only their sum may be known; return everybody's mean for each."""
        secret, owners, count = request.secret, request.owners, 1 if request.paired else request.num_models
        assert secret is not None
        members, message = self._awake(owners), self._asking(request)

        def asked(owner: int) -> Evaluate:
            return evaluation_of(request, owners.index(owner), self.charter)

        outcome = self._sums([members], "secret_evaluate", secret, message, message, asked, (0, 1 + 2 * count))
        held, most = self.charter.held(request.split), request.max_samples
        count_G = np.array([min(held[owner], held[owner] if most is None else most) for owner in owners])
        count_G = np.where(np.isin(owners, list(outcome.added)), count_G, 0)
        found = measurement_of(secret, outcome.totals[0].numbers, count_G)
        lost, each = _lost_evaluation(count), np.flatnonzero(count_G)
        alone = {int(g): Measured(found.loss_VG[:, [g]], found.accuracy_VG[:, [g]], found.count_G[[g]]) for g in each}
        return [alone.get(place, lost) for place in range(len(owners))]

    def _asked_of_clients(self, request: Evaluate) -> list[Measured]:
        if request.secret is not None:
            return self._summed_measurement(request)
        message = self._asking(request)
        messages = {owner: message(owner) for owner in self._awake(request.owners)}
        answers, reasons = self.reach.ask(messages)
        self.standing.strike_late(reasons, self.charter.names.__getitem__)
        lost, held_N = _lost_evaluation(1 if request.paired else request.num_models), self.charter.held(request.split)
        found: dict[int, Measured] = {}
        for owner, answer in answers.items():
            try:
                found[owner] = read_evaluation(decode(answer, ("evaluation",)), lost, held_N[owner], self.charter)
            except WireError as error:
                reasons[owner] = str(error)
        if not request.paired and found:  # a model that has a loss for most has one for all
            most = self.charter.experiment.task.loss.limits[1]
            sound_O = {owner: one.loss_VG[:, 0] < most for owner, one in found.items() if one.count_G.any()}
            sound_V = np.mean(list(sound_O.values()), axis=0) >= 0.5 if sound_O else np.zeros(0, dtype=bool)
            reasons |= {
                o: "its losses are not finite, though others' are" for o, v in sound_O.items() if not v[sound_V].all()
            }
        self._note(messages, reasons)
        return [found[owner] if owner in found and owner not in reasons else lost for owner in request.owners]

    def _asked_of_edges(self, request: Evaluate) -> Measured:
        """Measure on the test data of all edges at once: those that an edge holds itself, else those of its clients."""
        holders = [edge for edge in request.owners if self.charter.edge_tests(edge)]
        others = [edge for edge in request.owners if edge not in holders]
        alone = others if request.secret is None else []
        clients = tuple(client for edge in alone for client in self.charter.clients[edge])
        answers, lost = (
            self.reach.ask_edges(dict.fromkeys(holders, self._asked(request, 0, Expected()))) if holders else ({}, {})
        )
        each = self._asked_of_clients(replace(request, owners=clients, level="client")) if clients else []
        results = dict(zip(clients, each, strict=True))
        found, missed, nothing = [], 0, _lost_evaluation(request.num_models)
        for edge in request.owners:
            try:
                if edge in others and edge not in alone:
                    found.append(self._summed_of_edge(request, edge))
                elif edge in others:
                    found.append(_of_all([results[client] for client in self.charter.clients[edge]]))
                else:
                    message = decode(answers[edge], ("evaluation",))
                    found.append(read_evaluation(message, nothing, self.charter.edge_tests(edge), self.charter))
            except (KeyError, WireError, TooFewClientsError) as error:
                missed += 1
                log.warning("edge %d: its test data could not be measured on: %s", edge, lost.get(edge, str(error)))
                found.append(nothing)
        if missed == len(found):
            raise TooFewClientsError(Failure.NO_TESTS, missed)
        return _side_by_side(found)

    def _summed_of_edge(self, request: Evaluate, edge: int) -> Measured:
        """Return what the clients of an edge measured on all their data together, of which only sums may be known."""
        each = self._summed_measurement(replace(request, owners=self.charter.clients[edge], level="client"))
        held = [one for one in each if one.count_G.any()]
        if not held:
            raise WireError("none of its clients that hold some answered")
        count_G = np.array([sum(int(one.count_G[0]) for one in held)])
        return replace(held[0], count_G=count_G)

    def _asking(self, request: Evaluate) -> Callable[[int], bytes]:
        """Return what makes the message by which a client measures; those that measure alike are sent the same."""
        placed = {owner: place for place, owner in enumerate(request.owners)}
        made = cache(partial(self._asked, request))
        return lambda owner: made(placed[owner] if request.paired else 0, self._expected(owner))

    def _asked(self, request: Evaluate, place: int, expected: Expected) -> bytes:
        bare = evaluation_of(request, place, self.charter)
        return sent("evaluate", charter=self.charter.id, request=bare, before=self.before, expected=expected)

    def _expected(self, client: int) -> Expected:
        return self.expected.get(str(client), Expected()) if self.charter.keeps("client") else Expected()

    def note(self, asked: Iterable[int], reasons: Mapping[int, str]) -> None:
        """Log who gives no answer that can be used, and who does again."""
        names = self.charter.names
        self.silences.note([names[one] for one in asked], {names[one]: why for one, why in reasons.items()})

    def _note(self, asked: Iterable[int], reasons: Mapping[int, str]) -> None:
        """Note who gave no answer; if one has not what it should have kept, the round must not go on without it."""
        self.note(asked, reasons)
        for client, reason in reasons.items():
            if lacking := SiteError.found(reason, Failure.CLIENT_STATE):
                raise SiteError(Failure.CLIENT_STATE, client, *lacking.numbers[1:])


def _lost_update(request: Train, place: int, num_epochs: int) -> Trained:
    """Return what stands for a client that did not come back: it does not count."""
    square_C = np.full(1, np.nan) if "square" in request.keep else None
    epoch_CE = np.full((1, num_epochs), np.nan) if "epochs" in request.keep else None
    return Trained(start_of(request, place), np.full(1, np.nan), None, square_C, epoch_CE)


def _lost_evaluation(num_models: int) -> Measured:
    """Return what stands for an owner that did not answer."""
    missing = np.full((num_models, 1), np.nan)
    return Measured(missing, missing, np.zeros(1, dtype=np.int64))


def _of_all(each: list[Measured]) -> Measured:
    """Return what clients measured, each on its own data, as measured on all their data together."""
    found = _side_by_side(each)
    held = found.count_G > 0
    count_G, total = found.count_G[held], int(found.count_G.sum())
    if not total:
        raise WireError("none of its clients that hold some answered")
    loss_V = found.loss_VG[:, held] @ (count_G / total)
    right_V = np.rint(found.accuracy_VG[:, held] * count_G).sum(1)  # whole numbers, which add up without rounding
    return Measured(loss_V[:, None], (right_V / total)[:, None], np.array([total]))


def _side_by_side(found: list[Measured]) -> Measured:
    return Measured(
        np.concatenate([one.loss_VG for one in found], axis=1),
        np.concatenate([one.accuracy_VG for one in found], axis=1),
        np.concatenate([one.count_G for one in found]),
    )
