"""Members of clusters may be sites or clients: the same numbers where both say the same, and one sum per cluster."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from fedbac.clustering import CosineSplits, Fixed, LowestLoss, Merging
from fedbac.config.experiment import Experiment, Method, Task
from fedbac.config.explain import parse
from fedbac.core.policies import ClusterPolicy
from fedbac.core.settings import IntArray
from fedbac.data import Shards, planted_groups
from fedbac.errors import ConfigError
from fedbac.models import Perceptron
from fedbac.personalization import Additive, PerCluster
from fedbac.selection import Random
from fedbac.topology import Flat
from tests.support import Played, Scripted, StubTrainer, deal, play

DATA, SHARDS, _ = planted_groups(4, 3, 2, train=10, validation=2, test=15)
UNEVEN = deal(DATA, [[1, 3], [6, 2, 4], [8]], test=[20, 20, 20])


def regrouped(seed: int) -> tuple[Shards, IntArray]:
    """Return shards in which every edge has clients of all groups, and the group of each client."""
    _, shards, group_M = planted_groups(9, 4, 3, seed=seed, train=20, validation=5, test=40)
    edge_N = np.repeat(np.arange(9), [len(clients) for clients in shards.clients])
    order = np.argsort(np.arange(edge_N.size) % 9, kind="stable")  # deal clients to edges in turn
    train, validation = (tuple(some[i] for i in order) for some in (shards.train, shards.validation))
    return replace(shards, train=train, validation=validation), group_M[edge_N[order]]


def pure(label_N: IntArray, group_N: IntArray) -> bool:
    """Whether no cluster has members of two groups, and there are several clusters."""
    clusters = np.unique(label_N)
    return clusters.size > 1 and all(np.unique(group_N[label_N == k]).size == 1 for k in clusters)


def test_an_edge_forwards_one_sum_per_cluster() -> None:
    """Clients 0 to 5 have weights 0 to 5 and 1, 3 | 6, 2, 4 | 8 examples; clusters cut through edges."""
    clustering = Scripted(num_clusters=3, script=((0, 2, 2, 0, 0, 2),))
    method = Method(name="test", unit="client", clustering=clustering, personalization=Additive())
    played = play(method, DATA, UNEVEN, StubTrainer(), num_rounds=1)
    expected = {0: (1 * 0 + 2 * 3 + 4 * 4) / 7, 2: (3 * 1 + 6 * 2 + 8 * 5) / 17}
    for name, value in played.end.parts["cluster"].items():
        for k, mean in expected.items():
            torch.testing.assert_close(value[k], torch.full_like(value[k], mean))
        assert torch.equal(value[1], played.states[0].parts["cluster"][name][1]), "an empty cluster stays as it was"
    one_model = sum(value[0].numel() for value in played.end.parts["cluster"].values())
    rows = 2 + 2 + 1  # clusters among the clients of each edge
    assert played.records[0]["bytes"]["cloud"]["up"]["train"] == 4 * one_model * (rows + 3)  # and the network of all


@pytest.mark.parametrize("topology", ["hierarchical", "flat"])
def test_clients_that_follow_their_edge_give_the_numbers_of_edges(topology: str) -> None:
    """Also where they meet does not matter: a cluster's average is over the same clients."""
    by_edge = (1, 0, 1, 0)
    by_client = tuple(by_edge[m] for m, clients in enumerate(SHARDS.clients) for _ in clients)
    scheme = PerCluster(cluster_init="distinct")
    clustering = Scripted(num_clusters=2, script=(by_edge,))
    edges = play(Method(name="edges", clustering=clustering, personalization=scheme), DATA, SHARDS)
    method = Method(
        name="clients", unit="client", clustering=Scripted(num_clusters=2, script=(by_client,)), personalization=scheme,
        **({"topology": Flat()} if topology == "flat" else {}),
    )  # fmt: skip
    clients = play(method, DATA, SHARDS)
    for name, value in edges.end.parts["cluster"].items():
        torch.testing.assert_close(clients.end.parts["cluster"][name], value, rtol=1e-5, atol=1e-6)
    assert clients.records[-1]["accuracy_per_edge"] == pytest.approx(edges.records[-1]["accuracy_per_edge"], abs=0.05)


@pytest.mark.full
@pytest.mark.parametrize("topology", [{}, {"topology": Flat()}], ids=["hierarchical", "flat"])
def test_lowest_loss_of_clients_recovers_groups_that_cut_through_edges(topology: dict[str, Flat]) -> None:
    data, _, _ = planted_groups(9, 4, 3, seed=1, train=20, validation=5, test=40)
    shards, group_N = regrouped(1)
    method = Method(
        name="ifca-edges",
        unit="client",
        clustering=LowestLoss(num_clusters=4, period=1, threshold=1.0, start_labels="random"),
        personalization=PerCluster(cluster_init="distinct"),
        **topology,
    )
    played = play(method, data, shards, network=Perceptron(hidden=()), num_rounds=8, seed=1)
    assert adjusted_rand_score(group_N, played.end.label_N) > 0.95, "one client may have the cluster that is left over"
    assert pure(played.end.label_N, group_N)
    assert played.records[0]["bytes"]["cloud"]["up"]["train"] == 0 or not topology


def test_updates_of_clients_are_compared_one_by_one() -> None:
    """CFL splits clients of one edge; its edges pass on every client's update instead of their average."""
    data, _, _ = planted_groups(9, 4, 3, seed=2, train=20, validation=5, test=40)
    shards, group_N = regrouped(2)
    splits = CosineSplits(first_split=1, epsilon_1=100.0, epsilon_2=0.0)
    method = Method(name="cfl-edges", unit="client", clustering=splits, personalization=PerCluster())
    played = play(method, data, shards, network=Perceptron(hidden=()), num_rounds=4, seed=2)
    assert pure(played.end.label_N, group_N)
    one_model = sum(value[0].numel() for value in played.end.parts["cluster"].values())
    assert played.records[0]["bytes"]["cloud"]["up"]["train"] == 4 * one_model * group_N.size


def test_who_is_not_asked_stays() -> None:
    method = Method(
        name="ifca-edges",
        unit="client",
        clustering=LowestLoss(num_clusters=2, period=1, threshold=1.0),
        selection=Random(fraction=0.4),
        personalization=PerCluster(cluster_init="distinct"),
    )
    method = method.model_copy(update={"measurement": method.measurement.model_copy(update={"clients": "selected"})})
    played: Played = play(method, DATA, SHARDS, num_rounds=4)
    for record in played.records:
        moved = np.flatnonzero(np.array(record["assignment"]) != record["assignment_next"])
        assert set(moved) <= {client for clients in record["selected"] for client in clients}
    assert sum(record["moves"] for record in played.records) > 0


@pytest.mark.parametrize(
    ("clustering", "message"),
    [(Fixed(num_clusters=7), "only 6 clients to cluster"), (Merging(), "which an edge measures, but members are")],
)
def test_what_clients_cannot_do_is_refused(clustering: ClusterPolicy, message: str) -> None:
    method = Method(name="x", unit="client", clustering=clustering, personalization=PerCluster())
    with pytest.raises(ConfigError, match=message):
        parse(Experiment, {"task": Task(num_edges=3, clients_per_edge=2), "method": method})
