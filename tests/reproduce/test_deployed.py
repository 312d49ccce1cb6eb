"""The tables of docs/deploy-operations.md."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedbac_paper import deployed

MARKS = "before\n<!-- soak -->old<!-- /soak -->\nbetween\n<!-- deploy-bench --><!-- /deploy-bench -->\nafter\n"
PHASE: dict[str, Any] = {
    "kills": {"cloud": 3, "edge": 2},
    "freezes": {},
    "runs": 1,
    "rounds": 1500,
    "again": 7,
    "with_failed": 0,
    "with_absent": 0,
    "returns": {"cloud": [1.0, 3.0, 9.0]},
    "rounds_missed": {"edge": [0, 1]},
    "memory": {"cloud": 266.1, "edge": 268.6, "client": 349.5},
    "complaints": [],
}
BENCH = {
    "machine": "2 cores",
    "method": "fed-bac",
    "edges": 4,
    "clients": 8,
    "cold_start": 61.2,
    "median_round": 0.5,
    "memory": {"at rest": {"client": {"rss": 70.4, "pss": 60.1}}},
    "bytes": [
        {"tier": "client", "direction": "down", "ledger": 1000, "carried": 2200, "again": 1, "ratio": 1.1},
    ],
}


def _results(folder: Path, phase: dict[str, Any]) -> None:
    (folder / "soak.json").write_text(json.dumps({"machine": "2 cores", "phases": {"all there": phase}}))
    (folder / "bench.json").write_text(json.dumps(BENCH))
    (folder / "page.md").write_text(MARKS)


def test_tables_stand_between_their_marks(tmp_path: Path) -> None:
    _results(tmp_path, PHASE)
    text = deployed.filled(tmp_path / "page.md", tmp_path)
    for row in (
        "| killed: cloud, edge, client | 3, 2, 0 |",
        "| seconds until the cloud, an edge, a client took part again | 3.0 (9.0), –, – |",
        "at most 10.0 % more",
        "client at rest 70.",
    ):
        assert row in text
    assert "5 times" in text
    assert "old" not in text
    (tmp_path / "page.md").write_text(text)
    assert deployed.filled(tmp_path / "page.md", tmp_path) == text


def test_results_with_complaints_and_pages_without_marks_are_refused(tmp_path: Path) -> None:
    _results(tmp_path, PHASE | {"complaints": ["a round was lost"]})
    with pytest.raises(SystemExit, match="complaints"):
        deployed.filled(tmp_path / "page.md", tmp_path)
    (tmp_path / "page.md").write_text("nothing")
    with pytest.raises(SystemExit, match="marks"):
        deployed.filled(tmp_path / "page.md", tmp_path)
