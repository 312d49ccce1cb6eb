"""The data of one site: files and functions, what is made of them, and one clear sentence for what cannot be used."""

import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbac.config.experiment import Experiment
from fedbac.data import Partition, partition
from fedbac.deploy.local_data import LocalData, from_arrays, read_local
from fedbac.deploy.roles.data_holder import DataHolder
from fedbac.errors import DeployError
from tests.deploy.in_memory import CPU
from tests.deploy.small import small


def arrays(size: int = 20, tests: int = 6) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "x_train": rng.integers(0, 256, (size, 1, 4, 4), dtype=np.uint8),
        "y_train": np.arange(size) % 5,
        "x_test": rng.integers(0, 256, (tests, 1, 4, 4), dtype=np.uint8),
        "y_test": np.arange(tests) % 5,
    }


def same(data: LocalData, expected: dict[str, Any]) -> None:
    assert {f"x_{split}" for split in data.x} | {f"y_{split}" for split in data.y} == set(expected)
    for split in data.x:
        assert np.array_equal(data.x[split], expected[f"x_{split}"])
        assert np.array_equal(data.y[split], expected[f"y_{split}"])


# ------------------------------------------------------------------------------------------ where data are


def test_a_file_a_folder_of_one_and_a_folder_of_arrays_are_the_same_data(tmp_path: Path) -> None:
    given = arrays()
    (tmp_path / "arrays").mkdir()
    for name, array in given.items():
        np.save(tmp_path / "arrays" / f"{name}.npy", array)
    np.savez(tmp_path / "mine.npz", **given, notes=np.array([1]))
    (tmp_path / "one").mkdir()
    np.savez_compressed(tmp_path / "one" / "data.npz", **given)
    found = [read_local(str(tmp_path / name)) for name in ("arrays", "mine.npz", "one")]
    for data in found:
        same(data, given)
    assert len({data.fingerprint for data in found}) == 1


def test_a_function_gives_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hospital_data.py").write_text(
        "import numpy as np\n"
        "def ours():\n    return {'x_train': np.ones((4, 3)), 'y_train': np.array([0, 1, 1, 0])}\n"
        "def broken():\n    return [1, 2]\n"
        "def failing():\n    raise OSError('the database is down')\n"
    )
    monkeypatch.chdir(tmp_path)
    assert read_local("hospital_data:ours").size("train") == 4
    for source, match in (
        ("hospital_data:broken", "must return arrays by name or a fedbac.Dataset, not a list"),
        ("hospital_data:failing", "hospital_data:failing failed with OSError: the database is down; mend it"),
        ("hospital_data:theirs", "hospital_data:theirs is not there .* name it as package.module:name"),
        ("no_such_module_here:ours", "no_such_module_here:ours is not there"),
        (":ours", ":ours is not there"),
    ):
        with pytest.raises(DeployError, match=match):
            read_local(source)


def test_what_is_no_source_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "data.csv").write_text("1,2\n")
    for source, match in (
        ("nowhere", "'nowhere' is no .npz file, no folder, and no function"),
        (str(tmp_path / "data.csv"), "is no .npz file"),
        (str(tmp_path / "missing.npz"), "there is no file .*missing.npz"),
        (str(tmp_path / "empty"), "there is no data.npz and no .npy file in this folder"),
    ):
        with pytest.raises(DeployError, match=match):
            read_local(source)


class Harm:
    """Would run code where it is unpickled."""

    def __reduce__(self) -> Any:
        return logging.critical, ("unpickled",)


