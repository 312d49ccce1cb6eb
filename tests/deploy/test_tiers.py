"""Regions between edges and the cloud, in a federation: its cloud plays them as the simulator does, to the bit."""

import json
import threading
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbac.core.links import Ledger
from fedbac.deploy.protocol.failures import Failure
from fedbac.deploy.protocol.heads import KINDS, kind_of
from fedbac.deploy.protocol.wire import decode
from fedbac.deploy.roles.edge import REGIONS_AT_CLOUD
from fedbac.deploy.roles.enrolment import check_deployable, stored
from fedbac.deploy.roles.standing import Standing
from fedbac.deploy.settings import MemberChanges
from fedbac.errors import ConfigError, DeployError
from fedbac.runs.play import finish
from fedbac.runs.store import StoredRun
from tests.covering import first
from tests.deploy.in_memory import MemoryFederation
from tests.deploy.small import Small, small
from tests.deploy.test_bytes import HEAD
from tests.deploy.test_members import changed, take
from tests.deploy.test_privacy import LOOSE, same_secrets
from tests.deploy.test_roles import LINKS, PERSIST, same
from tests.support import Record, without

COUNTS = (1, 2, 1, 2)
"""Clients of four edges."""
TWO, TREE = "task.tiers=[2]", "task.tiers=[3,2]"
TWICE, HALF = "method.region.rounds=2", "method.region.selection.fraction=0.5"
REGION_LINKS = (*LINKS, "method.links.region_up.kind=top_k", "method.links.region_down.kind=eight_bits")
CASES: dict[str, tuple[str, ...]] = {
    "clusters, and two rounds of a region": ("fed-bac", TWO, TWICE),
    "regions, countries, and a median": ("fed-bac", TREE, "method.region.aggregation=median"),
    "two regions": ("hierfavg", TWO),
    "steps of regions that remember, and two rounds of a country": (
        "hierfavg", TREE, "method.region.step=adam", "method.country.rounds=2",
    ),
    "regions that select edges": ("fed-bac", TWO, TWICE, HALF),
    "regions that select edges, and links that compress": ("hierfavg", TWO, TWICE, HALF, *REGION_LINKS),
    "edges whose clients have the first networks until they are selected": ("hierfavg", TWO, HALF, LINKS[1]),
    "a head that an edge keeps, which is not always selected": ("fedper-edges", TWO, HALF),
    "what clients keep": ("ditto", TWO, TWICE, PERSIST),
    "momentum that clients keep, of edges that are selected": ("hierfavg", TWO, TWICE, HALF, PERSIST),
    "a head that a region keeps": ("fedper-edges", TREE, "method.personalization.owner=region"),
    "clients in clusters": ("ifca-edges", TREE, "method.unit=client", "method.clustering.period=1"),
    "what edges trained is measured, where they did": (
        "fedfork", TWO, HALF, "method.clustering.period=1", "method.clustering.alone_steps=1",
    ),
    "two rounds of edges in each of two": ("ditto", TWO, TWICE, "method.topology.edge_rounds=2"),
}  # fmt: skip


def tree(case: str, rounds: int = 4) -> Small:
    method, *settings = CASES[case]
    return small(method, *settings, counts=COUNTS, rounds=rounds)


@pytest.mark.parametrize("case", first(2, CASES))
def test_rounds_are_those_of_the_simulator(case: str, tmp_path: Path) -> None:
    same(tree(case), tmp_path, global_too="that an edge keeps" not in case)


@pytest.mark.full
def test_sums_in_secret_below_regions_are_those_of_the_simulator(tmp_path: Path) -> None:
    sums = ("method.aggregation.secret=true", "method.links.client_up=[{kind: clip, norm: 9.0}]")
    same(small("hierfavg", TWO, TWICE, *sums, counts=(3, 3, 3, 3)), tmp_path, global_too=True)


