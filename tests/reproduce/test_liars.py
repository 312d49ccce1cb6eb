"""The tables of docs/liars.md: means over seeds, losses of paired seeds, the worst attack by share and by jitter."""

import json
from pathlib import Path

import pytest

from fedbac_paper import liars

RULE = "no-voice+trimmed-median-losses"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    runs = {
        ("mean", "none", 0.0): (0.9, 0.8, 0.7),
        ("mean", "gaussian", 0.3): (0.1,),
        (RULE, "none", 0.0): (0.8, 0.8),
        (RULE, "sign_flip", 0.3): (0.79, 0.71),
        (RULE, "alie", 0.3): (0.79, 0.71),
        (RULE, "gaussian", 0.3): (0.78, 0.77, 0.76),
        (RULE, "sign_flip", 0.1): (0.8,),
        (RULE, "alie~0.5", 0.3): (0.5,),
    }
    rows = [
        {
            "method": "fedfork", "setting": "cifar10", "attack": attack, "share": share, "rule": rule, "seed": seed,
            "who": "clients" if share else "", "accuracy": accuracy, "edge_min": accuracy / 2, "per_edge": [accuracy],
        }
        for (rule, attack, share), accuracies in runs.items()
        for seed, accuracy in enumerate(accuracies)
    ]  # fmt: skip
    (tmp_path / "some.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return tmp_path


def test_cells_are_means_over_seeds_and_losses_those_of_the_same_seeds(folder: Path) -> None:
    mean, rule = liars.tables(folder).splitlines()[3:5]
    assert mean.endswith("mean | 80.0 ± 10.0 / 40.0 | – | – | 10.0 / 5.0 | – | – | 80.0 | 1–3 |")
    gaussian = "77.0 ± 1.0 / 38.5"
    assert rule.endswith(f"| 80.0 / 40.0 | – | 75.0 / 37.5 | {gaussian} | = `sign_flip` | – | 10.0 | 2–3 |")


def test_shares_and_jitters_are_compared_by_the_worst_attack_that_all_of_them_have(folder: Path) -> None:
    assert (
        liars.shares(folder)
        .strip()
        .splitlines()[-1]
        .endswith("| `sign_flip` | 80.0 / 40.0 | 80.0 / 40.0 | 75.0 / 37.5 |")
    )
    assert (
        liars.jitters(folder).strip().splitlines()[-1].endswith("| `alie` | 80.0 / 40.0 | 75.0 / 37.5 | 50.0 / 25.0 |")
    )


def test_the_file_of_numbers_has_every_run(folder: Path) -> None:
    found = {tuple(row[2:6]): row[6:] for row in liars.numbers(folder)}
    assert found[RULE, "gaussian", "30", "clients"] == ["3", "77.0", "1.0", "38.5"]
    assert found[RULE, "alie~0.5", "30", "clients"] == ["1", "50.0", "–", "25.0"]


def test_losses_and_costs_are_said_where_they_were_measured(folder: Path) -> None:
    assert liars.losses(folder).strip() == liars.cost(folder).strip() == ""
    row = {"method": "fed-bac", "setting": "planted-groups", "rule": "mean", "seed": 0, "edge_min": 0.1}
    lies = {("none", 0.0, ""): 0.9, ("losses", 0.3, "edges"): 0.3}
    rows = [
        row | {"attack": attack, "share": share, "who": who, "accuracy": accuracy}
        for (attack, share, who), accuracy in lies.items()
    ]
    (folder / "losses.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    found = liars.losses(folder).strip().splitlines()
    assert found[-1] == "| Fed-BAC | mean | edges | 90.0 / 10.0 | – | 30.0 / 10.0 |"
    assert "planted" not in liars.tables(folder)
    seconds = {"fedfork": {"mean": [0.2, 0.9], "median": [0.3, 0.3], "krum": [0.8, 0.4]}}
    (folder / "cost.json").write_text(json.dumps({"setting": "cifar10", "device": "X", "seconds": seconds}))
    assert "takes 1.5 to 2.0 times as long for fedfork as one" in liars.cost(folder)
