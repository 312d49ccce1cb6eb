"""No damage to a run folder gives a traceback, or other numbers in silence."""

import hashlib
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import fedbac
from fedbac.errors import CheckpointError, ConfigError, RunFolderError
from fedbac.runs import checkpoints
from fedbac.runs.configure import experiment_in
from fedbac.runs.play import finish, play, play_folder
from fedbac.runs.store import RunFolder, StoredRun
from fedbac.runs.summary import NEWER
from tests.covering import first
from tests.store.damage import INPUTS, ROUNDS, STOPPED, Examples, complaint, damage, play_examples, weights


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Examples:
    return play_examples(tmp_path_factory.mktemp("examples"))


@pytest.fixture
def finished(examples: Examples, tmp_path: Path) -> Path:
    return Path(shutil.copytree(examples.folders["finished"], tmp_path / "finished"))


@pytest.fixture
def stopped(examples: Examples, tmp_path: Path) -> Path:
    return Path(shutil.copytree(examples.folders["stopped"], tmp_path / "stopped"))


def resumed(folder: Path) -> StoredRun:
    return finish(play_folder(RunFolder(folder), INPUTS))


def assert_resumes(folder: Path, examples: Examples) -> None:
    """To the bits of the run that was never stopped."""
    timeless = [[{**record, "seconds": 0} for record in run.records] for run in (resumed(folder), examples.end)]
    assert timeless[0] == timeless[1]
    assert weights(folder) == examples.weights


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize("name", first(1, ["stopped", "finished"]))
@pytest.mark.parametrize("seeds", first(1, [range(10), range(10, 30)]))
def test_random_damages_are_noticed_or_change_nothing(
    name: str, seeds: range, examples: Examples, tmp_path: Path
) -> None:
    for seed in seeds:
        rng = Random(f"{name} {seed}")
        folder = tmp_path / str(seed)
        shutil.copytree(examples.folders[name], folder)
        how = damage(folder, rng)
        assert (found := complaint(examples, name, folder)) is None, f"{how}: {found}"


# --------------------------------------------------------------------------------------------------- records


@pytest.mark.parametrize("line", [0, STOPPED - 1])
def test_a_changed_digit_is_not_believed(
    line: int, stopped: Path, examples: Examples, caplog: pytest.LogCaptureFixture
) -> None:
    file = stopped / "rounds.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    lines[line] = lines[line].replace('"moves": ', '"moves": 7', 1)
    file.write_text("".join(lines))
    with pytest.raises(RunFolderError, match=rf"rounds\.jsonl: line {line + 1} does not match its checksum.*resume"):
        fedbac.load(stopped)
    if line:  # there is a checkpoint before it
        assert_resumes(stopped, examples)
        assert f"line {STOPPED} does not match its checksum" in caplog.text
        assert f"resuming from round {STOPPED - 1}" in caplog.text
    else:
        before = file.read_bytes()
        with pytest.raises(CheckpointError, match=r"line 1 does not match.*--overwrite"):
            resumed(stopped)
        assert file.read_bytes() == before


def test_records_in_memory_have_no_checksum(finished: Path) -> None:
    lines = [json.loads(line) for line in (finished / "rounds.jsonl").read_text().splitlines()]
    assert all(len(line.pop("check")) == 16 for line in lines)
    assert [line.pop("computed_by", {}) != {} for line in lines] == [True] + [False] * (len(lines) - 1)
    assert fedbac.load(finished).records == lines


def test_the_chain_is_the_documented_one(finished: Path) -> None:
    """Anybody can check a folder without fedbac."""
    config = RunFolder(finished).read_config()
    del config["runtime"]
    check = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    for line in (finished / "rounds.jsonl").read_text().splitlines():
        body, end = line[: -len(', "check": "0123456789abcdef"}')] + "}", line[-18:-2]
        check = hashlib.sha256((check + body).encode()).hexdigest()[:16]
        assert check == end


