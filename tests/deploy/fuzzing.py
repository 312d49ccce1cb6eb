"""Whatever bytes come, a receiver takes them or refuses them: mutated messages for every receiver of a federation.

``python -m tests.deploy.fuzzing 100000`` tries so many.
"""

import logging
import random
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedbac.core.parts import Parts
from fedbac.core.requests import Average, Evaluate, Measured, Train, Trained
from fedbac.deploy.protocol.charter import Charter
from fedbac.deploy.protocol.messages import read_measured, read_trained, sent
from fedbac.deploy.protocol.wire import ROOM, WireError, decode
from fedbac.deploy.roles import enrolment
from fedbac.deploy.roles.calls import FORGOTTEN, STRANGER
from fedbac.deploy.roles.clients import Clients, Updates
from fedbac.deploy.roles.edges import RelayReach, Remote
from fedbac.deploy.roles.enrolment import Enrolled, Roll, charter_of
from fedbac.deploy.roles.history import History
from fedbac.deploy.settings import MemberChanges
from fedbac.errors import DeployError
from fedbac.rounds.late import unheard
from fedbac.rounds.measure import unmeasured
from tests.deploy.in_memory import MemoryChildren, MemoryFederation
from tests.deploy.mutants import mutant
from tests.deploy.small import small

RUNS: tuple[tuple[str, ...], ...] = (
    ("fed-bac", "method.links.client_down.kind=eight_bits", "method.links.cloud_up.kind=eight_bits"),
    ("ditto", "task.training.momentum_state=persist"),
    ("phe-fl-kd",),
    ("cfl",),
    ("oort", "method.links.client_up.kind=top_k"),
    ("hierfavg", "method.links.cloud_down.kind=top_k", "method.links.cloud_up.kind=top_k"),
    ("fedper-edges",),
    ("fedavg", "method.links.client_up=[clip, top_k, eight_bits]"),
)
"""Each has something in its messages that the others have not."""
PER_KIND = 3
"""Messages of a kind that are kept of a run."""


@dataclass(frozen=True)
class Target:
    """A message as it was once sent, and who reads it."""

    name: str
    data: bytes
    read: Callable[[bytes], object]


@dataclass
class Bench:
    """Receivers of a few runs, with the messages that they once got."""

    targets: list[Target] = field(default_factory=list)

    def try_mutants(self, count: int, seed: int) -> Counter[str]:
        """Hand every receiver mutated messages; return how many were taken and refused, by receiver and message."""
        rng = random.Random(seed)
        every = [target.data for target in self.targets]
        weights = [0.15 if "enroll" in target.name or "begin" in target.name else 1.0 for target in self.targets]
        outcomes: Counter[str] = Counter()
        for _ in range(count):
            (target,) = rng.choices(self.targets, weights)  # an experiment takes long to read
            data = mutant(target.data, every, rng)
            outcomes[f"{target.name} {self.outcome(target, data)}"] += 1
        return outcomes

    def outcome(self, target: Target, data: bytes) -> str:
        """Have a message read: it is ``taken`` or ``refused``; anything else is an error of the receiver."""
        try:
            target.read(data)
        except DeployError:
            return "refused"
        except Exception as error:
            message = f"{target.name}: {type(error).__name__}: {error}; the message begins with {data[:2000]!r}"
            raise AssertionError(message) from error
        return "taken"


