import pickle
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest

from fedbac.data import Dataset, available, check, fetch, load
from fedbac.data.catalog import SOURCES, Download, Source
from fedbac.errors import ConfigError, DataNotFoundError

from . import layouts


@pytest.fixture(autouse=True)
def _only_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDBAC_DATA", raising=False)
    monkeypatch.setenv("FEDBAC_CACHE", str(tmp_path / "cache"))
    for name, source in SOURCES.items():
        monkeypatch.setitem(SOURCES, name, Source(**{**vars(source), "system_folders": ()}))


GREY, COLOUR = layouts.arrays(28, 28), layouts.arrays(32, 32, 3)
WRITERS: dict[str, tuple[str, Any]] = {
    "npz": ("fashion-mnist", lambda folder: layouts.write_npz(folder / "fashion_mnist.npz", GREY)),
    "npz-hyphen": ("fashion-mnist", lambda folder: layouts.write_npz(folder / "fashion-mnist.npz", GREY)),
    "idx": ("fashion-mnist", lambda folder: layouts.write_idx(folder, GREY, "")),
    "idx-gz": ("fashion-mnist", lambda folder: layouts.write_idx(folder, GREY, ".gz")),
    "idx-torchvision": ("fashion-mnist", lambda folder: layouts.write_idx(folder / "FashionMNIST/raw", GREY, "")),
    "idx-torchvision-gz": ("fashion-mnist", lambda folder: layouts.write_idx(folder / "FashionMNIST/raw", GREY, ".gz")),
    "cifar-npz": ("cifar10", lambda folder: layouts.write_npz(folder / "cifar10.npz", COLOUR)),
    "cifar-python2": ("cifar10", lambda folder: layouts.write_cifar(folder, COLOUR)),
    "cifar-python3": ("cifar10", lambda folder: layouts.write_cifar(folder, COLOUR, layouts.python3_pickle)),
    "cifar-protocol-4": (
        "cifar10",
        lambda folder: layouts.write_cifar(folder, COLOUR, partial(layouts.python3_pickle, protocol=4, fortran=True)),
    ),
    "svhn-npz": ("svhn", lambda folder: layouts.write_npz(folder / "svhn.npz", COLOUR)),
    "svhn-mat": ("svhn", lambda folder: layouts.write_svhn(folder, COLOUR)),
}


@pytest.mark.parametrize("layout", WRITERS)
def test_every_layout_gives_the_same_data(layout: str, tmp_path: Path) -> None:
    name, write = WRITERS[layout]
    write(tmp_path)
    data = load(name, tmp_path)
    expected = Dataset.from_arrays(name, *(GREY if name == "fashion-mnist" else COLOUR), num_classes=10)
    np.testing.assert_array_equal(data.x_train, expected.x_train)
    np.testing.assert_array_equal(data.y_test, expected.y_test)
    assert data.fingerprint == expected.fingerprint
    assert data.x_train.flags.writeable


@pytest.mark.parametrize("name", ["fashion-mnist-mini", "glyphs"])
def test_embedded_data_are_unpacked_once_and_belong_to_whoever_loads_them(name: str) -> None:
    before = load(name).fingerprint
    load(name).x_train[:] = 1
    assert load(name).fingerprint == before


