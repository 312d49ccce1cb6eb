"""The command, as a person types it."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedbac import data
from fedbac.cli import playing
from fedbac.cli.main import main
from fedbac.cli.terminal import out
from fedbac.errors import FederationError
from fedbac.runs import play
from fedbac.runs import sweep as runs
from fedbac.runs.store import RunFolder
from tests.covering import first

COMMAND = [sys.executable, "-c", "from fedbac.cli.main import main; main()"]
SMALL = [
    "--workers", "1", "--device", "cpu",
    "--set", "task.num_edges=5", "--set", "task.clients_per_edge=2",
    "--set", "task.network={kind: mlp, hidden: [8]}", "--set", "task.training.epochs=1",
]  # fmt: skip


class Shell:
    """Types commands in a folder, in this process."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.chdir(folder)
        monkeypatch.setenv("COLUMNS", "140")
        monkeypatch.delenv("FEDBAC_DATA", raising=False)
        monkeypatch.setenv("FEDBAC_CACHE", str(folder / "cache"))
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *words: str, code: int = 0) -> str:
        self.monkeypatch.setattr(sys, "argv", ["fedbac", *words])
        with pytest.raises(SystemExit) as exit_:
            main()
        said = self.capsys.readouterr()
        assert exit_.value.code == code, said.out + said.err
        return said.out + said.err


@pytest.fixture
def fedbac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, monkeypatch, capsys)


def test_run_report_and_repeat_from_the_configuration(fedbac: Shell, tmp_path: Path) -> None:
    text = fedbac("run", "fed-bac", "--rounds", "3", "--seed", "4", "--out", "a", *SMALL)
    assert "fed-bac" in text
    assert (tmp_path / "a" / "report.html").stat().st_size > 10_000
    fedbac("run", "a/config.yaml", "--out", "b", "--workers", "2")
    first, second = (
        [json.loads(line) for line in (tmp_path / f / "rounds.jsonl").read_text().splitlines()] for f in "ab"
    )
    for left, right in zip(first, second, strict=True):
        own = {"seconds": 0, "check": "", "computed_by": {}}
        assert left | own == right | own  # whatever the number of workers
    assert yaml.safe_load((tmp_path / "a" / "config.yaml").read_text())["trainer"]
    assert "fed-bac" in fedbac("report", "a", "b", "--out", "both.html")
    assert (tmp_path / "both.html").exists()


@pytest.mark.full
def test_a_flat_run_and_one_of_personal_networks_are_reported(fedbac: Shell, tmp_path: Path) -> None:
    """Of one site; and without a model that could be measured on all test data. Alone and beside others."""
    for name in ("fedavg", "ditto"):
        assert f"{name} reaches" in fedbac("run", name, "--rounds", "2", "--out", f"runs/{name}", *SMALL)
        page = (tmp_path / "runs" / name / "report.html").read_text()
        assert "5 edges with 2 clients each" in page
        assert "nothing: no policy needs a model measured" in page
        assert ("client and edge (flat: and cloud)" in page) == (name == "fedavg")
    flat, personal = (json.loads((tmp_path / "runs" / n / "summary.json").read_text()) for n in ("fedavg", "ditto"))
    assert 0 < flat["accuracy_global"] < 1
    assert personal["accuracy_global"] is None
    assert flat["active_clusters"] == personal["active_clusters"] == 1
    assert flat["bytes"]["cloud"] == {way: dict.fromkeys(("train", "evaluate", "control"), 0) for way in ("down", "up")}
    record = json.loads((tmp_path / "runs/ditto/rounds.jsonl").read_text().splitlines()[-1])
    assert record["accuracy_global"] is None
    assert len(record["accuracy_per_edge"]) == len(record["selected"]) == 5
    both = fedbac("report", "runs", "--out", "both.html")
    assert {"fedavg", "ditto"} <= set(both.split())


def test_a_run_whose_clients_all_diverged_says_so_under_its_verdict(fedbac: Shell, tmp_path: Path) -> None:
    wild = ["--set", "task.training.learning_rate=1e30", "--set", "task.training.clip_norm=null"]
    text = " ".join(fedbac("run", "hierfavg", "--rounds", "1", "--out", "a", *SMALL, *wild).split())
    note = "10 of 10 client trainings failed (weights or losses were not finite), so this says little"
    assert f"%. {note}" in text
    assert f'</p>\n<p class="note">{note}' in (tmp_path / "a" / "report.html").read_text()


