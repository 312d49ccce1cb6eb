"""The byte ledger against the paper's Eq. 4 and against counting by hand what a real run sends."""

from typing import Any

import numpy as np
import pytest
import torch

from fedbac import Run
from fedbac.core.links import BYTES_PER_NUMBER, Ledger, client_numbers, payload, state_bytes
from fedbac.core.policies import NoState
from fedbac.rounds.metrics import total_bytes
from fedbac.selection import CreditThompson, Thompson
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


def test_payload_counts_a_shared_network_once() -> None:
    shared, first, second = ({"w": torch.zeros(3, 2), "b": torch.zeros(2)} for _ in range(3))
    assert payload([{"global": shared}]) == 4 * 8
    assert payload([{"global": shared, "cluster": first}, {"global": shared, "cluster": second}]) == 4 * 24
    assert payload([{"cluster": first}, {"cluster": first}]) == 4 * 8
    equal = {name: value.clone() for name, value in shared.items()}
    assert payload([{"global": shared}, {"global": equal}]) == 4 * 16  # equal is not the same


def test_ledger_adds_merges_and_nests() -> None:
    left, right = Ledger(), Ledger()
    left.add("client", "down", "train", 5)
    left.add("client", "down", "train", 6)
    right.add("client", "down", "train", 100)
    right.add("cloud", "up", "control", 7)
    left.merge(right)
    nested = left.nested()
    assert nested["client"]["down"]["train"] == 111
    assert nested["cloud"]["up"]["control"] == 7
    assert total_bytes(nested) == 118
    assert right.nested()["client"]["down"]["train"] == 100
    assert [(t, d, p) for t in nested for d in nested[t] for p in nested[t][d]] == [
        (t, d, p) for t in ("client", "cloud") for d in ("down", "up") for p in ("train", "evaluate", "control")
    ]


def test_state_bytes() -> None:
    assert state_bytes(NoState()) == 0
    assert state_bytes(Thompson().init(10)) == 8 * (10 + 10 + 1)


def test_client_numbers_is_equation_4() -> None:
    """The paper's setting: 2·p·N·(d_g + d_k) with p = 0.8, N = 100."""
    assert client_numbers([8] * 10, [62006, 62006]) == 2 * 80 * 2 * 62006


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
            expected = client_numbers([len(selected) for selected in record["selected"]], parts)
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
    run = tiny_run("ifca", "method.clustering.num_clusters=2", "method.clustering.period=1")
    assert moved(run, 1, "client", "down", "evaluate") == CLIENTS * 2 * NETWORK
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
