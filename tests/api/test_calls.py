"""The calls at the top of the package take the same arguments and give runs to look at."""

import inspect
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import fedbac
from fedbac import ConfigError
from fedbac.runs.configure import Inputs
from tests.support import without
from tests.unit.tiny import tiny_data, tiny_task

TINY: dict[str, Any] = {"task": tiny_task(rounds=2), "dataset": tiny_data(), "device": "cpu", "workers": 1}


def test_all_calls_take_the_same_arguments() -> None:
    alike = {"task", "dataset", "shards", "network", "rounds", "settings", "seed", "out", "overwrite", "device"}
    for call in (fedbac.run, fedbac.play, fedbac.compare, fedbac.sweep):
        assert alike <= set(inspect.signature(call).parameters)


def test_settings_are_a_mapping_from_paths_to_values_or_texts() -> None:
    mapped = fedbac.configure("fed-bac", "demo", settings={"method.selection.fraction": 0.5, "task.network": "mlp"})
    assert mapped == fedbac.configure(
        "fed-bac", "demo", settings=["method.selection.fraction=0.5", "task.network={kind: mlp}"]
    )
    chosen = fedbac.configure("fed-bac", "demo", settings={"method.selection": fedbac.Random(fraction=0.2)})
    assert chosen.method.selection == fedbac.Random(fraction=0.2)
    with pytest.raises(ConfigError, match=r"method\.selection\.fractoin.*did you mean 'fraction'"):
        fedbac.configure("fed-bac", "demo", settings={"method.selection.fractoin": 0.5})
    for wrong in ("task.rounds=3", {1: 2}, [3], {"": 1}):
        with pytest.raises(ConfigError, match=r"settings: .* is neither"):
            fedbac.configure("fed-bac", "demo", settings=wrong)  # type: ignore[arg-type]


def test_what_is_given_twice_is_refused() -> None:
    for settings in ({"task.rounds": 2}, ["task.rounds=2"]):
        with pytest.raises(ConfigError, match=r"rounds is given twice, as 3 and by .*task\.rounds.*; leave one"):
            fedbac.configure("fed-bac", "demo", rounds=3, settings=settings)
    with pytest.raises(ConfigError, match="seed is given twice"):
        fedbac.configure("fed-bac", "demo", seed=0, settings={"seed": 1})
    assert fedbac.configure("fed-bac", "demo", settings={"seed": 1, "task.rounds": 2}).seed == 1


def test_rounds_come_one_by_one_and_make_a_run(tmp_path: Path) -> None:
    playing = fedbac.play("hierfavg", **TINY, out=tmp_path)
    first = next(playing)
    with pytest.raises(fedbac.Error, match="go on to the end"):
        _ = playing.run
    assert [record["round"] for record in (first, *playing)] == [1, 2]
    assert without(playing.run.records) == without(fedbac.load(tmp_path).records)
    assert list(playing) == []
    assert playing.run.model(edge=0) is not None


def test_a_loop_that_is_left_can_be_resumed(tmp_path: Path) -> None:
    whole = fedbac.run("hierfavg", **TINY)
    with fedbac.play("hierfavg", **TINY, out=tmp_path) as playing:
        next(playing)
    assert list(playing) == [], "it is over"
    with pytest.raises(fedbac.Error, match=r"^hierfavg: it ended before its last round, .*fedbac.resume"):
        _ = playing.run
    with pytest.raises(fedbac.Error, match="it ended before its last round"):
        playing.finish()
    assert repr(fedbac.load(tmp_path)).startswith("Run(hierfavg on toy: 1 of 2 rounds, accuracy ")
    shutil.copytree(tmp_path, other := tmp_path.with_name("other"))
    resumed = fedbac.resume(tmp_path, dataset=tiny_data())
    assert without(resumed.records) == without(whole.records)
    with fedbac.play("hierfavg", **TINY, out=other) as playing:
        assert [record["round"] for record in playing] == [2], "the same call, too"
    assert without(playing.run.records) == without(whole.records)
    assert str(resumed.folder) == str(tmp_path)


