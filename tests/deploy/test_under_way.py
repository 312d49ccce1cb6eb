"""A cloud that does not wait for its slowest edges, with answers that come when a test lets them."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedbac.core.state import State
from fedbac.deploy.protocol.failures import Failure
from fedbac.deploy.protocol.messages import read_measured
from fedbac.deploy.protocol.wire import Message, decode
from fedbac.deploy.roles import edges
from fedbac.deploy.roles.edges import Interruption, RemoteEdges
from fedbac.deploy.roles.enrolment import Enrolled, check_deployable, stored
from fedbac.engines import Simulator
from fedbac.errors import ConfigError
from fedbac.federation import assemble
from fedbac.local import LoopTrainer
from fedbac.rounds.cloud import rounds
from fedbac.rounds.messages import MeasureOrder, MeasureReport
from fedbac.rounds.start import start
from fedbac.runs.store import RunFolder
from tests.covering import first
from tests.deploy.in_memory import MemoryFederation
from tests.deploy.small import Small, small
from tests.support import Record, distance

SLOW = ("task.world={speed_spread: 1.5, examples_per_second: 10}", "method.cloud_clock=buffered")
ALL = (SLOW[0], "method.cloud_clock.kind=buffered", "method.cloud_clock.share=1.0")
PATIENCE = 60.0
METHODS: dict[str, tuple[str, ...]] = {
    "some clients, and clusters that stay": ("fed-bac", "method.clustering={kind: fixed, num_clusters: 2}"),
    "compression": ("hierfavg", "method.links.cloud_down=eight_bits", "method.links.cloud_up=top_k"),
    "everybody's network": ("hierfavg",),
    "a head that the edge keeps": ("fedper-edges",),
    "momentum that clients keep": ("hierfavg", "task.training.momentum_state=persist"),
}


def simulated(tiny: Small) -> list[tuple[Record, State]]:
    federation = assemble(tiny.experiment, dataset=tiny.dataset, shards=tiny.shards)
    scheme = tiny.experiment.method.personalization
    simulator = Simulator(
        tiny.experiment, federation.sites, LoopTrainer(federation.network, scheme, federation.examples)
    )
    first = start(tiny.experiment, federation.build, federation.sites)
    return list(rounds(tiny.experiment, federation.sites, simulator, first))


def joined(federation: MemoryFederation) -> tuple[Enrolled, RemoteEdges]:
    enrolled = federation.enrol()
    remote = federation.connect(enrolled)
    assert isinstance(remote, RemoteEdges)
    return enrolled, remote


def deployed(enrolled: Enrolled, remote: RemoteEdges) -> Iterator[tuple[Record, State]]:
    first = start(enrolled.charter.experiment, enrolled.build, enrolled.sites)
    return rounds(enrolled.charter.experiment, enrolled.sites, remote, first)


def gated(federation: MemoryFederation, comes: Callable[[str, int], int], asked: list[tuple[str, int]]) -> None:
    """Have edges answer orders of a round when the cloud has begun another one, but no later than it has ended."""
    for name, answer in list(federation.cloud.answers.items()):

        def slowly(payload: bytes, gone: threading.Event, name: str = name, answer: Any = answer) -> bytes:
            message = decode(payload, {"enroll", "begin", "train", "measure", "model"})
            said: bytes = answer(payload, gone)
            if message.kind == "train":
                round_ = message.head["order"]["round"]
                asked.append((name, round_))
                over = time.monotonic() + PATIENCE
                while federation.remote.under_way.round < comes(name, round_):  # type: ignore[union-attr]
                    assert time.monotonic() < over
                    time.sleep(0.002)
            return said

        federation.cloud.answers[name] = slowly


def timetable(played: list[tuple[Record, State]]) -> Callable[[str, int], int]:
    """Return in which round an order of a round was answered."""
    back = {
        (f"edge-{m}", record["round"] - age): record["round"]
        for record, _ in played
        for m, age in zip(record["edges_back"], record["edge_ages"], strict=True)
    }
    return lambda name, round_: back.get((name, round_), len(played))


@pytest.mark.parametrize("case", first(2, METHODS))
def test_what_comes_as_late_as_in_a_simulation_counts_as_there(case: str, tmp_path: Path) -> None:
    tiny = small(*METHODS[case], *SLOW, rounds=5)
    expected = simulated(tiny)
    assert any(max(record["edge_ages"]) > 0 for record, _ in expected)
    federation, asked = tiny.federation(tmp_path), list[tuple[str, int]]()
    enrolled, remote = joined(federation)
    gated(federation, timetable(expected), asked)
    found = list(deployed(enrolled, remote))
    keeps = {part for part, spec in tiny.experiment.method.personalization.parts.items() if spec.scope == "edge"}
    for (mine, after), (theirs, state) in zip(found[:-1], expected[:-1], strict=True):
        assert sorted(mine["edges_back"]) == sorted(theirs["edges_back"])
        assert mine["edges_under_way"] == theirs["edges_under_way"]
        for part in after.parts.keys() - keeps:
            assert distance({part: after.parts[part]}, {part: state.parts[part]}) < 1e-6
    assert found[-1][0]["edges_under_way"] == 0  # the last round waits for all
    assert all(accuracy is not None for accuracy in found[-1][0]["accuracy_per_edge"])
    assert len(asked) == len(set(asked))
    remote.close()


def test_who_is_at_work_is_asked_nothing_else(tmp_path: Path) -> None:
    tiny = small("hierfavg", *SLOW, rounds=4)
    federation = tiny.federation(tmp_path)
    enrolled, remote = joined(federation)
    gated(federation, lambda name, round_: 4 if name == "edge-1" else 0, [])
    records = [record for record, _ in deployed(enrolled, remote)]
    assert [record["edges_back"] for record in records] == [[0], [0], [0], [0, 1]]
    assert [record["edges_under_way"] for record in records] == [1, 1, 1, 0]
    assert [record["accuracy_per_edge"][1] is None for record in records] == [True, True, True, False]
    assert sorted(records[-1]["edge_ages"]) == [0, 3]
    assert records[0]["selected"][1] == []
    assert records[-1]["selected"][1] == [2, 3, 4]
    assert all(record["absent"] == [] for record in records)
    remote.close()


@pytest.mark.parametrize("case", first(1, METHODS))
def test_what_had_arrived_counts_after_the_cloud_was_killed(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of two edges that a round waits for, one has answered when the cloud dies; it is not asked again."""
    tiny = small(*METHODS[case], *ALL, rounds=3)
    whole = simulated(tiny)
    federation, asked = tiny.federation(tmp_path / "sites"), list[tuple[str, int]]()
    enrolled, folder = federation.enrol(), RunFolder(tmp_path / "run")
    gated(federation, lambda name, round_: 0, asked)
    playing = federation.play(folder.path, enrolled)
    next(playing)
    promptly, may_end = federation.cloud.answers["edge-1"], threading.Event()

    def slowly(payload: bytes, gone: threading.Event) -> bytes:
        may_end.wait(PATIENCE)
        return promptly(payload, gone)

    federation.cloud.answers["edge-1"], first = slowly, federation.remote
    assert isinstance(first, RemoteEdges)
    first.stopped = lambda: bool(first.under_way.came)
    with pytest.raises(Interruption, match="1 of 2 answers, which are kept"):
        next(playing)
    may_end.set()
    federation.cloud.answers["edge-1"] = promptly
    playing = federation.play(folder.path, enrolled, federation.connect(enrolled, folder.path))
    next(playing)
    playing.close()  # and what has counted is in a state from which one goes on
    run = federation.run(folder.path, enrolled, federation.connect(enrolled, folder.path))
    assert "checkpoint" not in caplog.text
    assert asked.count(("edge-0", 2)) == 1
    assert [record["edges_back"] for record in run.records] == [[0, 1]] * 3
    assert [record["accuracy"] for record in run.records] == [record["accuracy"] for record, _ in whole]


