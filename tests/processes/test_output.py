"""Nothing that becomes of its output, or of its workers, ends a run unnoticed."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import fedbac
from fedbac.cli import streams
from fedbac.runs import sweep
from tests.covering import first
from tests.test_cli import SMALL

COMMAND = [sys.executable, "-m", "fedbac"]
RUN = [*COMMAND, "run", "hierfavg", *SMALL, "--rounds", "1", "--out", "run"]
IMPATIENT = "from fedbac.cli import main, streams; streams.PATIENCE = streams.END_PATIENCE = 0.3; main.main()"


def outcome(command: list[str], folder: Path, **streams: Any) -> tuple[int, str]:
    done = subprocess.run(command, cwd=folder, stderr=subprocess.PIPE, text=True, timeout=200, check=False, **streams)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    return done.returncode, done.stderr


@pytest.mark.full
@pytest.mark.parametrize("stdout", ["full", "closed", "without a reader"])
@pytest.mark.parametrize("command", ["run", "methods"])
def test_a_run_outlives_its_output(command: str, stdout: str, tmp_path: Path) -> None:
    words = RUN if command == "run" else [*COMMAND, command]
    if stdout == "full":
        with Path("/dev/full").open("w") as full:
            code, said = outcome(words, tmp_path, stdout=full)
        assert code == 1
        assert "The output could not be written (the disk is full)" in said
    elif stdout == "closed":
        code, said = outcome(["sh", "-c", 'exec "$@" >&-', "sh", *words], tmp_path)
        assert (code, said) == (0, "")
    else:
        read, write = os.pipe()
        os.close(read)
        code, said = outcome(words, tmp_path, stdout=write)
        os.close(write)
        assert (code, said) == (1, ""), "as under head, which needs no more"
    if command == "run":
        assert fedbac.load(tmp_path / "run").summary["finished"]
        assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.full
def test_a_run_outlives_its_warnings(tmp_path: Path) -> None:
    """Both streams are closed, and a file of the run must not get their numbers."""
    assert outcome(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *RUN], tmp_path) == (0, "")
    assert fedbac.load(tmp_path / "run").summary["finished"]


@pytest.mark.parametrize("both", first(1, [False, True]))
def test_a_run_outlives_a_reader_that_stands_still(both: bool, tmp_path: Path) -> None:
    """As a stopped ``tee``: the pipe is full, and nobody empties it."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write, bytes(1 << 12))
    os.set_blocking(write, True)
    pipes = {"stdout": write, "stderr": write if both else subprocess.PIPE}
    words = [sys.executable, "-c", IMPATIENT, *RUN[len(COMMAND) :]]
    done = subprocess.run(words, cwd=tmp_path, text=True, timeout=200, check=False, **pipes)  # type: ignore[call-overload]
    os.close(write)
    assert done.returncode == 1
    assert both or done.stderr == "Nobody read the output, so some of it is lost; what was saved is safe.\n"
    assert fedbac.load(tmp_path / "run").summary["finished"]
    assert (tmp_path / "run" / "report.html").exists()
    os.close(read)


def test_a_reader_who_comes_back_gets_what_was_kept_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PATIENCE", 0.05)
    monkeypatch.setattr(streams, "KEPT", 1 << 18)
    read, write = os.pipe()
    lines = [f"{number:>4}: {'.' * 1000}\n" for number in range(1000)]
    with open(write, "w") as stream, open(read) as reader:
        output = streams.Lasting(stream)
        output.never_wait()
        for line in lines:
            output.write(line)
        monkeypatch.setattr(streams, "END_PATIENCE", 0.05)
        assert not output.close()
        found = [reader.readline()]
        while found[-1] != lines[-1]:
            found.append(reader.readline())
        assert found == [line for line in lines if line in found], "whole lines, in their order"
        assert len(found) < len(lines), "more than is kept"
        assert output.write("again\n")
        assert reader.readline() == "again\n"


@pytest.fixture
def idle() -> Any:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def test_a_process_that_stands_still_is_noticed(idle: subprocess.Popen[bytes]) -> None:
    assert not sweep.Watch(idle.pid).still(), "it may be waiting for something"
    impatient = sweep.Watch(idle.pid, patience=0.5)
    while not impatient.still():  # once it has started, it does nothing
        time.sleep(0.1)
    os.kill(idle.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, idle.pid, os.WSTOPPED | os.WNOWAIT)
    assert sweep.Watch(idle.pid).still()
    busy = sweep.Watch(os.getpid(), patience=0.0)
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass
    assert not busy.still()


def _stop(folder: str) -> None:
    """Freeze once, as a worker whose machine is suspended."""
    if not Path(folder).exists():
        Path(folder).touch()
        os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.full
def test_a_frozen_worker_of_a_sweep_is_named_and_its_run_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sweep, "LOOK_SECONDS", 0.2)
    pool = sweep.RunPool(1)
    try:
        future = pool.submit(_stop, str(tmp_path / "a run"))
        while "is frozen (stopped)" not in caplog.text:
            assert not future.done()
            time.sleep(0.05)
        (worker,) = pool.pools[0]._processes
        os.kill(worker, signal.SIGKILL)
        future.result(timeout=60)
    finally:
        pool.close()
    assert "a run: its process" in caplog.text
