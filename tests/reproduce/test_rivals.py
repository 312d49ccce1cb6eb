"""The table of rivals: presets of one seed, the best of each setting in bold, a dash where nothing was run."""

import json
from pathlib import Path

from fedbac_paper import rivals


def line(method: str, setting: str, accuracy: float, seed: int = 0, point: tuple[str, ...] = ()) -> str:
    row = {"method": method, "point": point, "setting": setting, "seed": seed}
    return json.dumps(row | {"accuracy": accuracy, "edge_min": accuracy - 0.25})


def test_the_table_shows_presets_of_one_seed_best_first(tmp_path: Path) -> None:
    file = tmp_path / "tuning.jsonl"
    rows = [
        line("local", "cifar10", 0.5),
        line("ditto-edges", "cifar10", 0.75),
        line("ditto-edges", "cifar10", 0.99, seed=1),
        line("ditto-edges", "cifar10", 0.98, point=("method.sharing=apart",)),
        line("local", "noisy", 0.625),
        line("fedavg-ft-wide", "noisy", 0.75),
    ]
    file.write_text("\n".join(rows), encoding="utf-8")
    told = [row.split(" | ") for row in rivals.presets(file).strip().splitlines()]
    assert [row[0] for row in told[2:]] == ["| `ditto-edges`", "| `local`"]
    assert [row[1] for row in told[2:]] == ["**75.0** / 50.0", "50.0 / 25.0"]
    assert [row[-1] for row in told[2:]] == ["– |", "**62.5** / 37.5 |"]
