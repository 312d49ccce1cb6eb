"""Data files made to do harm: they fill no memory, and a reader that crashes on one crashes alone."""

import gzip
import hashlib
import io
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedbac.data import load, readers
from fedbac.data.catalog import SOURCES
from fedbac.errors import DataNotFoundError

from . import layouts


def test_every_official_file_has_a_sha256() -> None:
    for source in SOURCES.values():
        for download in source.downloads:
            assert len(bytes.fromhex(download.sha256)) == 32
    assert sum(len(source.downloads) for source in SOURCES.values()) == 7


def test_a_small_file_that_unpacks_to_a_huge_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_BYTES", 10_000)
    with zipfile.ZipFile(tmp_path / "svhn.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (10**12,)})
        archive.writestr("x_train.npy", header.getvalue() + bytes(20_000))
    with pytest.raises(DataNotFoundError, match=r"svhn.npz .*unpack to 20,\d\d\d bytes"):
        load("svhn", tmp_path)
    layouts.write_idx(tmp_path, layouts.arrays(28, 28), ".gz")
    promise = bytes([0, 0, 8, 1]) + struct.pack(">I", 2**32 - 1)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(promise + bytes(20_000)))
    with pytest.raises(DataNotFoundError, match=r"train-images.* unpack to 4,294,967,295 bytes"):
        load("fashion-mnist", tmp_path)


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(b"\x80\2]r" + struct.pack("<I", 2**31) + b".", id="memo"),
        pytest.param(pickle.dumps({"data": b"", "labels": [[0] * 9] * 9}), id="nested-labels"),
        pytest.param(pickle.dumps({"data": b"", "labels": "0123"}), id="text-labels"),
    ],
)
def test_a_batch_that_asks_for_memory_is_refused(batch: bytes, tmp_path: Path) -> None:
    layouts.write_cifar(tmp_path, layouts.arrays(32, 32, 3))
    (tmp_path / "cifar-10-batches-py/data_batch_2").write_bytes(batch)
    with pytest.raises(DataNotFoundError, match=r"data_batch_2 .*(more memory|no list of whole numbers)"):
        load("cifar10", tmp_path)


def test_a_reader_that_crashes_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layouts.write_svhn(tmp_path, layouts.arrays(32, 32, 3))
    monkeypatch.setattr(readers, "CHILD", "import os; os.kill(os.getpid(), 11)")
    with pytest.raises(DataNotFoundError, match=r"train_32x32.mat .*its reader crashed with status -11"):
        load("svhn", tmp_path)


def test_files_with_the_official_checksum_need_no_process_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layouts.write_svhn(tmp_path, layouts.arrays(32, 32, 3))
    paths = [tmp_path / name for name in ("train_32x32.mat", "test_32x32.mat")]
    monkeypatch.setattr(readers, "_mat_elsewhere", lambda path: pytest.fail("another process"))
    known = frozenset(hashlib.sha256(path.read_bytes()).hexdigest() for path in paths)
    np.testing.assert_array_equal(readers.read_svhn(paths, known)[1], layouts.arrays(32, 32, 3)[1])
