"""What the benchmarks wrote, as tables."""

import json
from pathlib import Path
from typing import Any

from fedbac_paper import performance


def row() -> dict[str, Any]:
    shares = {
        "training": 0.4,
        "measuring": 0.4,
        "selection": 0.05,
        "clustering": 0.0,
        "aggregation": 0.1,
        "other": 0.05,
    }
    told = {"clients": 100_000, "edges": 1000, "seconds_per_round": 100.0, "us_per_sample_step": 20.0}
    return told | {"share": shares, "peak_memory_mib": 900}


def test_shares_of_a_round_are_in_percent(tmp_path: Path) -> None:
    (tmp_path / "scaling.json").write_text(json.dumps([row() | {"clients": 10}, row()]))
    text = performance.scaling(tmp_path)
    assert "From 10 clients to 100,000 a sample-step takes 20 to 20 µs." in text
    assert "with 1,000 edges, takes 100 s, 40 % of it for measuring, and at most 900 MiB." in text


def test_what_a_million_took_is_told_by_method(tmp_path: Path) -> None:
    each = {way: {"train": 10**9, "evaluate": 10**8, "control": 10} for way in ("down", "up")}
    more = {"clients": 1_000_000, "machine": "2 cores", "bytes_per_round": {"client": each}, "peak_memory_mib": 2048}
    rows = [row() | more | {"method": "a"}, row() | more | {"method": "b", "seconds_per_round": 50.0}]
    (tmp_path / "million.json").write_text(json.dumps(rows))
    verdict, measured = performance.million(tmp_path)
    assert "1,000,000 tiny clients at 1,000 edges took 100 s with `a`, in 2.0 GiB and 50 s with" in verdict
    assert "50% of the clients' time and 5% of the 2.2 GB" in verdict
    assert "| `b` | 50 | 40 | 40 | 10 | 10 | 2,048 |" in measured


def test_candidates_are_compared_seed_by_seed(tmp_path: Path) -> None:
    accuracies = {(None, 0): 0.5, (None, 1): 0.7, (5, 0): 0.52, (5, 1): 0.69}
    told = [{"method": "m", "candidates": c, "seed": s, "accuracy": a} for (c, s), a in accuracies.items()]
    (tmp_path / "candidates.json").write_text(json.dumps({"runs": told}))
    assert "- `m`, 5: +0.5 (-1.0 to +2.0)" in performance.candidates(tmp_path)


def test_a_ratio_without_times_is_shown_as_such(tmp_path: Path) -> None:
    known: dict[str, Any] = {
        "network": "mlp",
        "shape": "1x28x28",
        "precision": "float32",
        "path": "native-v4",
        "machine": "two cores",
    }
    known |= {"clients": 100, "images": 100, "batch": 32}
    times: dict[str, float | None] = {
        "loop_us_per_sample_step": None,
        "us_per_sample_step": None,
        "speedup_over_loop": 13.8,
    }
    (tmp_path / "rounds.json").write_text(json.dumps([known | times]))
    assert "| two cores | mlp, 1×28×28 | – | 13.8 |" in performance.rounds(tmp_path)
    (tmp_path / "rounds.json").write_text(json.dumps([known | times | {"clients": 50, "batch": 10}]))
    assert "| mlp, 1×28×28; 50 × 100, batch 10 |" in performance.rounds(tmp_path)


def test_precisions_are_compared_seed_by_seed(tmp_path: Path) -> None:
    accuracies = {("float32", 0): 0.5, ("tf32", 0): 0.502, ("float32", 1): 0.7, ("tf32", 1): 0.699}
    told = [{"precision": p, "seed": s, "accuracy": a} for (p, s), a in accuracies.items()]
    (tmp_path / "precision.json").write_text(json.dumps({"runs": told}))
    assert "On 2 seeds, accuracy differed from float32's by at most 0.20 points in tf32, in" in performance.precision(
        tmp_path
    )


def test_a_run_s_rounds_are_carried_on_to_200(tmp_path: Path) -> None:
    told = {"method": "m", "median_round": 0.0832, "seconds_200_rounds": 17.0, "useful_share": 0.98}
    (tmp_path / "paper.json").write_text(json.dumps([told]))
    assert "`m` 17.0 s (0.083 s a round)" in performance.runs(tmp_path)


def test_several_runs_share_the_time_of_a_round(tmp_path: Path) -> None:
    told = [{"processes": n, "service": s, "median_round": t} for n, s, t in ((1, False, 0.05), (3, True, 0.144))]
    (tmp_path / "several.json").write_text(json.dumps(told))
    assert "without the service 50 (1); with it 48 (3)" in performance.several(tmp_path)
