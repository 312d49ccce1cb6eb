"""Trackers show what the records say, once, also of a run that was resumed; and one that fails costs nobody a run."""

import logging
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import fedbac
from fedbac import Runtime
from fedbac.cli.main import main
from fedbac.errors import ConfigError
from fedbac.runs import tracking
from fedbac.runs.configure import Inputs, configure
from fedbac.runs.play import finish, play
from fedbac.runs.tracking import MLFLOW_RUN
from tests.test_cli import SMALL
from tests.unit.tiny import tiny_data, tiny_task


def tracked(kind: Any, folder: Path, stop_after: int | None = None) -> Any:
    inputs = Inputs(tiny_data())
    experiment = configure("ifca-edges", tiny_task(num_edges=5, clients_per_edge=2, rounds=3), inputs=inputs)
    runtime = Runtime(device="cpu", workers=1, track=kind)
    if stop_after is None:
        return list(play(experiment, folder=folder, runtime=runtime, inputs=inputs))
    playing = play(experiment, folder=folder, runtime=runtime, inputs=inputs)
    for _ in range(stop_after):
        next(playing)
    playing.close()
    return fedbac.resume(folder, dataset=inputs.dataset).records


@pytest.mark.parametrize("stop_after", [None, 2])
def test_tensorboard_shows_every_round_once(stop_after: int | None, tmp_path: Path) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    records = tracked("tensorboard", tmp_path, stop_after)
    shown = accumulators.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in shown.Scalars("accuracy/mean")] == [1, 2, 3]
    for name, key in (
        ("accuracy/mean", "accuracy"),
        ("accuracy/lowest", "accuracy_min"),
        ("clusters/moves", "moves"),
    ):
        assert [event.value for event in shown.Scalars(name)] == pytest.approx([record[key] for record in records])
    edge = [record["accuracy_per_edge"][4] for record in records]
    assert [event.value for event in shown.Scalars("edge/4")] == pytest.approx(edge)
    assert "time/simulated_seconds" not in shown.Tags()["scalars"], "there are no devices"


MLFLOW_S_OWN_WAY = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")
"""With SQLAlchemy 2.1."""


@MLFLOW_S_OWN_WAY
def test_the_command_of_the_page_fills_mlflow_s_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/report.md has it; MLflow makes its database where the command is typed."""
    mlflow = pytest.importorskip("mlflow")
    page = (Path(__file__).parents[1] / "docs" / "report.md").read_text(encoding="utf-8")
    (typed,) = re.findall(r"^(fedbac .*--track mlflow)$", page, re.MULTILINE)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [*typed.split(), "--rounds", "2", *SMALL])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    assert (tmp_path / "mlflow.db").stat().st_size > 0
    client = mlflow.MlflowClient()
    (experiment,) = client.search_experiments(filter_string="name LIKE 'fedbac-%'")
    kept = {run.data.params["method.name"]: run for run in client.search_runs([experiment.experiment_id])}
    assert kept.keys() == {"fed-bac", "ifca-edges"}
    for run in kept.values():
        assert run.info.status == "FINISHED"
        assert [metric.step for metric in client.get_metric_history(run.info.run_id, "accuracy/lowest")] == [1, 2]


@pytest.mark.full
@MLFLOW_S_OWN_WAY
def test_mlflow_keeps_one_run_where_it_does_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    records = tracked("mlflow", tmp_path / "run", stop_after=2)
    client = mlflow.MlflowClient()
    run = (tmp_path / "run" / MLFLOW_RUN).read_text().strip()
    found = [(metric.step, metric.value) for metric in client.get_metric_history(run, "accuracy/mean")]
    assert sorted(found) == [(record["round"], record["accuracy"]) for record in records], "no round is there twice"
    kept = client.get_run(run)
    assert kept.data.params["method.name"] == "ifca-edges"
    assert kept.info.status == "FINISHED"
    assert len(client.search_runs([kept.info.experiment_id])) == 1, "a resumed run is no second one"


def test_wandb_keeps_a_run_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    assert len(tracked("wandb", tmp_path)) == 3
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))


class Failing:
    def __init__(self, folder: Path, config: Any) -> None:
        pass

    def log(self, round_: int, numbers: Any) -> None:
        raise OSError("no such host")

    def close(self) -> None:
        raise AssertionError("it was given up")


def test_a_tracker_that_fails_costs_nobody_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(tracking.TRACKERS, "mlflow", Failing)
    monkeypatch.setitem(tracking.LIBRARIES, "mlflow", "json")
    with caplog.at_level(logging.WARNING, "fedbac"):
        assert len(tracked("mlflow", tmp_path)) == 3
    assert [record.getMessage() for record in caplog.records] == ["mlflow shows no more of this run: no such host"]


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = Inputs(tiny_data())
    experiment = configure("ifca-edges", tiny_task(num_edges=5, clients_per_edge=2, rounds=1), inputs=inputs)
    with pytest.raises(ConfigError, match=r"runtime\.track: 'mlflow' needs a folder"):
        finish(play(experiment, runtime=Runtime(device="cpu", workers=1, track="mlflow"), inputs=inputs))
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedbac\[mlflow\]'"):
        tracked("mlflow", tmp_path)
    assert not list(tmp_path.iterdir())


def test_replacing_a_run_begins_a_new_one_with_the_tracker(tmp_path: Path) -> None:
    (tmp_path / MLFLOW_RUN).write_text("an old one")
    fedbac.run("hierfavg", tiny_task(rounds=1), dataset=tiny_data(), device="cpu", workers=1, out=tmp_path)
    fedbac.run(
        "hierfavg", tiny_task(rounds=1), dataset=tiny_data(), device="cpu", workers=1, out=tmp_path, overwrite=True
    )
    assert not (tmp_path / MLFLOW_RUN).exists()