def test_a_configuration_can_be_changed_on_the_way(fedbac: Shell, tmp_path: Path) -> None:
    fedbac("run", "hierfavg", "--rounds", "1", "--out", "a", *SMALL)
    fedbac("run", "a/config.yaml", "--seed", "7", "--rounds", "2", "--set", "task.training.epochs=2", "--out", "b")
    changed = yaml.safe_load((tmp_path / "b" / "config.yaml").read_text())
    assert changed["experiment"]["seed"] == 7
    assert changed["experiment"]["task"]["rounds"] == 2
    assert changed["experiment"]["task"]["training"]["epochs"] == 2
    assert changed["runtime"]["workers"] == 1, "the runtime is the file's too"
    assert "--task" in fedbac("run", "a/config.yaml", "--task", "cifar10", code=2)
    assert "learning_rate: -5" in fedbac("run", "a/config.yaml", "--set", "task.training.learning_rate=-5", code=2)


@pytest.mark.full
def test_folders_are_not_mixed_up(fedbac: Shell, tmp_path: Path) -> None:
    assert "ifca-edges is given twice" in fedbac("compare", "ifca-edges", "ifca-edges", "--out", "c", code=2)
    text = fedbac("compare", "ifca-edges", "hierfavg", "--rounds", "1", "--out", "c", *SMALL)
    assert text.index("ifca-edges") < text.index("hierfavg")
    assert "finished already" not in text
    said = fedbac("compare", "ifca-edges", "hierfavg", "ditto", "--rounds", "1", "--out", "c", *SMALL)
    assert "2 of 3 runs were finished already and were not run again." in said
    said = fedbac("run", "fed-bac", "--rounds", "2", "--out", "c/ifca-edges", *SMALL, code=2)
    assert "another run is in this folder (method: ifca-edges is now fed-bac; task.rounds: 1 is now 2); choose" in said
    assert "holds the runs ditto, hierfavg, ifca-edges" in fedbac("run", "fed-bac", "--out", "c", code=2)
    again = fedbac("report", "c")
    assert again.index("ifca-edges") < again.index("hierfavg"), "in the order of the comparison, not of the alphabet"
    config = tmp_path / "c" / "ifca-edges" / "config.yaml"
    config.write_text(config.read_text().replace("rounds: 1\n", "rounds: 9\n"))
    assert "line 1 does not match its checksum, which covers config.yaml too" in fedbac(
        "report", "c/ifca-edges", code=2
    )
    assert fedbac("--version").startswith("fedbac 1.")


def test_an_unwritable_report_is_one_clear_message(fedbac: Shell) -> None:
    fedbac("run", "hierfavg", "--rounds", "1", "--out", "a", *SMALL)
    assert "cannot be written" in fedbac("report", "a", "--out", "a/config.yaml/page.html", code=2)


