"""How a site reaches its clients: one request becomes a message to each, and their answers one result."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from fedbac.core import trees
from fedbac.core.aggregation import EdgeAverage
from fedbac.core.codecs import Broadcast
from fedbac.core.links import Link
from fedbac.core.parts import Params
from fedbac.core.queries import Moment
from fedbac.core.requests import Average, Averaged, Evaluate, Measured, Train, Trained
from fedbac.core.settings import IntArray
from fedbac.deploy.protocol.charter import Charter
from fedbac.deploy.protocol.failures import Failure, SiteError
from fedbac.deploy.protocol.messages import (
    Expectations,
    Expected,
    evaluate_request,
    fit_request,
    read_evaluation,
    read_update,
    start_of,
)
from fedbac.deploy.protocol.wire import WireError, decode
from fedbac.deploy.roles.calls import Silences, ask_with_retry
from fedbac.deploy.roles.standing import Change, Standing
from fedbac.deploy.transports.base import Answered

log = logging.getLogger("fedbac")


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


class Clients:
    """The clients of a site: what a trainer would compute for all of them, each computes for itself."""

    def __init__(self, charter: Charter, reach: Reach, outlier_factor: float = 0.0) -> None:
        self.charter, self.reach, self.standing, self.silences = charter, reach, Standing(outlier_factor), Silences()
        self.scheme, self.owners = charter.experiment.method.personalization, charter.owners
        self.before: tuple[int, int] = (0, 0)
        """What clients own is measured as they had it before this round and edge round."""
        self.expected: Expectations = {}
        """What they must have kept."""
        self.broken: set[int] = set()
        """Clients whose answers to the last training do not count."""

    def average(self, request: Average) -> Averaged:
        """Have clients train, and average what they come back with; one that does not has failed."""
        train = request.train
        results = self._trained(train, request.broadcast)
        self.before = (train.round, train.edge_round + 1)
        sent = self.owners.without(train.bank, "client")
        average = EdgeAverage(request.size_C, sent, {part: train.row_C[part] for part in sent}, request.rules)
        for place, one in enumerate(results):
            average.add({part: one.parts_C[part] for part in sent}, one.loss_C)
            results[place] = replace(one, parts_C={part: one.parts_C[part] for part in request.keep})
        del one
        self.broken &= {client for client, good in zip(train.clients, average.healthy_C, strict=True) if not good}
        squares = [one.square_C for one in results if one.square_C is not None]
        epochs = [one.epoch_CE for one in results if one.epoch_CE is not None]
        counted_C = np.where(average.healthy_C, request.size_C, 0)
        own = self.owners.only(train.bank, "client")

        def counted(row_C: IntArray, rows: Params) -> IntArray:
            return np.bincount(row_C, counted_C, trees.count(rows)).astype(np.int64)

        return Averaged(
            bank={part: average.bank[part] if part in average.bank else own[part] for part in train.bank},
            weight=average.weight | {part: counted(train.row_C[part], own[part]) for part in own},
            healthy_C=average.healthy_C,
            loss_C=average.loss_C,
            square_C=np.concatenate(squares) if squares else None,
            epoch_CE=np.concatenate(epochs) if epochs else None,
            kept={part: trees.join([one.parts_C[part] for one in results]) for part in request.keep},
        )

    def evaluate(self, request: Evaluate) -> Measured:
        """Have clients, or edges that hold test data, measure; who gives no answer holds no examples."""
        if request.level == "edge":
            return self._asked_of_edges(request)
        found = self._asked_of_clients(request)
        if found and not any(measured.count_G.any() for measured in found):
            raise TooFewClientsError(Failure.NONE_MEASURED)
        nothing = np.zeros((1 if request.paired else request.num_models, 0))
        return _side_by_side(found) if found else Measured(nothing, nothing, np.zeros(0, dtype=np.int64))

    def _trained(self, train: Train, broadcast: Broadcast | None = None) -> list[Trained]:
        link = Link("client", self.scheme, Moment(train.round, self.charter.experiment.task.rounds))
        up = link.passing["up"]
        made: dict[tuple[tuple[int, ...], Expected], bytes] = {}
        messages = {}
        for place, client in enumerate(train.clients):
            rows = tuple(int(rows[place]) for part, rows in train.row_C.items() if self.owners.scopes[part] != "client")
            same = (rows, self._expected(client))
            if train.teachers is not None or same not in made:  # clients that start alike are sent the same bytes
                made[same] = fit_request(train, place, self.charter, same[1], broadcast)
            messages[client] = made[same]
        messages = self._without_resting(messages)

        def whole(client: int) -> bytes:
            return fit_request(train, train.clients.index(client), self.charter, self._expected(client))

        answers, reasons = ask_with_retry(self.reach.ask, messages, whole)
        self.standing.strike_late(reasons, self.charter.names.__getitem__)
        num_epochs, names, sizes = self.charter.epochs(train.phases), self.charter.names, self.charter.held("train")
        usual_size = np.median([size for size in sizes if size] or [1])
        lost = {client: _lost_update(train, place, num_epochs) for place, client in enumerate(train.clients)}
        results, changes = dict(lost), dict[int, Change]()
        for client in [client for client in lost if client in answers]:
            try:
                found = read_update(decode(answers.pop(client), ("update",)), lost[client], up, self.charter)
                results[client] = replace(found, parts_C=link.with_twins(found.parts_C))
            except WireError as error:
                reasons[client] = self.standing.strike(names[client], Failure.UNUSABLE, detail=str(error))
                continue
            unit = train.learning_rate * max(1.0, sizes[client] / usual_size)
            change = Change.of({part: found.parts_C[part] for part in up}, lost[client].parts_C, unit)
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
        return list(results.values())

    def _without_resting(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        names, members = self.charter.names, self.charter.commitments.keys() - self.standing.back.keys()
        return {client: message for client, message in messages.items() if names[client] in members}

    def _asked_of_clients(self, request: Evaluate) -> list[Measured]:
        made: dict[tuple[int, Expected], bytes] = {}
        messages = {}
        for place, owner in enumerate(request.owners):
            same = (place if request.paired else 0, self._expected(owner))
            if same not in made:
                made[same] = self._asked(request, *same)
            messages[owner] = made[same]
        messages = self._without_resting(messages)
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
        clients = tuple(client for edge in others for client in self.charter.clients[edge])
        answers, lost = (
            self.reach.ask_edges(dict.fromkeys(holders, self._asked(request, 0, Expected()))) if holders else ({}, {})
        )
        each = self._asked_of_clients(replace(request, owners=clients, level="client")) if clients else []
        results = dict(zip(clients, each, strict=True))
        found, missed, nothing = [], 0, _lost_evaluation(request.num_models)
        for edge in request.owners:
            try:
                if edge in others:
                    found.append(_of_all([results[client] for client in self.charter.clients[edge]]))
                else:
                    message = decode(answers[edge], ("evaluation",))
                    found.append(read_evaluation(message, nothing, self.charter.edge_tests(edge), self.charter))
            except (KeyError, WireError) as error:
                missed += 1
                log.warning("edge %d: its test data could not be measured on: %s", edge, lost.get(edge, str(error)))
                found.append(nothing)
        if missed == len(found):
            raise TooFewClientsError(Failure.NO_TESTS, missed)
        return _side_by_side(found)

    def _asked(self, request: Evaluate, place: int, expected: Expected) -> bytes:
        return evaluate_request(request, place, self.before, self.charter, expected)

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
