"""Regret: the reward of every label at a look, and the best fixed ones in hindsight."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedbac_paper import regret

LOSSES = [[1.0, 3.0, 2.0], [2.0, 1.0, 4.0]]
"""Of two edges with three clusters."""


def row(labels: str, held: list[int], accuracy: float) -> dict[str, object]:
    looks = [{"round": 3, "held": held, "losses": LOSSES}, {"round": 6, "held": held, "losses": LOSSES}]
    return {"labels": labels, "seed": 0, "accuracy": accuracy, "edge_min": accuracy, "looks": looks}


def test_a_label_is_rewarded_against_the_best_other_cluster() -> None:
    reward_NK = regret.rewards({"losses": LOSSES})
    assert np.round(reward_NK, 6).tolist() == [[0.333333, -0.5, -0.333333], [-0.333333, 0.333333, -0.6]]


def test_regret_is_what_the_best_fixed_labels_had_more() -> None:
    best, worse = row("0123", [0, 1], 0.5), row("linucb", [2, 0], 0.4)
    assert regret.reward(best) == pytest.approx(1 / 3)
    assert regret.on_its_path(best) == pytest.approx(0)
    assert regret.reward(worse) == pytest.approx(-1 / 3)
    assert regret.on_its_path(worse) == pytest.approx(2 / 3)


def test_the_table_compares_with_the_best_fixed_run_of_each_seed(tmp_path: Path) -> None:
    """Best by reward and best by accuracy may be two runs; neither LinUCB nor drawn labels are fixed."""
    rows = [
        row("0123", [0, 1], 0.5), row("0101", [0, 2], 0.6), row("0000", [2, 2], 0.3), row("linucb", [2, 0], 0.4),
        row("drawn", [0, 1], 0.9),
    ]  # fmt: skip
    file = tmp_path / "regret.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    line = next(line for line in regret.table(file).splitlines() if line.startswith("| LinUCB"))
    assert [cell.split()[0] for cell in line.split(" | ")[1:]] == ["-0.33", "0.67", "0.67", "40.0", "20.0"]


def test_selection_is_compared_with_the_best_choice_of_every_edge(tmp_path: Path) -> None:
    """The first edge is best without client 0 and the second without client 1, which are two runs."""
    file = tmp_path / "clients.jsonl"
    ways = {"without 0": [0.5, 0.6], "without 1": [0.3, 0.8], "thompson": [0.4, 0.7], "drawn": [0.3, 0.3]}
    ways["all"] = [0.6, 0.8]
    rows = [
        {"labels": f"{kind}, {way}", "seed": 0, "reached": reached, "accuracy": [one / 2 for one in reached]}
        for kind in (regret.SOUND, regret.WRONG) for way, reached in ways.items()
    ]  # fmt: skip
    file.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    cells = {
        line.split(" | ")[0].strip("| "): [cell.split()[0] for cell in line.split(" | ")[1:4]]
        for line in regret.clients(file).splitlines() if line.startswith("| ")
    }  # fmt: skip
    assert cells[regret.PICKED[regret.THOMPSON]] == ["55.0", "10.0", "27.5"]
    assert cells[regret.PICKED[regret.ALL]] == ["70.0", "-5.0", "35.0"]
    assert cells[regret.PICKED[regret.BEST]] == ["65.0", "0.0", "32.5"]
    assert cells[regret.PICKED[regret.WORST]] == ["45.0", "20.0", "22.5"]