@pytest.mark.full
@pytest.mark.parametrize("where", ["clients", "edge"])
def test_privacy_below_regions_is_that_of_the_simulator_and_nothing_is_spent_twice(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each average of an edge is an answer of its own; one that is asked for again is the same."""
    privacy = ("method.privacy.noise_multiplier=1", LOOSE, f"method.privacy.where={where}")
    tiny = small("hierfavg", TREE, TWICE, *privacy, counts=(2, 2, 2, 2), rounds=2)
    same_secrets(monkeypatch, tiny)
    expected = tiny.simulated().records
    federation = tiny.federation(tmp_path)
    assert killed(federation, tmp_path / "run", 3) == 3
    federation = tiny.federation(tmp_path)
    assert without(finish(federation.play_on(tmp_path / "run")).records) == without(expected)
    assert expected[-1]["epsilon"] > expected[0]["epsilon"] > 0


# ------------------------------------------------------------------------------------------------ whoever is killed


class KilledError(Exception):
    """Ends a process at once."""


def killed(federation: MemoryFederation, folder: Path, at: int) -> int:
    """Play a run, and kill the cloud as it is about to give its edges so many orders; return how many it has given."""
    given, call = 0, federation.cloud.call

    def until(messages: Any, *rest: Any) -> Any:
        nonlocal given
        if messages and kind_of(next(iter(messages.values()))) == "train":
            if given == at:
                raise KilledError
            given += 1
        return call(messages, *rest)

    federation.cloud.call = until  # type: ignore[assignment, method-assign]
    with suppress(KilledError):
        finish(federation.play_on(folder))
    return given


@pytest.mark.parametrize("at", first(1, [3, 1, 2]))
@pytest.mark.parametrize(
    "case",
    first(
        1,
        [
            "regions that select edges, and links that compress",
            "a head that an edge keeps, which is not always selected",
            "steps of regions that remember, and two rounds of a country",
            "what clients keep",
        ],
    ),
)
def test_whoever_is_killed_at_any_point_gets_the_same_numbers(case: str, at: int, tmp_path: Path) -> None:
    """The cloud before one of its four orders, also between two of one round; then with everybody else or without."""
    tiny = tree(case, rounds=4 // tree(case).experiment.edge_rounds)
    whole = tiny.federation(tmp_path / "whole").run().records
    federation = tiny.federation(tmp_path)
    assert killed(federation, tmp_path / "run", at) == at
    if at % 2:
        federation = tiny.federation(tmp_path)
    else:
        federation.cloud.__dict__.pop("call")
    assert without(finish(federation.play_on(tmp_path / "run")).records) == without(whole)


@pytest.mark.full
def test_an_edge_is_killed_between_two_orders_of_a_round(tmp_path: Path) -> None:
    """Its process is another one with the same folders; it asks for whole networks, and nothing else changes."""
    tiny = tree("regions that select edges, and links that compress", rounds=2)
    whole = tiny.simulated().records
    federation = tiny.federation(tmp_path)
    enrolled, reborn = federation.enrol(), set[tuple[str, int]]()
    for name in list(federation.cloud.answers):

        def answer(payload: bytes, gone: threading.Event, name: str = name) -> bytes:
            order = decode(payload, KINDS).head["order"] if kind_of(payload) == "train" else {"edge_round": 0}
            if order["edge_round"] > 0 and (name, order["round"]) not in reborn:
                reborn.add((name, order["round"]))
                federation._edge(name)
            return federation.edges[name].answer(payload, gone)

        federation.cloud.answers[name] = answer
    assert without(federation.run(enrolled=enrolled).records) == without(whole)
    assert len(reborn) == 4


# ------------------------------------------------------------------------------------------------ who is lost


def orders_of(federation: MemoryFederation, lost: dict[tuple[int, int], set[str]]) -> list[tuple[int, int, str]]:
    """Have edges be away for some orders; return which orders they are given, by round and edge round."""
    heard, call = list[tuple[int, int, str]](), federation.cloud.call

    def noted(messages: Any, *rest: Any) -> Any:
        for name, message in messages.items():
            if kind_of(message) == "train":
                order = decode(message, KINDS).head["order"]
                at = (order["round"], order["edge_round"])
                heard.append((*at, name))
                federation.cloud.lost = lost.get(at, set())
        return call(messages, *rest)

    federation.cloud.call = noted  # type: ignore[assignment, method-assign]
    return heard


def test_an_edge_that_misses_one_of_two_orders_is_not_absent(tmp_path: Path) -> None:
    federation = tree("clusters, and two rounds of a region", rounds=3).federation(tmp_path)
    orders_of(federation, {(2, 1): {"edge-0"}, (3, 0): {"edge-3"}, (3, 1): {"edge-3"}})
    records = federation.run().records
    json.dumps(records, allow_nan=False)
    assert [record["absent"] for record in records] == [[], [], [3]]
    assert "edge-0" not in str(records[1].get("reasons"))
    assert all(records[1]["selected"])


def test_who_misbehaves_sits_out_rounds_and_not_orders() -> None:
    standing = Standing(10.0)
    standing.begin(1, 0)
    standing.strike("a", Failure.UNUSABLE)
    out = []
    for at in ((1, 1), (2, 0), (2, 1), (3, 0), (3, 1)):
        standing.begin(*at)
        out.append("a" in standing.back)
    assert out == [True, True, True, False, False]
    standing.strike("a", Failure.UNUSABLE)
    for at, there in (((3, 0), False), ((3, 1), False), ((3, 0), False), ((3, 1), False), ((3, 0), True)):
        standing.begin(*at)  # the same round, played again: that counts
        assert ("a" not in standing.back) == there


@pytest.mark.full
def test_below_a_quorum_the_whole_round_is_played_again(tmp_path: Path) -> None:
    tiny = tree("steps of regions that remember, and two rounds of a country", rounds=2)
    whole = tiny.simulated().records
    federation = tiny.federation(tmp_path, min_edges=4)
    lost = {(2, 1): {"edge-1"}}
    heard = orders_of(federation, lost)

    def back(text: str) -> None:
        lost.clear()
        federation.cloud.lost = set()

    federation.waited = back
    records = federation.run().records
    assert without(records) == without(whole)
    assert [at for *at, name in heard if name == "edge-0"].count([2, 0]) == 2


def test_a_round_in_which_nobody_answers_who_was_selected_is_played_again(tmp_path: Path) -> None:
    """Edges that their regions did not select are there, but have no part in it."""
    tiny = small("hierfavg", TWO, HALF, counts=COUNTS, rounds=3)
    whole = tiny.simulated().records
    federation = tiny.federation(tmp_path, min_edges=1)
    lost = {(2, 0): {"edge-1", "edge-2"}}
    heard = orders_of(federation, lost)

    def back(text: str) -> None:
        lost.clear()
        federation.cloud.lost = set()

    federation.waited = back
    assert without(federation.run().records) == without(whole)
    assert [name for *at, name in heard if at == [2, 0]] == ["edge-1", "edge-2"] * 2


# ------------------------------------------------------------------------------------------------ what is said


def test_what_cannot_be_is_refused_by_name() -> None:
    world = "task.world={speed_spread: 1.5}"
    for clock in ("method.region.clock", "method.country.clock", "method.cloud_clock"):
        experiment = small("hierfavg", TREE, world, f"{clock}=buffered", counts=COUNTS).experiment
        with pytest.raises(ConfigError, match=rf"^{clock} 'buffered': with task\.tiers .* use synchronous$"):
            check_deployable(experiment)
    check_deployable(small("hierfavg", TREE, world, counts=COUNTS).experiment)
    flat = small("fedavg", TREE, world, counts=COUNTS).experiment
    check_deployable(flat)


def test_the_cloud_sees_every_edge_s_average_and_all_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And the parts that regions own."""
    caplog.set_level("INFO", logger="fedbac")
    federation = tree("a head that a region keeps", rounds=1).federation(tmp_path)
    said: dict[str, Any] = {}
    for name, answer in list(federation.cloud.answers.items()):

        def note(payload: bytes, gone: threading.Event, name: str = name, answer: Any = answer) -> bytes:
            came: bytes = answer(payload, gone)
            if kind_of(came) == "trained":
                said[name] = decode(came, KINDS).tensors
            return came

        federation.cloud.answers[name] = note
    federation.run()
    assert sorted(said) == [f"edge-{m}" for m in range(4)]
    for name, tensors in said.items():
        handler = federation.edges[name].handler
        assert handler is not None
        for part in ("body", "head"):
            for weight, average in handler.trained[1][part].items():
                assert torch.equal(tensors[f"report/bank/{part}/{weight}"], average)
    assert caplog.messages.count(REGIONS_AT_CLOUD) == 1 + 4  # the cloud, and every edge


@pytest.mark.full
def test_of_the_bytes_those_of_clients_and_regions_pass_links(tmp_path: Path) -> None:
    federation = tree("clusters, and two rounds of a region", rounds=2).federation(tmp_path)
    sizes: dict[str, list[int]] = {"train": [], "trained": []}
    for name, answer in list(federation.cloud.answers.items()):

        def weighed(payload: bytes, gone: threading.Event, answer: Any = answer) -> bytes:
            came: bytes = answer(payload, gone)
            if kind_of(payload) == "train":
                sizes["train"].append(len(payload))
                sizes["trained"].append(len(came))
            return came

        federation.cloud.answers[name] = weighed
    records = federation.run().records
    ledger = Ledger()
    for record in records:
        assert list(record["bytes"]) == ["client", "region", "cloud"]
        for way, by in record["bytes"]["region"].items():
            ledger.add("region", way, "train", by["train"])
    for way, kind in (("down", "train"), ("up", "trained")):
        over = sum(sizes[kind]) - ledger.entries["region", way, "train"]  # type: ignore[index]
        assert 0 <= over <= HEAD * len(sizes[kind])


# ------------------------------------------------------------------------------------------------ who comes and goes


def joined(
    tmp_path: Path, counts: tuple[int, ...], new: MemberChanges, **task: Any
) -> Generator[Record, None, StoredRun]:
    """Return a run of two regions that goes on with other members after two rounds."""
    tiny = small("fed-bac", TWO, HALF, "method.region.step=adam", counts=counts, rounds=4)
    take(tiny.federation(tmp_path).play_on(tmp_path / "run"), 2)
    return changed(tiny, tmp_path, new, **task).play_on(tmp_path / "run")


@pytest.mark.full
def test_a_client_joins_an_edge_below_a_region(tmp_path: Path) -> None:
    new = MemberChanges(added=("edge-0-client-2",), left=("edge-1-client-0",))
    run = finish(joined(tmp_path, (2, 2, 2), new, clients_per_edge=(3, 2, 2)))
    assert len(run.records) == 4
    last = stored(tmp_path / "run")
    assert last is not None
    assert 6 in last.charter.sites[0].clients
    assert {6} <= {client for record in run.records for client in record["selected"][0]}
    assert [site.above for site in last.sites] == [(0,), (0,), (1,)]


@pytest.mark.full
def test_an_edge_joins_a_region_where_the_others_stay_in_theirs(tmp_path: Path) -> None:
    new = MemberChanges(added=("edge-3-client-0",))
    run = finish(joined(tmp_path, (1, 2, 1), new, num_edges=4, clients_per_edge=(1, 2, 1, 1)))
    assert [len(record["accuracy_per_edge"]) for record in run.records] == [4] * 4
    assert run.records[-1]["accuracy_per_edge"][3] is not None


def test_an_edge_that_would_move_others_to_another_region_is_refused(tmp_path: Path) -> None:
    new = MemberChanges(added=("edge-2-client-0",))
    with pytest.raises(DeployError, match=r"^task\.tiers: with 3 edges instead of 2, some would belong to another"):
        finish(joined(tmp_path, (1, 2), new, num_edges=3, clients_per_edge=(1, 2, 1)))
    assert stored(tmp_path / "run").charter.epoch == 1  # type: ignore[union-attr]
