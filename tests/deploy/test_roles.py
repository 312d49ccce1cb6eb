"""Cloud, edges and clients as roles, in one process: what they compute is what the simulator computes, to the bit."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbac import LeNet5
from fedbac.core.world import World
from fedbac.deploy.protocol.wire import ROOM, Message, decode
from fedbac.deploy.settings import DeploySettings
from fedbac.runs.play import finish
from tests.covering import first
from tests.deploy.in_memory import MemoryChildren, MemoryFederation
from tests.deploy.small import Small, small
from tests.support import NO_KERNEL, Record, without

PERSIST = "task.training.momentum_state=persist"
EVERY_ROUND = ("method.clustering.num_clusters=2", "method.clustering.period=1")
TWO_OF_FIVE = tuple(f"method.clustering.{setting}" for setting in ("num_clusters=5", "candidates=2", "period=1"))
TWICE = "method.topology.edge_rounds=2"
LINKS = tuple(
    f"method.links.{link}.kind={kind}"
    for link, kind in (
        ("client_up", "top_k"), ("client_down", "eight_bits"), ("cloud_down", "eight_bits"), ("cloud_up", "top_k"),
    )
)  # fmt: skip
FLAT_LINKS = LINKS[:2]
EACH_CLIENT = ("method.unit=client", *EVERY_ROUND)
NOISY = (
    "method.links.client_up=[clip, {kind: noise, multiplier: 0.01}, top_k, eight_bits]",
    "method.links.cloud_up=[{kind: clip, norm: 0.1}, {kind: noise, multiplier: 0.01}]",
)
SOME = ("method.selection.fraction=0.5",)
ROBUST = ("method.aggregation=median", "method.step=adam")
KINDS = (
    "enroll", "begin", "ready", "stranger", "facts", "fit", "update", "evaluate", "evaluation", "train", "trained",
    "measure", "measured", "model", "relay", "relayed", "absent", "forgotten", "roster",
)  # fmt: skip

CASES: dict[str, tuple[Any, ...]] = {
    "a network per cluster beside everybody's": ("fed-bac",),
    "clusters that clients measure": ("ifca-edges", *EVERY_ROUND),
    "no edges between": ("fedavg",),
    "steps of two heads on one body, one of which the edge keeps": (
        "fedrod-edges",
        "method.personalization=heads_together",
    ),
    "a network that the client keeps, and that follows everybody's": ("ditto",),
    "a head that the edge keeps": ("fedper-edges",),
    "clusters of which each client wants two measured": ("ifca-edges", "method.unit=client", *TWO_OF_FIVE),
    "clients that were never chosen, and follow everybody": ("ditto", "method.selection.fraction=0.4"),
    "a blend that only the client makes": ("apfl",),
    "steps of a blend, and momentum that stays": ("apfl", PERSIST),
    "steps of a proximal problem": ("pfedme",),
    "two parts that come back as one": ("fedala-edges",),
    "corrections of everybody and of each client": ("scaffold", "method.selection.fraction=0.5"),
    "corrections of clients and edges": ("mtgc", "method.selection.fraction=0.7"),
    "pulls of each client, and a step of the cloud that remembers how many trained": ("feddyn", *SOME),
    "momentum of the cloud": ("fedavgm", *SOME),
    "Yogi": ("fedyogi", *SOME),
    "AdamW and a cosine": ("fedavg", "task.training.optimizer=adamw", "task.training.schedule=cosine"),
    "teachers": ("phe-fl-kd",),
    "every client's update": ("cfl",),
    "statistics of training": ("oort",),
    "a rule that holds all clients, and a step that remembers": ("fed-bac", *ROBUST),
    "a rule and a step without edges between": ("fedavg", *ROBUST),
    "a rule, and a network that the client keeps": ("ditto", *ROBUST, TWICE),
    "a rule, and compression": ("fed-bac", *ROBUST, *LINKS),
    "momentum that stays with clients": ("fed-bac", PERSIST),
    "momentum of what a client keeps": ("ditto", PERSIST),
    "momentum without edges between": ("fedavg", PERSIST),
    "two rounds of edges in one of the cloud": ("fed-bac", TWICE),
    "two rounds of edges, and parts that clients keep": ("ditto", TWICE, PERSIST),
    "compression on all links": ("fed-bac", *LINKS),
    "compression, and parts that clients keep": ("ditto", *LINKS),
    "compression without edges between": ("fedavg", *FLAT_LINKS),
    "measured on test data": ("fed-bac", "method.measurement.split=test"),
    "judged before the cloud averages": ("fed-bac", "evaluation.point=edge_model"),
    "compression, judged before the cloud averages": ("fed-bac", *LINKS, "evaluation.point=edge_model"),
    "compression, and clients that change clusters": ("ifca-edges", *EVERY_ROUND, *LINKS),
    "compression, and two rounds of edges": ("hierfavg", TWICE, *LINKS),
    "compression, and a head that the edge keeps": ("fedper-edges", *LINKS),
    "compression, and two parts that come back as one": ("fedala-edges", *LINKS),
    "clip and noise before codecs": ("fed-bac", *NOISY),
    "clip and noise, and a head that rests at first": ("fedbabu-edges", *NOISY),
    "clip and noise, and clients that change clusters": ("ifca-edges", *EACH_CLIENT, TWICE, *NOISY),
    "clip and noise without edges between": ("fedavg", NOISY[0]),
    "judged before the cloud averages, by what the edge keeps": ("fedper-edges", "evaluation.point=edge_model"),
}


def told(records: list[Record]) -> list[Record]:
    """Return all of the records but the time they took, and the accuracy everywhere of models that never leave home."""
    return [record | {"accuracy_global": None} for record in without(records)]


def same(tiny: Small, folder: Path, *, global_too: bool) -> None:
    """Play both, and compare."""
    simulated, federation = tiny.simulated(), tiny.federation(folder)
    deployed = federation.run()
    assert federation.said == []
    if global_too:
        assert without(deployed.records) == without(simulated.records)
    else:
        assert {record["accuracy_global"] for record in deployed.records} == {None}
        assert told(deployed.records) == told(simulated.records)


@pytest.mark.parametrize("case", first(5, CASES))
def test_three_rounds_are_those_of_the_simulator(case: str, tmp_path: Path) -> None:
    method, *settings = CASES[case]
    same(small(method, *settings), tmp_path, global_too=method not in ("fedper-edges", "fedala-edges", "fedrod-edges"))


@pytest.mark.parametrize("method", first(1, ["fed-bac", "fedper-edges", "fedavg"]))
def test_test_data_may_be_split_over_clients(method: str, tmp_path: Path) -> None:
    same(small(method, tests_at="clients"), tmp_path, global_too=method != "fedper-edges")


@NO_KERNEL
def test_images_through_the_native_kernel(tmp_path: Path) -> None:
    same(small("fed-bac", network=LeNet5(), rounds=2), tmp_path, global_too=True)


def test_a_world_of_slow_and_failing_clients(tmp_path: Path) -> None:
    same(small("fed-bac", world=World(dropout=0.3, availability=0.9)), tmp_path, global_too=True)


# ------------------------------------------------------------------------------------------- what travels


class Overheard(MemoryChildren):
    """Children whose every word is heard."""

    def __init__(self, children: MemoryChildren) -> None:
        super().__init__(children.answers)
        self.words: list[Message] = []

    def call(
        self, messages: Mapping[str, bytes], deadline: float, limit: int = ROOM
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        answers, reasons = super().call(messages, deadline, limit)
        self.words += [decode(data, KINDS) for data in (*messages.values(), *answers.values())]
        return answers, reasons


def overhear(federation: MemoryFederation) -> list[Overheard]:
    """Listen to all links: the cloud's first."""
    federation.cloud = Overheard(federation.cloud)
    links = [federation.cloud]
    for edge in federation.edges.values():
        assert isinstance(edge.children, MemoryChildren)
        edge.children = Overheard(edge.children)
        links.append(edge.children)
    return links


