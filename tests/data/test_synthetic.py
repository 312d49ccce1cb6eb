import numpy as np
import pytest

from fedbac.data import planted_groups, toy
from fedbac.data.datasets import Array
from fedbac.errors import ConfigError


def nearest_mean_accuracy(x: Array, y: Array, x_new: Array, y_new: Array) -> float:
    x, x_new = (array.reshape(len(array), -1).astype(float) for array in (x, x_new))
    mean_CF = np.stack([x[y == c].mean(0) for c in np.unique(y)])
    distance = ((x_new[:, None] - mean_CF) ** 2).sum(-1)
    return float((distance.argmin(1) == y_new).mean())


def test_planted_groups_agree_within_and_conflict_between() -> None:
    data, shards, group_M = planted_groups()
    np.testing.assert_array_equal(group_M, [0, 1, 2] * 3)
    assert data.x_train.dtype == np.float32
    of_group = [
        np.concatenate([shards.train[i] for m in np.flatnonzero(group_M == g) for i in shards.clients[m]])
        for g in range(3)
    ]
    for edge, test in enumerate(shards.test):
        for group, train in enumerate(of_group):
            accuracy = nearest_mean_accuracy(
                data.x_train[train], data.y_train[train], data.x_test[test], data.y_test[test]
            )
            assert accuracy > 0.95 if group == group_M[edge] else accuracy < 0.05


def test_planted_shards_use_every_example_once() -> None:
    data, shards, _ = planted_groups(5, 2, 2, train=7, validation=3, test=11)
    assert np.concatenate([*shards.train, *shards.validation]).size == len(data.y_train) == 5 * 2 * 10
    assert np.unique(np.concatenate([*shards.train, *shards.validation])).size == len(data.y_train)
    np.testing.assert_array_equal(np.concatenate(shards.test), np.arange(55))
    assert shards.clients == (range(2), range(2, 4), range(4, 6), range(6, 8), range(8, 10))
    assert {len(s) for s in shards.train} == {7}
    assert {len(s) for s in shards.validation} == {3}


def test_planted_groups_need_room_to_differ() -> None:
    with pytest.raises(ConfigError, match="num_groups=5, num_classes=4"):
        planted_groups(num_groups=5)
    with pytest.raises(ConfigError, match="num_features=3"):
        planted_groups(num_features=3)


def test_toy_images_are_learnable_and_seeded() -> None:
    data = toy()
    assert data.x_train.shape == (600, 1, 8, 8)
    assert data.x_train.dtype == np.uint8
    np.testing.assert_array_equal(np.bincount(data.y_test), [20] * 10)
    assert nearest_mean_accuracy(data.x_train, data.y_train, data.x_test, data.y_test) > 0.98
    assert data.fingerprint == toy().fingerprint != toy(1).fingerprint
    assert planted_groups()[0].fingerprint == planted_groups()[0].fingerprint != planted_groups(seed=1)[0].fingerprint
