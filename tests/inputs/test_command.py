"""The command under strange words, files and readers: one line, the right status, and nothing forged."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import fedbac
from fedbac.cli import reporting, terminal
from fedbac.cli.main import main
from fedbac.config.experiment import Runtime
from fedbac.errors import ConfigError, visible
from fedbac.runs.store import RunFolder
from tests.made_up_runs import fake, renamed

ENTRY = [sys.executable, "-c", "from fedbac_command import main; main()"]
HOSTILE = "[/bold]\x1b[31m\u202eforged\nerror: [red]x[/] :warning: \udcff"


def typed(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[Any, str]:
    """Return the exit status of the command and what it said."""
    monkeypatch.setattr(sys, "argv", ["fedbac", *words])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr()
    return end.value.code, said.out + said.err


# ------------------------------------------------------------------------------------------------- the terminal


def test_text_of_others_is_one_line_without_markup() -> None:
    console = Console(width=200, emoji=False)
    with console.capture() as captured:
        console.print(f"[bold]{terminal.shown(HOSTILE)}[/]", soft_wrap=True)
    shown = captured.get()
    assert shown == "[/bold]\\x1b[31m\\u202eforged\\nerror: [red]x[/] :warning: \\udcff\n"


@pytest.mark.parametrize("width", [80, 200])
def test_a_run_s_name_forges_nothing_in_a_report(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reporting, "out", Console(width=width, emoji=False))
    reporting.conclude([renamed(fake("ifca-edges"), HOSTILE), fake("hierfavg")], tmp_path)
    said = capsys.readouterr().out
    assert "\\x1b[31m" in said.replace("\n", "")
    assert visible(said) == said
    assert not any(line.startswith("error:") for line in said.splitlines())
    page = (tmp_path / "report.html").read_text()
    assert "\x1b" not in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "fed-bac", "--memory", "1e300"], "runtime.memory_gib: 1e+300 is not allowed"),
        (["run", "fed-bac", "--memory", "nan"], "runtime.memory_gib: nan is not allowed"),
        (["run", "fed-bac", "--set", f"method.name={'a' * 256}"], "at most 100 characters"),
        (["run", "fed-bac", "--out", "a" * 256], "at most 255 bytes"),
        (["run", "fed-bac", "--set", 'method.name="\\0"'], "'\\x00' is no plain name"),
        (["run", "[/bold]"], "unknown method '[/bold]'"),
        (["report", "a" * 256], "File name too long"),
        (["report", HOSTILE], "[/bold]\\x1b[31m\\u202eforged\n  error: [red]x[/] :warning: \\udcff: there is no such"),
        (["sweep", "ifca-edges", "--point", "task.rounds='1"], "close its quotes"),
    ],
)
def test_strange_words_are_one_clear_message(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = typed(words, monkeypatch, capsys)
    assert code == 2
    assert text.startswith("error: ")
    assert said in text
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------------------- pipes and signals


@pytest.mark.full
def test_a_reader_that_goes_away_ends_the_command_quietly() -> None:
    process = subprocess.Popen([*ENTRY, "show", "fed-bac"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 1
    assert errors == b""


def test_ctrl_c_during_the_import_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    process = subprocess.Popen(
        [*ENTRY, "--version"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors == "Stopped before anything began.\n"


# -------------------------------------------------------------------------------------------------- addresses


def stranger(folder: Path) -> RunFolder:
    """Return a run folder that asks to be run on somebody else's machines."""
    place = RunFolder(folder)
    settings = ["task.network={kind: mlp, hidden: [4]}", "task.num_edges=2", "task.clients_per_edge=2"]
    experiment = fedbac.configure("hierfavg", rounds=1, settings=settings)
    runtime = Runtime(engine="ray", address="ray://stranger:10001", workers=1)
    with place.locked():
        place.write_config(
            {"experiment": experiment.model_dump(mode="json"), "runtime": runtime.model_dump(mode="json")}
        )
    return place


def test_a_file_does_not_decide_whom_to_connect_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def connect(experiment: object, federation: object, runtime: Runtime) -> None:
        raise ConfigError(f"asked to connect to {runtime.address}")

    monkeypatch.setattr("fedbac.runs.play.connect", connect)
    place = stranger(tmp_path / "run")
    for words in (["resume", str(place.path)], ["run", str(place.config_file), "--out", str(tmp_path / "new")]):
        code, text = typed(words, monkeypatch, capsys)
        assert code == 2
        assert "runtime.address is 'ray://stranger:10001'" in text
        assert "give --address again" in text
        assert "asked to connect" not in text
        _, text = typed([*words, "--address", "ray://mine:10001"], monkeypatch, capsys)
        assert "asked to connect to ray://mine:10001" in text
        _, text = typed([*words, "--engine", "simulator"], monkeypatch, capsys)
        assert "asked to connect to None" in text
        place = stranger(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"a file does not decide"):
        fedbac.resume(stranger(tmp_path / "run").path)
    with pytest.raises(ConfigError, match=r"asked to connect to ray://mine"):
        fedbac.resume(stranger(tmp_path / "run").path, address="ray://mine:10001")
