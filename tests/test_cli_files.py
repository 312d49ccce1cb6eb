"""Files that commands take and leave: configurations to edit, folders of comparisons, exports."""

import csv
import inspect
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import fedbac as package
from fedbac.cli import reporting, running
from fedbac.cli.terminal import out
from fedbac.runs.summary import written
from fedbac.version import full_version
from tests.made_up_runs import fake, renamed
from tests.test_cli import SMALL, Shell
from tests.test_cli import fedbac as fedbac  # a fixture
from tests.unit.tiny import tiny_data, tiny_task

ONE = ["--rounds", "1", *SMALL]


def test_what_is_shown_is_edited_run_and_compared(fedbac: Shell, tmp_path: Path) -> None:
    shown = fedbac("show", "fed-bac", *SMALL[4:], "--set", "task.rounds=1")
    assert shown.startswith("# A network shared by all plus one of the cluster predicts (Eq. 2).")
    changed = fedbac("show", "fed-bac", "--set", "method.selection=oort")
    assert changed.startswith("experiment:"), "it is no longer what its preset says of itself"
    (tmp_path / "mine.yaml").write_text(shown.replace("fraction: 0.8", "fraction: 0.5").replace("seed: 0", "seed: 3"))
    fedbac("run", "mine.yaml", "--out", "alone")
    both = fedbac("compare", "mine.yaml", "fed-bac", "ifca-edges", "--out", "c")
    assert "fed-bac [fraction=0.5]" in both
    configs = {
        name: yaml.safe_load((tmp_path / "c" / name / "config.yaml").read_text()) for name in ("mine", "ifca-edges")
    }
    assert (
        configs["mine"]["experiment"] == yaml.safe_load((tmp_path / "alone" / "config.yaml").read_text())["experiment"]
    )
    assert configs["ifca-edges"]["experiment"]["task"] == configs["mine"]["experiment"]["task"], "the file's"
    assert configs["ifca-edges"]["experiment"]["seed"] == 3
    again = fedbac("show", "c/mine/config.yaml")
    assert yaml.safe_load(again)["experiment"] == configs["mine"]["experiment"], "one format everywhere"
    fedbac("run", "hierfavg", "--task", "mine.yaml", "--out", "other")
    other = yaml.safe_load((tmp_path / "other" / "config.yaml").read_text())["experiment"]
    assert other["task"] == configs["mine"]["experiment"]["task"]


def test_files_that_disagree_are_not_compared(fedbac: Shell, tmp_path: Path) -> None:
    for rounds in (1, 2):
        (tmp_path / f"{rounds}.yaml").write_text(fedbac("show", "ifca-edges", "--set", f"task.rounds={rounds}"))
    refused = fedbac("compare", "1.yaml", "2.yaml", code=2)
    assert "1.yaml and 2.yaml: they have different tasks" in refused
    assert "task.rounds: 1 is now 2" in refused
    assert "1.yaml has its task already" in fedbac("compare", "1.yaml", "--task", "demo", code=2)


def test_rounds_that_are_given_twice_are_refused(fedbac: Shell) -> None:
    for command in ("run", "compare", "sweep"):
        text = fedbac(command, "hierfavg", "--set", "task.rounds=2", "--rounds", "3", code=2)
        assert "rounds is given twice, as 3 and by --set 'task.rounds=2'; leave one of them out" in text


@pytest.mark.parametrize("link", ["client_up", "cloud_down"])
def test_a_link_is_chosen_by_its_kind_alone(link: str, fedbac: Shell) -> None:
    shown = yaml.safe_load(fedbac("show", "ifca-edges", "--set", f"method.links.{link}=top_k"))
    assert shown["experiment"]["method"]["links"][link] == {"kind": "top_k", "keep": 0.1}
    text = fedbac("show", "ifca-edges", "--set", f"method.links.{link}={{keep: 0.5}}", code=2)
    assert f"method.links.{link}: {{'keep': 0.5}} has no kind; give one of top_k, eight_bits, clip, noise" in text
    text = fedbac("show", "ifca-edges", "--set", f"method.links.{link}=5", code=2)
    assert f"method.links.{link}: 5 is no choice; give a kind, such as 'top_k', or settings with a kind" in text


