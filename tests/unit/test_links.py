"""The byte ledger against the paper's Eq. 4 and against counting by hand what a real run sends."""

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import fedbac
from fedbac import Part, Phase, Run, Shared
from fedbac.core.links import BYTES_PER_NUMBER, Link, Tier
from fedbac.rounds.metrics import total_bytes
from fedbac.selection import CreditThompson
from tests.schemes import Branched
from tests.unit.tiny import tiny_run, tiny_task

# The tiny network: 64 inputs, 4 hidden, 10 classes.
WEIGHTS = 64 * 4 + 4 + 4 * 10 + 10
NETWORK = BYTES_PER_NUMBER * WEIGHTS
EDGES, CLIENTS = 2, 10
OFF_TEST = "method.selection.reward_split=test"


def moved(run: Run, round_: int, tier: str, direction: str, purpose: str) -> int:
    value: Any = run.records[round_ - 1]["bytes"][tier][direction][purpose]
    assert isinstance(value, int)
    return value


class EveryOwner(Shared):
    """A scheme with a part for every kind of owner, and one that never moves."""

    parts: ClassVar[Mapping[str, Part]] = {
        "everybody's": Part("cloud", "a"),
        "the cluster's": Part("cluster", "b"),
        "the edge's": Part("edge", "c"),
        "the client's": Part("client", "d"),
        "nobody's": Part("cloud", "e"),
    }

    def phases(self) -> tuple[Phase, ...]:
        return (Phase(moves=tuple(part for part in self.parts if part != "nobody's")),)


SCHEME = EveryOwner()


@pytest.mark.parametrize(("tier", "passing"), [("client", 1 + 10 + 100), ("cloud", 1 + 10)])
def test_a_part_passes_the_links_between_its_owner_and_the_client(tier: Tier, passing: int) -> None:
    """An edge keeps its own parts from the cloud, a client its own from everybody; what never moves, all have."""
    bank = {part: {"w": torch.zeros(1, 10**i)} for i, part in enumerate(SCHEME.parts)}
    link = Link(tier, SCHEME)
    link.send("down", "train", bank, receivers=3)
    assert link.traffic.entries == {(tier, "down", "train"): BYTES_PER_NUMBER * 3 * passing}


def test_a_part_that_networks_share_is_counted_once() -> None:
    bank = {part: {"w": torch.zeros(1, 10**i)} for i, part in enumerate(Branched.parts)}
    link = Link("cloud", Branched())
    link.send("up", "train", bank)
    assert link.traffic.entries == {("cloud", "up", "train"): BYTES_PER_NUMBER * (1 + 10)}


def test_every_row_of_a_bank_and_every_number_counts() -> None:
    link = Link("cloud", SCHEME)
    link.send("down", "evaluate", {"the cluster's": {"w": torch.zeros(4, 3, 2), "b": torch.zeros(4, 2)}})
    link.tell("up", 5, receivers=2)
    assert link.traffic.entries == {("cloud", "down", "evaluate"): 4 * 4 * 8, ("cloud", "up", "control"): 4 * 10}


def test_only_the_link_counts_bytes() -> None:
    """``Ledger.add`` counts what passes a link, what a secret sum takes beside it, and nothing else."""
    package = Path(fedbac.__file__).parent
    sources = {file: file.read_text(encoding="utf-8") for file in package.rglob("*.py")}
    callers = [
        file.relative_to(package).as_posix()
        for file, text in sources.items()
        if ".add(" in text and ("traffic" in text or "ledger" in text)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add"
        if "traffic" in ast.unparse(node.func) or "ledger" in ast.unparse(node.func)
    ]
    assert sorted(callers) == ["core/links.py"] * 2 + ["core/secret.py"] * 2


def test_ledger_merges_and_nests() -> None:
    left, right = Link("client", SCHEME), Link("cloud", SCHEME)
    left.tell("down", 5)
    left.tell("down", 6)
    right.tell("up", 7)
    left.traffic.merge(right.traffic)
    nested = left.traffic.nested()
    assert nested["client"]["down"]["control"] == 44
    assert nested["cloud"]["up"]["control"] == 28
    assert total_bytes(nested) == 72
    assert right.traffic.nested()["client"]["down"]["control"] == 0
    assert [(t, d, p) for t in nested for d in nested[t] for p in nested[t][d]] == [
        (t, d, p) for t in ("client", "cloud") for d in ("down", "up") for p in ("train", "evaluate", "control")
    ]


