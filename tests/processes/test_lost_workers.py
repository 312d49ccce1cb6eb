"""Workers that are killed, or lose their parent: only their own work is done again, and nobody plays on."""

import logging
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedbac.errors import EngineError
from fedbac.local import LoopTrainer, PoolTrainer, pool
from fedbac.personalization import Shared
from fedbac.runs import sweep
from fedbac.runs.store import RunFolder, Tail
from fedbac.runs.sweep import RunPool
from tests.processes import LINUX, workers
from tests.support import deal, federate
from tests.test_cli import COMMAND
from tests.test_cli import SMALL as WORDS
from tests.test_sweep import ALONE, SMALL
from tests.trainers.reference import DATA, SIZES, requests
from tests.trainers.test_requests import assert_same

pytestmark = LINUX


def timeless(folder: RunFolder) -> list[dict[str, Any]]:
    return [{key: value for key, value in r.items() if key != "seconds"} for r in folder.read().records]


def laid_out(parent: Path) -> list[RunFolder]:
    points = sweep.grid(("hierfavg",), "fashion-mnist-mini", (), (), (0, 1), 20, SMALL, parent)
    sweep.lay_out(points, ALONE)
    return [point.folder for point in points]


@pytest.mark.full
def test_a_killed_sweep_worker_costs_only_its_own_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folders, undisturbed = laid_out(tmp_path / "killed"), laid_out(tmp_path / "whole")
    for _ in sweep.run_all(undisturbed, ALONE, 1):
        pass
    failures: dict[Path, Exception] = {}
    seen: set[int] = set()
    victim = None
    with caplog.at_level(logging.WARNING, "fedbac"):
        for done in sweep.run_all(folders, ALONE, 2, failures=failures):
            seen |= workers()
            if victim is None and any(done.values()):
                victim = min(workers())
                os.kill(victim, signal.SIGKILL)
    assert not failures
    assert victim is not None, "the runs were over before one could be killed"
    assert len(seen) == 3, "the other worker played on"
    assert caplog.text.count("its process died") == 1
    assert [timeless(folder) for folder in folders] == [timeless(folder) for folder in undisturbed]


def die(folder: str) -> None:
    with Path(folder, "attempts").open("a") as file:
        file.write("died\n")
    os.kill(os.getpid(), signal.SIGKILL)


def live(folder: str) -> None:
    Path(folder, "done").touch()


@pytest.mark.full
def test_a_run_that_always_kills_its_worker_is_given_up_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "RESTARTS", 0)
    team = RunPool(1)
    try:
        bad, good = team.submit(die, str(tmp_path)), team.submit(live, str(tmp_path))
        with pytest.raises(EngineError, match=r"its process died 1 times.*--jobs"):
            bad.result()
        good.result()
    finally:
        team.close()
    assert (tmp_path / "attempts").read_text() == "died\n"
    assert (tmp_path / "done").exists()


@pytest.mark.full
def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    """Else they would play on for minutes, and the same command would be refused meanwhile."""
    words = ["sweep", "hierfavg", "--rounds", "50000", "--seed", "0", "--seed", "1", "--jobs", "2", "--out", "s"]
    process = subprocess.Popen([*COMMAND, *words, *WORDS[2:]], cwd=tmp_path, stderr=subprocess.DEVNULL)
    folders = [RunFolder(tmp_path / "s" / f"hierfavg_seed{seed}") for seed in (0, 1)]
    while not all(Tail(folder).refresh() for folder in folders):
        assert process.poll() is None
        time.sleep(0.05)
    orphans = workers(process.pid)
    assert len(orphans) == 2
    process.kill()
    process.wait()
    patience = time.monotonic() + 60
    while any(Path("/proc", str(pid)).exists() for pid in orphans):
        assert time.monotonic() < patience
        time.sleep(0.05)
    for folder in folders:
        with folder.locked():  # as the same command does
            assert 0 < len(folder.read_records()) < 50000


class Deadly(nn.Module):
    """Kills the process that trains it, as long as there are tickets for it."""

    def __init__(self, tickets: Path) -> None:
        super().__init__()
        self.tickets, self.last = tickets, nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            for ticket in self.tickets.iterdir():
                ticket.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        logits: torch.Tensor = self.last(x.flatten(1))
        return logits


@pytest.mark.full
def test_what_dies_with_a_worker_of_the_torch_trainer_is_done_again_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pool, "START_SECONDS", 0)
    federation = federate(DATA, deal(DATA, SIZES), user=Deadly(tmp_path))
    asked = requests(federation, Shared())
    expected = LoopTrainer(federation.network, Shared(), federation.examples).train(asked)
    trainer = PoolTrainer(federation.network, Shared(), federation.examples, workers=1)
    try:
        (tmp_path / "ticket").touch()
        found = trainer.train(asked)
        assert caplog.text.count("A worker process died") == 1
        for one, other in zip(found, expected, strict=True):
            assert_same("loop", one, other)
        monkeypatch.setattr(pool, "RESTARTS", 0)
        (tmp_path / "ticket").touch()
        with pytest.raises(EngineError, match=r"died 1 times.*--workers"):
            trainer.train(asked)
    finally:
        trainer.close()
    assert not trainer.arguments.exists()
