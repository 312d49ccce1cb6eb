"""Runs of a federation in which an edge was away: it has no accuracy in some rounds, and everything goes on to work."""

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedbac.api.results import rows
from fedbac.report import table
from fedbac.report.document import document
from fedbac.report.figures import figures, save_figures
from fedbac.report.following import Follower
from fedbac.report.groups import edge_accuracy, summarized
from fedbac.rounds import metrics
from fedbac.runs.play import finish
from fedbac.runs.records import _record
from fedbac.runs.store import RunFolder, StoredRun
from fedbac.runs.summary import summarize
from fedbac.runs.tracking import numbers
from fedbac_paper.collect import finding_of
from tests.deploy.small import small
from tests.made_up_runs import fake, page_of

AWAY = {3: (1,), 4: (1,), 11: (0, 2), 12: (2,)}
"""By round, the edges that were away; edge 4 never answered at all."""
NEVER = 4


def with_absences(run: StoredRun) -> StoredRun:
    """Return a run in which edges were away."""
    for record in run.records:
        away = {*AWAY.get(record["round"], ()), NEVER}
        accuracy = [None if edge in away else one for edge, one in enumerate(record["accuracy_per_edge"])]
        known = np.array([one for one in accuracy if one is not None])
        record |= {
            **metrics.distributed(known, np.ones(known.size, dtype=np.int64)),
            "accuracy_per_edge": accuracy,
            "selected": [[] if edge in away else [edge] for edge in range(len(accuracy))],
            "absent": sorted(away),
        }
    run.config["data"] = {"sha256": "0" * 64}
    run.summary.update(summarize(run.config["experiment"], run.records))
    return run


@pytest.fixture(scope="module")
def runs() -> list[StoredRun]:
    return [with_absences(fake(seed=seed)) for seed in (0, 1)] + [fake("ifca-edges")]


def test_a_record_may_have_no_accuracy_of_an_edge(runs: list[StoredRun]) -> None:
    for record in runs[0].records:
        assert _record(json.dumps(record, allow_nan=False).encode()) == record


def test_means_are_over_the_edges_that_answered(runs: list[StoredRun]) -> None:
    found = edge_accuracy(runs[0])
    last = [record["accuracy_per_edge"][0] for record in runs[0].records[-10:] if record["round"] != 11]
    assert found[0] == pytest.approx(np.mean(last))
    assert np.isnan(found[NEVER])
    assert all(np.isfinite(value) for key, value in runs[0].summary.items() if isinstance(value, float))


def test_the_page_holds_them_as_missing(runs: list[StoredRun], tmp_path: Path) -> None:
    shown = document(summarized(runs))["runs"][0]
    assert [edge for edge, value in enumerate(shown["edges"][10]) if value is None] == [0, 2, NEVER]
    assert None not in shown["accuracy"]
    page = page_of(runs, tmp_path)
    assert "NaN" not in page.split('<script id="data"')[-1].split("</script>")[0]


def test_table_and_figures(runs: list[StoredRun], tmp_path: Path) -> None:
    assert "nan" not in str(table(runs)).lower()
    drawn = figures(runs)
    assert all(isinstance(figure, Figure) for figure in drawn.values())
    save_figures(runs, tmp_path)
    assert any(tmp_path.iterdir())


def test_rows_have_no_number_there(runs: list[StoredRun]) -> None:
    of_edges = rows(runs[:1], ["a"], per="edge")
    gone = {(row["round"], row["edge"]) for row in of_edges if row["accuracy"] is None}
    assert gone == {(t, m) for t, edges in AWAY.items() for m in edges} | {(t, NEVER) for t in range(1, 13)}
    of_rounds = rows(runs, ["a", "b", "c"])
    assert [row["num_absent"] for row in of_rounds[:4]] == [1, 1, 2, 2]
    assert of_rounds[-1]["num_absent"] == 0  # of a run that knows no such field


def test_a_tracker_is_not_told_of_them(runs: list[StoredRun]) -> None:
    told = numbers(runs[0].records[10])
    assert {name for name in told if name.startswith("edge/")} == {"edge/1", "edge/3"}


def test_a_finding_is_of_the_edges_that_answered(runs: list[StoredRun]) -> None:
    found = finding_of(runs[0], "severe", "fed-bac", curves=True)
    known = edge_accuracy(runs[0])
    assert found.edge_min == pytest.approx(np.nanmin(known), abs=1e-5)
    assert found.edge_max == pytest.approx(np.nanmax(known), abs=1e-5)


def test_a_live_page_follows_such_a_run(tmp_path: Path) -> None:
    federation = small("fed-bac", rounds=3).federation(tmp_path)
    playing = federation.play(tmp_path / "run", federation.enrol())
    next(playing)
    federation.cloud.lost = {"edge-1"}
    next(playing)
    follower = Follower(lambda: [RunFolder(tmp_path / "run")])
    (run,) = follower.shown.document["runs"]
    assert [value is None for row in run["edges"] for value in row] == [False, False, False, True]
    federation.cloud.lost = set()
    finish(playing)
    follower.refresh()
    (run,) = follower.shown.document["runs"]
    assert None not in run["edges"][2]
    stored = RunFolder(tmp_path / "run").read()
    assert [record["absent"] for record in stored.records] == [[], [1], []]
    assert "nan" not in str(table([stored])).lower()