@pytest.mark.covering
@pytest.mark.parametrize("layout", WRITERS)
@pytest.mark.parametrize("harm", ["cut", "empty", "noise"])
def test_a_damaged_file_is_named(layout: str, harm: str, tmp_path: Path) -> None:
    name, write = WRITERS[layout]
    write(tmp_path)
    victim = max((path for path in tmp_path.rglob("*") if path.is_file()), key=lambda path: (path.stat().st_size, path))
    raw = victim.read_bytes()
    noise = np.random.default_rng(0).bytes(len(raw))
    victim.write_bytes({"cut": raw[: len(raw) * 2 // 3], "empty": b"", "noise": noise}[harm])
    with pytest.raises(DataNotFoundError, match="damaged, cut short") as caught:
        load(name, tmp_path)
    assert str(victim) in str(caught.value)


def test_an_npz_without_the_arrays_or_with_odd_labels_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "svhn.npz", x_train=np.zeros(3))
    with pytest.raises(
        DataNotFoundError,
        match=r"svhn.npz cannot be used: it lacks y_train, x_test, y_test, and has x_train \[3\]; give",
    ):
        load("svhn", tmp_path)
    x_train, y_train, x_test, y_test = COLOUR
    layouts.write_npz(tmp_path / "svhn.npz", (x_train, y_train + 1, x_test, y_test))
    with pytest.raises(DataNotFoundError, match=r"svhn.npz .*labels run from 1 to 10"):
        load("svhn", tmp_path)
    layouts.write_npz(tmp_path / "svhn.npz", (np.full((10, 2), np.nan), y_train[:10], x_test, y_test))
    with pytest.raises(DataNotFoundError, match=r"svhn.npz cannot be used: .*hold NaN or infinite values, or") as said:
        load("svhn", tmp_path)
    assert "damaged" not in str(said.value)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Also where the data set is part of the package and needs none."""
    for look in (partial(load, "fashion-mnist-mini"), partial(check, ["svhn"]), available):
        with pytest.raises(ConfigError, match=r"--data .*nosuch .*: there is no such folder"):
            look(tmp_path / "nosuch")


class Attack:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_with_code_is_refused_and_does_not_run(protocol: int, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    layouts.write_cifar(tmp_path, COLOUR)
    bad = tmp_path / "cifar-10-batches-py/data_batch_3"
    bad.write_bytes(pickle.dumps({"data": Attack(marker), "labels": []}, protocol))
    with pytest.raises(DataNotFoundError, match=r"data_batch_3 .*asks to run") as caught:
        load("cifar10", tmp_path)
    assert not marker.exists(), caught.value
    pickle.loads(bad.read_bytes())
    assert marker.exists(), "the file above was no attack at all"


def test_places_are_tried_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [tmp_path / name for name in ("asked", "variable", "cache", "system")]
    for pixel, place in enumerate(places):
        place.mkdir()
        x_train, y_train, x_test, y_test = layouts.arrays(28, 28)
        x_train[0, 0, 0] = pixel
        layouts.write_npz(place / "fashion_mnist.npz", (x_train, y_train, x_test, y_test))
    monkeypatch.setenv("FEDBAC_DATA", str(places[1]))
    source = SOURCES["fashion-mnist"]
    monkeypatch.setitem(SOURCES, "fashion-mnist", Source(**{**vars(source), "system_folders": (places[3],)}))
    for pixel, place in enumerate(places):
        assert load("fashion-mnist", places[0]).x_train[0, 0, 0, 0] == pixel
        assert {row.name: row.where for row in available(places[0])}["fashion-mnist"] == place
        (place / "fashion_mnist.npz").unlink()
    with pytest.raises(DataNotFoundError) as caught:
        load("fashion-mnist", places[0])
    for expected in (*places, "FEDBAC_DATA", "fashion_mnist.npz", "fedbac data get fashion-mnist", "--data"):
        assert str(expected) in str(caught.value)


def test_not_found_says_what_is_unset_absent_or_incomplete(tmp_path: Path) -> None:
    (tmp_path / "train_32x32.mat").touch()
    with pytest.raises(DataNotFoundError) as caught:
        load("svhn", tmp_path)
    message = str(caught.value)
    assert "incomplete, test_32x32.mat is missing" in message
    assert "FEDBAC_DATA: not set" in message
    assert f"{tmp_path / 'cache'} (the download cache): no such folder" in message


def test_unknown_names_suggest_the_nearest() -> None:
    for action in (load, fetch):
        with pytest.raises(ConfigError, match="'FashionMNIST'; did you mean 'fashion-mnist'"):
            action("FashionMNIST")
    with pytest.raises(ConfigError, match="'qwerty'; known: chem97, cifar10, fashion-mnist, fashion-mnist-mini"):
        load("qwerty")


def test_available_lists_everything(tmp_path: Path) -> None:
    layouts.write_svhn(tmp_path, COLOUR)
    rows = {row.name: row for row in available(tmp_path)}
    assert rows["svhn"].where == tmp_path
    assert rows["cifar10"].where is None
    assert rows["fashion-mnist-mini"].where == fetch("fashion-mnist-mini")
    assert rows["fashion-mnist"].licence == "MIT"


def test_a_failed_download_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(pooch, "retrieve", fail)
    with pytest.raises(DataNotFoundError) as caught:
        fetch("cifar10")
    for expected in ("cs.toronto.edu", "no route", "FEDBAC_DATA", "cifar10.npz", str(tmp_path / "cache")):
        assert expected in str(caught.value)
    assert "data get" not in str(caught.value), "that is what has just failed"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    root = tmp_path / "server"
    root.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root))) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}", root
        http.shutdown()
        thread.join()


def offer(monkeypatch: pytest.MonkeyPatch, name: str, *downloads: Download) -> None:
    monkeypatch.setitem(SOURCES, name, Source(**{**vars(SOURCES[name]), "downloads": downloads}))


def test_what_is_fetched_is_found(server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, root = server
    layouts.write_cifar(root, COLOUR)
    with tarfile.open(root / "cifar.tar.gz", "w:gz") as tar:
        tar.add(root / "cifar-10-batches-py", "cifar-10-batches-py")
    sha256 = pooch.file_hash(str(root / "cifar.tar.gz"))
    (official,) = SOURCES["cifar10"].downloads
    offer(monkeypatch, "cifar10", Download(f"{url}/cifar.tar.gz", sha256, official.path, official.members))
    cache = fetch("cifar10")
    assert cache == tmp_path / "cache"
    assert [path.name for path in cache.iterdir()] == ["cifar-10-batches-py"], "the archive or scratch was left behind"
    np.testing.assert_array_equal(load("cifar10").y_test, COLOUR[3])
    (root / "cifar.tar.gz").unlink()
    assert fetch("cifar10") == cache, "what is there is not downloaded again"


def test_official_files_go_where_load_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layouts.write_idx(tmp_path / "official", GREY, ".gz")
    layouts.write_svhn(tmp_path / "official", COLOUR)

    def copy(url: str, known_hash: str, fname: str, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        (path / fname).write_bytes((tmp_path / "official" / url.rsplit("/", 1)[1]).read_bytes())

    monkeypatch.setattr(pooch, "retrieve", copy)
    for name, data in (("fashion-mnist", GREY), ("svhn", COLOUR)):
        assert fetch(name, tmp_path / name) == tmp_path / name
        np.testing.assert_array_equal(load(name, tmp_path / name).y_train, data[1])


def test_a_wrong_checksum_leaves_nothing_behind(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, root = server
    layouts.write_svhn(root, COLOUR)
    names = ("train_32x32.mat", "test_32x32.mat")
    offer(monkeypatch, "svhn", *(Download(f"{url}/{name}", "0" * 64, name) for name in names))
    with pytest.raises(DataNotFoundError, match="hash"):
        fetch("svhn")
    assert list((tmp_path / "cache").iterdir()) == []
