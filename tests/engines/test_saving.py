"""A device plays many rounds a second: not every state of them is saved, and yet nothing of a run is lost."""

import errno
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from fedbac.config.experiment import Runtime
from fedbac.runs import checkpoints
from fedbac.runs import play as playing
from fedbac.runs.store import RunFolder, StoredRun
from tests.covering import first
from tests.engines.queueing import Diary, edges_of, loop, setting
from tests.support import Record, without

Play = Generator[dict[str, Any], None, StoredRun]


def playing_in(folder: Path, ahead: bool = True) -> Play:
    experiment, federation = setting()
    trainer = loop(experiment, federation)
    edges = edges_of(experiment, federation, Diary(trainer) if ahead else trainer)
    return playing.conduct(experiment, federation, edges, Runtime(), True, RunFolder(folder))


@pytest.fixture
def rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playing, "SECONDS_APART", 1e9)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    return list(playing_in(tmp_path_factory.mktemp("whole"), ahead=False))


@pytest.mark.usefixtures("rarely")
def test_a_run_to_its_end_saves_its_first_and_its_last_state(tmp_path: Path, whole: list[Record]) -> None:
    saved = [checkpoints.newest(tmp_path / "checkpoint") for _ in playing_in(tmp_path)]
    assert saved == [1] * (len(whole) - 1) + [len(whole)], "what is finished is saved when its last record is told"
    assert RunFolder(tmp_path).finished()


@pytest.mark.usefixtures("rarely")
@pytest.mark.parametrize("how", first(1, ["killed", "failed", "closed"]))
def test_a_run_that_ends_early_resumes_to_the_same(tmp_path: Path, whole: list[Record], how: str) -> None:
    there, copy = tmp_path / "run", tmp_path / "copy"
    run = playing_in(there)
    for _ in range(4):
        next(run)
    shutil.copytree(there, copy)  # as a process that is killed leaves it
    if how == "failed":
        with pytest.raises(KeyboardInterrupt):
            run.throw(KeyboardInterrupt())
    else:
        run.close()
    left, saved = (copy, 1) if how == "killed" else (there, 4)
    assert checkpoints.newest(left / "checkpoint") == saved
    rest = list(playing_in(left))
    assert [record["round"] for record in rest] == list(range(saved + 1, len(whole) + 1))
    assert without(rest) == without(whole[saved:])
    assert without(RunFolder(left).read().records) == without(whole)


@pytest.mark.usefixtures("rarely")
def test_an_interrupt_in_the_middle_of_saving_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = playing_in(tmp_path)
    for _ in range(3):
        next(run)
    save = checkpoints.save

    def interrupted(*words: Any) -> None:
        monkeypatch.setattr(checkpoints, "save", save)
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints, "save", interrupted)
    monkeypatch.setattr(playing, "SECONDS_APART", 0.0)
    monkeypatch.setattr(RunFolder, "_last_save", property(lambda _: -1e18, lambda *_: None), raising=False)
    with pytest.raises(KeyboardInterrupt):
        next(run)
    assert checkpoints.newest(tmp_path / "checkpoint") == 4


@pytest.mark.usefixtures("rarely")
def test_a_last_state_that_cannot_be_saved_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = playing_in(tmp_path)
    for _ in range(3):
        next(run)

    def full(*words: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoints, "save", full)
    run.close()
    assert "the disk is full" in caplog.text


@pytest.mark.usefixtures("rarely")
def test_a_folder_that_is_played_again_saves_its_first_round(tmp_path: Path) -> None:
    experiment, federation = setting()
    folder = RunFolder(tmp_path)
    for _ in range(2):
        edges = edges_of(experiment, federation, Diary(loop(experiment, federation)))
        run = playing.conduct(experiment, federation, edges, Runtime(), True, folder, overwrite=True)
        next(run)
        assert checkpoints.newest(tmp_path / "checkpoint") == 1
        run.close()


@pytest.mark.usefixtures("rarely")
def test_nothing_is_saved_in_a_folder_that_may_be_another_s_by_now(tmp_path: Path) -> None:
    run = playing_in(tmp_path)
    for _ in range(3):
        next(run)
    (tmp_path / ".lock").unlink()
    run.close()
    assert checkpoints.newest(tmp_path / "checkpoint") == 1


def test_where_no_device_goes_on_every_round_is_saved(tmp_path: Path) -> None:
    for record in playing_in(tmp_path, ahead=False):
        assert checkpoints.newest(tmp_path / "checkpoint") == record["round"]
