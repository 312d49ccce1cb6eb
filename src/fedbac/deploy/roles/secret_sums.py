"""The two ends of secret sums: how a client answers the five messages, and how a site asks them."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np

from fedbac.core.secret import Scale, Words, around, flat, rounding, told_in_training
from fedbac.deploy import log
from fedbac.deploy.protocol.charter import Charter
from fedbac.deploy.protocol.failures import Failure, SiteError
from fedbac.deploy.protocol.messages import received, sent, work_of
from fedbac.deploy.protocol.wire import Message, WireError, decode
from fedbac.deploy.roles.calls import ask_with_retry
from fedbac.deploy.secret.collector import SEALED, Collector, TooFewError
from fedbac.deploy.secret.member import Member, Signer
from fedbac.deploy.secret.primitives import PROOF, SumError, apart, cut, joined
from fedbac.deploy.transports.base import Answered
from fedbac.engines.secret import numbers_of_models
from fedbac.errors import DeployError

if TYPE_CHECKING:
    from fedbac.deploy.roles.data_holder import DataHolder

SECRET = ("secret_keys", "secret_shares", "secret_fit", "secret_evaluate", "secret_confirm", "secret_unmask")
"""The messages of a site; those to train or measure are the third."""
KEY_LENGTH = 4
"""Bytes of the number before the keys of each client."""

T = TypeVar("T")


class SecretSums:
    """A client's part in secret sums, one at a time. What it masks with is in memory alone: after a restart, or once
    another sum has begun, nothing more is said of this one."""

    def __init__(self, holder: "DataHolder", signer: Callable[[Charter], Signer] | None) -> None:
        self.holder, self.signer = holder, signer
        self.session = ""
        self.member: Member | None = None

    def answer(self, message: Message) -> bytes:
        """Answer one message of a sum."""
        said = received(message)
        try:
            return sent("secret", data=self._answer(message.kind, said))
        except SiteError:
            raise
        except DeployError as error:
            self.member = None
            raise SiteError(Failure.NO_SUM, detail=str(error)) from error

    def _answer(self, kind: str, said: Mapping[str, Any]) -> bytes:
        if kind == "secret_keys":
            return self._begun(str(said["session"])).keys()
        member = self.member
        if member is None or said["session"] != self.session:
            raise SumError("the sum began before this process did, or another has begun since")
        if kind == "secret_shares":
            ring = said["places"]
            others = around(ring, member.place) if member.place in ring else []
            keys = dict(zip(others, apart(said["keys"], KEY_LENGTH, len(others)), strict=True))
            return _whole(member.shares(ring, keys))
        if kind == "secret_confirm":
            return _whole(member.confirm(said["places"]))
        if kind == "secret_unmask":
            each = cut(said["sealed"], SEALED, sorted(member.sharers))
            return member.reveal(cut(said["proofs"], PROOF, said["places"]), each)
        words, work = self._trained(said) if kind == "secret_fit" else self._measured(said)
        member.mask(words, set(said["places"]) - {member.place}, work)
        return words.encoded()

    def _begun(self, session: str) -> Member:
        terms = self.holder.terms
        if self.signer is None:
            raise SumError("a client takes part in secret sums with the kit that it was started with; there is none")
        rule: Any = terms.experiment.method.aggregation
        context = f"{terms.id} {session}".encode()
        self.session = session
        self.member = Member(context, self.holder.number + 1, rule.threshold, self.signer(terms))
        return self.member

    def _trained(self, said: Mapping[str, Any]) -> tuple[Words, bytes]:
        holder, experiment = self.holder, self.holder.terms.experiment
        rule: Any = experiment.method.aggregation
        request, trained, _ = holder.fit(decode(said["payload"], ("fit",)))
        sends = sorted(trained.parts_C)
        change = np.zeros(0)
        if sends:
            change = (flat(trained.parts_C, sends) - flat(request.bank, sends))[0].numpy()
        told = told_in_training(trained.loss_C[0], None if trained.epoch_CE is None else trained.epoch_CE[0])
        rng = rounding(experiment.seed, request.round, request.edge_round, holder.number)
        fixed: Scale = said["fixed"]
        counted, privacy = experiment.method.counted(np.array([holder.data.size("train")])), experiment.method.privacy
        if privacy is not None:
            counted = privacy.counted(counted)
        return fixed.words(change, told, int(counted[0]), rule.bound, rng), work_of(request, fixed, holder.terms)

    def _measured(self, said: Mapping[str, Any]) -> tuple[Words, bytes]:
        request, measured = self.holder.evaluate(decode(said["payload"], ("evaluate",)))
        size = int(measured.count_G[0]) if request.split == "test" else self.holder.data.size(request.split)
        words = Words(np.zeros(0, dtype=np.uint32), numbers_of_models(measured, 0, size, said["fixed"]))
        return words, work_of(request, said["fixed"], self.holder.terms)


class Outcome(NamedTuple):
    """What became of some sums."""

    totals: dict[int, Words]
    """By the place of a group, its sum; those of which too few were left are missing."""
    added: frozenset[int]
    """The clients whose numbers are in a sum that could be opened."""
    reasons: dict[int, str]
    """By client, why it gave no answer that could be used."""
    few: list[TooFewError]
    """Why sums are missing."""


class Summing:
    """A site's part in sums of several groups of clients, side by side; those of each start from the same networks."""

    def __init__(
        self, charter: Charter, ask: Callable[[Mapping[int, bytes]], Answered[int]], groups: Sequence[Sequence[int]]
    ) -> None:
        self.charter, self.ask = charter, ask
        self.session = secrets.token_hex(16)
        context, rule = f"{charter.id} {self.session}".encode(), cast(Any, charter.experiment.method.aggregation)
        self.sums = {
            place: Collector(context, [client + 1 for client in group], rule.threshold)
            for place, group in enumerate(groups)
        }
        self.reasons: dict[int, str] = {}
        self.few: list[TooFewError] = []

    def play(
        self,
        kind: str,
        fixed: Scale,
        payload: Callable[[int], bytes],
        whole: Callable[[int], bytes],
        work: Callable[[int], bytes],
        size: tuple[int, int],
    ) -> Outcome:
        """Ask five times, and return sums of so many weights and other numbers. ``payload`` is what a client is to do,
        ``whole`` the same for one that does not have the networks whose changes it was sent, and ``work`` its hash."""
        place_of = {client: place for place, one in self.sums.items() for client in one.places}
        keys = dict(self._asked({client: self._sent("secret_keys") for client in place_of}))
        rosters = self._each(lambda one: one.rosters(_of(one, keys)))
        asked = {
            client: self._sent("secret_shares", places=tuple(self.sums[place_of[client]].ring), keys=_keys(mine))
            for client, mine in rosters.items()
        }
        shares = dict(self._asked(asked))
        sharers = self._each(lambda one: one.sharers(_of(one, shares)))
        made: dict[tuple[tuple[int, ...], bytes], bytes] = {}

        def third(client: int, work: Callable[[int], bytes]) -> bytes:
            """Clients with the same neighbours that are to do the same are sent the same bytes."""
            same = tuple(sorted((*sharers[client], client))), work(client - 1)
            if same not in made:
                made[same] = self._sent(kind, places=same[0], fixed=fixed, payload=same[1])
            return made[same]

        masked = self._asked({client: third(client, payload) for client in sharers}, lambda c: third(c, whole))
        for client, data in masked:  # one at a time: what was added goes
            try:
                self.sums[place_of[client]].add(client, Words.decoded(data, *size))
            except ValueError as error:
                self.reasons[client - 1] = str(error)
        left = self._each(lambda one: dict.fromkeys(one.added, self._sent("secret_confirm", places=one.survivors())))
        proofs = dict(self._asked(left))
        reveals = self._each(lambda one: one.reveals(_of(one, proofs)))
        last = {
            client: self._sent("secret_unmask", places=sorted(told), proofs=_whole(told), sealed=_whole(sealed))
            for client, (told, sealed) in reveals.items()
        }
        revealed = dict(self._asked(last))
        totals: dict[int, Words] = {}
        for place, one in list(self.sums.items()):
            with self._counting(place):
                totals[place] = one.opened(_of(one, revealed), cache(partial(work, one.places[0] - 1)))
        added = frozenset(client - 1 for place in totals for client in self.sums[place].added)
        return Outcome(totals, added, self.reasons, self.few)

    def _sent(self, kind: str, **values: Any) -> bytes:
        return sent(kind, charter=self.charter.id, session=self.session, **values)

    def _asked(
        self, messages: Mapping[int, bytes], whole: Callable[[int], bytes] | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Send clients their messages, and yield what each of them says."""
        given = {client - 1: message for client, message in messages.items()}
        again = (lambda client: whole(client + 1)) if whole is not None else given.__getitem__
        answers, reasons = ask_with_retry(self.ask, given, again)
        self.reasons |= reasons
        left = dict(answers)
        del answers, given
        for client in list(left):
            try:
                yield client + 1, received(decode(left.pop(client), ("secret",)))["data"]
            except WireError as error:
                self.reasons[client] = str(error)

    def _each(self, step: Callable[[Collector], Mapping[int, T]]) -> dict[int, T]:
        """Take a step of every sum that has enough clients left."""
        found: dict[int, T] = {}
        for place, one in list(self.sums.items()):
            with self._counting(place):
                found |= step(one)
        return found

    @contextmanager
    def _counting(self, place: int) -> Iterator[None]:
        """Leave out a sum of which too few are left, or that somebody spoiled."""
        try:
            yield
        except SumError as error:
            log.warning("%s", error)
            one = self.sums.pop(place)
            self.few.append(error if isinstance(error, TooFewError) else TooFewError(0, len(one.places), one.threshold))


def _of(one: Collector, said: Mapping[int, bytes]) -> dict[int, bytes]:
    return {client: said[client] for client in one.places if client in said}


def _whole(each: Mapping[int, bytes]) -> bytes:
    return b"".join(each[client] for client in sorted(each))


def _keys(each: Mapping[int, bytes]) -> bytes:
    return joined((each[client] for client in sorted(each)), KEY_LENGTH)