def test_what_was_counted_does_not_count_again(tmp_path: Path) -> None:
    """The cloud dies after a round is on the disk, and before it has removed what that has counted."""
    tiny = small("hierfavg", *SLOW, rounds=3)
    federation = tiny.federation(tmp_path / "sites")
    enrolled, folder = federation.enrol(), RunFolder(tmp_path / "run")
    gated(federation, lambda name, round_: 3 if name == "edge-1" else 0, [])
    playing = federation.play(folder.path, enrolled)
    for _ in range(2):
        next(playing)
    kept = sorted(path.name for path in (tmp_path / "sites").rglob("arrived/*"))
    assert kept == ["edge-0.answer", "edge-0.order"]
    first = federation.remote
    assert isinstance(first, RemoteEdges)
    first.under_way.round = 3  # whom it waits for may end
    playing.close()
    again = federation.connect(enrolled, folder.path)
    assert isinstance(again, RemoteEdges)
    assert again.busy(3) == frozenset()
    assert not list((tmp_path / "sites").rglob("arrived/*"))
    run = federation.run(folder.path, enrolled, again)
    assert [record["edges_back"] for record in run.records] == [[0], [0], [0, 1]]
    assert run.records[-1]["edge_ages"] == [0, 0]


@pytest.mark.parametrize("damage", first(1, [b"no message", b""]))
def test_an_answer_that_cannot_be_read_is_asked_for_again(damage: bytes, tmp_path: Path) -> None:
    tiny = small("hierfavg", *SLOW, rounds=2)
    federation = tiny.federation(tmp_path / "sites")
    enrolled, folder = federation.enrol(), RunFolder(tmp_path / "run")
    playing = federation.play(folder.path, enrolled)
    next(playing)
    playing.close()
    remote = federation.connect(enrolled, folder.path)
    assert isinstance(remote, RemoteEdges)
    remote.under_way.kept.add(0, b"no order", damage)
    assert remote.busy(2) == frozenset()
    assert len(federation.run(folder.path, enrolled, remote).records) == 2


