"""What messages at a site advise works there."""

import ast
import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from fedbac.cli.main import app
from fedbac.config.experiment import Runtime
from fedbac.deploy.pki.kits import Kit
from fedbac.deploy.roles.cloud import run_folder
from fedbac.errors import RunFolderError
from fedbac.runs.play import conduct, finish
from fedbac.runs.store import RunFolder
from tests.covering import first
from tests.deploy.folders import make
from tests.deploy.small import begun

SOURCES = Path(__file__).parent.parent.parent / "src" / "fedbac"
AT_SITES = [*(SOURCES / "deploy").rglob("*.py"), SOURCES / "cli" / "deploying.py"]


def full(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)


TROUBLES: dict[str, tuple[Callable[[RunFolder, pytest.MonkeyPatch], object], str]] = {
    "a full disk": (full, "the disk is full"),
    "deleted records": (lambda folder, patch: folder.rounds_file.unlink(), "it was deleted during the run"),
    "changed records": (lambda folder, patch: folder.rounds_file.write_text("x"), "somebody else changed it"),
    "a deleted lock": (lambda folder, patch: folder.lock_file.unlink(), "it was deleted during the run"),
}


@pytest.mark.covering
@pytest.mark.parametrize("trouble", first(2, TROUBLES))
@pytest.mark.parametrize("out", [None, "elsewhere"])
def test_a_cloud_in_trouble_names_the_command_that_resumes_it(
    trouble: str, out: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    federation, enrolled = begun(tmp_path, "hierfavg", rounds=3)
    kit = Kit.load(make(Path("clinic"), 2, 3).kit("cloud"))
    folder = run_folder(kit, None if out is None else Path(out))
    runtime = Runtime(engine="federation", device="cpu")
    playing = conduct(federation.experiment, enrolled, federation.connect(enrolled), runtime, folder=folder)
    next(playing)
    happens, what = TROUBLES[trouble]
    happens(folder, monkeypatch)
    with pytest.raises(RunFolderError, match=what) as caught:
        next(playing)
    assert str(caught.value).endswith(f"resume with: fedbac cloud {kit.folder}{f' --out {out}' if out else ''}")


def test_a_damaged_run_of_a_federation_is_mended_by_its_cloud(tmp_path: Path) -> None:
    federation, enrolled = begun(tmp_path, "hierfavg", rounds=2)
    runtime = Runtime(engine="federation", device="cpu")
    folder = RunFolder(tmp_path / "run")
    finish(conduct(federation.experiment, enrolled, federation.connect(enrolled), runtime, folder=folder))
    folder.rounds_file.write_text(folder.rounds_file.read_text().replace('"loss": ', '"loss": 1'))
    with pytest.raises(RunFolderError, match=r"with: fedbac cloud KIT$"):
        RunFolder(tmp_path / "run").read()


def texts(source: Path) -> list[str]:
    """Return what a module may say: its texts but for docstrings, those with values in them as far as they go."""
    tree = ast.parse(source.read_text())
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(p.value if isinstance(p, ast.Constant) else "X" for p in node.values))  # type: ignore[misc]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (inside | docs):
            found.append(node.value)
    return found


def test_all_commands_that_sites_name_exist_and_are_for_federations() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    named = set()
    for text in (text for source in AT_SITES for text in texts(source)):
        for words in re.findall(r"\bfedbac ((?:federation )?[a-z]+)((?: (?:[A-Z]+|X|--[a-z-]+))*)", text):
            *above, name = words[0].split()
            among = commands["federation"].commands if above else commands
            if name not in among and not words[1]:
                continue  # a sentence about fedbac
            options = {option for one in among[name].params for option in one.opts}
            assert set(re.findall("--[a-z-]+", words[1])) <= options, text
            named.add(words[0])
    assert {"cloud", "edge", "federation renew"} <= named
    assert not {"resume", "run", "compare", "sweep", "reproduce"} & named
