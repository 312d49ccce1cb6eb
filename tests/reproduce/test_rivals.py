"""The table of rivals: the best points of one seed, a dash where none ran."""

import json
from pathlib import Path

from fedbac_paper import rivals


def line(method: str, setting: str, accuracy: float, seed: int = 0, point: tuple[str, ...] = ()) -> str:
    row = {"method": method, "point": point, "setting": setting, "seed": seed}
    return json.dumps(row | {"accuracy": accuracy, "edge_min": accuracy - 0.25})


def test_the_table_shows_rivals_at_their_best_points_and_ours_at_its_only_one(tmp_path: Path) -> None:
    file = tmp_path / "tuning.jsonl"
    rows = [
        line("local", "cifar10", 0.5),
        line("ditto-edges", "cifar10", 0.75),
        line("ditto-edges", "cifar10", 0.99, seed=1),
        line("local", "cifar10", 0.625, point=("method.sharing=apart",)),
        line("local", "cifar10", 0.25, point=("method.selection=sound",)),
        line("fedfork", "cifar10", 0.7),
        line("fedfork", "cifar10", 0.98, point=("method.sharing=apart",)),
        line("local", "noisy", 0.625),
        line("fedavg-ft-wide", "noisy", 0.75),
    ]
    file.write_text("\n".join(rows), encoding="utf-8")
    found = rivals.best_runs(file, tmp_path / "again.jsonl")
    _, *told = rivals.best_points(found)
    assert [row[0] for row in told] == [
        "fedavg-ft, a network of twice the weights",
        "ditto-edges",
        "fedfork",
        "local",
    ]
    assert [row[1] for row in told] == ["–", "75.0 / 50.0", "70.0 / 45.0", "62.5 / 37.5"]
    assert [row[-1] for row in told] == ["75.0 / 50.0", "–", "–", "62.5 / 37.5"]


def moved(method: str, setting: str, bytes_total: int | None, seed: int = 0, point: tuple[str, ...] = ()) -> str:
    row = json.loads(line(method, setting, 0.5, seed, point))
    return json.dumps(row if bytes_total is None else row | {"bytes_total": bytes_total})


def test_the_cost_is_a_multiple_of_the_yardstick_s_bytes_with_the_defaults_on_one_seed(tmp_path: Path) -> None:
    first, again = tmp_path / "tuning.jsonl", tmp_path / "bytes.jsonl"
    rows = [
        moved("hierfavg", "cifar10", None),
        moved("fedfork", "cifar10", 500),
        moved("fedfork", "cifar10", 900, point=("method.sharing=apart",)),
        moved("fedfork", "cifar10", 800, seed=1),
        moved("fedfork", "svhn", 700),
    ]
    first.write_text("\n".join(rows), encoding="utf-8")
    again.write_text(moved("hierfavg", "cifar10", 200), encoding="utf-8")
    assert "2.5 to 2.5 times as many bytes" in rivals.cost(first, again)