@pytest.mark.parametrize(
    ("method", "private", "links"),
    [
        ("ditto", "/personal/", 3),
        ("fedper-edges", "/head/", 1),
        pytest.param("apfl", "/personal/", 3, marks=pytest.mark.full),
    ],
)
def test_what_an_owner_keeps_passes_no_link(method: str, private: str, links: int, tmp_path: Path) -> None:
    """A client's parts are on no link, an edge's not on the link to the cloud; nobody sends an example or a label."""
    tiny = small(method, rounds=2)
    assert any(private.strip("/") == part for part in tiny.experiment.method.personalization.parts)
    federation = tiny.federation(tmp_path)
    heard = overhear(federation)
    federation.run()
    words = [word for link in heard[:links] for word in link.words]
    assert {word.kind for word in words} >= {"train", "trained", "measure", "measured"}
    assert not [path for word in words for path in word.tensors if private in f"/{path}/" and "bank" in path]
    assert not [path for word in words for path in word.tensors if private in f"/{path}/" and "parts" in path]
    for word in (word for link in heard for word in link.words):
        assert all(value.dtype != torch.uint8 for path, value in word.tensors.items())  # what images are


def test_the_cloud_sees_classes_and_sums_only_of_all_clients_of_an_edge(tmp_path: Path) -> None:
    federation = small("fed-bac").federation(tmp_path)
    cloud, *_ = overhear(federation)
    federation.enrol()
    rosters = [word.head for word in cloud.words if word.kind == "roster"]
    assert len(rosters) == 2
    for said in rosters:
        assert sum(said["together"]["classes"]) == sum(
            one["train"] + one["validation"] for one in said["clients"].values()
        )
        assert [(one["classes"], one["sums"]) for one in said["clients"].values()] == [([], None)] * len(
            said["clients"]
        )