def test_half_a_line_is_what_a_kill_leaves(stopped: Path, examples: Examples, caplog: pytest.LogCaptureFixture) -> None:
    with (stopped / "rounds.jsonl").open("a") as file:
        file.write('{"round": 4, "accur')
    assert fedbac.load(stopped).records == examples.shown["stopped"].records
    assert_resumes(stopped, examples)
    assert not caplog.records


def test_lost_rounds_are_missed(finished: Path, stopped: Path) -> None:
    """By the summary of a finished run, whose checkpoints may be gone, and by the checkpoints of a killed one."""
    shutil.rmtree(finished / "checkpoint")
    (stopped / "summary.json").unlink()
    for folder, played in ((finished, ROUNDS), (stopped, STOPPED)):
        lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
        (folder / "rounds.jsonl").write_text("".join(lines[:-1]))
        with pytest.raises(RunFolderError, match=f"it holds {played - 1} rounds, but {played} were played"):
            fedbac.load(folder)
        assert not RunFolder(folder).finished()


# ---------------------------------------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("experiment:", "experiment: null\nother:", "no 'experiment'"),
        ("data:\n", "data: null\nother:\n", "data is None"),
        ("  seed: 0\n", "", r"experiment\.seed is missing"),
        ("  seed: 0\n", "  seed: 2001-99-99\n", "seed|YAML"),
        ("format: 2", "format: 3", "format 3"),
        (
            "    name: fed-bac\n",
            "    name: ifca-edges\n",
            "line 1 does not match its checksum, which covers config.yaml too",
        ),
    ],
)
def test_a_damaged_configuration_is_one_sentence(old: str, new: str, match: str, finished: Path) -> None:
    edit(finished / "config.yaml", old, new)
    with pytest.raises((ConfigError, RunFolderError), match=match):
        fedbac.load(finished)
    with pytest.raises((ConfigError, RunFolderError)):
        resumed(finished)
    assert not RunFolder(finished).finished()


def test_where_a_run_is_played_may_change(finished: Path, examples: Examples) -> None:
    edit(finished / "config.yaml", "workers: 1", "workers: 2")
    assert fedbac.load(finished).records == examples.end.records


