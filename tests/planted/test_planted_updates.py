"""Groups that were planted are found from updates, and groups that differ in their level of loss from losses (D.4)."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from fedbac.clustering import Agglomerative, GaussianRewards, KMeans
from fedbac.config.experiment import Method, Training
from fedbac.core.policies import ClusterPolicy
from fedbac.core.rng import stream
from fedbac.data import planted_groups
from fedbac.models import Perceptron
from fedbac.personalization import PerCluster
from tests.covering import first
from tests.support import play

TRAINING = Training(epochs=2, batch_size=10, learning_rate=0.1)
LINEAR = Perceptron(hidden=())
POLICIES = {
    "fl-hc-edges": Agglomerative(warmup=2),
    "fl-hc-edges by cosine": Agglomerative(warmup=2, metric="cosine", linkage="complete"),
    "cflhkd": Agglomerative(warmup=2, metric="cosine", threshold=0.5, period=1),
    "chpfl-edges": KMeans(num_clusters=3),
}


@pytest.mark.parametrize("clustering", first(1, POLICIES.values()), ids=POLICIES)
def test_groups_that_name_classes_differently_are_recovered(clustering: ClusterPolicy) -> None:
    method = Method(name="planted", clustering=clustering, personalization=PerCluster())
    for seed in range(2):
        dataset, shards, group_M = planted_groups(9, 2, 3, seed=seed, train=20, validation=0, test=40)
        played = play(method, dataset, shards, training=TRAINING, network=LINEAR, num_rounds=4, seed=seed)
        assert adjusted_rand_score(group_M, played.end.label_N) == 1
        assert played.accuracy > 0.95
        assert played.records[0]["accuracy"] < 0.6, "one network cannot serve all"


def test_clients_are_recovered_too() -> None:
    dataset, shards, group_M = planted_groups(6, 2, 2, train=20, validation=0, test=40)
    method = Method(name="planted", unit="client", clustering=Agglomerative(warmup=1), personalization=PerCluster())
    played = play(method, dataset, shards, training=TRAINING, network=LINEAR, num_rounds=3)
    assert adjusted_rand_score(np.repeat(group_M, 2), played.end.label_N) == 1


NOISY = np.array([0, 0, 1, 0, 0, 1, 0, 1, 0])
"""A third of the edges: were they half, both halves would be as far from the mean, and rewarded alike."""


@pytest.mark.full
@pytest.mark.parametrize("seed", first(1, range(2)))
def test_edges_with_noisy_labels_part_from_the_others_by_their_level_of_loss(seed: int) -> None:
    dataset, shards, _ = planted_groups(9, 2, 1, train=30, validation=0, test=20, seed=seed)
    y_train = dataset.y_train.copy()
    for edge in np.flatnonzero(NOISY):
        for client in shards.clients[edge]:
            rows = shards.train[client]
            y_train[rows] = stream(seed, "noise", client).integers(dataset.num_classes, size=rows.size)
    method = Method(name="fedgwc", clustering=GaussianRewards(epsilon=1e-3, patience=3), personalization=PerCluster())
    played = play(method, replace(dataset, y_train=y_train), shards, training=TRAINING, network=LINEAR, num_rounds=8)
    first = next(record for record in played.records if record["moves"])
    assert adjusted_rand_score(NOISY, first["assignment_next"]) == 1
