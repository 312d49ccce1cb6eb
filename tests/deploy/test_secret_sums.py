"""Secret sums in a federation: bit for bit those of the simulator, whoever vanishes at whichever message."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbac import Perceptron
from fedbac.core.links import Ledger
from fedbac.core.parts import Parts
from fedbac.core.requests import Average, Trained
from fedbac.data import toy
from fedbac.deploy.protocol.failures import SiteError
from fedbac.deploy.protocol.heads import KINDS, kind_of
from fedbac.deploy.protocol.messages import sent
from fedbac.deploy.protocol.wire import ROOM, Message, decode, encode
from fedbac.deploy.roles import secret_sums
from fedbac.deploy.transports.base import Counted
from fedbac.engines.secret import SecretAverage
from fedbac.errors import ConfigError
from fedbac.federation import assemble
from fedbac.presets.methods import METHODS
from fedbac.presets.tasks import TASKS
from fedbac.runs.configure import Inputs, configure
from tests.covering import first
from tests.deploy.in_memory import MemoryChildren, MemoryFederation, cut
from tests.deploy.small import small
from tests.deploy.test_roles import EVERY_ROUND, PERSIST, TWICE, same
from tests.support import without
from tests.unit.tiny import tiny_run, tiny_task

SECRET = ("method.aggregation.secret=true", "method.aggregation.threshold=2")
CASES: dict[str, tuple[str, ...]] = {
    "losses of clusters and an edge's accuracy": ("fed-bac", "method.selection.fraction=1.0", *EVERY_ROUND),
    "no edges between": ("fedavg",),
    "a network that the client keeps, and momentum": ("ditto", PERSIST, TWICE),
    "a head that the edge keeps": ("fedper-edges",),
    "two parts that come back as one": ("fedala-edges",),
    "corrections of everybody and of each client": ("scaffold",),
    "losses of every epoch": ("fedgwc-edges",),
    "examples that count": ("scaffold", "method.client_weight=examples"),
    "clip and noise": ("hierfavg", "method.links.client_up=[clip, {kind: noise, multiplier: 0.01}]"),
    "changes from what clients had": ("hierfavg", "method.links.client_down=eight_bits"),
    "teachers": ("phe-fl-kd",),
}


@pytest.mark.parametrize("case", first(2, CASES))
def test_sums_are_those_of_the_simulator(case: str, tmp_path: Path) -> None:
    method, *settings = CASES[case]
    same(small(method, *settings, *SECRET), tmp_path, global_too=method not in ("fedper-edges", "fedala-edges"))


def test_test_data_may_be_split_over_clients(tmp_path: Path) -> None:
    """Edges without test data learn what their clients measure together; in a simulation edges hold these data."""
    tiny = small("hierfavg", *SECRET, tests_at="clients", rounds=2)
    simulated, deployed = tiny.simulated().records, tiny.federation(tmp_path).run().records
    for mine, theirs in zip(deployed, simulated, strict=True):
        assert mine["loss"] == theirs["loss"]
        told = [name for name, value in theirs.items() if name.startswith("accuracy") and isinstance(value, float)]
        assert told
        assert {name: mine[name] for name in told} == pytest.approx({name: theirs[name] for name in told}, abs=1e-6)


class Vanishing(MemoryChildren):
    """Children of whom some give no answer to one kind of message in the first round: their processes are gone."""

    def __init__(self, children: MemoryChildren, kind: str, gone: set[str]) -> None:
        super().__init__(children.answers)
        self.kind, self.gone = kind, gone

    def call(
        self, messages: Mapping[str, bytes], deadline: float, limit: int = ROOM
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        if self.kind in map(kind_of, messages.values()):
            self.lost = self.gone
        return super().call(messages, deadline, limit)


FIVE = ("secret_fit", "secret_keys", "secret_shares", "secret_confirm", "secret_unmask")


@pytest.mark.parametrize("kind", first(1, FIVE))
def test_thirty_percent_may_vanish_at_each_message(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The edge's averages are, to the bit, those of the simulator over the clients whose numbers came."""
    task = tiny_task(num_edges=1, clients_per_edge=10, rounds=1)
    data = toy(train=300, test=60)
    settings = ("method.aggregation.secret=true", "method.selection.fraction=1.0")
    experiment = configure("hierfavg", task, settings=settings, inputs=Inputs(dataset=data))
    asked: list[tuple[Average, Parts, Any]] = []
    add = SecretAverage.add

    def noted(average: SecretAverage, parts_C: Parts, loss_C: Any) -> None:
        asked.append((average.request, parts_C, loss_C))
        add(average, parts_C, loss_C)

    with monkeypatch.context() as patch:
        patch.setattr(SecretAverage, "add", noted)
        tiny_run("hierfavg", *settings, task=task, dataset=data)
    ((request, parts_C, loss_C),) = asked
    federation = MemoryFederation(experiment, tmp_path, cut(data, assemble(experiment, dataset=data).shards))
    gone = {f"edge-0-client-{number}" for number in (1, 4, 8)}
    enrolled = federation.enrol()
    edge = federation.edges["edge-0"]
    edge.children = Vanishing(federation.children("edge-0"), kind, gone)
    federation.run(enrolled=enrolled)
    assert edge.handler is not None
    lost = [] if kind in ("secret_confirm", "secret_unmask") else [1, 4, 8]
    size_C = request.size_C.copy()
    size_C[lost] = 0  # who counts for nothing adds nothing
    expected = SecretAverage(Average(request.train, size_C, secret=request.secret))
    expected.add(parts_C, loss_C)
    averaged = expected.averaged(Trained({}, loss_C))
    for name, value in averaged.bank["global"].items():
        assert torch.equal(edge.handler.trained[1]["global"][name], value)
    assert int(averaged.weight["global"][0]) == size_C.sum()


