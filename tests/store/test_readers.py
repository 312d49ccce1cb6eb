"""What lies where a file of ours belongs may be a pipe, a device or a huge hole: it is refused, in time and memory."""

import os
import re
import resource
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import fedbac
from fedbac.cli.main import main
from fedbac.data.readers import read_cifar, read_idx, read_npz, read_svhn
from fedbac.errors import DataNotFoundError, Error, NotEnoughMemoryError
from fedbac.files import opened, read_lines
from fedbac.runs.configure import configure
from fedbac.runs.play import finish, play
from fedbac.runs.store import RunFolder, Tail
from tests.store.damage import INPUTS, TASK

pytestmark = pytest.mark.timeout(60)

SOURCE = Path(fedbac.__file__).parent
READING = re.compile(r"\.read_text\(|\.read_bytes\(|\.open\([\"']rb|(?<![.\w])open\(|\bnp\.load\((?!file|content|copy)")
OF_THE_PACKAGE = 'files("fedbac'
MAY_READ = {
    "fedbac/files.py",
    "fedbac/version.py",
    "fedbac/deploy/trial.py",
    "fedbac/local/pool.py",
    "fedbac/local/__init__.py",
    "fedbac/engines/simulator.py",
}
"""The reader; the package itself; what a process of ours wrote for another one; and what the system says of itself."""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    finish(play(configure("hierfavg", TASK, inputs=INPUTS), folder=folder, inputs=INPUTS))
    return folder


@pytest.fixture
def run(played: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(played, tmp_path / "run"))


def put(kind: str, path: Path) -> None:
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(2**31)


@pytest.mark.covering
@pytest.mark.parametrize("kind", ["pipe", "device", "hole"])
@pytest.mark.parametrize("name", ["config.yaml", "rounds.jsonl", "summary.json", "newest manifest", "newest tensors"])
def test_what_is_no_file_of_ours_is_not_read(name: str, kind: str, run: Path, caplog: pytest.LogCaptureFixture) -> None:
    suffix = {"newest manifest": "json", "newest tensors": "safetensors"}.get(name)
    path = run / (f"checkpoint/round-{TASK.rounds:06d}.{suffix}" if suffix else name)
    put(kind, path)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wanted = name in {"summary.json", "newest manifest", "newest tensors"}  # which can be computed again
    for attempt in (fedbac.load, lambda folder: fedbac.resume(folder, dataset=INPUTS.dataset)):
        stranger = name == "summary.json" and kind != "hole" and attempt is not fedbac.load
        with nullcontext() if wanted and not stranger else pytest.raises(Error, match=re.escape(str(path))):
            assert len(attempt(run).records) == TASK.rounds
    Tail(RunFolder(run)).refresh()
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak)
    assert grown < 2**30, "a hole of 2 GiB is not read into memory"


def test_a_command_does_not_wait_for_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "method.yaml")
    monkeypatch.setattr("sys.argv", ["fedbac", "run", str(tmp_path / "method.yaml")])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "method.yaml: the file cannot be read (It is no regular file)" in capsys.readouterr().err


@pytest.mark.parametrize(("read", "count"), [(read_npz, 1), (read_idx, 4), (read_cifar, 6), (read_svhn, 2)])
def test_data_are_read_from_regular_files(read: object, count: int, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataNotFoundError, match="no regular file"):
        read([tmp_path / "pipe"] * count)  # type: ignore[operator]


@pytest.mark.full
def test_a_lack_of_memory_is_no_damage(tmp_path: Path) -> None:
    np.savez(tmp_path / "big.npz", x_train=np.zeros(2**28, np.uint8), y_train=0, x_test=0, y_test=0)
    program = (
        "import resource, sys; from pathlib import Path; import psutil; from fedbac.data.readers import read_npz\n"
        "used = psutil.Process().memory_info().vms; resource.setrlimit(resource.RLIMIT_AS, (used + 2**28,) * 2)\n"
        "try: read_npz([Path(sys.argv[1])])\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "big.npz")]
    done = subprocess.run(command, capture_output=True, text=True)
    if not done.stdout and done.returncode == 0:
        pytest.skip("this system does not limit the memory of a process")
    said = done.stdout
    assert said.startswith(NotEnoughMemoryError.__name__), said


def test_lines_are_complete_or_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedbac.files.MOST", 4)
    (tmp_path / "lines").write_bytes(b"one\n\ntwo\nfar too long\nno\n")
    assert list(read_lines(tmp_path / "lines")) == [b"one", b"", b"two", b"far "]
    (tmp_path / "lines").write_bytes(b"one\nha")
    assert list(read_lines(tmp_path / "lines")) == [b"one"]


def test_nothing_else_reads_files() -> None:
    found = {
        f"{file.relative_to(SOURCE.parent)}:{number}: {line.strip()}"
        for file in SOURCE.rglob("*.py")
        if file.relative_to(SOURCE.parent).as_posix() not in MAY_READ
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        if READING.search(line) and OF_THE_PACKAGE not in line
    }
    assert not found, "\n".join(sorted(found))


def test_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with opened(tmp_path / "link") as file:
        assert file.read() == b"content"
