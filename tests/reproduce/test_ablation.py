"""The tables of the ablation: differences seed by seed, and what was not run."""

import json
from pathlib import Path

import pytest

from fedbac_paper import ablation


@pytest.fixture
def file(tmp_path: Path) -> Path:
    runs = {
        ("rules", "a", "fedfork"): (0.5, 0.6, 0.7),
        ("rules", "a", "no blend"): (0.48, 0.59, 0.67),
        ("rules", "a", "one network"): (0.4,),
        ("rules", "b", "fedfork"): (0.9, 0.9, 0.9),
        ("rules", "b", "no blend"): (0.9, 0.9, 0.9),
        ("blends", "a", "local"): (0.2, 0.3, 0.4),
        ("blends", "a", "local, blend"): (0.3, 0.4, 0.5),
        ("sums", "LSTM", "one network, 0.5"): (0.4, 0.4, 0.4),
        ("sums", "LSTM", "two networks, 0.5"): (0.38, 0.39, 0.4),
    }
    rows = [
        {"part": part, "task": task, "name": name, "seed": seed, "accuracy": value}
        for (part, task, name), values in runs.items()
        for seed, value in enumerate(values)
    ]
    found = tmp_path / "ablation.jsonl"
    found.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return found


def test_a_rule_is_worth_what_is_lost_without_it_seed_by_seed(file: Path) -> None:
    table = ablation.rules(file)
    assert "| `fedfork` | 60.0 | 90.0 |" in table
    assert "| no blend | -2.0 ± 2.5 | +0.0 ± 0.0 |" in table
    assert "| one network | -10.0 | – |" in table


def test_blends_and_sums_stand_beside_what_they_change(file: Path) -> None:
    assert "|  | a, seeds: 3 |" in ablation.blends(file)
    assert "| `local` | 30.0 → 40.0 |" in ablation.blends(file)
    assert "| LSTM, 0.5 | 40.0 | 39.0 | -1.0 ± 2.5 | 3 |" in ablation.sums(file)


def test_the_figure_has_a_panel_for_each_task(file: Path, tmp_path: Path) -> None:
    ablation.draw(file, tmp_path / "ablation.svg")
    drawn = (tmp_path / "ablation.svg").read_text(encoding="utf-8")
    assert all(f"<!-- {text} -->" in drawn for text in ("a", "b", "no blend", "one network"))
