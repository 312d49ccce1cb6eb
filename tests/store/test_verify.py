"""Who computed which rounds is written down and can be checked: rounds are replayed, and folders carried away."""

import json
import logging
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import fedbac
from fedbac import files
from fedbac.api.results import rows
from fedbac.cli.main import main
from fedbac.errors import ConfigError, RunFolderError
from fedbac.local import LoopTrainer
from fedbac.report.outcome import caveats
from fedbac.report.sections import facts
from fedbac.runs import checkpoints, provenance
from fedbac.runs.configure import configure, with_settings
from fedbac.runs.play import finish, play
from fedbac.runs.records import Writer
from fedbac.runs.store import RunFolder, StoredRun
from fedbac.version import __version__, full_version
from tests.engines.queueing import Queueing
from tests.store.damage import INPUTS, TASK, weights
from tests.test_cli import SMALL

ALONE = fedbac.Runtime(workers=1, device="cpu")
EXPERIMENT = configure("fed-bac", TASK, inputs=INPUTS)
DATA = INPUTS.dataset


def played(folder: Path, rounds: int | None = None, **runtime: Any) -> Path:
    playing = play(EXPERIMENT, folder=folder, inputs=INPUTS, runtime=ALONE.model_copy(update=runtime))
    if rounds is None:
        finish(playing)
    else:
        for _ in range(rounds):
            next(playing)
        playing.close()
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return played(tmp_path_factory.mktemp("whole") / "run", keep_every=2)


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def elsewhere(monkeypatch: pytest.MonkeyPatch, **now: str) -> None:
    """Have the next rounds say that another environment computes them."""
    real = provenance.environment

    def other(*words: Any) -> Mapping[str, Any]:
        return real(*words) | now

    monkeypatch.setattr("fedbac.runs.play.environment", other)


# ------------------------------------------------------------------------------------------- who computed what


def test_one_environment_is_one_segment_however_often_it_stops(tmp_path: Path) -> None:
    played(tmp_path, 2)
    played(tmp_path, 1)
    played(tmp_path)
    (segment,) = fedbac.load(tmp_path).segments
    assert segment.first == 1
    assert segment.by["fedbac"] == full_version()
    assert {"torch", "numpy", "trainer", "arithmetic", "threads", "precision"} < set(segment.by)


def test_another_environment_is_a_segment_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    played(tmp_path, 2)
    elsewhere(monkeypatch, torch="9.9", arithmetic="abacus")
    with caplog.at_level(logging.WARNING, "fedbac"):
        run = finish(play(EXPERIMENT, folder=tmp_path, inputs=INPUTS, runtime=ALONE))
    assert "torch 9.9" in caplog.text.replace("is now ", "torch ")
    loaded = fedbac.load(tmp_path)
    assert [segment.first for segment in loaded.segments] == [segment.first for segment in run.segments] == [1, 3]
    assert "computed_by" not in loaded.records[2], "records in memory are those of the rounds alone"
    assert "rounds 1 to 2: fedbac" in facts(loaded)["Computed by"]
    assert f"rounds 3 to {TASK.rounds}: fedbac" in facts(loaded)["Computed by"]
    assert "abacus" in facts(loaded)["Computed by"]
    assert any("2 environments" in note for note in caveats([loaded]))
    assert ["abacus" in str(row["computed_by"]) for row in rows([loaded], ["a"])][:3] == [False, False, True]


def test_the_number_of_threads_is_told_but_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    played(tmp_path, 2)
    played(tmp_path, workers=2, mixed="refuse")
    loaded = fedbac.load(tmp_path)
    assert [segment.by["threads"] for segment in loaded.segments] == [1, 2]
    assert not any("environments" in note for note in caveats([loaded]))
    assert "round differently" not in caplog.text


def test_who_computed_what_cannot_be_edited(run: Path) -> None:
    file = run / "rounds.jsonl"
    file.write_text(file.read_text().replace(full_version(), f"{__version__}+000000000000"))
    with pytest.raises(RunFolderError, match="line 1 does not match its checksum"):
        fedbac.load(run)