def test_a_round_of_too_few_is_played_again_with_fresh_secrets(tmp_path: Path) -> None:
    federation = small("hierfavg", *SECRET, rounds=1).federation(tmp_path, min_edges=2, min_clients=1)
    enrolled = federation.enrol()
    edge, sessions = federation.edges["edge-1"], set[str]()
    links = edge.children = Vanishing(
        federation.children("edge-1"), "secret_unmask", {"edge-1-client-0", "edge-1-client-1"}
    )

    def back(text: str) -> None:
        links.lost, links.kind = set(), ""

    federation.waited = back
    for name, holder in federation.shops.items():
        begun = holder.sums._begun

        def noted(session: str, begun: Any = begun) -> Any:
            sessions.add(session)
            return begun(session)

        if name.startswith("edge-1"):
            holder.sums._begun = noted  # type: ignore[method-assign]
    records = federation.run(enrolled=enrolled).records
    assert len(federation.said) == 1
    assert (
        "1 of 3 clients are left in a secret sum, which needs 3" in federation.said[0]
        or "edges answered" in federation.said[0]
    )
    assert len(sessions) == 2
    assert without(records) == without(small("hierfavg", *SECRET, rounds=1).simulated().records)


def test_a_client_that_was_started_again_tells_nothing_of_a_sum_before(tmp_path: Path) -> None:
    federation = small("hierfavg", *SECRET, rounds=1).federation(tmp_path)
    enrolled = federation.enrol()
    federation.run(enrolled=enrolled)
    holder = next(holder for name, holder in federation.shops.items() if "client" in name)
    charter = enrolled.charter.id
    session = holder.sums.session
    for again in (session, "0" * 32):
        asking = sent("secret_unmask", charter=charter, session=again, places=(1, 2), proofs=b"", sealed=b"x")
        with pytest.raises(Exception, match="it takes no part in this secret sum"):
            holder.answer(asking)