def test_another_trainer_is_mentioned(stopped: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = RunFolder(stopped)
    experiment, runtime = experiment_in(folder, with_data=True)
    other = runtime.model_copy(update={"trainer": "torch"})
    finish(play(experiment, folder=folder, runtime=other, inputs=INPUTS))
    assert "may round differently" in caplog.text


# --------------------------------------------------------------------------------------------------- summary


@pytest.mark.parametrize("text", ['{"accuracy": 0.5', "[]", "null", "[" * 3000, '{"rounds": 5, "accuracy": 0.999}'])
def test_the_summary_is_computed_not_believed(
    text: str, finished: Path, examples: Examples, caplog: pytest.LogCaptureFixture
) -> None:
    (finished / "summary.json").write_text(text)
    assert RunFolder(finished).finished()
    assert fedbac.load(finished).summary == examples.end.summary
    assert "summary.json does not match the records" in caplog.text
    assert_resumes(finished, examples)


def test_a_summary_of_an_earlier_version_has_other_edges_and_is_no_damage(
    finished: Path, examples: Examples, caplog: pytest.LogCaptureFixture
) -> None:
    known = {key: value for key, value in examples.end.summary.items() if key not in NEWER} | {"edge_min": 0.1}
    (finished / "summary.json").write_text(json.dumps(known))
    assert fedbac.load(finished).summary == examples.end.summary
    assert "summary.json" not in caplog.text


def test_an_intact_folder_gives_no_warning(finished: Path, stopped: Path, caplog: pytest.LogCaptureFixture) -> None:
    for folder in (finished, stopped):
        fedbac.load(folder)
        resumed(folder)
    assert not caplog.records


# ----------------------------------------------------------------------------------------------- checkpoints


def resign(manifest: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest as one would who knows how it is made."""
    stated = json.loads(manifest.read_text())
    del stated["check"]
    change(stated)
    manifest.write_text(json.dumps(stated | {"check": checkpoints._check(stated)}))


def test_a_run_that_began_before_a_setting_was_there_goes_on_with_its_default(
    stopped: Path, examples: Examples, caplog: pytest.LogCaptureFixture
) -> None:
    def older(stated: dict[str, Any]) -> None:
        for name in ("aggregation", "cloud_aggregation", "step"):
            del stated["experiment"]["experiment"]["method"][name]

    for manifest in (stopped / "checkpoint").glob("*.json"):
        resign(manifest, older)
    assert_resumes(stopped, examples)
    assert not caplog.records


def test_a_checkpoint_s_round_cannot_be_changed(stopped: Path, examples: Examples) -> None:
    newest = max((stopped / "checkpoint").glob("*.json"))
    resign(newest, lambda stated: stated.update(round=STOPPED - 1))
    assert_resumes(stopped, examples)


def test_a_checkpoint_of_another_run_is_not_used(stopped: Path, examples: Examples) -> None:
    newest = max((stopped / "checkpoint").glob("*.json"))
    resign(newest, lambda stated: stated.update(records="0123456789abcdef"))
    assert_resumes(stopped, examples)


@pytest.mark.parametrize("text", ["[]", "null", "{}", '{"round": 3}', "[" * 3000, "7"])
def test_a_strange_manifest_falls_back(
    text: str, stopped: Path, examples: Examples, caplog: pytest.LogCaptureFixture
) -> None:
    max((stopped / "checkpoint").glob("*.json")).write_text(text)
    assert_resumes(stopped, examples)
    assert f"resuming from round {STOPPED - 1}" in caplog.text


@pytest.mark.parametrize("how", ["shape", "dtype", "labels", "negative labels", "missing", "no tensors"])
def test_tensors_that_fit_their_hash_but_not_the_run_fall_back(
    how: str, stopped: Path, examples: Examples, caplog: pytest.LogCaptureFixture
) -> None:
    file = max((stopped / "checkpoint").glob("*.safetensors"))
    tensors = load_file(file)
    weight = next(name for name in tensors if name.startswith("parts/"))
    labels = torch.full_like(tensors["label_N"], -1 if how == "negative labels" else 99)
    changes = {
        "shape": {weight: tensors[weight][:, :1].contiguous()},
        "dtype": {weight: tensors[weight].double()},
        "labels": {"label_N": labels},
        "negative labels": {"label_N": labels},
    }
    if how == "missing":
        del tensors[weight]
    save_file(tensors | changes.get(how, {}), file)
    if how == "no tensors":
        file.write_bytes(b"no tensors")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    resign(file.with_suffix(".json"), lambda stated: stated.update(sha256=digest))
    assert_resumes(stopped, examples)
    assert f"resuming from round {STOPPED - 1}" in caplog.text


def test_rounds_without_any_checkpoint_are_not_thrown_away(stopped: Path) -> None:
    shutil.rmtree(stopped / "checkpoint")
    before = (stopped / "rounds.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match=f"no checkpoint is there.*{STOPPED} rounds were played.*--overwrite"):
        resumed(stopped)
    assert (stopped / "rounds.jsonl").read_bytes() == before


def test_what_processes_left_is_removed_at_the_next_start(stopped: Path, examples: Examples) -> None:
    """Files that were being written, tensors without their manifest, checkpoints before the newest two."""
    place = stopped / "checkpoint"
    left = [
        stopped / "config.yaml.0a1b2c3d.partial",
        stopped / "rounds.jsonl.partial",
        stopped / ".report.html.77.partial",
        place / "round-000004.json.0a1b2c3d.partial",
        place / ".tmpQ1XCJT",
        place / "round-000004.safetensors",
        place / "round-000001.json",
        place / "round-000001.safetensors",
    ]
    for file in left:
        file.write_bytes(b"half")
    own = stopped / "notes.partial"
    own.write_text("of the user")
    assert_resumes(stopped, examples)
    assert not [file for file in left if file.exists() and "000004" not in file.name]
    assert {file.name[6:12] for file in place.iterdir()} == {f"{ROUNDS - 1:06d}", f"{ROUNDS:06d}"}
    assert own.exists()


def test_a_manifest_without_a_checksum_is_not_believed_among_records_that_have_them(
    stopped: Path, examples: Examples, caplog: pytest.LogCaptureFixture
) -> None:
    """Else whoever strips the checksum could make the manifest say anything."""
    *earlier, newest = sorted((stopped / "checkpoint").glob("*.json"))
    strip(newest)
    last = json.loads(earlier[-1].read_text())["round"]
    untouched = Path(shutil.copytree(stopped, stopped.with_name("all")))
    assert_resumes(stopped, examples)
    assert f"the checkpoint is not one of these records; resuming from round {last}" in caplog.text
    for file in earlier:
        strip(untouched / "checkpoint" / file.name)
    with pytest.raises(CheckpointError, match=r"no checkpoint can be used \(.*not one of these records"):
        resumed(untouched)


def strip(manifest: Path) -> None:
    """Take the checksum off a manifest, and leave the rest as it is."""
    stated = json.loads(manifest.read_text())
    del stated["check"]
    manifest.write_text(json.dumps(stated))


# ---------------------------------------------------------------------------------------- folders of before


def unsigned(folder: Path) -> None:
    """Make a folder what earlier versions wrote."""
    edit(folder / "config.yaml", "format: 2\n", "")
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    (folder / "rounds.jsonl").write_text(
        "".join(json.dumps({k: v for k, v in line.items() if k != "check"}) + "\n" for line in lines)
    )
    for file in (folder / "checkpoint").glob("*.json"):
        stated = json.loads(file.read_text())
        file.write_text(json.dumps({key: stated[key] for key in ("round", "sha256", "experiment")}))


def test_folders_of_earlier_versions_load_and_resume_and_say_so_once(
    stopped: Path, examples: Examples, caplog: pytest.LogCaptureFixture
) -> None:
    unsigned(stopped)
    with caplog.at_level(logging.WARNING, "fedbac"):
        assert fedbac.load(stopped).records == examples.shown["stopped"].records
        assert_resumes(stopped, examples)
        assert len(fedbac.load(stopped).records) == ROUNDS
    assert caplog.text.count("wrote it without checksums, so its records cannot be checked") == 1
    assert len(caplog.records) == 1
    assert '"check"' not in (stopped / "rounds.jsonl").read_text(), "new rounds do not vouch for old ones"


def test_a_renamed_key_and_an_unreadable_record_are_named(finished: Path, stopped: Path) -> None:
    for folder in (finished, stopped):
        unsigned(folder)
    edit(finished / "rounds.jsonl", '"accuracy_std"', '"accuracy_sdt"')
    with pytest.raises(RunFolderError, match=r"rounds\.jsonl: line 1 has no 'accuracy_std'"):
        fedbac.load(finished)
    edit(stopped / "rounds.jsonl", '{"round": 2', '{round": 2')
    with pytest.raises(RunFolderError, match="line 2 is no record"):
        fedbac.load(stopped)


def test_checksums_cannot_be_stripped(finished: Path) -> None:
    edit(finished / "config.yaml", "format: 2\n", "")
    with pytest.raises(RunFolderError, match="line 1 does not match"):
        fedbac.load(finished)
    edit(finished / "config.yaml", "experiment:", "format: 2\nexperiment:")
    edit(finished / "rounds.jsonl", ', "check": ', ', "chekc": ')
    with pytest.raises(RunFolderError, match="line 1 does not match"):
        fedbac.load(finished)
