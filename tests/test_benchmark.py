"""The frozen protocol: what it asks, that it is resumed, what its measures say, and how a leaderboard shows them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbac as package
from fedbac import data
from fedbac.errors import ConfigError
from fedbac.presets.tasks import TASKS
from fedbac.rounds import metrics
from fedbac.runs.store import differences
from fedbac_paper import benchmark, leaderboard
from tests.test_cli import Shell
from tests.test_cli import fedbac as fedbac  # a fixture
from tests.unit.tiny import tiny_data, tiny_run

SMALL = {
    "task.network": "mlp",
    "task.rounds": 2,
    "task.data_fraction": 0.1,
    "evaluation.last_rounds": 1,
    "evaluation.target_patience": 1,
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> benchmark.Protocol:
    """A protocol of one task that takes a moment."""
    judged = benchmark.Judged(regime="one model for all", target=0.01, bytes=10**12)
    asked = benchmark.protocol()
    asked = asked.model_copy(
        update={"parts": {"natural": {"glyphs": judged}}, "seeds": (0, 1), "settings": asked.settings | SMALL}
    )
    monkeypatch.setattr(benchmark, "protocol", lambda: asked)
    return asked


def test_the_protocol_names_tasks_that_exist_and_reserves_no_seed_of_others() -> None:
    asked = benchmark.protocol()
    assert set(asked.tasks) <= set(TASKS)
    assert not {*asked.seeds} & {*asked.tuning_seeds}
    assert max(*asked.seeds, *asked.tuning_seeds) < 12
    assert {"one model for all", "each edge alone", "known groups"} <= {task.regime for task in asked.tasks.values()}
    for task in asked.tasks.values():
        assert task.bytes > 0


def test_a_protocol_has_another_hash_if_it_asks_for_anything_else() -> None:
    asked = benchmark.protocol()
    assert asked.sha256 == benchmark.Protocol.model_validate(asked.model_dump()).sha256
    assert asked.sha256 != asked.model_copy(update={"seeds": (0, 1)}).sha256


def test_a_method_is_run_resumed_and_shown(
    fedbac: Shell, tmp_path: Path, small: benchmark.Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("benchmark", "local", "--points", "1", "--jobs", "1", "--device", "cpu", "--out", "b")
    said = fedbac(*words)
    assert "\n| glyphs | one model for all | 1 | 0, 1 |" in said
    notes = json.loads((tmp_path / "b" / benchmark.FILE).read_text())
    assert notes["protocol"] == {"version": small.version, "sha256": small.sha256}
    rows = notes["tasks"]["glyphs"]["runs"]
    for row in rows:
        run = package.load(tmp_path / f"b/glyphs/confirmed/local_point=0_seed{row['seed']}")
        assert row["accuracy"] == run.summary["accuracy"] == row["accuracy_for_bytes"]
        assert row["bytes"] == run.summary["bytes_total"]
        assert row["bytes_to_target"] in (None, *(row["bytes"] * share for share in (0.5, 1)))
        assert (run.folder / "rounds.jsonl").read_text().rstrip().endswith(f'"check": "{row["check"]}"}}')
        assert abs(row["rand_index"]) < 0.01  # every font for itself
    again = fedbac(*words)
    assert "finished already" in again
    so_far = json.loads((tmp_path / "b" / benchmark.FILE).read_text())
    assert so_far["tasks"] == notes["tasks"]
    replayed = fedbac(*words, "--so-far", "--verify", "1")
    assert replayed.count("the same bits") == len(rows)
    with monkeypatch.context() as patch:
        patch.setattr("fedbac_paper.command.replayed_alike", lambda places, count, data: not (count == 2 and places))
        fedbac(*words, "--so-far", "--verify", "2", code=1)
    file = tmp_path / "b" / benchmark.FILE
    rows[0]["accuracy"] += 0.1
    file.write_text(json.dumps(notes))
    said = fedbac(*words, "--so-far", "--verify", "1", code=1)
    assert "benchmark.json was not what the runs say: glyphs.seed 0.accuracy: " in said
    assert "edge_min" not in said
    assert json.loads(file.read_text())["tasks"] == so_far["tasks"]
    file.write_text('{"method": []}')
    assert "no benchmark wrote it like this" in fedbac(*words, "--so-far", "--verify", "1", code=2)
    board = tmp_path / "board"
    board.mkdir()
    (board / "local.json").write_text(json.dumps(notes))
    (board / "old.json").write_text(json.dumps(notes | {"protocol": {"version": 0, "sha256": "other"}}))
    assert [row["method"] for row in leaderboard.read(board)] == ["local"]


def test_a_seed_that_is_stated_twice_shows(tmp_path: Path) -> None:
    row = {"seed": 0, "accuracy": 0.5}

    def stated(*rows: dict[str, float]) -> dict[str, Any]:
        tasks = {"glyphs": {"points": 1, "settings": {}, "runs": rows}}
        (tmp_path / benchmark.FILE).write_text(json.dumps({"method": "mine", "protocol": {}, "tasks": tasks}))
        return benchmark.stated(tmp_path)

    assert differences(stated(row | {"accuracy": 0.9}, row), stated(row)) == ["glyphs.seeds: [0, 0] is now [0]"]


def test_words_that_name_no_task_are_refused(fedbac: Shell) -> None:
    assert "did you mean 'glyphs'" in fedbac("benchmark", "local", "--task", "glyps", code=2)
    assert "no run of a benchmark" in fedbac("benchmark", "local", "--so-far", "--out", "b", code=2)


def test_bytes_decide_which_rounds_count(monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny_run("hierfavg", "task.world={}", "task.rounds=4")
    each = _cumulative(run.records)
    monkeypatch.setattr(benchmark, "_check", lambda run: None)
    for affordable in range(5):
        spent = 0 if affordable == 0 else each[affordable - 1]
        judged = benchmark.Judged(regime="", target=0.999, bytes=spent)
        row = benchmark._row(run, judged, None)
        known = [record["accuracy"] for record in run.records[:affordable]]
        assert row["accuracy_for_bytes"] == (pytest.approx(sum(known) / len(known)) if known else None)
        assert row["bytes_to_target"] is None


def _cumulative(records: list[dict[str, Any]]) -> list[int]:
    sums, total = [], 0
    for record in records:
        total += metrics.total_bytes(record["bytes"])
        sums.append(total)
    return sums


def test_who_is_known_to_belong_together() -> None:
    planted = package.configure("local", "planted")
    assert list(benchmark.truth(planted, tiny_data()) or []) == [edge % 4 for edge in range(20)]
    known = package.configure("local", "udhr-varieties")
    groups = list(benchmark.truth(known, data.load("udhr-varieties")) or [])
    assert benchmark.agreement(groups, [edge % 6 for edge in range(24)]) == 1
    for method in ("ifca", "fedavg"):  # clusters of clients, and one place where all clients meet
        assert benchmark.truth(package.configure(method, "planted"), tiny_data()) is None
    assert (
        benchmark.truth(
            package.configure("local", "demo", settings=["task.partition.edge_distributions=null"]), tiny_data()
        )
        is None
    )


def test_an_unknown_part_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="part or task of the benchmark"):
        benchmark.plans("local", tmp_path, ["nature"])


def test_the_leaderboard_counts_the_tasks_in_which_a_simple_answer_is_above() -> None:
    def row(method: str, *accuracies: float) -> dict[str, Any]:
        noise = np.roll([0.0, 0.01, 0.02], len(method))
        runs = [[{"seed": seed, "accuracy": a + noise[seed]} for seed in range(3)] for a in accuracies]
        return {"method": method, "tasks": {task: {"runs": each} for task, each in zip("ab", runs, strict=True)}}

    rows = [row("hierfavg", 0.5, 0.9), row("local", 0.9, 0.5), row("fedavg-ft", 0.5, 0.5)]
    said = leaderboard._harm([*rows, row("good", 0.9, 0.9), row("half", 0.9, 0.5), row("bad", 0.4, 0.4)], ["a", "b"])
    assert said.rstrip().endswith("`good` none, `half` 1, `bad` 2.")


def test_all_measures_are_in_a_file_with_a_dash_where_a_seed_misses(tmp_path: Path) -> None:
    asked = benchmark.protocol()
    measured = dict.fromkeys((key for key, _ in benchmark.COLUMNS.values()), 0.5)
    runs = [
        {"seed": seed, **measured, "simulated_seconds_to_target": seconds, "bytes_to_target": missed}
        for seed, seconds, missed in ((0, 20.0, None), (1, 30.0, 10**6))
    ]
    found = {"points": 1, "settings": {}, "runs": runs}
    notes = {"method": "mine", "protocol": {"sha256": asked.sha256}, "tasks": {"glyphs": found}}
    (tmp_path / "mine.json").write_text(json.dumps(notes))
    head, row = leaderboard.numbers(tmp_path)
    said = dict(zip(head, row, strict=True))
    assert (said["method"], said["task"], said["seeds"], said["target (%)"]) == ("mine", "glyphs", "2", "60")
    assert said["worst edge after training (%)"] == "50.0"
    assert (said["simulated seconds to the target"], said["MB to the target"]) == ("25.0", "–")


def test_a_data_card_names_the_best_simple_answer_and_the_licence(tmp_path: Path) -> None:
    asked = benchmark.protocol()
    for method, accuracy in (("hierfavg", 0.4), ("local", 0.3), ("fedfork", 0.9)):
        runs = {"points": 1, "settings": {}, "runs": [{"seed": 0, "accuracy": accuracy}]}
        tasks = dict.fromkeys(asked.tasks, runs)
        (tmp_path / f"{method}.json").write_text(
            json.dumps({"method": method, "protocol": {"sha256": asked.sha256}, "tasks": tasks})
        )
    size = {"edges": 14, "clients": 772, "training": 5, "test": 4, "classes": 5, "guess": 0.25}
    card = {"task": "insteval", **size, "accuracy": {"hierfavg": [0.1, 0.1], "local": [0.1, 0.3]}}
    (tmp_path / "abroad.jsonl").write_text(json.dumps(card) + "\n")
    said = leaderboard.cards(tmp_path, tmp_path / "abroad.jsonl")
    assert "| `glyphs` | 40 | 80 | 3,720 | 3,720 | 93 | 1.4 | 40.0 (`hierfavg`) | fonts: SIL OFL 1.1 |" in said
    assert "| `insteval` | 14 | 772 | 5 | 4 | 5 | 25.0 | 20.0 (`local`) | GPL 2 or later |" in said
    assert "planted" not in said
