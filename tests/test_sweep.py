"""A grid of runs: every point once, resumed where it stopped, collected over seeds."""

import json
from pathlib import Path

import pytest

from fedbac.config.experiment import Runtime
from fedbac.errors import ConfigError, RunInUseError
from fedbac.runs import sweep
from fedbac.runs.play import finish, play_folder
from fedbac.runs.stopping import Stop
from tests.covering import first

SMALL = (
    "task.num_edges=5",
    "task.clients_per_edge=2",
    "task.network={kind: mlp, hidden: [8]}",
    "task.training.epochs=1",
)
ALONE = Runtime(workers=1, device="cpu")


def points(
    folder: Path,
    *axes: str,
    names: tuple[str, ...] = ("hierfavg",),
    seeds: tuple[int, ...] = (0, 1),
    listed: tuple[str, ...] = (),
) -> list[sweep.Point]:
    return sweep.grid(names, "fashion-mnist-mini", axes, listed, seeds, 2, SMALL, folder)


def test_a_grid_has_every_combination_with_a_folder_of_its_own(tmp_path: Path) -> None:
    axes = ("method.selection.fraction=0.5,1.0", "task.targets=[0.1, 0.2],[0.3]")
    found = points(tmp_path, *axes, names=("hierfavg", "ifca-edges"))
    assert len({point.folder.path for point in found}) == len(found) == 2 * 2 * 2 * 2
    assert {p.experiment.method.selection.fraction for p in found} == {0.5, 1.0}
    assert {p.experiment.task.targets for p in found} == {(0.1, 0.2), (0.3,)}
    assert found[0].folder.path.name == "hierfavg_fraction=0.5_targets=-0.1-0.2-_seed0"


def test_listed_points_are_taken_as_they_are_and_combined_with_the_grid(tmp_path: Path) -> None:
    listed = ("method.selection.fraction=0.5 task.training.epochs=1", "task.training.epochs=2")
    found = points(tmp_path, "task.training.batch_size=8,16", listed=listed, seeds=(0,))
    chosen = [(p.experiment.method.selection.fraction, p.experiment.task.training) for p in found]
    assert [(f, t.epochs, t.batch_size) for f, t in chosen] == [(0.5, 1, 8), (0.5, 1, 16), (1.0, 2, 8), (1.0, 2, 16)]
    with pytest.raises(ConfigError, match="epoch"):
        points(tmp_path, listed=("task.training.epoch=1",))


@pytest.mark.full
def test_a_run_that_fails_does_not_end_the_others(tmp_path: Path) -> None:
    found = points(tmp_path, seeds=(0, 1, 2))
    sweep.lay_out(found, ALONE)
    found[1].folder.config_file.write_text("experiment: nonsense")
    failures: dict[Path, Exception] = {}
    folders = [point.folder for point in found]
    progress = list(sweep.run_all(folders, ALONE, 2, failures=failures))
    assert list(failures) == [folders[1].path]
    assert list(progress[-1].values()) == [2, 0, 2]


@pytest.mark.parametrize("jobs", first(1, [1, 2]))
def test_a_stop_lets_rounds_finish_and_begins_no_run(jobs: int, tmp_path: Path) -> None:
    found = sweep.grid(("hierfavg",), "fashion-mnist-mini", (), (), (0, 1, 2), 500, SMALL, tmp_path)
    sweep.lay_out(found, ALONE, parent=tmp_path)
    folders = [point.folder for point in found]
    stop = Stop()
    for done in sweep.run_all(folders, ALONE, jobs, stop=stop):
        stop.wanted = stop.wanted or any(done.values())
    assert 0 < sum(done.values()) < 1500
    for folder in folders:
        run = folder.read()
        assert len(run.records) == run.summary.get("rounds", 0) == done[folder.path]
    assert not folders[2].rounds_file.exists()
    assert {path.name for path in tmp_path.iterdir()} == {folder.path.name for folder in folders} | {"runs.json"}