def test_an_edge_that_fails_is_nobody_s_reason_to_wait(tmp_path: Path) -> None:
    tiny = small("hierfavg", *ALL, rounds=3)
    federation = tiny.federation(tmp_path)
    enrolled, remote = joined(federation)
    played = deployed(enrolled, remote)
    next(played)
    federation.cloud.lost.add("edge-1")
    record, _ = next(played)
    assert (record["edges_back"], record["absent"], record["edges_under_way"]) == ([0], [1], 0)
    assert "lost" in record["reasons"]["edge-1"]
    federation.cloud.lost.clear()
    record, _ = next(played)
    assert (sorted(record["edges_back"]), record["absent"]) == ([0, 1], [])
    remote.close()


ASYNCHRONOUS = (SLOW[0], "method.cloud_clock=asynchronous")
KINDS = {"enroll", "begin", "train", "measure", "model"}


@pytest.mark.parametrize("what", first(1, ["goes away", "measures nothing"]))
def test_a_round_that_nobody_measured_waits_for_another_edge(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answer is enough for the average of a round, but that edge has no accuracy to tell of it."""
    tiny = small("hierfavg", *ASYNCHRONOUS, rounds=2)
    federation, repeated = tiny.federation(tmp_path), threading.Event()
    federation.waited, federation.most_said = lambda text: repeated.set(), 8
    enrolled, remote = joined(federation)
    answers = dict(federation.cloud.answers)

    def leaving(payload: bytes, gone: threading.Event) -> bytes:
        said = answers["edge-0"](payload, gone)
        if what == "goes away" and decode(payload, KINDS).kind == "train":
            federation.cloud.lost.add("edge-0")
        return said

    def waiting(payload: bytes, gone: threading.Event) -> bytes:
        assert decode(payload, KINDS).kind != "train" or repeated.wait(PATIENCE)
        return answers["edge-1"](payload, gone)

    def nothing(message: Message, lost: MeasureReport, order: MeasureOrder, *rest: Any) -> MeasureReport:
        report = read_measured(message, lost, order, *rest)
        blank = tuple(replace(one, count_G=0 * one.count_G) for one in report.readings)
        return replace(report, readings=blank) if what == "measures nothing" and order.site == 0 else report

    monkeypatch.setattr(edges, "read_measured", nothing)
    federation.cloud.answers |= {"edge-0": leaving, "edge-1": waiting}
    record, _ = next(deployed(enrolled, remote))
    assert sorted(record["edges_back"]) == [0, 1]
    assert [accuracy is None for accuracy in record["accuracy_per_edge"]] == [True, False]
    remote.close()


def test_an_edge_that_comes_late_need_not_have_kept_what_the_cloud_asks_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In round 3 the policy compares what an edge trained with the cluster's average; it did so in round 1."""
    settings = ("method.clustering.period=1", "method.clustering.alone_steps=1")
    tiny = small("fedfork", *SLOW, *settings, rounds=4)
    federation = tiny.federation(tmp_path)
    enrolled, remote = joined(federation)
    comes = {("edge-1", 1): 3, ("edge-0", 3): 4}
    gated(federation, lambda name, round_: comes.get((name, round_), 0), [])
    records = [record for record, _ in deployed(enrolled, remote)]
    assert [record["edge_ages"] for record in records[:3]] == [[0], [0], [2]]
    assert "no answer" not in caplog.text
    remote.close()


@pytest.mark.full
def test_an_edge_at_work_goes_on_while_another_one_joins(tmp_path: Path) -> None:
    """Edge 1 begins in round 1; edge 2 joins after it, and the answer counts in round 3."""
    two_of_three = ("method.cloud_clock.kind=buffered", "method.cloud_clock.share=0.7")
    tiny = small("hierfavg", SLOW[0], *two_of_three, rounds=4, counts=(1, 1, 1))
    federation, asked = tiny.federation(tmp_path, start_after=1e-9), list[tuple[str, int]]()
    federation.cloud.lost = {"edge-2"}
    comes = {("edge-1", 1): 3, ("edge-0", 3): 4}
    gated(federation, lambda name, round_: comes.get((name, round_), 0), asked)
    playing = federation.play_on(tmp_path / "run")
    records = [next(playing)]
    federation.cloud.lost = set()
    records += list(playing)
    last = stored(tmp_path / "run")
    assert last is not None
    assert last.charter.epoch == 2
    assert ("edge-2", 2) in asked
    assert asked.count(("edge-1", 1)) == 1
    assert ("edge-1", 2) not in asked
    ages = [dict(zip(record["edges_back"], record["edge_ages"], strict=True)) for record in records]
    assert [age.get(1) for age in ages[:3]] == [None, None, 2]


def test_who_has_left_is_not_waited_for(tmp_path: Path) -> None:
    """A round ends with half of the edges that are members, not of the places that there are."""
    tiny = small("hierfavg", *SLOW, rounds=2)
    federation = tiny.federation(tmp_path)
    _, remote = joined(federation)
    assert remote.enough == 1
    remote.members = {f"edge-{m}": m for m in range(4)}
    assert remote.enough == 2
    remote.close()


def test_a_federation_has_no_clock_of_clients() -> None:
    experiment = small("hierfavg", SLOW[0], "method.clock=buffered").experiment
    with pytest.raises(ConfigError, match=r"method\.cloud_clock"):
        check_deployable(experiment)


def test_who_is_busy_by_right_sits_no_round_out(tmp_path: Path) -> None:
    """As after a cloud was started again, whose edges still work at what it does not know of."""
    tiny = small("hierfavg", *ALL, rounds=3)
    federation = tiny.federation(tmp_path)
    enrolled, remote = joined(federation)
    call = federation.cloud.call

    def busy(messages: Any, deadline: float, *limit: int) -> Any:
        answers, reasons = call({name: one for name, one in messages.items() if name != "edge-1"}, deadline, *limit)
        return answers, reasons | {name: Failure.BUSY.value for name in messages if name == "edge-1"}

    played = deployed(enrolled, remote)
    next(played)
    federation.cloud.call = busy  # type: ignore[assignment, method-assign]
    assert next(played)[0]["edges_back"] == [0]
    federation.cloud.call = call  # type: ignore[method-assign]
    record, _ = next(played)
    assert sorted(record["edges_back"]) == [0, 1]
    assert not remote.standing.news
    remote.close()