@pytest.mark.parametrize("method", first(1, ["fed-bac", "fedavg"]))
def test_everybody_is_told_the_run_first_so_nothing_is_said_twice(method: str, tmp_path: Path) -> None:
    federation = small(method, rounds=2).federation(tmp_path)
    heard = overhear(federation)
    federation.run()
    kinds = [[word.kind for word in link.words] for link in heard]
    assert [said.count("stranger") for said in kinds] == [0, 0, 0]
    assert [said.count("begin") for said in kinds] == [2, 2, 3]  # one for every child
    if method == "fed-bac":
        assert kinds[0].count("train") == kinds[0].count("trained") == 2 * 2


@pytest.mark.parametrize("tests_at", ["edge", "clients"])
def test_a_cloud_without_tiers_asks_all_edges_at_once(
    tests_at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One edge after another would take as long as all of them together."""
    federation = small("fedavg", rounds=1, tests_at=tests_at).federation(tmp_path)
    calls: list[list[str]] = []
    call = federation.cloud.call

    def noted(messages: Mapping[str, bytes], *rest: Any) -> tuple[dict[str, bytes], dict[str, str]]:
        calls.append(sorted(messages))
        return call(messages, *rest)

    monkeypatch.setattr(federation.cloud, "call", noted)
    federation.run()
    assert calls == [["edge-0", "edge-1"]] * len(calls)


# ----------------------------------------------------------------------------------- going back a round


RESUMED = {
    "a client's network": ("ditto",),
    "a client's blend and network": ("apfl",),
    "an edge's head": ("fedper-edges",),
    "momentum": ("fed-bac", PERSIST),
    "momentum of what a client keeps, in two rounds of edges": ("ditto", PERSIST, TWICE),
    "what clients left out of their updates": ("fed-bac", *LINKS),
    "without edges between": ("fedavg", PERSIST, *FLAT_LINKS),
    "pulls of each client, and a step of the cloud that remembers": ("feddyn", *SOME),
}


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("case", first(1, RESUMED))
def test_a_cloud_that_goes_back_gets_the_same_numbers_again(case: str, tmp_path: Path) -> None:
    """Its checkpoint is of round 2, but everybody else has been in round 4 already."""
    method, *settings = RESUMED[case]
    federation = small(method, *settings, rounds=4).federation(tmp_path)
    enrolled = federation.enrol()
    playing = federation.play(tmp_path / "run", enrolled)
    next(playing)
    next(playing)
    shutil.copytree(tmp_path / "run", tmp_path / "earlier")
    whole = finish(playing).records
    (tmp_path / "earlier" / ".lock").unlink(missing_ok=True)
    resumed = federation.run(tmp_path / "earlier", enrolled).records
    assert [record["round"] for record in resumed] == [1, 2, 3, 4]
    assert without(resumed) == without(whole)


@pytest.mark.parametrize("case", first(1, RESUMED))
def test_everybody_may_be_started_again_between_rounds(case: str, tmp_path: Path) -> None:
    """What an owner keeps is on its disk: new processes with the same folders go on as if nothing had been."""
    method, *settings = RESUMED[case]
    tiny = small(method, *settings, rounds=3)
    whole = tiny.federation(tmp_path / "whole").run().records
    federation = tiny.federation(tmp_path)
    enrolled = federation.enrol()
    for _ in range(2):
        playing = federation.play(tmp_path / "run", enrolled)
        next(playing)
        playing.close()
        federation = tiny.federation(tmp_path)
    assert without(federation.run(tmp_path / "run", enrolled).records) == without(whole)


def test_what_is_kept_of_old_rounds_goes(tmp_path: Path) -> None:
    federation = small("ditto", rounds=9, counts=(1, 1)).federation(tmp_path)
    enrolled = federation.enrol()
    federation.run(enrolled=enrolled)
    kept = sorted((tmp_path / "state" / "edge-0-client-0" / enrolled.charter.run).iterdir())
    assert 2 <= len(kept) <= 6
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)


def test_settings_of_a_federation_are_those_of_its_sites(tmp_path: Path) -> None:
    federation = small("fed-bac").federation(tmp_path, min_clients=2)
    assert {site.deploy for site in federation.sites.values()} == {DeploySettings(min_clients=2, min_edges=1)}