@pytest.fixture(scope="module")
def fed_bac() -> Run:
    return tiny_run("fed-bac", OFF_TEST, "method.clustering.period=2")


@pytest.fixture(scope="module")
def hierfavg() -> Run:
    return tiny_run("hierfavg")


def test_training_bytes_are_equation_4(fed_bac: Run, hierfavg: Run) -> None:
    for run, parts in ((fed_bac, [WEIGHTS, WEIGHTS]), (hierfavg, [WEIGHTS])):
        for record in run.records:
            ledger = record["bytes"]["client"]
            expected = 2 * sum(parts) * sum(len(selected) for selected in record["selected"])  # C_client
            assert ledger["down"]["train"] + ledger["up"]["train"] == BYTES_PER_NUMBER * expected


def test_fed_bac_trains_at_1_6_times_the_client_bytes_and_twice_the_cloud_bytes(fed_bac: Run, hierfavg: Run) -> None:
    """D.3, exactly, with p = 0.8 of five clients per edge."""
    for round_ in (1, 2):
        for direction in ("down", "up"):
            single = moved(hierfavg, round_, "client", direction, "train")
            assert single == CLIENTS * NETWORK
            assert 10 * moved(fed_bac, round_, "client", direction, "train") == 16 * single
            single = moved(hierfavg, round_, "cloud", direction, "train")
            assert single == EDGES * NETWORK
            assert moved(fed_bac, round_, "cloud", direction, "train") == 2 * single


def test_a_reassignment_sends_every_candidate_to_every_client(fed_bac: Run) -> None:
    """C.39: the global network once and K residual networks, to each edge and on to all its clients."""
    num_clusters = EDGES
    assert moved(fed_bac, 1, "client", "down", "evaluate") == 0
    assert moved(fed_bac, 1, "cloud", "down", "evaluate") == 0
    assert moved(fed_bac, 2, "client", "down", "evaluate") == CLIENTS * (num_clusters + 1) * NETWORK
    assert moved(fed_bac, 2, "cloud", "down", "evaluate") == EDGES * (num_clusters + 1) * NETWORK
    for round_ in (1, 2):
        assert moved(fed_bac, round_, "client", "up", "evaluate") == 0


def test_ifca_sends_the_cluster_networks_only() -> None:
    """Before the first round too: what that costs is told of round 1."""
    run = tiny_run("ifca-edges", "method.clustering.num_clusters=2")
    assert moved(run, 1, "client", "down", "evaluate") == 2 * moved(run, 2, "client", "down", "evaluate")
    assert moved(run, 2, "client", "down", "evaluate") == CLIENTS * 2 * NETWORK
    assert moved(run, 1, "client", "down", "train") == CLIENTS * NETWORK


def test_measuring_at_the_edge_spares_the_clients() -> None:
    """C.39: with the data at the edge, candidates and reward models travel no further."""
    settings = ["method.clustering.period=1", "method.measurement.location=edge"]
    run = tiny_run("fed-bac", *settings)
    assert moved(run, 1, "client", "down", "evaluate") == 0
    assert moved(run, 1, "cloud", "down", "evaluate") == EDGES * (2 + 1) * NETWORK


def test_measuring_only_the_selected_spares_the_others() -> None:
    settings = [OFF_TEST, "method.clustering.period=1", "method.measurement.clients=selected"]
    run = tiny_run("fed-bac", *settings)
    assert moved(run, 1, "client", "down", "evaluate") == 8 * (2 + 1) * NETWORK