def test_a_client_tells_nothing_but_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edge that asks in the clear what it asked in a sum gets no answer."""
    federation = small("hierfavg", *SECRET, rounds=1).federation(tmp_path)
    payloads: list[bytes] = []
    decoded = decode

    def noted(data: Any, kinds: Any) -> Any:
        payloads.append(data)
        return decoded(data, kinds)

    monkeypatch.setattr(secret_sums, "decode", noted)
    federation.run()
    asked = [data for data in payloads if kind_of(data) in ("fit", "evaluate")]
    assert {kind_of(data) for data in asked} >= {"fit"}
    for data in asked:
        with pytest.raises(SiteError, match="it takes no part in this secret sum"):
            federation.shops["edge-0-client-0"].answer(data)


class Deviating(MemoryChildren):
    """An edge tells one of its clients something else than the others."""

    def __init__(self, children: MemoryChildren, name: str, kind: str, change: Callable[[Message], Message]) -> None:
        super().__init__(children.answers)
        self.name, self.kind, self.change = name, kind, change

    def call(
        self, messages: Mapping[str, bytes], deadline: float, limit: int = ROOM
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        sent = dict(messages)
        if self.name in sent and kind_of(sent[self.name]) == self.kind:
            changed = self.change(decode(sent[self.name], KINDS))
            sent[self.name] = encode(changed.kind, changed.head, changed.tensors)
        return super().call(sent, deadline, limit)


def _another_rate(message: Message) -> Message:
    payload = decode(message.tensors["payload"].numpy().tobytes(), KINDS)
    head = {**payload.head, "train": {**payload.head["train"], "learning_rate": 0.5}}
    return _with_payload(message, encode(payload.kind, head, payload.tensors))


def _another_network(message: Message) -> Message:
    payload = decode(message.tensors["payload"].numpy().tobytes(), KINDS)
    return _with_payload(message, encode(payload.kind, payload.head, {p: 2 * t for p, t in payload.tensors.items()}))


def _with_payload(message: Message, payload: bytes) -> Message:
    tensors = {**message.tensors, "payload": torch.frombuffer(bytearray(payload), dtype=torch.uint8)}
    return Message(message.kind, message.head, tensors)


def _another_scale(message: Message) -> Message:
    fixed = message.head["fixed"]
    return Message(message.kind, {**message.head, "fixed": {**fixed, "weights": fixed["weights"] - 1}}, message.tensors)


def _fewer(message: Message) -> Message:
    places = [place for place in message.head["places"] if place != 5]
    return Message(message.kind, {**message.head, "places": places}, message.tensors)


OTHERWISE = "whoever asks may tell clients different things"
DEVIATIONS: dict[str, tuple[str, Callable[[Message], Message], str]] = {
    "learning rate": ("secret_fit", _another_rate, OTHERWISE),
    "network": ("secret_fit", _another_network, OTHERWISE),
    "scale": ("secret_fit", _another_scale, OTHERWISE),
    "clients": ("secret_shares", _fewer, "the keys of clients are cut short, or too long"),
    "survivors": ("secret_confirm", _fewer, "a sum of 2 clients is refused; 3 are needed"),
}


@pytest.mark.parametrize("what", DEVIATIONS)
def test_a_client_that_is_told_something_else_than_others_reveals_nothing(what: str, tmp_path: Path) -> None:
    """So an edge learns nothing of a sum of one client's numbers and others' zeros, and its part of the round is lost:
    each of three clients is needed."""
    federation = small("hierfavg", *SECRET, "method.selection.fraction=1.0", rounds=1).federation(tmp_path)
    kind, change, why = DEVIATIONS[what]
    records, told = _deviating(federation, kind, change)
    assert records[0]["selected"][0]
    assert records[0]["selected"][1] == []
    assert len(told) == 1
    assert why in told[0]


@pytest.mark.parametrize(("method", "compared"), [("hierfavg", True), ("fedavg", False)])
def test_what_is_measured_is_compared_where_all_have_the_same_networks(
    method: str, compared: bool, tmp_path: Path
) -> None:
    federation = small(method, *SECRET, rounds=1, tests_at="clients").federation(tmp_path)
    _, told = _deviating(federation, "secret_evaluate", _another_network)
    assert all(OTHERWISE in why for why in told)
    assert bool(told) == compared


def _deviating(
    federation: MemoryFederation, kind: str, change: Callable[[Message], Message]
) -> tuple[Sequence[Any], list[str]]:
    """Play a run in which one client is told something else; return its records, and what the client logs of it."""
    enrolled, told, name = federation.enrol(), list[str](), "edge-1-client-0"
    federation.edges["edge-1"].children = Deviating(federation.children("edge-1"), name, kind, change)
    sums = federation.shops[name].sums
    answer = sums.answer

    def noted(message: Message) -> bytes:
        try:
            return answer(message)
        except SiteError as error:
            told.append(str(error))
            raise

    sums.answer = noted  # type: ignore[method-assign]
    return federation.run(enrolled=enrolled).records, told


def test_a_sum_of_more_examples_than_there_are_is_refused(tmp_path: Path) -> None:
    federation = small("hierfavg", *SECRET, rounds=1).federation(tmp_path)
    enrolled = federation.enrol()
    sums = federation.shops["edge-0-client-0"].sums
    trained = sums._trained

    def lying(said: Any) -> Any:
        words, work = trained(said)
        words.numbers[0] += 10**6
        return words, work

    sums._trained = lying  # type: ignore[method-assign]
    records = federation.run(enrolled=enrolled).records
    assert records[0]["selected"][0] == []
    assert records[0]["selected"][1]


def test_messages_take_what_the_ledger_says(tmp_path: Path) -> None:
    """Of both directions between clients and edges, within five percent; networks are as large as before."""
    dataset, network = toy(size=16, train=200, test=60), Perceptron(hidden=(256,))
    task = tiny_task(network=network, clients_per_edge=5, rounds=1)
    settings = ("method.aggregation.secret=true", "method.clustering.period=1")
    experiment = configure("fed-bac", task, settings=settings, inputs=Inputs(dataset=dataset))
    federation = MemoryFederation(experiment, tmp_path, cut(dataset, assemble(experiment, dataset=dataset).shards))
    enrolled, links = federation.enrol(), []
    for edge in federation.edges.values():
        assert isinstance(edge.children, MemoryChildren)
        links.append(edge.children)
        edge.children = Counted(edge.clients)
        edge.children.traffic()
    for link in links:
        link.bytes_down = link.bytes_up = 0
    records = list(federation.play(enrolled=enrolled))
    ledger = Ledger()
    for record in records:
        for direction, purposes in record["bytes"]["client"].items():
            for purpose, count in purposes.items():
                ledger.add("client", direction, purpose, count)
    for direction, wire in (
        ("down", sum(link.bytes_down for link in links)),
        ("up", sum(link.bytes_up for link in links)),
    ):
        counted = sum(count for (_, way, _), count in ledger.entries.items() if way == direction)
        assert abs(wire - counted) <= 0.05 * wire, (direction, wire, counted)


@pytest.mark.parametrize("name", METHODS)
def test_every_preset_works_with_sums_or_says_why_not(name: str) -> None:
    task = TASKS["demo"]
    try:
        experiment = configure(name, task, settings=("method.aggregation.secret=true",))
    except ConfigError as error:
        text = str(error)
        assert "method.aggregation.secret=true a site sees only sums of clients" in text
        assert text.startswith("method.")
    else:
        assert experiment.method.secret