class Idle:
    """A trainer that hands back what it got, and insists on getting what a trainer can work with."""

    path = "idle"
    device = torch.device("cpu")

    def __init__(self, charter: Charter) -> None:
        self.like = charter.template

    def check(self, bank: Parts) -> None:
        for part, params in bank.items():
            assert list(params) == list(self.like[part])
            for name, value in params.items():
                assert (value.dtype, value.shape[1:]) == (self.like[part][name].dtype, self.like[part][name].shape[1:])

    def train(self, requests: Any) -> list[Trained]:
        return [self._trained(request) for request in requests]

    def _trained(self, request: Train) -> Trained:
        self.check(request.bank)
        assert np.isfinite(request.learning_rate)
        assert set(request.bank) == set(self.like)
        parts = {
            part: {name: value[torch.as_tensor(request.row_C[part])] for name, value in params.items()}
            for part, params in request.bank.items()
        }
        ones = np.full(len(request.clients), np.nan)  # so that nothing is kept
        return Trained(parts, ones, request.momentum, ones, ones[:, None])

    def evaluate(self, requests: Any) -> list[Measured]:
        return [self._measured(request) for request in requests]

    def _measured(self, request: Evaluate) -> Measured:
        self.check(request.bank)
        for part, rows in request.row_V.items():
            for value in request.bank[part].values():
                value[torch.as_tensor(rows)]  # a row that is not there is an error here as it is in a trainer
        shape = (request.num_models, len(request.owners))
        return Measured(np.ones(shape), np.ones(shape), np.ones(shape[1], dtype=np.int64))

    def close(self) -> None:
        pass


