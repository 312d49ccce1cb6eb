"""Natural tiers: what the tool writes is read as it was meant, and who holds what is possible."""

import json
from pathlib import Path

import numpy as np
import pytest

import fedbac
from fedbac.errors import Error
from fedbac_paper import natural


def write_pupils(path: Path) -> Path:
    """Three schools in two authorities, five pupils each."""
    np.savez(
        path,
        x=np.arange(30, dtype=np.float32).reshape(15, 2),
        y=np.arange(15, dtype=np.uint8) % 3,
        client=np.repeat(np.arange(3), 5).astype(np.uint16),
        edge=np.array([0, 0, 1], np.uint8),
        split=np.tile([0, 0, 0, 1, 2], 3).astype(np.uint8),
    )
    return path


def write_roles(path: Path) -> Path:
    """Two roles in each of two plays; a role says one of five characters in turn, from its own on."""
    length = np.full(4, 200)
    text = np.concatenate([(np.arange(200) + role) % 5 for role in range(4)])
    np.savez(
        path,
        text=text.astype(np.uint8),
        known=np.arange(97, 102, dtype=np.uint8),
        length=length.astype(np.uint16),
        edge=np.array([0, 0, 1, 1], np.uint8),
    )
    return path


def test_pupils_are_with_their_school_and_tested_with_their_authority(tmp_path: Path) -> None:
    found = natural.read(write_pupils(tmp_path / "pupils.npz"))
    shards = found.shards.checked(len(found.dataset.y_train), len(found.dataset.y_test))
    assert [list(clients) for clients in shards.clients] == [[0, 1], [2]]
    assert [one.size for one in shards.train] == [3, 3, 3]
    assert [one.size for one in shards.validation] == [1, 1, 1]
    assert [found.dataset.x_test[one, 0].tolist() for one in shards.test] == [[8.0, 18.0], [28.0]]
    assert found.dataset.x_train[shards.train[2], 0].tolist() == [20.0, 22.0, 24.0]


def test_roles_tell_the_next_character_and_are_tested_on_what_they_say_last(tmp_path: Path) -> None:
    found = natural.read(write_roles(tmp_path / "roles.npz"))
    shards = found.shards.checked(len(found.dataset.y_train), len(found.dataset.y_test))
    x, y = found.dataset.x_train, found.dataset.y_train
    assert x.shape[1:] == (natural.CONTEXT,)
    np.testing.assert_array_equal(y, (x[:, -1] + 1) % 5)
    assert len(shards.clients) == 2
    assert len({one.size for one in shards.train}) == 1
    assert sum(one.size for one in shards.train) > 5 * sum(one.size for one in shards.validation)


@pytest.mark.parametrize("write", [write_pupils, write_roles])
def test_a_method_runs_on_them(tmp_path: Path, write: object) -> None:
    found = natural.read(write(tmp_path / "some.npz"))  # type: ignore[operator]
    run = fedbac.run(
        "hierfavg", found.task, dataset=found.dataset, shards=found.shards, network=found.network, rounds=1,
        device="cpu", workers=1, progress=False,
    )  # fmt: skip
    assert 0 <= run.summary["accuracy"] <= 1


def test_a_file_that_is_none_is_refused_by_its_name(tmp_path: Path) -> None:
    bad = tmp_path / "bad.npz"
    bad.write_bytes(b"nothing")
    with pytest.raises(Error, match=r"bad\.npz"):
        natural.read(bad)
    np.savez(bad, x=np.zeros(3))
    with pytest.raises(Error, match=r"bad\.npz"):
        natural.read(bad)


def test_the_table_shows_means_over_seeds_and_the_best_first(tmp_path: Path) -> None:
    runs = [("chem97", "local", 0, 0.3), ("chem97", "hierfavg", 0, 0.5), ("chem97", "hierfavg", 1, 0.4)]
    runs.append(("shakespeare", "local", 0, 0.25))
    rows = [
        {"data": data, "method": method, "seed": seed, "accuracy": value, "edge_min": value - 0.1}
        for data, method, seed, value in runs
    ]
    file = tmp_path / "natural.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert natural.table(file).splitlines()[3:5] == [
        "| `hierfavg` | 45.0 / 35.0 (2 seeds) | – |",
        "| `local` | 30.0 / 20.0 (1 seed) | 25.0 / 15.0 (1 seed) |",
    ]