@pytest.mark.full
def test_compare_is_interrupted_reported_and_resumed_as_a_whole(
    fedbac: Shell, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = ["compare", "hierfavg", "ifca-edges", "--rounds", "20", "--out", "c", *SMALL]
    process = subprocess.Popen(
        [*COMMAND, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    rounds = tmp_path / "c" / "hierfavg" / "rounds.jsonl"
    while not (rounds.exists() and rounds.read_bytes().count(b"\n") >= 2):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "\nTo resume: fedbac resume c, or the same command without --overwrite.\n" in errors, "a line of its own"
    done = rounds.read_bytes().count(b"\n")
    assert 2 <= done < 20
    assert (tmp_path / "c" / "ifca-edges" / "config.yaml").exists()
    assert f"hierfavg: stopped after {done} of 20 rounds" in fedbac("report", "c")
    assert caplog.messages == ["Left out, as no round is complete yet: c/ifca-edges"]
    assert "no complete round yet in c/ifca" in fedbac("report", "c/ifca-edges", code=2)
    text = fedbac("resume", "c")
    assert text.index("hierfavg") < text.index("ifca-edges"), (
        "in the order of the comparison, though ifca-edges was not begun"
    )
    for method in ("hierfavg", "ifca-edges"):
        assert method in text
        assert json.loads((tmp_path / "c" / method / "summary.json").read_text())["finished"]
    assert "ifca-edges" in (tmp_path / "c" / "report.html").read_text()


@pytest.mark.parametrize("command", first(1, ["compare", "sweep"]))
def test_the_same_command_resumes_and_another_is_refused(command: str, fedbac: Shell, tmp_path: Path) -> None:
    few = ["--device", "cpu", *SMALL[4:]]
    words = [command, "hierfavg", "--rounds", "2", "--out", "c", *few, *(["--jobs", "1"] if command == "sweep" else [])]
    fedbac(*words)
    (rounds,) = tmp_path.glob("c/*/rounds.jsonl")
    before = rounds.read_bytes()
    said = fedbac(*words)
    assert "hierfavg" in said
    assert "This run was finished already, so nothing was run again." in said
    assert rounds.read_bytes() == before
    refused = fedbac(*words, "--set", "task.training.batch_size=8", code=2)
    assert "another run" in refused
    assert "task.training.batch_size: 32 is now 8" in refused
    assert rounds.read_bytes() == before
    fedbac(*words, "--set", "task.training.batch_size=8", "--overwrite")
    assert rounds.read_bytes() != before


def test_a_run_that_fails_does_not_end_a_comparison(fedbac: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def play_folder(folder: RunFolder, *words: Any) -> Any:
        if folder.path.name == "ifca-edges":
            raise FederationError("no [power]")
        if folder.path.name == "fed-bac":
            raise ZeroDivisionError("a mistake of ours")
        return play.play_folder(folder, *words)

    monkeypatch.setattr(runs, "play_folder", play_folder)
    text = fedbac("compare", "ifca-edges", "fed-bac", "hierfavg", "--rounds", "1", "--out", "c", *SMALL, code=1)
    assert "failed: ifca-edges\nno [power]\n" in text
    assert "Traceback" in text
    assert "ZeroDivisionError: a mistake of ours" in text
    assert "Report: c/report.html" in text
    assert "failed: ifca-edges, fed-bac" not in text


@pytest.mark.full
def test_many_runs_share_a_line(fedbac: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playing, "FEW", 1)
    text = fedbac("compare", "ifca-edges", "hierfavg", "--rounds", "2", "--out", "c", *SMALL)
    assert "1 of 2 runs finished, round 2 of 4" in text
    assert "2 of 2 runs finished, round 4 of 4" in text
    text = fedbac("compare", "ifca-edges", "hierfavg", "--out", "d", *SMALL, "--set", "task.num_edges=900", code=1)
    assert "0 of 2 runs finished, 2 failed, round 0 of 100" in text


@pytest.mark.full
def test_a_sweep_is_ranked_and_its_rows_are_named_by_what_sets_them_apart(fedbac: Shell, tmp_path: Path) -> None:
    axis = ["--grid", "method.selection.fraction=0.5,1.0", "--seed", "0", "--seed", "1"]
    text = fedbac("sweep", "hierfavg", *axis, "--rounds", "1", "--jobs", "2", "--out", "s", *SMALL[4:])
    rows = json.loads((tmp_path / "s" / "sweep.json").read_text())
    names = [row["runs"][0].removeprefix("hierfavg_").removesuffix("_seed0") for row in rows]
    first, second = (text.index(f"hierfavg [{name}]") for name in names)
    assert first < second
    assert rows[0]["accuracy"] >= rows[1]["accuracy"]
    assert [f"fraction={row['settings'].pop('method.selection.fraction')}" for row in rows] == names
    assert [row["settings"] for row in rows] == [{}, {}]


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_sweep_that_is_stopped_leaves_no_worker_behind(number: signal.Signals, tmp_path: Path) -> None:
    words = ["sweep", "hierfavg", "--rounds", "5000", "--seed", "0", "--seed", "1", "--jobs", "2", "--out", "s"]
    command = [*COMMAND, *words, *SMALL[2:]]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    folders = [tmp_path / "s" / f"hierfavg_seed{seed}" for seed in (0, 1)]
    while not all((folder / "rounds.jsonl").exists() for folder in folders):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command" in errors
    for folder in folders:
        with RunFolder(folder).locked():  # else somebody is still at it
            summary = json.loads((folder / "summary.json").read_text())
        assert not summary["finished"], "its worker had the time to finish a round and sum up"
        assert summary["rounds"] == len(RunFolder(folder).read_records())
    assert not list((tmp_path / "s").glob(".stop-*"))


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["run", "fedbca"], ["unknown method 'fedbca'", "did you mean 'fed-bac'? fedbac methods lists all "]),
        (["run", "fed-bac", "--task", "cifar"], ["unknown task 'cifar'", "cifar10"]),
        (["run", "fed-bac", "--task", "none.yaml"], ["none.yaml", "cannot be read"]),
        (["run", "none.yaml"], ["none.yaml", "cannot be read"]),
        (
            ["run", "fed-bac", "--set", "method.selection.fraction=0"],
            ["method.selection.fraction: 0", "greater than 0"],
        ),
        (["run", "fed-bac", "--set", "method.clustering.period=0"], ["method.clustering.period: 0"]),
        (["run", "fed-bac", "--set", "task.training.batchsize=3"], ["task.training.batchsize", "'batch_size'"]),
        (["run", "fed-bac", "--set", "task.rounds"], ["--set 'task.rounds'", "path=value"]),
        (["run", "ifca-edges", "--set", "task.num_edges=3"], ["num_clusters is 5", "only 3 edges"]),
        (["run", "hierfavg", "--rounds", "0"], ["task.rounds: 0"]),
        (["run", "hierfavg", "--device", "tpu"], ["runtime.device: 'tpu'", "'cuda'"]),
        (["resume", "nowhere"], ["nowhere", "no such folder"]),
        (["report", "."], ["holds a run"]),
        (["data", "get", "mnist"], ["unknown data set 'mnist'", "fashion-mnist"]),
    ],
)
def test_bad_input_is_one_clear_message(words: list[str], parts: list[str], fedbac: Shell, tmp_path: Path) -> None:
    text = fedbac(*words, code=2)
    for part in parts:
        assert part in text
    assert not list(tmp_path.rglob("config.yaml"))


@pytest.mark.parametrize(
    ("words", "part", "code"),
    [
        (["run", "ifca-edges", "--device", "cuda"], "finds no such device", 2),
        (["run", "ifca-edges", "--task", "cifar10"], "fedbac data get cifar10", 2),
        (["run", "ifca-edges", "--track", "mlflow"], "pip install 'fedbac[mlflow]'", 2),
        (["run", "ifca-edges", "--live"], "pip install 'fedbac[watch]'", 2),
        (["run", "ifca-edges", "--set", "task.partition.min_client_samples=5000"], "cannot give 100 clients", 2),
        (
            ["compare", "ifca-edges", "ditto", "--set", "task.partition.min_client_samples=5000"],
            "failed: ifca-edges, ditto",
            1,
        ),
    ],
)
def test_a_refused_command_leaves_nothing_behind(
    words: list[str], part: str, code: int, fedbac: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for package in ("mlflow", "starlette", "fedbac.report.beside"):
        monkeypatch.setitem(sys.modules, package, None)
    assert part in fedbac(*words, code=code)
    assert not (tmp_path / "runs").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    fedbac(*words, "--out", "mine", code=code)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_a_refused_command_keeps_the_runs_that_were_there(
    fedbac: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    fedbac("compare", "ifca-edges", "--rounds", "1", "--out", "c", *SMALL)
    before = {path: path.read_bytes() for path in (tmp_path / "c").rglob("*") if path.is_file()}
    for words in (["compare", "ifca-edges", "--overwrite"], ["compare", "ifca-edges", "ditto"], ["resume", "c"]):
        task = [] if words[0] == "resume" else ["--rounds", "1", "--out", "c", *SMALL]
        fedbac(*words, *task, "--device", "cuda", code=2)
    assert {path: path.read_bytes() for path in (tmp_path / "c").rglob("*") if path.is_file()} == before


def test_lists(fedbac: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "linucb" in fedbac("methods")
    monkeypatch.setattr(out, "_width", 80)
    words = set(fedbac("methods").split())
    assert {"selection", "sharing", "personal", "Regularization"} <= words, "no word is broken"
    monkeypatch.setattr(out, "_width", None)
    tasks = fedbac("tasks")
    assert "cifar10-severe" in tasks
    assert "M edges, N clients, " in tasks
    monkeypatch.setattr(out, "_width", 60)
    listed = fedbac("data", "list").splitlines()
    assert f"fashion-mnist-mini: {Path(data.__file__).parent / 'embedded'}" in listed, "no path is broken"
    assert "svhn: not here" in listed
    shown = fedbac("show", "ifca-edges", "--set", "task.rounds=7")
    assert yaml.safe_load(shown)["experiment"]["task"]["rounds"] == 7


def test_missing_data_lists_the_places(fedbac: Shell, tmp_path: Path) -> None:
    said = fedbac("run", "hierfavg", "--task", "cifar10", "--data", "here", code=2)
    assert "unknown data set 'here'" in said
    assert "--data FOLDER" in said
    assert "there is no such folder" in fedbac("run", "hierfavg", "--task", "cifar10", "--data", "./here", code=2)
    (tmp_path / "here").mkdir()
    text = fedbac("run", "hierfavg", "--task", "cifar10", "--data", "here", code=2)
    assert "here" in text
    assert "fedbac data get cifar10" in text


def test_report_refuses_names_that_are_not_for_what_it_writes(fedbac: Shell, tmp_path: Path) -> None:
    fedbac("run", "hierfavg", "--rounds", "1", "--out", "a", *SMALL)
    (tmp_path / "taken").write_text("mine")
    said = fedbac("report", "a", "--figures", "taken", code=2)
    assert "--figures taken: it is a file; name a folder" in said
    said = fedbac("report", "a", "--out", "x.csv", code=2)
    assert "--out x.csv: the page is HTML, so give it a name that ends in .html" in said
    assert not (tmp_path / "x.csv").exists()
    assert (tmp_path / "taken").read_text() == "mine"
