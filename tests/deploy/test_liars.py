"""Genuine sites that send finite garbage: it is left out, its sender is named and sits rounds out, and comes back."""

import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbac.core.aggregation import EdgeAverage
from fedbac.deploy.protocol.failures import Failure
from fedbac.deploy.protocol.heads import kind_of
from fedbac.deploy.protocol.messages import read_update, sent
from fedbac.deploy.protocol.wire import ROOM, Message, encode
from fedbac.deploy.roles import clients
from fedbac.deploy.roles.calls import Caller
from fedbac.deploy.roles.standing import Drift, Standing
from fedbac.deploy.transports.base import NO_ANSWER
from fedbac.errors import DeployError
from fedbac.rounds.messages import Wanted
from fedbac.runs.checkpoints import newest
from fedbac.runs.store import RunFolder
from tests.covering import first
from tests.deploy.in_memory import MemoryChildren, MemoryFederation
from tests.deploy.links import SECOND, Identities, child, edge
from tests.deploy.small import FIRST, begun, played, small
from tests.deploy.test_lost_peers import again, lies, raises
from tests.support import Record, without

LIAR = "edge-1-client-0"
"""Number 2, of three at its edge."""
ALL = "method.selection.fraction=1.0"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)


def blown_up(rounds: tuple[int, ...], value: float = 1e30) -> Callable[[Message], bytes]:
    """Return a lie: finite weights of 1e30 or so, the first or the second time and so on."""
    told: list[int] = []

    def lie(message: Message) -> bytes:
        told.append(1)
        if len(told) not in rounds:
            return encode(message.kind, message.head, message.tensors)
        networks = ("trained/parts_C/", "report/bank/")
        garbage = {p: torch.full_like(t, value) if p.startswith(networks) else t for p, t in message.tensors.items()}
        return encode(message.kind, message.head, garbage)

    return lie


def chosen(record: Record) -> list[int]:
    return [client for clients in record["selected"] for client in clients]