def test_a_mixed_run_can_be_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played(tmp_path, 2)
    before = (tmp_path / "rounds.jsonl").read_bytes()
    elsewhere(monkeypatch, numpy="0.9")
    with pytest.raises(RunFolderError, match=r"numpy .* is now 0\.9.*--mixed"):
        played(tmp_path, mixed="refuse")
    assert (tmp_path / "rounds.jsonl").read_bytes() == before


@pytest.mark.parametrize("honest", [True, False])
def test_a_mixed_run_can_be_replayed_first(
    honest: bool, tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played(tmp_path, 2)
    elsewhere(monkeypatch, torch="9.9")
    if honest:
        played(tmp_path, mixed="replay")
        assert weights(tmp_path) == weights(whole)
        return
    forge(tmp_path)
    with pytest.raises(RunFolderError, match="does not repeat its bits: checkpoint of round 2: parts/"):
        played(tmp_path, mixed="replay")


def forge(folder: Path) -> None:
    """Change a weight of the newest checkpoint, with all hashes right."""
    newest = folder / "checkpoint" / f"round-{checkpoints.newest(folder / 'checkpoint'):06d}.json"
    tensors = load_file(newest.with_suffix(".safetensors"))
    name = next(name for name in tensors if name.startswith("parts/"))
    tensors[name] = tensors[name] * 1.0000001 + 1e-7
    save_file(tensors, newest.with_suffix(".safetensors"))
    stated = json.loads(newest.read_text())
    stated |= {"sha256": checkpoints._digest(newest.with_suffix(".safetensors"))}
    stated.pop("check")
    newest.write_text(json.dumps(stated | {"check": checkpoints._check(stated)}))


def test_the_version_names_the_code_also_from_a_wheel(tmp_path: Path) -> None:
    """As a wheel has it: a copy of the package's files in another place."""
    source = Path(fedbac.__file__).parent
    with zipfile.ZipFile(tmp_path / "wheel.zip", "w") as wheel:
        for file in source.rglob("*"):
            if file.suffix in {".py", ".cu"}:
                wheel.write(file, Path("fedbac") / file.relative_to(source))
    with zipfile.ZipFile(tmp_path / "wheel.zip") as wheel:
        wheel.extractall(tmp_path)
    ask = [sys.executable, "-c", "from fedbac.version import full_version; print(full_version())"]
    assert subprocess.run(
        ask, cwd=tmp_path, env={"PYTHONPATH": "."}, capture_output=True, text=True
    ).stdout.strip() == (full_version())
    with (tmp_path / "fedbac" / "steps.py").open("a") as changed:
        changed.write("\n")
    other = subprocess.run(ask, cwd=tmp_path, env={"PYTHONPATH": "."}, capture_output=True, text=True).stdout.strip()
    assert other.startswith(f"{__version__}+")
    assert other != full_version()


# ------------------------------------------------------------------------------------------------- replaying


def test_kept_checkpoints_are_those_asked_for(whole: Path, run: Path) -> None:
    kept = sorted(checkpoints.rounds_in(whole / "checkpoint"))
    last = TASK.rounds
    assert kept == sorted({*range(2, last + 1, 2), last - 1, last})
    played(run, keep_every=2)  # a resume tidies up, but keeps them
    assert sorted(checkpoints.rounds_in(run / "checkpoint")) == kept


def test_rounds_repeat_their_bits(whole: Path) -> None:
    found = fedbac.verify(whole, dataset=DATA)
    assert [verdict.difference for verdict in found] == [None] * len(found)
    assert (found[0].first, found[-1].last) == (1, TASK.rounds)
    assert all(verdict.weights for verdict in found)
    assert len(fedbac.verify(whole, dataset=DATA, rounds=1)) == 1


def test_an_engine_that_works_ahead_repeats_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where the next round has begun when one is told, and checkpoints are further apart."""
    monkeypatch.setattr("fedbac.engines.make_trainer", lambda *words: Queueing(LoopTrainer(*words[:3])))
    played(tmp_path, keep_every=2)
    assert {2, 4} < checkpoints.rounds_in(tmp_path / "checkpoint")
    found = fedbac.verify(tmp_path, dataset=DATA)
    assert [verdict.difference for verdict in found] == [None] * len(found)
    assert found[-1].last == TASK.rounds


def test_a_forged_weight_is_found(run: Path) -> None:
    forge(run)
    *sound, last = fedbac.verify(run, dataset=DATA)
    assert not any(verdict.difference for verdict in sound)
    assert last.difference is not None
    assert f"checkpoint of round {TASK.rounds}: parts/" in last.difference


def test_a_forged_record_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checksums are right, as whoever wrote it made them."""
    real = Writer.append

    def flattering(self: Writer, record: Mapping[str, Any], by: Any = None) -> str:
        return real(self, {**record, "accuracy": record["accuracy"] + 1e-12}, by)

    monkeypatch.setattr(Writer, "append", flattering)
    played(tmp_path)
    monkeypatch.undo()
    first = fedbac.verify(tmp_path, dataset=DATA)[0]
    assert first.difference is not None
    assert first.difference.startswith("round 1, accuracy: ")


def test_the_command_says_what_it_found_and_by_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    words = ["run", "hierfavg", "--task", "demo", "--rounds", "3", *SMALL]
    for argv, code in (
        ([*words, "--out", str(folder), "--set", "runtime.keep_every=1"], 0),
        (["verify", str(folder)], 0),
        (None, None),
        (["verify", str(folder), "--all"], 1),
        (["verify", str(tmp_path)], 1),
    ):
        if argv is None:
            forge(folder)
            continue
        monkeypatch.setattr("sys.argv", ["fedbac", *argv])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        assert (end.value.code or 0) == code, said
    assert "DIFFERENT: checkpoint of round 3" in said.out
    assert "the same bits (records and weights)" in said.out


def test_settings_of_the_runtime_are_no_axis() -> None:
    assert with_settings(ALONE, {"runtime.keep_every": 3, "task.rounds": 2}).keep_every == 3
    with pytest.raises(ConfigError, match=r"runtime\.keep_every"):
        with_settings(ALONE, ["runtime.keep_every=0"])
    with pytest.raises(ConfigError, match="the same for all runs"):
        fedbac.sweep("hierfavg", TASK, dataset=DATA, grid={"runtime.workers": [1, 2]})


# -------------------------------------------------------------------------------------------------- snapshots


def test_a_snapshot_of_a_running_folder_resumes_to_the_same_bits(tmp_path: Path, whole: Path) -> None:
    """Taken after every round, and once in the middle of what a copy does."""
    folder = tmp_path / "run"
    playing = play(EXPERIMENT, folder=folder, inputs=INPUTS, runtime=ALONE)
    for record in playing:
        place = tmp_path / str(record["round"])
        assert RunFolder(folder).snapshot(place) == record["round"]
        assert len(fedbac.load(place).records) == record["round"]
        done = finish(play(EXPERIMENT, folder=place, inputs=INPUTS, runtime=ALONE))
        assert timeless(done) == timeless(fedbac.load(whole))
        assert weights(place) == weights(whole)


def timeless(run: StoredRun) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key != "seconds"} for record in run.records]


def test_a_checkpoint_that_vanishes_while_it_is_copied_is_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is so much faster than the copy that every file is replaced once it has been opened."""
    folder, place = tmp_path / "run", tmp_path / "snapshot"
    playing = play(EXPERIMENT, folder=folder, inputs=INPUTS, runtime=ALONE)
    next(playing)
    real = files.write_copy

    def slow(*words: Any) -> None:
        next(playing, None)
        real(*words)

    monkeypatch.setattr("fedbac.runs.checkpoints.write_copy", slow)
    assert RunFolder(folder).snapshot(place) == 1
    assert len(fedbac.resume(place, dataset=DATA).records) == TASK.rounds


def test_a_snapshot_replaces_nothing(run: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("of value")
    with pytest.raises(ConfigError, match="there is something already"):
        RunFolder(run).snapshot(tmp_path / "there")