def test_bad_grids_fail_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="path=value,value"):
        points(tmp_path, "method.selection.fraction")
    with pytest.raises(ConfigError, match=r"method\.selection\.fraction: 1\.5"):
        points(tmp_path, "method.selection.fraction=0.5,1.5")
    with pytest.raises(ConfigError, match="every value once"):
        points(tmp_path, "method.selection.fraction=0.5,0.5")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("jobs", first(1, [1, 2]))
def test_a_sweep_runs_resumes_and_is_collected(jobs: int, tmp_path: Path) -> None:
    found = points(tmp_path, "method.selection.fraction=0.5,1.0")
    sweep.lay_out(found, ALONE)
    folders = [point.folder for point in found]
    finish(play_folder(folders[0]))
    before = folders[0].rounds_file.read_bytes()
    progress = list(sweep.run_all(folders, ALONE, jobs))
    assert progress[-1] == {folder.path: 2 for folder in folders}
    assert folders[0].rounds_file.read_bytes() == before, "a finished run is not run again"
    rows = sweep.collect([folder.read() for folder in folders])
    assert sorted(row["seeds"] for row in rows) == [[0, 1], [0, 1]]
    for row in rows:
        summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in row["runs"]]
        assert row["accuracy"] == pytest.approx(sum(s["accuracy"] for s in summaries) / 2)
        assert row["leads"] is None, "two seeds are too few"


def test_a_run_may_resume_elsewhere_than_it_began(tmp_path: Path) -> None:
    (point,) = points(tmp_path, seeds=(0,))
    sweep.lay_out([point], Runtime(device="cuda"))
    sweep.lay_out([point], ALONE)
    finish(play_folder(point.folder))
    assert point.folder.read().summary["finished"]
    assert point.folder.read_config()["runtime"]["device"] == "cpu"


def test_what_was_laid_out_is_withdrawn_unless_a_run_has_a_round(tmp_path: Path) -> None:
    parent = tmp_path / "new" / "c"
    found = points(parent, seeds=(0, 1))
    sweep.lay_out(found[:1], ALONE, parent=parent)
    kept = found[0].folder.config_file.read_bytes()
    sweep.lay_out(found, ALONE, parent=parent).withdraw()
    assert found[0].folder.config_file.read_bytes() == kept, "a run that waits to be resumed"
    assert sorted(path.name for path in parent.iterdir()) == [found[0].folder.path.name, "runs.json"]
    assert json.loads((parent / "runs.json").read_text()) == [found[0].folder.path.name]
    laid = sweep.lay_out(found, ALONE, parent=parent)
    finish(play_folder(found[1].folder))
    laid.withdraw()
    assert all(point.folder.has_run() for point in found)


def test_a_withdrawn_run_takes_nothing_along_that_was_there_before(tmp_path: Path) -> None:
    point = points(tmp_path, seeds=(0,))[0]
    own = [point.folder.path / "tensorboard" / "mine", point.folder.summary_file, point.folder.path / "report.html"]
    for file in own:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    sweep.lay_out([point], ALONE).withdraw()
    assert not point.folder.has_run()
    assert all(file.exists() for file in own)


def test_nothing_is_overwritten_while_one_of_the_folders_is_in_use(tmp_path: Path) -> None:
    found = points(tmp_path, seeds=(0, 1))
    sweep.lay_out(found, ALONE, parent=tmp_path)
    with found[1].folder.locked(), pytest.raises(RunInUseError):
        sweep.lay_out([found[1]], ALONE, overwrite=True, parent=tmp_path)
    assert found[0].folder.has_run(), "a run that the new command does not have"
    sweep.lay_out([found[1]], ALONE, overwrite=True, parent=tmp_path)
    assert not found[0].folder.path.exists()


def test_a_folder_with_another_run_is_refused(tmp_path: Path) -> None:
    found = points(tmp_path, seeds=(0,))
    sweep.lay_out(found, ALONE)
    other = sweep.grid(("hierfavg",), "fashion-mnist-mini", (), (), (0,), 3, SMALL, tmp_path)
    with pytest.raises(ConfigError, match="another run"):
        sweep.lay_out(other, ALONE)
