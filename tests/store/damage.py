"""Random damage to run folders, and whether it is noticed; for the tests and for ``benchmarks/soak.py``.

Whatever becomes of a file, ``load``, a report and ``resume`` either raise an error of fedbac's own or give what they
give of the folder without damage, to the bit.
"""

import re
import shutil
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import fedbac
from fedbac.config.experiment import Task, Training
from fedbac.data import toy
from fedbac.report import final, outcome, write_report
from fedbac.runs.configure import Inputs, configure
from fedbac.runs.play import finish, play, play_folder
from fedbac.runs.stopping import Stop
from fedbac.runs.store import RunFolder, StoredRun

ROUNDS, STOPPED = 5, 3
TASK = Task(
    dataset="toy",
    num_edges=2,
    clients_per_edge=2,
    rounds=ROUNDS,
    partition=fedbac.Partition(min_edge_test=5),
    network=fedbac.Perceptron(hidden=(4,)),
    training=Training(epochs=1, batch_size=16, learning_rate=0.2, momentum_state="persist"),
)
INPUTS = Inputs(dataset=toy(size=8))
DEEP = b"[" * 3000


@dataclass(frozen=True)
class Examples:
    """Runs to damage, and what they show."""

    folders: dict[str, Path]
    """A finished run, and the same one stopped in the middle, both with two checkpoints."""
    shown: dict[str, StoredRun]
    end: StoredRun
    weights: bytes
    """The tensors of the last checkpoint of the finished run."""


def play_examples(folder: Path) -> Examples:
    """Play the runs below a folder."""
    experiment = configure("fed-bac", TASK, settings=["method.clustering.period=2"], inputs=INPUTS)
    runtime = fedbac.Runtime(workers=1, device="cpu")
    stop = Stop()
    for name in ("finished", "stopped"):
        playing = play(experiment, folder=folder / name, inputs=INPUTS, runtime=runtime, stop=stop)
        if name == "finished":
            end = finish(playing)
        else:
            for _ in range(STOPPED):
                next(playing)
            stop.wanted = True
            finish(playing)
    folders = {name: folder / name for name in ("finished", "stopped")}
    shown: dict[str, StoredRun] = {name: fedbac.load(path) for name, path in folders.items()}
    return Examples(folders, shown, end, weights(folders["finished"]))


def weights(folder: Path) -> bytes:
    """Return the tensors of a run's newest checkpoint."""
    return max(folder.glob("checkpoint/*.safetensors")).read_bytes()


# ---------------------------------------------------------------------------------------------------- damage


