"""Ctrl-C twice, at the worst of moments."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from ctypes import c_int32
from pathlib import Path

import numpy as np
import pytest

from fedbac import native
from tests.native.reference import TINY, make_images, make_visits, start_networks
from tests.processes import LINUX, workers
from tests.support import NO_KERNEL
from tests.test_cli import COMMAND

LONG = [
    "--device", "cpu", "--rounds", "1", "--set", "task.num_edges=1",
    "--set", "task.network={kind: mlp, hidden: [1024, 1024]}", "--set", "task.training.epochs=100",
]  # fmt: skip
"""One round of 2·10¹³ operations: many minutes on any core."""
FEW, MANY = (["--set", f"task.clients_per_edge={count}"] for count in (2, 1000))
"""Clients: a worker is started for torch once those that were trained in the process took a while."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a command in a group of processes of its own, as a terminal does."""
    started = []

    def start(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*COMMAND, *words, *LONG, "--out", "a"],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()  # where the test failed
        process.communicate()


@pytest.mark.full
@NO_KERNEL
def test_it_stops_within_the_kernel(start: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    process = start("run", "hierfavg", "--workers", "2", *FEW)
    config = tmp_path / "a" / "config.yaml"
    while not (config.exists() and "trainer: native" in config.read_text()):
        assert process.poll() is None
        time.sleep(0.02)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert "Press Ctrl-C again" in process.stderr.readline(), "it is said at once"
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Stopped at once" in errors
    assert "Traceback" not in said + errors
    assert not (tmp_path / "a" / "rounds.jsonl").read_bytes()


@pytest.mark.full
@LINUX
@pytest.mark.parametrize(
    "words",
    [
        ["run", "hierfavg", "--trainer", "torch", "--workers", "2", *MANY],
        ["sweep", "hierfavg", "--jobs", "2", "--seed", "1", "--seed", "2", *FEW],
    ],
    ids=["run", "sweep"],
)
def test_workers_that_are_still_starting_do_not_die_of_it(
    words: list[str], start: Callable[..., subprocess.Popen[str]]
) -> None:
    process = start(*words)
    while not workers(process.pid):
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    assert process.stderr is not None
    assert "Press Ctrl-C again" in process.stderr.readline()
    os.killpg(process.pid, signal.SIGINT)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Stopped at once" in errors
    assert "Traceback" not in said + errors


@NO_KERNEL
def test_the_kernel_gives_nothing_back_once_it_is_told_to_stop() -> None:
    images, networks = make_images(TINY, 40), start_networks(TINY, 1)
    told = c_int32(1)
    with pytest.raises(InterruptedError):
        native.train(
            TINY, images, networks, np.zeros((1, 1), int), make_visits(images, [40], [2]), native.JobSgd(8, 0.1),
            stop=told,
        )  # fmt: skip
    with pytest.raises(InterruptedError):
        native.evaluate(TINY, images, networks, np.array([[0]]), [np.arange(40)], np.array([[0, 0]]), stop=told)
