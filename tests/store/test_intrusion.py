"""What others do to a run folder while a run is, or before it begins: links, deleted files, full disks."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

import fedbac
from fedbac.cli import reporting
from fedbac.cli.main import main
from fedbac.errors import ConfigError, OutputError, RunFolderError
from fedbac.report import write_report
from fedbac.runs import sweep
from fedbac.runs.configure import configure
from fedbac.runs.play import finish, play
from fedbac.runs.store import RunFolder, StoredRun
from tests.store.damage import INPUTS, TASK

ALONE = fedbac.Runtime(workers=1, device="cpu")
EXPERIMENT = configure("hierfavg", TASK, inputs=INPUTS)


@pytest.fixture(scope="module")
def two_rounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    playing = play(EXPERIMENT, folder=folder, inputs=INPUTS, runtime=ALONE)
    next(playing)
    next(playing)
    playing.close()
    return folder


@pytest.fixture
def run(two_rounds: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(two_rounds, tmp_path / "run"))


def resume(folder: Path) -> StoredRun:
    return finish(play(EXPERIMENT, folder=folder, inputs=INPUTS, runtime=ALONE))


@pytest.mark.parametrize("name", ["config.yaml", "rounds.jsonl", "summary.json", ".lock"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_link_is_not_written_through(name: str, overwrite: bool, run: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    content = (run / name).read_bytes() if (run / name).exists() else b"of value"
    victim.write_bytes(content)
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(victim)
    with pytest.raises(RunFolderError, match=rf"{name}: it is a link"):
        finish(play(EXPERIMENT, folder=run, inputs=INPUTS, runtime=ALONE, overwrite=overwrite))
    assert victim.read_bytes() == content


def test_a_link_to_a_folder_of_checkpoints_is_not_written_through(run: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    shutil.move(run / "checkpoint", victim)
    before = sorted(victim.iterdir())
    (run / "checkpoint").symlink_to(victim)
    with pytest.raises(RunFolderError, match="checkpoint: it is a link"):
        resume(run)
    assert sorted(victim.iterdir()) == before


def test_links_at_checkpoints_and_reports_are_replaced(run: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("of value")
    for name in ("checkpoint/round-000003.json", "checkpoint/round-000003.safetensors", "report.html"):
        (run / name).symlink_to(victim)
    done = resume(run)
    write_report([done], run / "report.html")
    assert victim.read_text() == "of value"
    assert not (run / "report.html").is_symlink()


def test_deleted_records_are_noticed_and_put_back(run: Path) -> None:
    playing = play(EXPERIMENT, folder=run, inputs=INPUTS, runtime=ALONE)
    next(playing)
    before = (run / "rounds.jsonl").read_bytes()
    (run / "rounds.jsonl").unlink()
    with pytest.raises(RunFolderError, match=r"rounds\.jsonl: it was deleted during the run.*fedbac resume"):
        next(playing)
    assert (run / "rounds.jsonl").read_bytes() == before
    assert len(resume(run).records) == TASK.rounds


def test_records_that_others_changed_get_no_more(run: Path) -> None:
    playing = play(EXPERIMENT, folder=run, inputs=INPUTS, runtime=ALONE)
    next(playing)
    with (run / "rounds.jsonl").open("a") as file:
        file.write("a line of somebody's\n")
    before = (run / "rounds.jsonl").read_bytes()
    with pytest.raises(RunFolderError, match="somebody else changed it"):
        next(playing)
    assert (run / "rounds.jsonl").read_bytes() == before
    assert len(resume(run).records) == TASK.rounds


@pytest.mark.parametrize("replaced", [False, True])
def test_a_deleted_lock_is_noticed(replaced: bool, run: Path) -> None:
    playing = play(EXPERIMENT, folder=run, inputs=INPUTS, runtime=ALONE)
    next(playing)
    before = (run / "rounds.jsonl").read_bytes()
    (run / ".lock").unlink()
    if replaced:
        (run / ".lock").write_bytes(b"")
    with pytest.raises(RunFolderError, match="lock: it was deleted during the run"):
        next(playing)
    assert (run / "rounds.jsonl").read_bytes() == before
    assert len(resume(run).records) == TASK.rounds


def test_a_removed_folder_is_one_sentence(run: Path) -> None:
    playing = play(EXPERIMENT, folder=run, inputs=INPUTS, runtime=ALONE)
    next(playing)
    shutil.rmtree(run)
    with pytest.raises(RunFolderError, match="deleted during the run"):
        next(playing)
    assert not run.exists()


# --------------------------------------------------------------------------------- comparisons and reports


def test_a_comparison_killed_while_it_was_laid_out_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ("task.num_edges=5", "task.clients_per_edge=2", "task.network={kind: mlp, hidden: [8]}")
    points = sweep.grid(("hierfavg", "ifca-edges"), "fashion-mnist-mini", (), (), (0, 1), 1, settings, tmp_path / "c")
    write, laid_out = RunFolder.write_config, list[str]()

    def killed(folder: RunFolder, config: dict[str, object]) -> None:
        if len(laid_out) == 2:
            raise KeyboardInterrupt
        laid_out.append(folder.path.name)
        write(folder, config)

    monkeypatch.setattr(RunFolder, "write_config", killed)
    with pytest.raises(KeyboardInterrupt):
        sweep.lay_out(points, ALONE, parent=tmp_path / "c")
    monkeypatch.undo()
    names = [point.folder.path.name for point in points]
    assert len(reporting.run_folders([tmp_path / "c"])) == 2
    assert f"these are missing: {names[2]!r}, {names[3]!r}" in caplog.text
    caplog.clear()
    sweep.lay_out(points, ALONE)  # the same command again
    assert len(reporting.run_folders([tmp_path / "c"])) == 4
    assert not caplog.records


def test_a_single_run_is_listed_nowhere(tmp_path: Path) -> None:
    point = sweep.Point(EXPERIMENT, RunFolder(tmp_path / "runs" / "a"), ())
    sweep.lay_out([point], ALONE)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["a"]


def test_a_damaged_list_is_made_anew(tmp_path: Path) -> None:
    for content in ("{", "7", "[" * 3000, '[1, "a"]'):
        (tmp_path / "runs.json").write_text(content)
        points = [sweep.Point(EXPERIMENT, RunFolder(tmp_path / name), ()) for name in ("a", "b")]
        sweep.lay_out(points, ALONE, parent=tmp_path)
        assert json.loads((tmp_path / "runs.json").read_text()) == ["a", "b"]
        assert len(reporting.run_folders([tmp_path])) == 2


def test_a_folder_that_may_not_be_read_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = run.parent / "secret"
    secret.mkdir()
    real = os.stat

    def stat(path: object, *words: object, **named: object) -> object:
        if str(path).startswith(f"{secret}/"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *words, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", stat)
    with pytest.raises(ConfigError, match=r"secret.*cannot be read \(Permission denied\)"):
        reporting.run_folders([run.parent])


def test_a_report_on_a_full_disk_is_one_line(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "report.html").write_text("the report of before")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr("sys.argv", ["fedbac", "report", str(run)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    errors = capsys.readouterr().err
    assert "report.html cannot be written (the disk is full)" in errors
    assert "Traceback" not in errors
    monkeypatch.undo()
    assert (run / "report.html").read_text() == "the report of before"
    assert not list(run.glob("*.partial"))
    with pytest.raises(OutputError, match="cannot be written"):
        write_report([fedbac.load(run)], run / "config.yaml" / "page.html")