@pytest.mark.parametrize(("trusted", "clients"), [([0, 3], 2), ([], 5)])
def test_measuring_with_trusted_clients_spares_the_others(
    trusted: list[int], clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody is trusted, all are asked: an edge must say something."""
    monkeypatch.setattr(CreditThompson, "trusted", lambda _, state: np.isin(np.arange(state.fail_N.size), trusted))
    selection = "method.selection={kind: credit_thompson, shared: {reward_split: test}}"
    settings = ["method.clustering.period=1", selection, "method.measurement.clients=trusted"]
    run = tiny_run("fed-bac", *settings)
    assert moved(run, 1, "client", "down", "evaluate") == EDGES * clients * (2 + 1) * NETWORK


def test_a_reward_on_validation_data_costs_client_bytes_and_one_on_test_data_none() -> None:
    """The edge's new model goes to every client that holds validation data; in round 1 the initial model too."""
    never = "method.clustering.period=100"
    on_test = tiny_run("fed-bac", never, OFF_TEST)
    on_validation = tiny_run("fed-bac", never)
    skipped = tiny_run("fed-bac", never, "method.selection.initial_accuracy=skip")
    for round_ in (1, 2):
        assert moved(on_test, round_, "client", "down", "evaluate") == 0
        for run in (on_test, on_validation):
            assert moved(run, round_, "cloud", "down", "evaluate") == 0
    assert moved(on_validation, 1, "client", "down", "evaluate") == 2 * CLIENTS * 2 * NETWORK
    assert moved(on_validation, 2, "client", "down", "evaluate") == CLIENTS * 2 * NETWORK
    assert moved(skipped, 1, "client", "down", "evaluate") == CLIENTS * 2 * NETWORK


def test_the_state_of_a_selection_policy_stays_at_its_edge() -> None:
    """Control traffic is a size and a loss for each update; the memory of the policy costs nothing."""
    run = tiny_run("fed-bac", "method.clustering.period=100", OFF_TEST)
    for round_ in (1, 2):
        assert moved(run, round_, "cloud", "down", "control") == 0
        assert moved(run, round_, "cloud", "up", "control") == EDGES * 2 * BYTES_PER_NUMBER
        assert moved(run, round_, "client", "up", "control") == 8 * 2 * BYTES_PER_NUMBER


def test_a_network_that_several_measurements_need_travels_once() -> None:
    """A look of merging measures two networks of an edge on two splits, and those of all clusters on one."""
    settings = ["method.clustering.period=1", "method.selection.shared.reward_split=test"]
    run = tiny_run("fedbac-plus", *settings, "method.sharing=apart", task=tiny_task(rounds=3))
    settings = ["method.clustering={kind: lowest_loss, period: 1, num_clusters: 2}"]
    plain = tiny_run("fed-cam-edges", *settings)
    for tier in ("client", "cloud"):
        assert moved(run, 1, tier, "down", "evaluate") == moved(plain, 1, tier, "down", "evaluate")


def test_what_clients_own_costs_nothing() -> None:
    """A client's own network stays with it; one that an edge owns travels to its clients, but not to the cloud."""
    single, personal = tiny_run("hierfavg"), tiny_run("ditto")
    assert [r["bytes"] for r in personal.records] == [r["bytes"] for r in single.records]
    of_edges = tiny_run("ditto-edges")
    assert moved(of_edges, 1, "client", "down", "train") == 2 * CLIENTS * NETWORK
    assert moved(of_edges, 1, "cloud", "down", "train") == EDGES * NETWORK


def test_a_flat_federation_has_no_cloud_tier() -> None:
    flat, tiers = tiny_run("fedavg"), tiny_run("hierfavg")
    assert total_bytes(flat.records[0]["bytes"]["cloud"]) == 0
    assert flat.records[0]["bytes"]["client"] == tiers.records[0]["bytes"]["client"]


def test_reporting_accuracy_is_not_traffic(hierfavg: Run) -> None:
    """The experimenter's instrument costs nothing: HierFAVG evaluates nothing."""
    for round_ in (1, 2):
        for tier in ("client", "cloud"):
            for direction in ("down", "up"):
                assert moved(hierfavg, round_, tier, direction, "evaluate") == 0


def test_every_edge_round_is_paid_at_the_client_tier_only() -> None:
    run = tiny_run("hierfavg", "method.topology.edge_rounds=3", task=tiny_task(rounds=1))
    assert moved(run, 1, "client", "down", "train") == 3 * CLIENTS * NETWORK
    assert moved(run, 1, "cloud", "down", "train") == EDGES * NETWORK


def test_summary_adds_up_the_rounds(fed_bac: Run) -> None:
    assert fed_bac.summary["bytes_total"] == sum(total_bytes(record["bytes"]) for record in fed_bac.records)
    assert total_bytes(fed_bac.summary["bytes"]) == fed_bac.summary["bytes_total"]