@pytest.mark.full
def test_a_comparison_that_is_overwritten_leaves_no_run_of_before(fedbac: Shell, tmp_path: Path) -> None:
    fedbac("compare", "ifca-edges", "hierfavg", "fed-bac", *ONE, "--out", "c")
    folder = tmp_path / "c"
    (folder / "hierfavg" / "notes.txt").write_text("mine")
    fedbac("run", "fedavg", *ONE, "--out", "c/kept", "--overwrite")
    assert (folder / "ifca-edges" / "rounds.jsonl").exists(), "a single run removes no neighbours"
    (folder / "runs.json").write_text(json.dumps(["ifca-edges", "hierfavg", "fed-bac", "..", "../c/kept", "gone", ""]))
    fedbac("compare", "ifca-edges", *ONE, "--out", "c", "--overwrite")
    assert json.loads((folder / "runs.json").read_text()) == ["ifca-edges"]
    assert not (folder / "fed-bac").exists()
    assert [path.name for path in (folder / "hierfavg").iterdir()] == ["notes.txt"], "what is no run's stays"
    text = fedbac("report", "c")
    assert "hierfavg" not in text
    assert "fedavg" in text, "no run of the comparison, so not its to remove"


def test_a_configuration_says_where_its_run_comes_from_and_a_resume_changes_nothing(
    fedbac: Shell, tmp_path: Path
) -> None:
    fedbac("run", "hierfavg", "--rounds", "2", *SMALL, "--out", "a b")
    file = tmp_path / "a b" / "config.yaml"
    config = yaml.safe_load(file.read_text())
    assert config["written"].keys() == written().keys()
    assert config["written"]["command"].startswith("fedbac run hierfavg --rounds 2")
    assert config["written"]["command"].endswith("--out 'a b'")
    assert config["written"]["fedbac"] == full_version()
    before = file.read_bytes()
    fedbac("resume", "a b")
    assert file.read_bytes() == before
    run = package.load(tmp_path / "a b")
    assert run.config["written"] == config["written"]


def test_files_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        tiny = tiny_task(rounds=1)
        run = package.run("hierfavg", tiny, dataset=tiny_data(), out=tmp_path / "a", device="cpu", workers=1)
        run.save_model(tmp_path / "a" / "model.safetensors", edge=0)
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "a").rglob("*") if path.is_file() and path.name != ".lock"]
    assert {path.suffix for path in files} == {".yaml", ".jsonl", ".json", ".safetensors"}
    assert {oct(stat.S_IMODE(path.stat().st_mode)) for path in files} == {"0o640"}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "c"
    tiny = tiny_task(rounds=2)
    package.compare(["hierfavg", "fed-bac"], tiny, dataset=tiny_data(), out=folder, device="cpu", workers=1)
    return folder


def test_rounds_are_exported_as_tidy_rows(fedbac: Shell, compared: Path, tmp_path: Path) -> None:
    shutil.copytree(compared, tmp_path / "c")
    rows = list(csv.DictReader(io.StringIO(fedbac("export", "c"))))
    assert [(row["method"], row["round"]) for row in rows] == [
        ("hierfavg", "1"), ("hierfavg", "2"), ("fed-bac", "1"), ("fed-bac", "2")
    ]  # fmt: skip
    record = json.loads((tmp_path / "c" / "hierfavg" / "rounds.jsonl").read_text().splitlines()[1])
    assert float(rows[1]["accuracy"]) == record["accuracy"]
    edges = list(csv.DictReader(io.StringIO(fedbac("export", "c/hierfavg", "--per", "edge"))))
    assert [float(row["accuracy"]) for row in edges[2:]] == record["accuracy_per_edge"]
    assert "Exported: rounds.csv" in fedbac("export", "c", "--out", "rounds.csv")
    assert (tmp_path / "rounds.csv").read_text().count("\n") == 5
    pandas, _ = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    fedbac("export", "c", "--format", "parquet", "--out", "rounds.parquet")
    assert pandas.read_parquet(tmp_path / "rounds.parquet")["round"].tolist() == [1, 2, 1, 2]
    assert "cannot be printed" in fedbac("export", "c", "--format", "parquet", code=2)