def test_pickled_arrays_are_refused_and_run_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    objects = np.array([Harm(), Harm()], dtype=object)
    np.savez(tmp_path / "objects.npz", x_train=objects, y_train=np.zeros(2, dtype=np.int64))
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "folder" / "x_train.npy", objects)
    (tmp_path / "plain.npz").write_bytes(pickle.dumps(Harm()))
    for name, file in (("objects.npz", "objects.npz"), ("folder", "x_train.npy"), ("plain.npz", "plain.npz")):
        with pytest.raises(DeployError, match=rf"{file} cannot be used: .*write plain numbers"):
            read_local(str(tmp_path / name))
    assert "unpickled" not in caplog.text


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "cut.npz", **arrays())
    whole = (tmp_path / "cut.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DeployError, match=r"cut.npz cannot be used: it is damaged"):
        read_local(str(tmp_path / "cut.npz"))


# --------------------------------------------------------------------------------------------- what data are


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "nothing of use": ({"images": np.zeros(3)}, "it holds \\['images'\\]; give x_train and y_train"),
    "no labels": ({"x_train": np.zeros((3, 2))}, "y_train is missing; give examples and labels"),
    "no examples": ({"y_test": np.zeros(3, dtype=int)}, "x_test is missing"),
    "too few labels": ({"x_train": np.zeros((3, 2)), "y_train": np.zeros(2, dtype=int)}, "3 examples and 2 labels"),
    "none at all": ({"x_train": np.zeros((0, 2)), "y_train": np.zeros(0, dtype=int)}, "at least one"),
    "labels below 0": ({"x_train": np.zeros((3, 2)), "y_train": np.array([-1, 0, 1])}, "labels run from -1"),
    "endless labels": ({"x_train": np.zeros((3, 2)), "y_train": np.array([2**60, 0, 1])}, "labels run from 0 to 1152"),
    "numbers in no rows": ({"x_train": np.zeros(3), "y_train": np.zeros(3, dtype=int)}, "an example in every row"),
    "a number": ({"x_train": np.float32(1), "y_train": np.zeros(1, dtype=int)}, "an example in every row"),
    "text": ({"x_train": np.array([["a"], ["b"]]), "y_train": np.zeros(2, dtype=int)}, "x_train is text; give one of"),
    "bytes in a table": ({"x_train": np.zeros((3, 2), np.uint8), "y_train": np.zeros(3, int)}, "must be .N, C, H, W."),
    "missing numbers": ({"x_train": np.full((3, 2), np.nan), "y_train": np.zeros(3, dtype=int)}, "hold NaN"),
    "tokens below 0": ({"x_train": np.full((3, 2), -1), "y_train": np.zeros(3, dtype=int)}, "tokens run from -1"),
    "splits that differ": (arrays() | {"x_test": np.zeros((6, 2))}, "differ from split to split: .*; make them alike"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_used_is_said_in_a_sentence(what: str) -> None:
    given, match = BAD[what]
    with pytest.raises(DeployError, match=rf"^mine\.npz: .*{match}") as caught:
        from_arrays(given, "mine.npz")
    assert "\n" not in str(caught.value)


def test_images_may_have_their_channels_last_or_none() -> None:
    y = np.zeros(3, dtype=int)
    for shape in ((3, 8, 9), (3, 8, 9, 1)):
        data = from_arrays({"x_train": np.zeros(shape, dtype=np.uint8), "y_train": y}, "mine")
        assert data.example.shape == (1, 1, 8, 9)


def test_tokens_and_fractions_are_no_images() -> None:
    y = np.array([0, 1, 3])
    tokens = from_arrays({"x_train": np.array([[1, 2], [3, 9], [0, 0]], dtype=np.int16), "y_train": y}, "mine")
    assert (str(tokens.example.dtype), tokens.largest_token, tokens.sums()) == ("int64", 9, None)
    swapped = np.ones((3, 2), dtype=">f4")
    floats = from_arrays({"x_train": swapped, "y_train": y}, "mine")
    assert (str(floats.example.dtype), floats.largest_token, floats.sums()) == ("float32", None, None)
    assert floats.classes("train") == [1, 1, 0, 1]


def test_sums_are_of_what_is_learned_from_and_classes_count_what_was_asked() -> None:
    given = arrays() | {"x_validation": np.full((2, 1, 4, 4), 255, dtype=np.uint8), "y_validation": np.array([6, 6])}
    data = from_arrays(given, "mine")
    pixels = np.concatenate([given["x_train"], given["x_validation"]]).astype(np.int64)
    assert data.sums() == [[pixels.sum(), (pixels**2).sum(), pixels.size]]
    assert data.classes("train", "validation") == [4, 4, 4, 4, 4, 0, 2]
    assert data.classes("test") == [2, 1, 1, 1, 1, 0, 0]


def test_validation_data_are_held_out_unless_they_are_given() -> None:
    data = from_arrays(arrays(), "mine")
    held = data.with_validation(0.25, seed=3, client=1)
    assert (held.size("train"), held.size("validation"), held.size("test")) == (15, 5, 6)
    together = np.concatenate([held.x["train"], held.x["validation"]])
    assert sorted(map(bytes, together)) == sorted(map(bytes, data.x["train"]))
    again, other = (data.with_validation(0.25, seed=3, client=client) for client in (1, 2))
    assert again.fingerprint == held.fingerprint != other.fingerprint
    assert held.with_validation(0.5, seed=3, client=1) is held
    assert data.with_validation(0.0, seed=3, client=1) is data
    few = from_arrays({"x_train": np.zeros((1, 2)), "y_train": np.zeros(1, dtype=int)}, "mine")
    assert few.with_validation(0.9, seed=3, client=1) is few


@pytest.mark.parametrize(("size", "fraction"), [(15, 0.1), (16, 0.1), (7, 0.5), (3, 0.99)])
def test_as_many_are_held_out_as_in_a_simulation(size: int, fraction: float) -> None:
    given = arrays(size)
    shards = partition(
        given["y_train"], given["y_test"], 5, [1], Partition(validation_fraction=fraction, min_edge_test=1), seed=3
    )
    held = from_arrays(given, "mine").with_validation(fraction, seed=3, client=0)
    assert held.size("validation") == len(shards.validation[0]) == int(fraction * size)


@pytest.mark.parametrize("name", ["x_train", "y_test"])
def test_a_fingerprint_is_of_every_number(name: str) -> None:
    given = arrays()
    before = from_arrays(given, "mine").fingerprint
    given[name] = given[name].copy()
    given[name].flat[-1] ^= 1
    assert from_arrays(given, "mine").fingerprint != before


# -------------------------------------------------------------------------------------------- who holds them


def holder(folder: Path, is_client: bool = True, **given: Any) -> DataHolder:
    np.savez(folder / "data.npz", **given)
    return DataHolder("edge-0-client-0", 0, 0, is_client, str(folder), folder / "state", CPU)


def facts(found: DataHolder) -> Any:
    experiment: Experiment = small("fed-bac").experiment
    return found.facts(experiment)


def test_a_client_without_training_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="x_train and y_train are missing; a client learns from them"):
        holder(tmp_path, x_test=np.zeros((3, 2)), y_test=np.zeros(3, dtype=int))


def test_an_edge_says_nothing_of_training_data(tmp_path: Path) -> None:
    told = facts(holder(tmp_path, is_client=False, **arrays()))
    assert (told.train, told.validation, told.test, told.sums) == (0, 0, 6, None)
    assert sum(told.classes) == 6


def test_a_label_that_only_tests_have_is_a_class_too(tmp_path: Path) -> None:
    """Otherwise the network would have no output for it."""
    given = arrays()
    given["y_test"][0] = 9
    told = facts(holder(tmp_path, **given))
    assert (len(told.classes), sum(told.classes), told.test) == (10, 20, 6)
