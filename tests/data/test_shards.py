"""Who holds what, handed over in Python, is checked like all other input."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fedbac
from fedbac.data import Noise, Shards, add_noise, planted_groups
from fedbac.errors import ConfigError

DATA, SHARDS, _ = planted_groups(2, 2, 2, train=5, validation=1, test=6)
SMALL = ["task.network={kind: mlp, hidden: [4]}", "task.training.epochs=1"]


def changed(field: str, place: int, value: Any) -> Shards:
    groups = list(getattr(SHARDS, field))
    groups[place] = value
    return replace(SHARDS, **{field: tuple(groups)})


@pytest.mark.parametrize(
    ("shards", "said"),
    [
        (changed("train", 1, np.array([0, 24])), r"shards.train\[1\] runs from 0 to 24; indices here are from 0 to 23"),
        (changed("train", 1, np.array([-1, 3])), r"shards.train\[1\] runs from -1 to 3"),
        (changed("train", 1, np.array([0.5])), r"shards.train\[1\] is float64"),
        (changed("train", 1, np.zeros((2, 2), int)), r"shards.train\[1\] is int64 of shape \(2, 2\)"),
        (changed("train", 1, np.array([2**64 - 1], np.uint64)), r"shards.train\[1\] runs from 18446744073709551615"),
        (changed("train", 0, np.array([1, 1])), r"shards.train\[0\] .* 1 is listed twice"),
        (changed("validation", 0, SHARDS.train[0][:1]), r"shards.validation\[0\]: .* 0 is listed twice"),
        (changed("test", 0, np.array([12])), r"shards.test\[0\] runs from 12 to 12"),
        (changed("clients", 0, range(0)), r"shards.clients\[0\] is empty"),
        (changed("clients", 1, range(1, 3)), "shards.clients: .* 1 is listed twice"),
        (changed("clients", 1, range(2, 9)), r"shards.clients\[1\] runs from 2 to 8"),
        (replace(SHARDS, validation=SHARDS.validation[:3]), "shards.validation lists 3 clients, shards.train 4"),
        (replace(SHARDS, test=SHARDS.test[:1]), "shards.test lists 1 edges, shards.clients 2"),
        (replace(SHARDS, noisy=(7,)), "shards.noisy"),
        (replace(SHARDS, train=3), "shards.train is 3"),  # type: ignore[arg-type]
        (3, "must be fedbac.Shards, not int"),
    ],
)
def test_shards_that_cannot_be_are_refused_by_field(shards: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fedbac.run("hierfavg", "demo", rounds=1, dataset=DATA, shards=shards, settings=SMALL, device="cpu", workers=1)


def test_lists_and_small_integers_are_as_good_as_arrays() -> None:
    listed = replace(
        SHARDS,
        train=tuple(mine.tolist() for mine in SHARDS.train),
        validation=[mine.astype(np.uint8) for mine in SHARDS.validation],  # type: ignore[arg-type]
    )
    first, second = (
        fedbac.run(
            "hierfavg", "demo", rounds=1, dataset=DATA, shards=shards, settings=SMALL, device="cpu", workers=1
        ).records[0]
        for shards in (SHARDS, listed)
    )
    assert {**first, "seconds": 0} == {**second, "seconds": 0}


def test_clients_may_share_examples_unless_labels_are_made_noisy() -> None:
    shared = changed("train", 1, SHARDS.train[0]).checked(24, 12)
    with pytest.raises(ConfigError, match=r"task.noise: clients share examples"):
        add_noise(DATA, shared, Noise(), 0)