def test_a_table_for_a_paper_is_printed_or_written(fedbac: Shell, compared: Path, tmp_path: Path) -> None:
    words = ["table", str(compared), "--columns", "accuracy,sigma"]
    assert fedbac(*words).splitlines()[2].startswith("| hierfavg | ")
    assert "Table: t.tex" in fedbac(*words, "--format", "latex", "--out", "t.tex", "--figures", "pdf")
    lines = (tmp_path / "t.tex").read_text().splitlines()
    assert "% fed-bac never selected clients by what it learned: all 2 rounds were warm-up." in lines
    at = lines.index(r"\begin{tabular}{lrr}")
    assert lines[at + 1] == r"\toprule"
    assert (tmp_path / "pdf" / "accuracy.pdf").read_bytes().startswith(b"%PDF")
    assert "unknown column 'sigm'" in fedbac("table", str(compared), "--columns", "sigm", code=2)


def test_parquet_without_its_library_says_how_to_get_it(
    fedbac: Shell, compared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["export", str(compared), "--format", "parquet", "--out", "x"]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install pyarrow" in fedbac(*words, code=2)
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert "pip install 'fedbac[frames]'" in fedbac(*words, code=2)


def test_the_version_names_what_computes(fedbac: Shell) -> None:
    import torch

    text = fedbac("--version")
    assert text.startswith(f"fedbac {full_version()}, torch {torch.__version__}")
    assert "kernels: CPU: " in text
    assert "GPU: " in text


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("fedbac run ifc", "ifca"),
        ("fedbac compare ifca-edges fedbac-p", "fedbac-plus"),
        ("fedbac run ifca-edges --task cif", "cifar10-severe"),
        ("fedbac run mi", "mine.yaml"),
        ("fedbac data get fashion-mnist-m", "fashion-mnist-mini"),
    ],
)
def test_names_are_completed(
    words: str, found: str, fedbac: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.yaml").touch()
    monkeypatch.setenv("_FEDBAC_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert found in fedbac().split()


def test_completion_can_be_installed(fedbac: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--install-completion" in fedbac("--help")
    monkeypatch.setenv("_FEDBAC_COMPLETE", "source_bash")
    assert "_FEDBAC_COMPLETE=complete_bash" in fedbac()


@pytest.mark.parametrize("width", [60, 80, 100, 140, 400])
def test_a_table_that_is_too_wide_drops_columns_and_cuts_no_label(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedbac.report import final

    names = ["fed-bac-with-a-long-name", "ifca-edges", "hierfavg", "ditto", "apfl"]
    (header, rows), best = final([renamed(fake(), name) for name in names])
    monkeypatch.setattr(out, "_width", width)
    table, missing = reporting.fitting(header, rows, best)
    out.print(table)
    lines = capsys.readouterr().out.splitlines()
    shown = " ".join(" ".join(line.split()) for line in lines)
    assert max(map(len, lines)) <= width
    for row in rows:
        assert sum(row[0] in line and row[1] in line for line in lines) == 1, "whole, on a line of its own"
    assert bool(missing) == (width < 400)
    assert "…" not in shown
    assert "accuracy (%)" not in missing
    assert set(missing) <= set(header)


@pytest.mark.parametrize("command", [running.compare, running.sweep])
def test_a_sweep_runs_where_a_run_does(command: Callable[..., None]) -> None:
    assert inspect.signature(command).parameters["device"].default == "auto"


@pytest.mark.full
def test_seeds_that_use_a_fraction_of_the_data_have_a_mean(fedbac: Shell) -> None:
    few = ["--set", "task.data_fraction=0.2", "--set", "task.partition.min_edge_test=5"]
    text = fedbac("compare", "hierfavg", "--seed", "0", "--seed", "1", *ONE, *few, "--out", "c")
    assert "different tasks" not in text
    assert "the mean over 2 seeds" in text


def test_workers_need_no_program_of_the_system() -> None:
    """Where there is no pgrep, as in slim containers, loky ends the children of a process by psutil."""
    code = (
        "from loky import ProcessPoolExecutor\n"
        "pool = ProcessPoolExecutor(1)\n"
        "print(pool.submit(abs, -3).result())\n"
        "pool.shutdown(wait=True, kill_workers=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PATH": ""}, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    assert any(needed.startswith("psutil") for needed in project["dependencies"])