def test_a_comparison_is_a_list_of_runs_in_one_frame(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    runs = fedbac.compare(["hierfavg", "ditto"], **TINY, seed=[0, 1], out=tmp_path)
    assert [run.name for run in runs] == ["hierfavg", "ditto", "hierfavg (seed 1)", "ditto (seed 1)"]
    assert isinstance(runs[1:], fedbac.Runs)
    assert runs[-1].name == "ditto (seed 1)"
    frame = runs.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) == 4 * 2
    assert frame.groupby(["method", "seed"])["round"].max().tolist() == [2] * 4
    edges = runs.to_frame(per="edge")
    assert len(edges) == 4 * 2 * 2
    means = edges.groupby(["run", "round"])["accuracy"].mean()
    assert means.to_dict() == pytest.approx(frame.set_index(["run", "round"])["accuracy"].to_dict())
    assert "hierfavg" in runs._repr_html_()
    before = {path: path.read_bytes() for path in tmp_path.glob("*/rounds.jsonl")}
    again = fedbac.compare(["hierfavg", "ditto"], **TINY, seed=[0, 1], out=tmp_path)
    assert {path: path.read_bytes() for path in before} == before, "nothing is run again"
    assert without(again[0].records) == without(runs[0].records)


def test_points_of_a_sweep_are_named_by_what_differs() -> None:
    runs = fedbac.sweep("hierfavg", **TINY, grid={"method.selection.fraction": [0.4, 1.0]})
    assert runs.labels == ["hierfavg [fraction=0.4]", "hierfavg [fraction=1.0]"]
    assert [len(run.records[0]["selected"][0]) for run in runs] == [2, 5]
    kinds = fedbac.sweep("hierfavg", **TINY, grid={"method.selection": ["random", "oort"]})
    assert kinds.labels == ["hierfavg [selection=random]", "hierfavg [selection=oort]"]
    wrong: list[Any] = [{"method.selection.fraction": 0.4}, {"method.selection.fraction": []}, ["x"]]
    for grid in wrong:
        with pytest.raises(ConfigError, match="grid: "):
            fedbac.sweep("hierfavg", **TINY, grid=grid)


