"""Nothing that becomes of its output, or of its workers, ends a run unnoticed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import fedbac
from fedbac.runs import sweep
from tests.test_cli import SMALL

COMMAND = [sys.executable, "-m", "fedbac"]
RUN = [*COMMAND, "run", "hierfavg", *SMALL, "--rounds", "3", "--out", "run"]


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