class Spied(MemoryChildren):
    """Children whose messages and answers are kept."""

    def __init__(self, children: MemoryChildren) -> None:
        super().__init__(children.answers)
        self.heard: dict[str, list[tuple[str, bytes, bytes]]] = {}

    def call(
        self, messages: Mapping[str, bytes], deadline: float, limit: int = ROOM
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        answers, reasons = super().call(messages, deadline, limit)
        for name, answer in answers.items():
            kind = _kind(messages[name])
            found = self.heard.setdefault(kind, [])
            if answer != STRANGER and (len(found) < PER_KIND or kind == "begin"):
                found.append((name, messages[name], answer))
        return answers, reasons


@contextmanager
def bench() -> Iterator[Bench]:
    """Yield receivers for all kinds of messages."""
    folder = Path(tempfile.mkdtemp())
    logger = logging.getLogger("fedbac")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        found = Bench()
        for number, (method, *settings) in enumerate(RUNS):
            found.targets += _targets(method, tuple(settings), folder / str(number))
        yield found
    finally:
        logger.setLevel(before)
        shutil.rmtree(folder)


def _kind(data: bytes) -> str:
    every = ("enroll", "begin", "train", "measure", "model", "relay", "fit", "evaluate")
    return decode(data, every).kind


def _targets(method: str, settings: tuple[str, ...], folder: Path) -> list[Target]:
    tiny = small(method, *settings, rounds=2)
    federation = tiny.federation(folder)
    federation.accept_rollback = True  # since messages are sent again in another order
    federation.cloud = Spied(federation.cloud)
    clients = Spied(federation.children("edge-0"))
    federation.edges["edge-0"].children = clients
    enrolled = federation.enrol()
    orders: dict[str, list[Any]] = {"train": [], "measure": []}
    remote = federation.connect(enrolled)
    _noting(remote, orders)
    federation.run(enrolled=enrolled, remote=remote)
    at_client = [t for kind in clients.heard for t in _at_client(federation, enrolled, kind, clients)]
    at_edge = [t for kind in clients.heard for t in _answers_of_clients(federation, enrolled, kind, clients)]
    asked = [t for kind in federation.cloud.heard for t in _at_edge(federation, enrolled, kind)]
    answered = [t for kind in federation.cloud.heard for t in _answers_of_edges(federation, enrolled, kind, orders)]
    return [
        Target(f"{method}: {target.name}", target.data, target.read)
        for target in (*at_client, *at_edge, *asked, *answered)
    ]


def _noting(remote: Any, orders: dict[str, list[Any]]) -> None:
    """Keep what the cloud orders, to read the reports by."""
    for verb in orders:
        work = getattr(remote, verb)

        def noted(given: Any, verb: str = verb, work: Any = work) -> Any:
            orders[verb].append(list(given))
            return work(given)

        setattr(remote, verb, noted)


def _at_client(federation: MemoryFederation, enrolled: Enrolled, kind: str, links: Spied) -> Iterator[Target]:
    for name, data, _ in links.heard[kind][:PER_KIND]:
        holder = federation.shops[name]

        def read(changed: bytes, holder: Any = holder) -> bytes:
            holder.charter, holder.data = enrolled.charter, holder._held_out(enrolled.charter.experiment)
            holder.__dict__["trainer"] = Idle(enrolled.charter)
            return holder.answer(changed)  # type: ignore[no-any-return]

        yield Target(f"{kind} at a client", data, read)


def _answers_of_clients(federation: MemoryFederation, enrolled: Enrolled, kind: str, links: Spied) -> Iterator[Target]:
    edge = federation.edges["edge-0"]
    for name, data, answer in links.heard[kind][:PER_KIND]:
        if kind == "enroll":
            enroll = data

            def facts(changed: bytes, name: str = name, enroll: bytes = enroll) -> bytes:
                edge.children = MemoryChildren({name: lambda payload, gone: changed})
                return edge.answer(enroll, threading.Event())

            yield Target("facts at an edge", answer, facts)
        elif kind in ("fit", "evaluate"):
            yield Target(f"answer to {kind}", answer, _as_answer(federation, enrolled, name, data, kind))


def _as_answer(
    federation: MemoryFederation, enrolled: Enrolled, name: str, data: bytes, kind: str
) -> Callable[[bytes], object]:
    """Return how an edge reads a client's answer: with the request made again from what the client was sent."""
    reach, charter = Told(), enrolled.charter
    holder = federation.shops[name]
    asked: list[Any] = []

    class Keeping(Idle):
        def train(self, requests: Any) -> list[Trained]:
            asked.append(requests[0])
            return super().train(requests)

        def evaluate(self, requests: Any) -> list[Measured]:
            asked.append(requests[0])
            return super().evaluate(requests)

    holder.charter = charter
    holder.__dict__["trainer"] = Keeping(charter)
    holder.answer(data)
    clients = Strict(charter, reach, federation.folder)

    def read(changed: bytes) -> object:
        reach.answer = changed
        request = asked[0]
        if kind != "fit":
            return clients.evaluate(request)
        keep = frozenset(charter.without(request.bank, "client"))
        return clients._trained(Average(request, np.ones(1, dtype=np.int64), keep), Updates(federation.folder))[0]

    return read


class Told:
    """A way to clients who all say the same."""

    answer = b""

    def clients(self) -> frozenset[int]:
        return frozenset()

    def ask(self, messages: Mapping[int, bytes]) -> tuple[dict[int, bytes], dict[int, str]]:
        return dict.fromkeys(messages, self.answer), {}

    ask_edges = ask


class Strict(Clients):
    """Refuses what others only note."""

    def note(self, asked: Iterable[int], reasons: Mapping[int, str]) -> None:
        if reasons:
            raise WireError(str(reasons))


def _at_edge(federation: MemoryFederation, enrolled: Enrolled, kind: str) -> Iterator[Target]:
    """An edge whose clients are all gone, so that reading an order is all it does."""
    assert isinstance(federation.cloud, Spied)
    for name, data, _ in federation.cloud.heard[kind][:PER_KIND]:
        edge = federation.edges[name]
        gone = MemoryChildren({child: lambda payload, gone: b"" for child in edge.site.children})
        gone.lost = set(edge.site.children)

        def read(changed: bytes, edge: Any = edge, gone: MemoryChildren = gone) -> bytes:
            if edge.handler is None or edge.handler.charter is not enrolled.charter or edge.children is not gone:
                edge.children = gone
                known = enrolled.charter.known_to(edge.site.name)
                edge.answer(sent("begin", charter=enrolled.charter.text, known=known), threading.Event())
                edge.handler.charter = enrolled.charter
                if edge.holder is not None:
                    edge.holder.charter = enrolled.charter
            if edge.holder is not None:
                edge.holder.__dict__["trainer"] = Idle(enrolled.charter)
            return edge.answer(changed, threading.Event())  # type: ignore[no-any-return]

        yield Target(f"{kind} at an edge", data, read)


def _answers_of_edges(
    federation: MemoryFederation, enrolled: Enrolled, kind: str, orders: Mapping[str, list[Any]]
) -> Iterator[Target]:
    assert isinstance(federation.cloud, Spied)
    charter = enrolled.charter
    for place, (name, _, answer) in enumerate(federation.cloud.heard[kind][:PER_KIND]):
        number = int(name.removeprefix("edge-"))
        if kind in ("train", "measure"):
            order = orders[kind][place // len(charter.clients)][number]
            site = charter.sites[number]

            def report(changed: bytes, order: Any = order, site: Any = site) -> object:
                message = decode(changed, ("trained", "measured", "absent"))
                if kind == "train":
                    lost = unheard(order, site, charter.epochs(None))
                    return read_trained(message, lost, order, site, charter)
                return read_measured(message, unmeasured(order, site), order, site, charter)

            yield Target(f"answer to {kind}", answer, report)
        elif kind == "enroll":

            def roll(changed: bytes, number: int = number, name: str = name) -> object:
                return _enrolled_anew(federation, number, changed)

            yield Target("facts at the cloud", answer, roll)
        elif kind == "relay":

            def relayed(changed: bytes, number: int = number) -> object:
                children = MemoryChildren({f"edge-{number}": lambda payload, gone: changed})
                history = History(charter, tuple, False, {})
                rest = (children, federation.deploy, lambda text: None, lambda: False, history, set[str]())
                reach = RelayReach(Remote(charter, *rest))
                return reach.ask({charter.clients[number][0]: b"x"}), reach.ask_edges({number: b"x"})

            yield Target("relayed at the cloud", answer, relayed)


def _enrolled_anew(federation: MemoryFederation, number: int, changed: bytes) -> object:
    """Have the cloud write a charter from one edge's mutated facts, and the true ones of the others."""
    expected = {name: list(edge.site.children) for name, edge in federation.edges.items()}
    roll = Roll({}, {}, {}, {})
    for m, (name, clients) in enumerate(expected.items()):
        true = next(answer for who, _, answer in federation.cloud.heard["enroll"] if who == name)  # type: ignore[attr-defined]
        enrolment._note(roll, name, clients, changed if m == number else true, len(clients), {})
    if set(roll.clients) != {name for clients in expected.values() for name in clients}:
        raise WireError("it was not taken")
    anew = charter_of(federation.experiment, roll, MemberChanges())
    return anew.normalization, anew.classes_per_edge(), anew.charter.id


class Liars:
    """Children of whom some, now and then, answer with something else than they meant."""

    def __init__(self, share: float, seed: int) -> None:
        self.share, self.rng = share, random.Random(seed)
        self.others: list[bytes] = [STRANGER, FORGOTTEN]
        self.lies = 0

    def among(self, children: Any) -> MemoryChildren:
        """Return the same children, with lies."""
        return MemoryChildren({name: self._lying(answer) for name, answer in children.answers.items()})

    def _lying(self, answer: Callable[..., bytes]) -> Callable[..., bytes]:
        def lying(payload: bytes, gone: threading.Event) -> bytes:
            said = answer(payload, gone)
            self.others = [*self.others[-20:], said]
            if said == STRANGER or self.rng.random() > self.share:
                return said
            self.lies += 1
            return mutant(said, self.others, self.rng)

        return lying


def fuzz(count: int, seed: int = 0) -> Counter[str]:
    """Try so many mutated messages, on all receivers in turn; raise an AssertionError that names the first bad one."""
    with bench() as found:
        return found.try_mutants(count, seed)


if __name__ == "__main__":
    for outcome, number in sorted(fuzz(int(sys.argv[1]), random.SystemRandom().getrandbits(32)).items()):
        sys.stdout.write(f"{number:8d}  {outcome}\n")
