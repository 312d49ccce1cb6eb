"""Structure that is known because it was planted: groups of edges, and clients that do harm (B.8, D.3, D.4)."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from fedbac.clustering import Fixed, LowestLoss, Merging
from fedbac.config.experiment import Measurement, Method, Training
from fedbac.core.parts import Personalization
from fedbac.core.queries import Accuracy, Evidence, Query
from fedbac.core.rng import stream
from fedbac.core.settings import FloatArray, IntArray
from fedbac.data import Dataset, Shards, planted_groups
from fedbac.models import Perceptron
from fedbac.personalization import Additive, PerCluster, Shared
from fedbac.selection import Thompson
from tests.support import Played, in_order, play

TRAINING = Training(epochs=2, batch_size=10, learning_rate=0.1)
LINEAR = Perceptron(hidden=())
CHANCE = 1 / 3
"""Three groups give every example three different labels."""


def planted(seed: int) -> tuple[Dataset, Shards, IntArray]:
    return planted_groups(seed=seed, train=20, validation=0, test=40)


def agreement(played: Played, group_M: IntArray) -> float:
    return float(adjusted_rand_score(group_M, played.end.label_N))


# ------------------------------------------------------------------------------------------------------ IFCA


@pytest.mark.full
def test_ifca_with_distinct_networks_recovers_most_partitions() -> None:
    """From labels drawn at random, with one cluster more than groups: two groups that share one may still get apart.

    IFCA depends on its start, as its authors say; so not every seed has to succeed.
    """
    clustering = LowestLoss(num_clusters=4, period=1, threshold=1.0, start_labels="random")
    method = Method(name="ifca-edges", clustering=clustering, personalization=PerCluster(cluster_init="distinct"))
    found = []
    for seed in range(5):
        dataset, shards, group_M = planted(seed)
        played = play(method, dataset, shards, training=TRAINING, network=LINEAR, num_rounds=6, seed=seed)
        assert adjusted_rand_score(group_M, played.states[0].label_N) < 0.5, "the start must not give it away"
        found.append(agreement(played, group_M) == 1)
        assert played.accuracy > 0.95 or not found[-1]
    assert sum(found) >= 3


def balanced(seed: int) -> tuple[Dataset, Shards, IntArray]:
    """Return edges in an order in which round-robin gives each cluster one edge of each group, with the same data."""
    dataset, shards, group_M = planted(seed)
    order = [0, 3, 6, 1, 4, 7, 2, 5, 8]
    shards = in_order(shards, order)
    train = list(shards.train)
    for edge, clients in enumerate(shards.clients):
        original = shards.clients[edge - edge % 3]
        for client, source in zip(clients, original, strict=True):
            train[client] = shards.train[source]
    return dataset, replace(shards, train=tuple(train)), group_M[order]


@pytest.mark.full
def test_ifca_stalls_when_every_cluster_sees_the_same_mixture() -> None:
    """A documented failure (B.8): no model suits any group better, so nobody has a reason to move."""
    dataset, shards, group_M = balanced(0)
    method = Method(
        name="ifca-edges", clustering=LowestLoss(num_clusters=3, period=4, threshold=0.95), personalization=PerCluster()
    )
    played = play(method, dataset, shards, training=TRAINING, network=LINEAR, num_rounds=9)
    assert played.records[3]["bytes"]["client"]["down"]["evaluate"] > 0, "assignments were due"
    assert sum(record["moves"] for record in played.records) == 0
    assert agreement(played, group_M) < 0
    assert played.accuracy < CHANCE + 0.12


def test_ifca_keeps_a_start_that_is_right() -> None:
    dataset, shards, group_M = planted(0)
    method = Method(
        name="ifca-edges", clustering=LowestLoss(num_clusters=3, period=2, threshold=0.95), personalization=PerCluster()
    )
    played = play(method, dataset, shards, training=TRAINING, network=LINEAR, num_rounds=5)
    assert sum(record["moves"] for record in played.records) == 0
    assert agreement(played, group_M) == 1
    assert played.accuracy > 0.95


@pytest.mark.full
def test_identical_networks_in_one_cluster_never_part() -> None:
    """A documented failure (B.8): the empty clusters tie, and the only trained network beats them all."""
    clustering = LowestLoss(num_clusters=3, period=1, threshold=1.0, start_labels="uniform")
    gentle = TRAINING.model_copy(update={"epochs": 1, "learning_rate": 0.02})
    for seed in range(3):
        dataset, shards, _ = planted(seed)
        stuck, free = (
            play(
                Method(name="ifca-edges", clustering=clustering, personalization=PerCluster(cluster_init=init)),
                dataset,
                shards,
                training=gentle,
                network=LINEAR,
                num_rounds=3,
                seed=seed,
            )
            for init in ("shared", "distinct")
        )
        assert [record["moves"] for record in stuck.records] == [0, 0, 0]
        assert [record["active_clusters"] for record in stuck.records] == [1, 1, 1]
        assert free.records[0]["moves"] > 0, "distinct networks do not tie"


def test_networks_that_tie_exactly_leave_everybody_where_they_are() -> None:
    """Steps too small to change a weight: equal networks stay equal, every loss ties, and a tie keeps the label.

    All clusters are of one size, so that even the rounding of their averages is the same.
    """
    dataset, shards, _ = planted(0)
    clustering = LowestLoss(num_clusters=3, period=1, threshold=1.0, start_labels="round_robin")
    method = Method(name="ifca-edges", clustering=clustering, personalization=PerCluster())
    still = TRAINING.model_copy(update={"epochs": 1, "learning_rate": 1e-30})
    played = play(method, dataset, shards, training=still, network=LINEAR, num_rounds=2)
    assert played.records[-1]["active_clusters"] == 3
    assert [record["moves"] for record in played.records] == [0, 0]


# --------------------------------------------------------------------------------------------------- merging


@pytest.mark.full
def test_merging_finds_the_groups_and_is_better_than_singletons_that_have_too_little_data() -> None:
    """Eight examples a client: edges of one group do better together, and those of others stay apart.

    With so little, training data say nothing about fit, so losses are measured on data held out.
    """
    accuracy: dict[str, list[float]] = {"merging": [], "singletons": []}
    for seed in range(2):
        dataset, shards, group_M = planted_groups(9, 2, 3, seed=seed, train=8, validation=24, test=60)
        clusterings = {"merging": Merging(untrained_loss=np.log(dataset.num_classes)), "singletons": Fixed()}
        for name, clustering in clusterings.items():
            method = Method(
                name=name,
                clustering=clustering,
                personalization=PerCluster(),
                measurement=Measurement(split="validation"),
            )
            played = play(method, dataset, shards, training=TRAINING, network=LINEAR, num_rounds=22, seed=seed)
            accuracy[name].append(played.accuracy)
            if name == "merging":
                assert agreement(played, group_M) == 1
                assert sum(record["moves"] for record in played.records) == 6
    assert np.mean(accuracy["merging"]) > np.mean(accuracy["singletons"]) + 0.02


# ------------------------------------------------------------------------------------------ one model for all


@pytest.mark.full
@pytest.mark.parametrize("hidden", [(), (8,)], ids=["linear", "hidden"])
def test_one_model_for_all_is_near_chance_and_additive_singletons_are_not(hidden: tuple[int, ...]) -> None:
    dataset, shards, _ = planted(1)
    network = Perceptron(hidden=hidden)
    accuracy = {}
    for name, clustering, scheme in (
        ("hierfavg", Fixed(num_clusters=1), Shared()),
        ("singletons", Fixed(), Additive()),
        ("oracle", Fixed(num_clusters=3), PerCluster()),
    ):
        method = Method(name=name, clustering=clustering, personalization=scheme)
        accuracy[name] = play(method, dataset, shards, training=TRAINING, network=network, num_rounds=7).accuracy
    assert abs(accuracy["hierfavg"] - CHANCE) < 0.12
    assert accuracy["singletons"] > 0.9
    assert accuracy["oracle"] > 0.9


def half_shared(seed: int) -> tuple[Dataset, Shards]:
    """Make groups that agree on the names of two of four classes and swap the other two; little data at every edge."""
    dataset, shards, group_M = planted_groups(8, 2, 2, seed=seed, train=4, validation=1, test=60)
    y_train, y_test = dataset.y_train.copy(), dataset.y_test.copy()
    for edge, group in enumerate(group_M):
        held = [split[client] for client in shards.clients[edge] for split in (shards.train, shards.validation)]
        for y, indices in ((y_train, np.concatenate(held)), (y_test, shards.test[edge])):
            component = (y[indices] - group) % 4
            y[indices] = np.where(component < 2, component, 2 + (component + group) % 2)
    return replace(dataset, y_train=y_train, y_test=y_test), shards


@pytest.mark.full
def test_where_groups_share_a_part_additive_singletons_lie_between_isolated_ones_and_the_oracle() -> None:
    accuracy: dict[str, list[float]] = {"isolated": [], "additive": [], "oracle": []}
    for seed in range(3):
        dataset, shards = half_shared(seed)
        for name, clusters, scheme in (
            ("isolated", None, PerCluster()),
            ("additive", None, Additive()),
            ("oracle", 2, PerCluster()),  # clusters are dealt in turns, as the groups are
        ):
            method = Method(name=name, clustering=Fixed(num_clusters=clusters), personalization=scheme)
            played = play(method, dataset, shards, training=TRAINING, network=LINEAR, num_rounds=6, seed=seed)
            accuracy[name].append(played.accuracy)
    isolated, additive, oracle = (float(np.mean(values)) for values in accuracy.values())
    assert isolated + 0.02 < additive < oracle + 0.01


# ------------------------------------------------------------------------------------------ a client that harms


NUM_EDGES, NUM_CLIENTS = 5, 4


def bad_client(edge: int) -> int:
    return edge * NUM_CLIENTS + edge % NUM_CLIENTS


@pytest.mark.full
@pytest.mark.parametrize("scheme", [PerCluster(), Shared()], ids=["isolated", "shared"])
def test_thompson_sampling_drops_a_client_with_wrong_labels(scheme: Personalization) -> None:
    """One client of each edge trains on wrong labels; p = 0.5, five edges, two seeds: ten posteriors to look at.

    A client that never mattered would be selected half of the time. Validation labels are right everywhere.
    """
    late, rates = 12, []
    for seed in range(2):
        dataset, shards, _ = planted_groups(NUM_EDGES, NUM_CLIENTS, 1, train=12, validation=12, test=10, seed=seed)
        y_train = dataset.y_train.copy()
        for edge in range(NUM_EDGES):
            mine = shards.train[bad_client(edge)]
            y_train[mine] = (y_train[mine] + 1) % dataset.num_classes
        method = Method(
            name="thompson",
            clustering=Fixed() if scheme.kind == "per_cluster" else Fixed(num_clusters=1),
            selection=Thompson(fraction=0.5, warmup=5),
            personalization=scheme,
        )
        training = Training(epochs=2, batch_size=12, learning_rate=0.3, clip_norm=None)
        wrong = replace(dataset, y_train=y_train)
        played = play(method, wrong, shards, training=training, network=LINEAR, num_rounds=24, seed=seed)
        for edge in range(NUM_EDGES):
            rates.append(np.mean([bad_client(edge) in r["selected"][edge] for r in played.records[-late:]]))
            state = played.end.selection_M[edge]
            trust_N = state.alpha_N / (state.alpha_N + state.beta_N)
            others = np.delete(trust_N, edge % NUM_CLIENTS)
            assert trust_N[edge % NUM_CLIENTS] < others.mean()
    assert np.mean(rates) < 0.2, "the others then share 1.8 of 2 places: 0.6 each"


@pytest.mark.parametrize("fraction", [0.5, 0.8])
def test_thompson_sampling_in_a_simulated_world_where_one_client_costs_accuracy(fraction: float) -> None:
    """D.3: accuracy is 0.8, less 0.15 when client 0 trained, plus noise; within 100 rounds it is all but dropped."""
    policy = Thompson(fraction=fraction, initial_accuracy="skip")
    bad, others = [], []
    for seed in range(5):
        state = policy.init(10)
        noise = stream(seed, "world")
        for round_ in range(1, 201):
            evidence = Evidence(round_, 200, 10, np.full(10, 30))
            mask_N = policy.act(state, evidence, stream(seed, "selection", round_))
            accuracy = 0.8 - 0.15 * mask_N[0] + noise.normal(0, 0.02)
            told: dict[Query, FloatArray] = {Accuracy("trained", "validation"): np.array(accuracy)}
            state = policy.learn(state, replace(evidence, readings=told), mask_N)
            if round_ > 100:
                bad.append(mask_N[0])
                others.append(mask_N[1:].mean())
    assert np.mean(bad) < 0.2 * np.mean(others)