@pytest.mark.parametrize("method", first(1, ["hierfavg", "fedavg"]))
def test_an_update_far_from_all_others_is_left_out_and_its_sender_named(
    method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It lies in its first and its second training, sits out one round and then two, and comes back."""
    caplog.set_level("INFO")
    federation, enrolled = begun(tmp_path, method, ALL, rounds=6)
    lies(federation, LIAR, "update", blown_up((1, 2)))
    records = played(federation, enrolled)
    assert [2 in chosen(record) for record in records] == [True, False, True, False, False, True]
    assert [record["failed"] for record in records] == [[2], [], [2], [], [], []]
    assert [list(record.get("reasons", ())) for record in records] == [[LIAR]] * 5 + [[]]
    assert "it sits out 2 rounds" in records[2]["reasons"][LIAR]
    assert f"{LIAR} is left out, and sits out 1 round(s): its update changes" in caplog.text
    assert f"round 1: {LIAR}: its update changes" in caplog.text
    assert f"{LIAR} may take part again" in caplog.text


def test_an_edge_whose_own_test_data_cannot_be_is_not_half_enrolled(tmp_path: Path) -> None:
    """Its clients would be missing from the charter, though everybody seemed to be there."""
    federation, told = small("hierfavg").federation(tmp_path), []

    def lie(message: Message) -> bytes:
        told.append(message.kind)
        head = dict(message.head)
        if len(told) == 1:
            head["edge"] = {**head["edge"], "test": head["edge"]["test"] + 1}
        return encode(message.kind, head, message.tensors)

    lies(federation, "edge-0", "roster", lie)
    assert FIRST in federation.enrol().charter.commitments
    assert told == ["roster", "roster"]


def test_the_round_is_that_of_the_others(tmp_path: Path) -> None:
    """What it sent has no effect: the numbers are those of a round in which it failed."""
    federation, enrolled = begun(tmp_path / "lies", "fed-bac", ALL, rounds=3)
    lies(federation, LIAR, "update", blown_up((1,)))
    silent, agreed = begun(tmp_path / "silent", "fed-bac", ALL, rounds=3)
    playing = silent.play(enrolled=agreed)
    honest = silent.children("edge-1").answers[LIAR]
    lies(silent, LIAR, "update", raises)
    records = [next(playing)]
    silent.children("edge-1").answers[LIAR], silent.children("edge-1").lost = honest, {LIAR}
    records.append(next(playing))
    silent.children("edge-1").lost = set()
    records.append(next(playing))
    told = played(federation, enrolled)
    assert without(told, "reasons") == without(records)


def test_an_edge_whose_average_is_far_from_all_others_is_absent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation, enrolled = begun(tmp_path, "hierfavg", rounds=6)
    lies(federation, "edge-0", "trained", blown_up((2, 3)))
    remote = federation.connect(enrolled)
    records = federation.run(enrolled=enrolled, remote=remote).records
    assert [record["absent"] for record in records] == [[], [0], [0], [0], [0], [0]]
    assert [list(record.get("reasons", ())) for record in records] == [[]] + [["edge-0"]] * 5
    assert list(remote.left_out) == ["edge-0"]
    assert [record["accuracy_per_edge"][0] is None for record in records] == [False] + [True] * 5
    assert "round 2: edge-0: its update changes" in caplog.text


def test_whoever_trusts_everybody_turns_it_off(tmp_path: Path) -> None:
    federation, enrolled = begun(tmp_path, "hierfavg", ALL, rounds=1, outlier_factor=0)
    lies(federation, LIAR, "update", blown_up((1,)))
    (record,) = played(federation, enrolled)
    assert (record["failed"], "reasons" in record) == ([], False)


def far(standing: Standing, *norms: float, of: str = "all", unit: float = 1.0, sent: float = 0.0) -> list[int]:
    """Return the places of the norms that are called far."""
    found = standing.outliers(of, {str(n): Drift(norm, sent, unit) for n, norm in enumerate(norms)})
    return [int(name) for name in found]


def test_far_is_ten_times_the_median_of_this_round_and_earlier_ones() -> None:
    standing = Standing(10.0)
    assert far(standing, 1.0, 99.0) == []  # two are too few to tell who is usual
    assert far(standing, 1.0, 1.0, 1.0, 11.0) == [3]
    assert far(standing, 9.0) == []
    assert far(standing, 11.0) == [0]
    assert far(standing, 20.0, 21.0, 22.0) == []  # all of them together: training has changed
    assert far(standing, 1e-9, 11.0, of="the head alone") == []
    assert far(Standing(10.0), 1.0, 1e7) == [1]  # beyond all measure, whatever is known


def test_far_is_garbageby_the_learning_rate_and_what_was_sent() -> None:
    standing = Standing(10.0)
    far(standing, 1.0, 1.0, 1.0)
    assert far(standing, 99.0, unit=10.0) == []
    assert far(standing, 101.0, unit=10.0) == [0]
    assert far(standing, 99.0, sent=1000.0) == []
    assert far(standing, 101.0, sent=1000.0) == [0]


def test_a_child_sits_out_twice_as_many_rounds_each_time_and_a_good_one_makes_up_for_a_bad_one() -> None:
    standing = Standing(10.0)

    def rounds_out() -> int:
        standing.begin(1)
        standing.strike("a", Failure.UNUSABLE)
        count = 0
        while "a" in standing.back:
            standing.begin(1)
            count += "a" in standing.back
        return count

    assert [rounds_out() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 32, 32]
    for _ in range(8):
        standing.trust("a")
    assert rounds_out() == 1


@pytest.mark.parametrize(
    ("liar", "kind"), [(FIRST, "update"), pytest.param("edge-0", "trained", marks=pytest.mark.full)]
)
@pytest.mark.parametrize("method", first(1, ["hierfavg", "fedavg"]))
def test_a_parent_that_is_started_again_remembers_who_misbehaved(
    liar: str, kind: str, method: str, tmp_path: Path
) -> None:
    """And what is usual, or each restart would give a liar another chance where there are few to compare it with."""
    if (liar, method) == ("edge-0", "fedavg"):
        return  # its edges do not train

    def started(*lying: int) -> MemoryFederation:
        federation = small(method, ALL, rounds=5).federation(tmp_path)
        lies(federation, liar, kind, blown_up(lying, 100.0))
        return federation

    first = started(3)
    enrolled = first.enrol()
    playing = first.play(tmp_path / "run", enrolled)
    for _ in range(3):
        next(playing)
    playing.close()
    records = started(1).run(tmp_path / "run", enrolled).records
    assert [list(record.get("reasons", ())) for record in records] == [[], [], [liar], [liar], [liar]]
    assert "it sits out 1 round" in records[3]["reasons"][liar]
    assert "it sits out 2 rounds" in records[4]["reasons"][liar]
    assert [0 in chosen(record) for record in records[2:4]] == [kind == "update", False]


def test_a_record_of_misbehaviour_that_cannot_be_read_is_a_clean_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "standing.json"
    for text in ("{", "[]", "{}", '{"known": [[1]]}', '{"known": [], "else": 1}', '{"known": 1}', "[" * 100_000):
        file.write_text(text)
        assert Standing.kept(10.0, file) == Standing(10.0, file)
        assert "begins with a clean record" in caplog.text
        caplog.clear()
    file.write_text('{"known": []}')
    Standing(10.0, tmp_path / "standing.json" / "below").keep()  # no folder, no room: the round goes on
    assert "cannot be written" in caplog.text


# --------------------------------------------------------------------- rounds that can be played no more


TRUSTING = {"outlier_factor": 0, "max_repeats": 2}


@pytest.mark.parametrize(
    ("method", "lie"),
    [("hierfavg", 3), *(pytest.param(*other, marks=pytest.mark.full) for other in [("fedavg", 2), ("hierfavg", 1)])],
)
def test_from_networks_that_broke_down_the_cloud_goes_back(
    method: str, lie: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And then plays what it would have played without the liar."""
    federation, enrolled = begun(tmp_path / "lies", method, ALL, rounds=4, **TRUSTING)
    federation.most_said = 100
    lies(federation, LIAR, "update", blown_up((lie,), 1e38))
    records = federation.run(tmp_path / "run", enrolled).records
    honest, enrolled = begun(tmp_path / "honest", method, ALL, rounds=4)
    assert without(records) == without(played(honest, enrolled))
    assert len([text for text in federation.said if f"round {lie + 1} is played again" in text]) == 2
    assert f"going back to round {lie - 1}" in caplog.text


def test_a_cloud_that_cannot_go_back_stops_and_keeps_its_folder(tmp_path: Path) -> None:
    federation, enrolled = begun(tmp_path / "lies", "hierfavg", ALL, rounds=4, **TRUSTING)
    federation.most_said = 100
    lies(federation, LIAR, "update", blown_up(tuple(range(2, 99)), 1e38))
    with pytest.raises(DeployError, match=r"round 3 was repeated 2 times .* No older checkpoint is left to go back to"):
        federation.run(tmp_path / "run", enrolled)
    assert newest(tmp_path / "run" / "checkpoint") == 2
    assert len(RunFolder(tmp_path / "run").read().records) == 2


def test_a_round_is_waited_for_without_limit_while_sites_are_away(tmp_path: Path) -> None:
    federation, enrolled = begun(tmp_path, "hierfavg", rounds=2, min_clients=2, min_edges=2, max_repeats=1)
    federation.most_said = 100
    federation.children("edge-0").lost = {FIRST}

    def waited(text: str) -> None:
        if len(federation.said) == 20:
            federation.children("edge-0").lost = set()

    federation.waited = waited
    assert len(federation.run(tmp_path / "run", enrolled).records) == 2


# -------------------------------------------------------------------------------- numbers that are claimed


@pytest.mark.parametrize("loss", first(1, [np.nan, np.inf, 1e300]))
def test_a_client_whose_losses_are_beyond_all_measure_is_not_asked_in_vain(loss: float, tmp_path: Path) -> None:
    """Its edge's loss of every cluster is that of the others."""
    federation, enrolled = begun(
        tmp_path / "lies", "ifca-edges", ALL, "method.clustering.num_clusters=2", "method.clustering.period=1", rounds=3
    )
    lies(federation, LIAR, "evaluation", lambda m: again(m, measured__loss_VG=m.tensors["measured/loss_VG"] * 0 + loss))
    records = played(federation, enrolled)
    silent, enrolled = begun(
        tmp_path / "silent",
        "ifca-edges",
        ALL,
        "method.clustering.num_clusters=2",
        "method.clustering.period=1",
        rounds=3,
    )
    lies(silent, LIAR, "evaluation", raises)
    assert without(records) == without(played(silent, enrolled))


def more(message: Message) -> bytes:
    """Say that there are a hundred times as many examples."""
    facts = message.head["facts"]
    sums = [[100 * number for number in row] for row in facts["sums"]]
    told = {"train": 100 * facts["train"], "validation": 100 * facts["validation"], "sums": sums}
    return encode("facts", {"facts": facts | told | {"classes": [100 * n for n in facts["classes"]]}}, {})


def test_whoever_says_that_it_holds_most_examples_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    federation = small("hierfavg").federation(tmp_path)
    lies(federation, LIAR, "facts", more)
    federation.enrol()
    assert f"{LIAR} says that it holds" in caplog.text


def test_a_client_of_images_that_speaks_of_tokens_is_not_believed(tmp_path: Path) -> None:
    federation = small("hierfavg", rounds=1).federation(tmp_path, start_after=1e-9)

    def tokens(message: Message) -> bytes:
        return encode("facts", {"facts": message.head["facts"] | {"largest_token": 10**7}}, {})

    lies(federation, LIAR, "facts", tokens)
    assert LIAR not in federation.enrol().charter.commitments


@pytest.mark.parametrize("by", ["edge", "each", "client", "site"])
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_nobody_measures_on_more_examples_than_the_charter_has(by: Any, split: Any, tmp_path: Path) -> None:
    charter = begun(tmp_path, "ditto")[1].charter
    assert sum(charter.held("test"))
    for site in charter.sites:
        count_G = charter.groups(Wanted({}, split, by=by), site)
        held = charter.held(split)
        assert count_G.sum() == sum(held[client] for client in site.clients)
        assert len(count_G) == {"edge": 1, "site": 1}.get(by, len(site.clients))


# ------------------------------------------------------------------------------------------- memory


@pytest.mark.covering
@pytest.mark.parametrize("links", [(), ("method.links.client_up.kind=eight_bits",)])
@pytest.mark.parametrize("method", ["fed-bac", "fedavg", "cfl"])
def test_an_answer_may_have_what_its_networks_take_and_some_room(
    method: str, links: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With little room beside the networks, all honest messages still pass."""
    monkeypatch.setattr("fedbac.deploy.protocol.charter.ROOM", 8192)
    federation, enrolled = begun(tmp_path, method, *links, ALL, rounds=2)
    assert all(not record["failed"] and not record["absent"] for record in played(federation, enrolled))
    (network, *_), most = enrolled.charter.template.values(), enrolled.charter.longest_answer
    assert most("measure") < most("fit") < 4 * sum(value.nbytes for value in network.values()) + 16384


def test_updates_are_let_go_as_they_are_averaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, add = read_update, EdgeAverage.add
    updates: list[Any] = []
    alive: list[int] = []

    def reading(*args: Any) -> Any:
        found = read(*args)
        updates.append(weakref.ref(next(iter(found.parts_C["global"].values()))))
        return found

    def adding(average: Any, *args: Any) -> None:
        alive.append(sum(update() is not None for update in updates))
        add(average, *args)

    federation, enrolled = begun(tmp_path, "hierfavg", ALL, rounds=1)
    monkeypatch.setattr(clients, "read_update", reading)
    monkeypatch.setattr(EdgeAverage, "add", adding)
    played(federation, enrolled)
    assert set(alive) == {0}


# ------------------------------------------------------------------------------------------ slow sites


class Timed(MemoryChildren):
    """Children who take a known time, by a clock of their own; whoever is too slow is late."""

    def __init__(self, seconds: dict[str, float], now: list[float]) -> None:
        super().__init__({name: lambda payload, gone: sent("ready") for name in seconds})
        self.seconds, self.now = seconds, now
        self.deadlines: list[float] = []

    def call(
        self, messages: Mapping[str, bytes], deadline: float, limit: int = ROOM
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        answers, _ = super().call(messages, deadline, limit)
        late = [name for name in answers if self.seconds[name] > deadline]
        self.now[0] += min(deadline, max(self.seconds[name] for name in messages))
        self.deadlines.append(deadline)
        return {n: a for n, a in answers.items() if n not in late}, dict.fromkeys(late, f"{NO_ANSWER} {deadline:g} s")


def test_a_deadline_follows_what_children_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    children = Timed({"a": 2.0, "b": 5.0}, now)
    caller = Caller(children, begun(tmp_path, "hierfavg")[1].charter, min_deadline=10.0)

    def deadline(*names: str) -> float:
        caller.ask(dict.fromkeys(names, sent("revoked", list="")), 300.0)
        return children.deadlines[-1]

    assert deadline("a", "b") == 300  # nothing is known
    assert deadline("a", "b") == 20
    assert deadline("a") == 20  # it took no longer than both together
    assert deadline("a") == 10
    children.seconds |= {"b": 999.0, "c": 1.0}
    children.answers["c"] = children.answers["a"]
    assert deadline("c") == 20  # as others
    assert deadline("b") == 20
    assert deadline("b") == 80  # it may only be slow
    assert deadline("b") == 300
    assert deadline("a") == 10


def test_a_client_that_misses_its_deadline_sits_rounds_out(tmp_path: Path) -> None:
    federation, enrolled = begun(tmp_path, "hierfavg", ALL, rounds=4)
    asked: list[int] = []

    def stuck(message: Message) -> bytes:
        asked.append(1)
        raise TimeoutError(f"{NO_ANSWER} 32 s")

    lies(federation, LIAR, "update", stuck)
    records = played(federation, enrolled)
    assert [2 in chosen(record) for record in records] == [True, False, True, False]
    assert len(asked) == 2
    assert records[1]["reasons"] == {LIAR: "it gave no answer in time; it sits out 1 round"}


def test_over_tls_a_stuck_client_costs_less_than_the_deadline(tmp_path: Path, identities: Identities) -> None:
    """And its edge goes on with the others."""
    stuck = threading.Event()

    def answer(payload: bytes, gone: threading.Event) -> bytes:
        if stuck.is_set() and kind_of(payload) == "revoked":
            gone.wait()
        return sent("ready")

    with (
        edge(identities) as parent,
        child(identities.of(FIRST), parent.address, FIRST, lambda payload, gone: sent("ready")),
        child(identities.of(SECOND), parent.address, SECOND, answer),
    ):
        parent.wait_for(FIRST, SECOND)
        caller = Caller(parent.children, begun(tmp_path, "hierfavg")[1].charter, min_deadline=0.5)
        messages = dict.fromkeys((FIRST, SECOND), sent("revoked", list=""))
        assert caller.ask(messages, 3600.0)[1] == {}
        caller.took = dict.fromkeys(caller.took, 0.01)
        stuck.set()
        answers, reasons = caller.ask(messages, 3600.0)
        assert (list(answers), reasons) == ([FIRST], {SECOND: f"{NO_ANSWER} 0.5 s"})