@pytest.mark.full
def test_points_side_by_side_are_the_runs_that_come_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They run in other processes, with the data that were given in Python."""

    def refuse(*words: object, **named: object) -> None:
        pytest.fail("a run was played in this process")

    monkeypatch.setattr("fedbac.runs.sweep._run_here", refuse)
    monkeypatch.setattr("fedbac.api.calls._play", refuse)
    grid = {"method.selection.fraction": [0.4, 1.0]}
    runs = fedbac.sweep("hierfavg", **TINY, grid=grid, jobs=2, out=tmp_path, progress=True)
    shown = capsys.readouterr().err
    assert shown.count("2/2") >= 2
    monkeypatch.undo()
    for run, alone in zip(runs, fedbac.sweep("hierfavg", **TINY, grid=grid), strict=True):
        assert without(run.records) == without(alone.records)
        assert run.folder is not None
        weights = run.model(0, dataset=tiny_data()).state_dict()
        assert all(weights[name].equal(value) for name, value in alone.model(0).state_dict().items())


@pytest.mark.full
def test_what_workers_warn_of_comes_once_and_from_the_parent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """A line of another process would stand in the middle of the progress bars."""
    fedbac.sweep("paper-text", **TINY, seed=[0, 1], jobs=2, out=tmp_path, progress=False)
    assert [message.partition("=")[0] for message in caplog.messages] == ["paper-text: method.clustering.period"]
    assert "method.clustering.period" not in capfd.readouterr().err
    assert not list(tmp_path.glob(".stop-*"))


def test_runs_side_by_side_need_a_folder_and_a_sound_number(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"jobs: .*give out="):
        fedbac.sweep("hierfavg", **TINY, jobs=2)
    wrong: list[Any] = [0, 2.5, True, 2000]
    for jobs in wrong:
        with pytest.raises(ConfigError, match=r"jobs: .* is no whole number from 1 to 1024"):
            fedbac.sweep("hierfavg", **TINY, jobs=jobs, out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_run_is_short_on_a_line_and_a_table_in_a_notebook() -> None:
    run = fedbac.run("hierfavg", **TINY)
    assert repr(run) == f"Run(hierfavg on toy: 2 rounds, accuracy {100 * run.summary['accuracy']:.1f} %)"
    assert repr(fedbac.run("hierfavg", **TINY, rounds=1)).startswith("Run(hierfavg on toy: 1 round, accuracy ")
    assert "<td>hierfavg</td>" in run._repr_html_()
    assert repr(tiny_data()) == "Dataset('toy': 300 training and 60 test examples of uint8 1×8×8, 10 classes)"
    figure = run.plot()
    assert figure.axes
    with pytest.raises(ConfigError, match="there is no figure 'lost' of these runs; there are accuracy"):
        run.plot("lost")
    with pytest.raises(ConfigError, match="neither 'round' nor 'edge'"):
        run.to_frame(per="client")  # type: ignore[arg-type]


def test_frames_without_pandas_say_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    run = fedbac.run("hierfavg", **TINY)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedbac\[frames\]'"):
        run.to_frame()


def test_the_report_is_written_whether_its_package_is_imported_or_not(tmp_path: Path) -> None:
    run = fedbac.run("hierfavg", **TINY)
    first = fedbac.report(run, tmp_path / "a.html")
    import fedbac.report as package  # from now on Python means the package by the name

    assert fedbac.report([run], tmp_path / "b.html").read_text()[:15] == first.read_text()[:15] == "<!DOCTYPE html>"
    assert package.table is not None


def test_progress_is_shown_on_a_terminal_and_can_be_switched_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fedbac.run("hierfavg", **TINY)
    assert capsys.readouterr().err == "", "nobody watches"
    fedbac.run("hierfavg", **TINY, progress=True)
    shown = capsys.readouterr().err
    assert "hierfavg" in shown
    assert "2/2" in shown
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    fedbac.run("hierfavg", **TINY, progress=False)
    assert capsys.readouterr().err == ""


def test_progress_in_a_notebook_is_one_output_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, str]] = []

    class Handle:
        def update(self, content: Any) -> None:
            shown.append(("update", content._repr_mimebundle_([], [])["text/plain"]))

    def display(content: Any, display_id: bool) -> Handle:
        shown.append(("display", content._repr_mimebundle_([], [])["text/plain"]))
        return Handle()

    notebook, of_display = ModuleType("IPython"), ModuleType("IPython.display")
    monkeypatch.setattr(notebook, "get_ipython", lambda: SimpleNamespace(kernel=None), raising=False)
    monkeypatch.setattr(of_display, "display", display, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", of_display)
    fedbac.run("hierfavg", **TINY)
    assert [kind for kind, _ in shown] == ["display", "update", "update"]
    assert "2/2" in shown[-1][1]
    fedbac.run("hierfavg", **TINY, progress=False)
    assert len(shown) == 3


def test_every_error_of_ours_is_an_error_of_fedbac() -> None:
    named = [getattr(fedbac, name) for name in fedbac.__all__]
    errors = [found for found in named if isinstance(found, type) and issubclass(found, BaseException)]
    assert len(errors) > 8
    assert all(issubclass(error, fedbac.Error) for error in errors)
    assert issubclass(ConfigError, ValueError)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"lr": 0.1}, "task.training.learning_rate"),
        ({"epochs": 3}, "task.training.epochs"),
        ({"num_clusters": 3}, "method.clustering.num_clusters"),
    ],
)
def test_a_setting_given_as_an_argument_is_answered_with_how_it_is_given(given: dict[str, Any], path: str) -> None:
    value = next(iter(given.values()))
    with pytest.raises(ConfigError, match=re.escape(f"write settings={{'{path}': {value}}}")):
        fedbac.run("fed-bac", **given)


def test_an_argument_that_nothing_has_is_an_error_of_python() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        fedbac.run("fed-bac", nonsense=1)  # type: ignore[call-arg]


def test_a_network_beside_a_method_that_has_its_own_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"hierfavg-wide has a network of its own \(method.network, lenet5\)"):
        fedbac.run("hierfavg-wide", **TINY, network=lambda: torch.nn.Flatten())
    fedbac.configure("hierfavg-wide", settings=["method.network=null"], inputs=Inputs(network="mlp"))
