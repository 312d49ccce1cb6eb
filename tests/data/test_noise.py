"""Noisy labels: whose, how many, and nothing else."""

import numpy as np
import pytest

from fedbac import ConfigError, Noise, configure
from fedbac.data import Partition, add_noise, partition, toy
from fedbac.federation import assemble
from tests.unit.tiny import tiny_data, tiny_task

DATA = toy(train=4000, test=400)
SHARDS = partition(DATA.y_train, DATA.y_test, 10, (5, 10), Partition(min_edge_test=20), seed=0)


def test_the_share_of_every_edge_is_noisy() -> None:
    _, shards = add_noise(DATA, SHARDS, Noise(clients=0.4), seed=3)
    assert [sum(client in shards.noisy for client in clients) for clients in shards.clients] == [2, 4]
    _, other = add_noise(DATA, SHARDS, Noise(clients=0.4), seed=4)
    assert other.noisy != shards.noisy


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_labels_of_noisy_clients_are_drawn_from_all_classes_and_others_stay(share: float) -> None:
    noisy, shards = add_noise(DATA, SHARDS, Noise(clients=0.4, labels=share), seed=3)
    mine = [np.concatenate([shards.train[c], shards.validation[c]]) for c in range(15)]
    changed = [float((noisy.y_train[m] != DATA.y_train[m]).mean()) for m in mine]
    assert all(changed[c] == 0 for c in range(15) if c not in shards.noisy)
    hit = np.concatenate([mine[c] for c in shards.noisy])
    rate, expected = (noisy.y_train[hit] != DATA.y_train[hit]).mean(), 0.9 * share  # one draw in ten is right
    assert abs(rate - expected) < 4 * np.sqrt(expected * (1 - expected) / hit.size)
    assert set(noisy.y_train[hit][noisy.y_train[hit] != DATA.y_train[hit]].tolist()) == set(range(10))
    assert any((noisy.y_train[shards.validation[c]] != DATA.y_train[shards.validation[c]]).any() for c in shards.noisy)
    np.testing.assert_array_equal(noisy.y_test, DATA.y_test)


def test_a_task_with_noise_hands_out_noisy_labels_and_leaves_the_partition_alone() -> None:
    data = tiny_data()
    clean, noisy = (
        assemble(configure("hierfavg", tiny_task(noise=noise)), dataset=data) for noise in (None, Noise(clients=0.4))
    )
    assert clean.shards.noisy == ()
    assert len(noisy.shards.noisy) == 4
    for before, after in zip(clean.shards.train, noisy.shards.train, strict=True):
        np.testing.assert_array_equal(before, after)
    assert (noisy.examples.dataset.y_train != data.y_train).any()
    np.testing.assert_array_equal(clean.examples.dataset.y_train, data.y_train)


def test_a_share_outside_of_zero_to_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"task\.noise\.labels: 1\.5 is not allowed"):
        configure("hierfavg", "noisy", settings=["task.noise.labels=1.5"])