def damage(folder: Path, rng: Random) -> str:
    """Damage one file or folder of a run, and say how."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    kind = rng.choice(sorted(KINDS))
    if kind == "checkpoints":
        return _checkpoints(folder, rng)
    file = rng.choice([file for file in files if kind not in TEXTUAL or file.suffix != ".safetensors"])
    before = file.read_bytes() if file.exists() else b""
    for _ in range(20):  # some draws change nothing
        KINDS[kind](file, rng)
        if not file.is_file() or file.read_bytes() != before:
            break
    return f"{kind} of {file.relative_to(folder)}"


def _checkpoints(folder: Path, rng: Random) -> str:
    place = folder / "checkpoint"
    how = rng.choice(["delete", "file", "exchange", "rename"])
    (old, new), (old_tensors, new_tensors) = (sorted(place.glob(f"*.{end}")) for end in ("json", "safetensors"))
    if how in {"delete", "file"}:
        shutil.rmtree(place)
        if how == "file":
            place.write_bytes(b"")
    else:
        pairs = [(old, new), (old_tensors, new_tensors)]
        for left, right in pairs if rng.random() < 0.5 else pairs[: rng.choice([1, 2])]:
            content = left.read_bytes()
            if how == "exchange":
                left.write_bytes(right.read_bytes())
            else:
                left.unlink()
            right.write_bytes(content)
    return f"{how} of checkpoints"


def _flip(file: Path, rng: Random) -> None:
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def _digit(file: Path, rng: Random) -> None:
    content = bytearray(file.read_bytes())
    places = [index for index, byte in enumerate(content) if chr(byte).isdigit()]
    content[rng.choice(places)] = ord(rng.choice("0123456789"))
    file.write_bytes(content)


def _cut(file: Path, rng: Random) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: rng.randrange(len(content))])


def _cut_lines(file: Path, rng: Random) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[: rng.randrange(len(lines))]))


def _folder(file: Path, rng: Random) -> None:
    if not file.is_dir():
        file.unlink()
        file.mkdir()


def _duplicate(file: Path, rng: Random) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    index = rng.randrange(len(lines))
    file.write_bytes(b"".join([*lines[: index + 1], *lines[index:]]))


def _swap(file: Path, rng: Random) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    left, right = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[left], lines[right] = lines[right], lines[left]
    file.write_bytes(b"".join(lines))


def _rename(file: Path, rng: Random) -> None:
    content = file.read_bytes()
    keys = list(re.finditer(rb'"?\b[a-z_0-9]+"?:', content))
    key = rng.choice(keys)
    file.write_bytes(content[: key.start() + 1] + b"x" + content[key.start() + 1 :])


def _null(file: Path, rng: Random) -> None:
    """Make some value null: in YAML that of a whole group as well."""
    lines = file.read_bytes().splitlines(keepends=True)
    index = rng.randrange(len(lines))
    if file.suffix == ".yaml":
        name = lines[index].split(b":")[0]
        indent = len(name) - len(name.lstrip())
        rest = lines[index + 1 :]
        while rest and len(rest[0]) - len(rest[0].lstrip()) > indent:
            rest.pop(0)
        file.write_bytes(b"".join([*lines[:index], name + b": null\n", *rest]))
    else:
        values = list(re.finditer(rb": [^,{}\[\]]+", lines[index]))
        if values:
            value = rng.choice(values)
            lines[index] = lines[index][: value.start()] + b": null" + lines[index][value.end() :]
            file.write_bytes(b"".join(lines))


def _other(file: Path, rng: Random) -> None:
    file.write_bytes(
        rng.choice([b"", b"[]", b"null", b"{}", b"7", b"[]\n", b'"text"\n', b"\0" * 99, b"\xff\xfe", DEEP])
    )


KINDS: dict[str, Callable[[Path, Random], None]] = {
    "flip": _flip,
    "digit": _digit,
    "cut": _cut,
    "cut_lines": _cut_lines,
    "delete": lambda file, _: file.unlink(missing_ok=True),
    "folder": _folder,
    "duplicate": _duplicate,
    "swap": _swap,
    "rename": _rename,
    "null": _null,
    "other": _other,
    "checkpoints": lambda file, rng: None,
}
TEXTUAL = {"digit", "cut_lines", "duplicate", "swap", "rename", "null"}


# ------------------------------------------------------------------------------------------------- judgement


def complaint(examples: Examples, name: str, damaged: Path, page: bool = False) -> str | None:
    """Return what a damaged copy of a run does that it may not: another exception, or other numbers; else None."""
    copies = [damaged.with_name(f"{damaged.name}-{use}") for use in ("report", "resume")]
    for copy in copies:
        shutil.copytree(damaged, copy, symlinks=True)
    try:
        return (
            _attempt("load", lambda: _loads(damaged, examples.shown[name]))
            or _attempt("report", lambda: _reports(copies[0], page))
            or _attempt("resume", lambda: _resumes(copies[1], examples))
        )
    finally:
        for copy in copies:
            shutil.rmtree(copy)


def _attempt(what: str, attempt: Callable[[], str | None]) -> str | None:
    try:
        found = attempt()
    except fedbac.Error as error:
        sentence = str(error)
        return f"{what}: an error without words" if not sentence.strip() else None
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{what}: {type(error).__name__} ({error}) in {Path(place.filename).name}:{place.lineno}"[:300]
    return f"{what}: {found}" if found else None


def _loads(folder: Path, wanted: StoredRun) -> str | None:
    return _other_than(fedbac.load(folder), wanted, keep_time=True)


def _reports(folder: Path, page: bool) -> None:
    runs = [RunFolder(folder).read()]
    if runs[0].records:
        final(runs)
        outcome(runs)
        if page:
            write_report(runs, folder / "report.html")


def _resumes(folder: Path, examples: Examples) -> str | None:
    run = finish(play_folder(RunFolder(folder), INPUTS))
    other = _other_than(run, examples.end, keep_time=False) or _other_than(
        fedbac.load(folder), examples.end, keep_time=False
    )
    return other or (None if weights(folder) == examples.weights else "other weights")


def _other_than(run: StoredRun, wanted: StoredRun, keep_time: bool) -> str | None:
    for field in ("config", "records", "summary"):
        if _comparable(getattr(run, field), keep_time) != _comparable(getattr(wanted, field), keep_time):
            return f"other {field}, and nobody said so"
    return None


def _comparable(value: Any, keep_time: bool) -> Any:
    """Leave out where a run was played; and, of another one of the same experiment, when and how long."""
    out = {"runtime"} if keep_time else {"runtime", "seconds", "written"}
    if isinstance(value, list):
        return [_comparable(item, keep_time) for item in value]
    return {key: item for key, item in value.items() if key not in out}
