"""A run that dies goes on exactly as if it had not."""

import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

import fedbac
from fedbac.data import toy
from fedbac.errors import CheckpointError, ConfigError, RunFolderError, RunInUseError
from fedbac.runs.configure import Inputs, configure, runtime_in
from fedbac.runs.play import finish, play
from fedbac.runs.stopping import Interrupted, Stop, interrupting
from fedbac.runs.store import RunFolder, Tail, differences
from tests.made_up_runs import fake
from tests.store import worker


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    worker.play(folder, resume=False)
    return folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    return folder


def timeless(folder: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key not in {"seconds", "check"}} for record in records]


def checkpoints(folder: Path) -> list[int]:
    """Return the rounds after which there is a whole checkpoint."""
    return sorted(json.loads(file.read_text())["round"] for file in (folder / "checkpoint").glob("*.json"))


def newest(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoint" / f"round-{checkpoints(folder)[-1]:06d}.safetensors")


def assert_same(left: Path, right: Path) -> None:
    assert timeless(left) == timeless(right)
    a, b = newest(left), newest(right)
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tests.store.worker", str(folder), *words])


def rounds_in(folder: Path) -> int:
    file = folder / "rounds.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def wait_for(folder: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    while rounds_in(folder) < count:
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.001)


@pytest.mark.full
def test_killed_at_any_moment_it_resumes_bit_for_bit(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(folder)
    wait_for(folder, 3, process)
    process.kill()
    process.wait()
    process = start(folder, "resume")
    wait_for(folder, 7, process)
    time.sleep(0.004)  # somewhere between a record and its checkpoint
    process.kill()
    process.wait()
    assert 7 <= rounds_in(folder) < worker.ROUNDS
    worker.play(folder, resume=True)
    assert_same(folder, whole)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of each new row of Table I, all killed in the middle by the same signal."""
    folder = tmp_path_factory.mktemp("killed")
    process = start(folder, "rows")
    for name in worker.ROWS:
        wait_for(folder / name, 3, process)
    process.kill()
    process.wait()
    return folder


@pytest.mark.full
@pytest.mark.parametrize("name", worker.ROWS)
def test_every_row_of_table_one_resumes_bit_for_bit(name: str, killed: Path, tmp_path: Path) -> None:
    run = finish(worker.row(name, tmp_path))
    assert 3 <= rounds_in(killed / name) < worker.SHORT.rounds
    saved, found = checkpoints(killed / name)[-1], newest(killed / name)
    fedbac.resume(killed / name, dataset=toy(size=8))
    assert_same(killed / name, tmp_path / name)
    rows = {path.split("/")[1]: len(value) for path, value in found.items() if path.startswith("parts/")}
    assert (
        rows
        == {
            "fedavg": {"global": 1},
            "fedprox": {"global": 1},
            "ditto": {"global": 1, "personal": 12},
            "fedper-edges": {"body": 1, "head": 4},
            "fedadam": {"global": 1},
            "ifca-edges": {"cluster": 3},
            "cfl-edges": {"cluster": 4},
            "apfl": {"global": 1, "personal": 12, "alpha": 12},
            "pfedme": {"global": 1, "personal": 12},
            "fedala-edges": {"global": 1, "personal": 4, "mix": 4},
            "fedrod-edges": {"body": 1, "generic": 1, "personal": 4},
            "scaffold": {"global": 1, "control": 1, "own": 12},
            "mtgc": {"global": 1, "sum": 1, "rest": 4, "own": 12},
            "local": {"cluster": 4},
            "singletons": {"body": 4, "head": 4},
        }[name]
    )
    remembered = {path.split("/")[2] for path in found if path.startswith("steps/")}
    assert remembered == {"fedadam": {"first", "second"}, "ifca-edges": {"velocity"}}.get(name, set())
    if name == "ditto":  # what clients own is saved: each one's own once it has trained
        first = next(value for path, value in found.items() if path.startswith("parts/personal/"))
        trained = {client for record in run.records[:saved] for edge in record["selected"] for client in edge}
        assert len({row.numpy().tobytes() for row in first}) == len(trained) + (len(trained) < 12)
    if name == "cfl-edges":
        assert run.records[2]["active_clusters"] < run.records[-1]["active_clusters"], "it splits after the kill"


@pytest.mark.parametrize("moment", ["record", "tensors", "manifest", "half-line"])
def test_killed_between_any_two_writes(moment: str, copy: Path, whole: Path) -> None:
    """The folder as a kill leaves it between the writes of one round."""
    last = f"round-{worker.ROUNDS:06d}"
    manifest, tensors = (copy / "checkpoint" / f"{last}{suffix}" for suffix in (".json", ".safetensors"))
    (copy / "summary.json").unlink()
    if moment in {"record", "tensors", "half-line"}:
        manifest.unlink()
    if moment in {"record", "half-line"}:
        tensors.unlink()
    if moment == "half-line":
        text = (copy / "rounds.jsonl").read_bytes()
        (copy / "rounds.jsonl").write_bytes(text[: -len(text.splitlines()[-1]) // 2])
    worker.play(copy, resume=True)
    assert_same(copy, whole)


def test_a_run_repeats_from_its_configuration_alone(whole: Path, tmp_path: Path) -> None:
    inputs, file = Inputs(dataset=toy(size=8)), whole / "config.yaml"
    experiment, runtime = configure(file, inputs=inputs), runtime_in(file)
    folder = RunFolder(tmp_path / "again")
    finish(play(experiment, folder=folder, runtime=runtime, inputs=inputs))
    assert_same(folder.path, whole)


def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    copy: Path, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tensors = copy / "checkpoint" / f"round-{worker.ROUNDS:06d}.safetensors"
    content = bytearray(tensors.read_bytes())
    content[len(content) // 2] ^= 1
    tensors.write_bytes(content)
    with caplog.at_level(logging.WARNING, "fedbac"):
        worker.play(copy, resume=True)
    assert "damaged" in caplog.text
    assert f"resuming from round {worker.ROUNDS - 1}" in caplog.text
    assert_same(copy, whole)


def test_when_no_checkpoint_is_readable_nothing_is_touched(copy: Path) -> None:
    for tensors in (copy / "checkpoint").glob("*.safetensors"):
        tensors.write_bytes(b"not tensors")
    before = (copy / "rounds.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match="--overwrite"):
        worker.play(copy, resume=True)
    assert (copy / "rounds.jsonl").read_bytes() == before


def test_a_changed_configuration_is_named(copy: Path) -> None:
    config = yaml.safe_load((copy / "config.yaml").read_text())
    config["experiment"]["task"]["training"]["learning_rate"] = 0.5
    (copy / "config.yaml").write_text(yaml.safe_dump(config))
    before = (copy / "rounds.jsonl").read_bytes()
    with pytest.raises(RunFolderError, match=r"learning_rate: 0\.2 is now 0\.5"):
        worker.play(copy, resume=True)
    assert (copy / "rounds.jsonl").read_bytes() == before


def test_other_data_are_noticed(copy: Path) -> None:
    with pytest.raises(RunFolderError, match=r"data\.sha256"):
        fedbac.resume(copy, dataset=toy(seed=1, size=8))


def test_a_folder_in_use_is_refused(copy: Path) -> None:
    with RunFolder(copy).locked(), pytest.raises(RunInUseError, match="this process began"):
        worker.play(copy, resume=True)


@pytest.mark.full
def test_a_killed_run_leaves_no_lock(tmp_path: Path) -> None:
    process = start(tmp_path)
    wait_for(tmp_path, 1, process)
    with pytest.raises(RunInUseError, match="another process"):
        worker.play(tmp_path, resume=True)
    process.kill()
    process.wait()
    with RunFolder(tmp_path).locked():
        pass


def test_a_run_in_the_folder_is_resumed_and_not_replaced_unasked(copy: Path) -> None:
    """As compare and sweep do, and the command."""
    before = (copy / "rounds.jsonl").read_bytes()
    again = worker.play(copy, resume=False)
    assert len(again.records) == worker.ROUNDS
    with pytest.raises(ConfigError, match=r"another run is in this folder.*out= in Python.*overwrite=True"):
        fedbac.run("hierfavg", worker.TASK, out=copy, dataset=toy(size=8))
    assert (copy / "rounds.jsonl").read_bytes() == before


def test_a_full_disk_loses_nothing(copy: Path, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fills up in round 9, while a checkpoint is written."""
    for old in (copy / "checkpoint").iterdir():
        old.unlink()
    (copy / "rounds.jsonl").unlink()
    real = os.fsync
    calls = 0

    def fsync(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 25:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(RunFolderError, match=r"disk is full.*fedbac resume"):
        worker.play(copy, resume=True)
    monkeypatch.undo()
    assert 0 < rounds_in(copy) < worker.ROUNDS
    worker.play(copy, resume=True)
    assert_same(copy, whole)


def test_ctrl_c_ends_after_saving(whole: Path, tmp_path: Path) -> None:
    stop = Stop()
    inputs = Inputs(dataset=toy(size=8))
    experiment = configure("fed-bac", worker.TASK, settings=worker.SETTINGS, inputs=inputs)
    folder = RunFolder(tmp_path)
    playing = play(experiment, folder=folder, inputs=inputs, stop=stop, runtime=fedbac.Runtime(workers=1, device="cpu"))
    with stop.caught():
        for _ in range(4):
            next(playing)
        os.kill(os.getpid(), signal.SIGINT)
        run = finish(playing)
    assert stop.wanted
    assert len(run.records) == 4
    assert not run.summary["finished"]
    worker.play(tmp_path, resume=True)
    assert_same(tmp_path, whole)


@pytest.mark.parametrize("before", [signal.default_int_handler, signal.SIG_IGN], ids=["foreground", "background"])
def test_a_second_ctrl_c_interrupts_at_once(before: Any) -> None:
    """Also where a shell had it ignored, as for background jobs of a script; which it then is again."""
    stop = Stop()
    outside = signal.signal(signal.SIGINT, before)
    try:
        with stop.caught():
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.wanted
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) == before
    finally:
        signal.signal(signal.SIGINT, outside)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("before", [signal.default_int_handler, signal.SIG_IGN], ids=["foreground", "background"])
def test_within_a_command_the_second_signal_is_its_own_interrupt(number: signal.Signals, before: Any) -> None:
    outside = signal.signal(number, before)
    try:
        with interrupting(), Stop().caught():
            os.kill(os.getpid(), number)
            with pytest.raises(Interrupted):
                os.kill(os.getpid(), number)
        assert signal.getsignal(number) == before
    finally:
        signal.signal(number, outside)


def test_rounds_are_followed_as_they_are_written(tmp_path: Path) -> None:
    tail = Tail(RunFolder(tmp_path))
    assert (tail.refresh(), tail.record()) == (0, None)
    records = fake(rounds=2).records
    one, two = (json.dumps(record) + "\n" for record in records)
    for text, count in ((one + two[:9], 1), (one + two, 2), (one, 1), ("", 0)):
        (tmp_path / "rounds.jsonl").write_text(text)
        assert tail.refresh() == count
        assert tail.record() == (records[count - 1] if count else None)
    (tmp_path / "rounds.jsonl").write_text('{"round": 1}\n')
    assert (tail.refresh(), tail.record()) == (1, None), "what is no record is not shown"


def test_a_round_that_was_cut_off_and_written_again_is_counted_once(tmp_path: Path) -> None:
    """Between two looks a resumed run may have written more than it cut off."""
    tail, (one, two, three) = Tail(RunFolder(tmp_path)), fake(rounds=3).records
    again = two | {"seconds": two["seconds"] + 1 / 3}
    for records in ([one, two], [one, again], [one, two, three], [one, again, three]):
        (tmp_path / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        assert tail.refresh() == len(records)
        assert tail.record() == records[-1]


def test_no_run_and_no_folder(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no run here"):
        fedbac.resume(tmp_path)
    (tmp_path / "config.yaml").write_text("a: [1")
    with pytest.raises(ConfigError, match=r"config\.yaml: not readable YAML \(line \d"):
        fedbac.resume(tmp_path)
    (tmp_path / "config.yaml").write_text("a: 1")
    with pytest.raises(ConfigError, match="no 'experiment'"):
        fedbac.resume(tmp_path)


def test_data_given_in_python_must_be_given_again(copy: Path) -> None:
    with pytest.raises(ConfigError, match="given in Python"):
        fedbac.resume(copy)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="choose another one"):
        worker.play(tmp_path / "file", resume=False)


def test_only_json_yaml_and_safetensors_are_written(whole: Path) -> None:
    files = {path.relative_to(whole).as_posix() for path in whole.rglob("*") if path.is_file()}
    checkpoints = {
        f"checkpoint/round-{round_:06d}.{suffix}"
        for round_ in (worker.ROUNDS - 1, worker.ROUNDS)
        for suffix in ("json", "safetensors")
    }
    assert files - {".lock"} == {"config.yaml", "rounds.jsonl", "summary.json"} | checkpoints


def test_records_have_the_documented_fields(whole: Path) -> None:
    wanted = {
        "round", "accuracy", "accuracy_per_edge", "accuracy_std", "accuracy_min", "accuracy_max", "accuracy_weighted",
        "accuracy_global", "loss", "assignment", "moves", "active_clusters", "selected", "bytes", "seconds",
    }  # fmt: skip
    for number, line in enumerate((whole / "rounds.jsonl").read_text().splitlines(), start=1):
        record = json.loads(line)
        assert wanted <= record.keys()
        assert record["round"] == number
        assert len(record["selected"]) == len(record["accuracy_per_edge"]) == len(record["assignment"]) == 4


def test_a_custom_network_must_be_given_again(tmp_path: Path) -> None:
    def small() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))

    data = toy(size=8)
    fedbac.run("hierfavg", worker.TASK, out=tmp_path, dataset=data, network=small, rounds=2, workers=1, device="cpu")
    with pytest.raises(ConfigError, match="network of your own"):
        fedbac.resume(tmp_path, dataset=data)
    assert len(fedbac.resume(tmp_path, dataset=data, network=small).records) == 2


def test_differences_name_paths() -> None:
    old = {"a": {"b": 1, "c": 2}}
    assert differences(old, {"a": {"b": 1, "c": 3}}) == ["a.c: 2 is now 3"]
    assert differences(old, old) == []
