"""Every file is written through one atomic writer: a full disk, or a kill, leaves what was there before."""

import errno
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedbac
from fedbac.errors import OutputError
from fedbac.files import make_folder, replacing, write_whole
from fedbac.report import canvas, write_report
from fedbac.report.figures import save_figures
from fedbac_paper.pages import write_pages
from fedbac_paper.results import read_results, write_results
from tests.made_up_runs import fake
from tests.reproduce.invented import results

SOURCE = Path(fedbac.__file__).parent.parent
WRITING = re.compile(
    r"\.write_text\(|\.write_bytes\(|\.write\(|\bto_csv\(|\bnp\.save|(?<!safetensors\.)\btorch\.save|\bshutil\.(copy|move)|\bos\.(replace|rename|open)\((?!os\.devnull)"
    r"|\.(replace|rename)\((target|path|file|self\.)|\bopen\([^)\n]*[\"'][rb+]*[wax]"
    r"|\.savefig\((?!partial|buffer)|\bsave_file\((?!.*\bpartial\))"
)
MAY_WRITE = {
    "fedbac/files.py",
    "fedbac/cli/streams.py",
    "fedbac/data/sources.py",
    "fedbac/report/beside.py",
    "fedbac/runs/records.py",
    "fedbac/deploy/metrics.py",
    "fedbac/deploy/transports/handshakes.py",
    "fedbac/deploy/roles/client.py",
    "fedbac/deploy/trial.py",
    "fedbac/deploy/transports/nvflare/hosting.py",
    "fedbac/deploy/transports/nvflare/project.py",
}
"""The writer; the terminal; the log of rounds, which grows a line a round; pipes and sockets, which are no files; logs
of processes; arrays of a trial and of a data set, through the writer; folders that NVFlare made, which are moved."""


def full(*words: Any, real: Any = os.open, **__: Any) -> Any:
    if len(words) == 2 and isinstance(words[1], int) and not words[1] & os.O_CREAT:  # opened to be read
        return real(*words)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_nothing_else_writes_files() -> None:
    found = {
        f"{file.relative_to(SOURCE)}:{number}: {line.strip()}"
        for package in ("fedbac", "fedbac_paper")
        for file in (SOURCE / package).rglob("*.py")
        if file.relative_to(SOURCE).as_posix() not in MAY_WRITE
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        if WRITING.search(line)
    }
    assert not found, "\n".join(sorted(found))


@pytest.mark.parametrize("failing", ["fsync", "replace", "open"])
@pytest.mark.parametrize("what", ["results", "page", "figures", "report", "text"])
def test_a_full_disk_leaves_the_old_file(
    what: str, failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = results("table-fairness", seeds=1)
    write_results(found, tmp_path)
    run = fake(rounds=2)
    figure = canvas.panels([1.0], right=0.1)[0]
    writers: dict[str, Callable[[], object]] = {
        "results": lambda: write_results(found.model_copy(update={"findings": ()}), tmp_path),
        "page": lambda: write_pages(["table-fairness"], tmp_path, tmp_path),
        "figures": lambda: canvas.save(figure, tmp_path / "accuracy.svg"),
        "report": lambda: write_report([run], tmp_path / "report.html"),
        "text": lambda: write_whole(tmp_path / "sweep.json", "new"),
    }
    files = [*tmp_path.iterdir(), *(tmp_path / name for name in ("accuracy.svg", "report.html", "sweep.json"))]
    for file in files[1:]:
        file.write_text("of before")
    before = {file: file.read_bytes() for file in files}
    monkeypatch.setattr(os, failing, full)
    with pytest.raises(OutputError, match=r"cannot be written \(the disk is full\)"):
        writers[what]()
    monkeypatch.undo()
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
    assert read_results("table-fairness", tmp_path) == found


def test_file_and_folder_are_synced_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def watched(handle: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        fsync(handle)

    def replaced(old: Path, new: Path) -> None:
        done.append("replace")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", watched)
    monkeypatch.setattr(os, "replace", replaced)
    write_whole(tmp_path / "a", "text")
    assert done == ["file", "replace", "folder"]


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")

    def interrupted() -> None:
        with replacing(tmp_path / "a") as partial:
            partial.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("of value")
    (tmp_path / "a").symlink_to(tmp_path / "victim")
    write_whole(tmp_path / "a", "new")
    assert (tmp_path / "victim").read_text() == "of value"
    assert (tmp_path / "a").read_text() == "new"


def test_files_are_as_readable_as_others(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", "text")
    (tmp_path / "b").write_text("text")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_a_file_in_the_way_of_a_folder_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file/below cannot be written"):
        make_folder(tmp_path / "file" / "below")
    with pytest.raises(OutputError, match="cannot be written"):
        save_figures([fake(rounds=2)], tmp_path / "file")
