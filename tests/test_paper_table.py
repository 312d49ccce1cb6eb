"""Tables for a paper: what is in a cell, what is bold, and that LaTeX takes them as they are."""

import csv
import io
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedbac.cli.reporting import PAPER_COLUMNS
from fedbac.errors import ConfigError
from fedbac.report.paper import COLUMNS, paper_table
from fedbac.runs.store import StoredRun

ROUNDS = 10


def made(method: str, seed: int, accuracy: float, dataset: str = "svhn", strength: float = 1.0) -> StoredRun:
    """A run whose edges are 2 points apart."""
    record: dict[str, Any] = {
        "accuracy": accuracy, "accuracy_per_edge": [accuracy - 0.01, accuracy + 0.01], "failed": [],
    }  # fmt: skip
    experiment = {
        "seed": seed,
        "method": {"name": method, "personalization": {"strength": strength}},
        "task": {"dataset": dataset, "rounds": ROUNDS, "targets": [0.5]},
        "evaluation": {"last_rounds": 10, "target_patience": 1},
    }
    summary = {
        "rounds": ROUNDS, "accuracy": accuracy, "accuracy_best": accuracy, "edge_min": accuracy - 0.01,
        "edge_std": 0.01, "rounds_to_target": {"0.5": 3 + seed}, "active_clusters": 1, "bytes_total": 2_000_000,
        "seconds": 1.0, "decisions": None,
    }  # fmt: skip
    records = [record | {"round": at + 1} for at in range(ROUNDS)]
    return StoredRun(None, {"experiment": experiment}, records, summary)


def three(method: str, *accuracies: float, **more: Any) -> list[StoredRun]:
    return [made(method, seed, accuracy, **more) for seed, accuracy in enumerate(accuracies)]


FAR = three("low", 0.50, 0.51, 0.52)
LEVEL = three("one", 0.70, 0.72, 0.71) + three("other", 0.71, 0.71, 0.72)


def test_ties_are_bold_together_and_what_is_worse_is_not() -> None:
    text = paper_table(FAR + LEVEL, ["accuracy", "bytes"]).markdown().splitlines()
    assert text[0] == "| method | accuracy | bytes |"
    assert text[2:5] == [
        "| low | 51.0 ± 1.0 | **2.00 MB** |",
        "| one | **71.0 ± 1.0** | **2.00 MB** |",
        "| other | **71.3 ± 0.6** | **2.00 MB** |",
    ]


def test_the_table_says_over_how_many_rounds_its_means_are() -> None:
    short = [
        replace(run, records=run.records[:rounds], summary=run.summary | {"rounds": rounds})
        for run, rounds in zip(FAR, (1, 3, 10), strict=True)
    ]
    for runs, words in (
        (FAR, "10 rounds and 3 seeds"),
        (short, "1 to 10 rounds and 3 seeds"),
        (short[:1], "1 round and 1 seed"),
    ):
        assert f"Means over the last {words}; " in paper_table(runs).notes[0]


def test_what_was_unequal_is_said_below_by_task() -> None:
    richer = [replace(run, summary=run.summary | {"bytes_total": 6_000_000}) for run in three("one", 0.7, 0.7, 0.7)]
    alone = three("one", 0.4, 0.4, 0.4, dataset="cifar10")
    table = paper_table(FAR + richer)
    assert table.notes[1:] == ["one sent 3.0 times the bytes of low."]
    assert table.markdown().endswith("\n\none sent 3.0 times the bytes of low.\n")
    assert table.latex().splitlines()[1] == "% one sent 3.0 times the bytes of low."
    assert paper_table(FAR + richer + alone).notes[1:] == ["svhn: one sent 3.0 times the bytes of low."]


def test_with_two_seeds_nothing_is_bold() -> None:
    table = paper_table([run for run in FAR + LEVEL if run.config["experiment"]["seed"] < 2])
    assert not any(cell.bold for line in table.cells for cell in line)


def test_less_is_better_where_it_is() -> None:
    slow = three("slow", 0.5, 0.5, 0.5)
    for run in slow:
        run.summary["rounds_to_target"]["0.5"] += 4
    (low, *_), (slower, *_) = paper_table(FAR + slow, ["rounds_to_target"]).cells
    assert (low.text, low.bold, slower.text, slower.bold) == ("4", True, "8", False)


def test_a_number_that_one_seed_lacks_is_not_averaged_over_the_others() -> None:
    runs = three("low", 0.50, 0.51, 0.52)
    runs[1].summary["rounds_to_target"]["0.5"] = None
    assert paper_table(runs, ["rounds_to_target"]).cells[0][0].text == "–"


def test_both_moments_can_be_asked_for() -> None:
    """Whichever a method is judged by; there is none after training where nobody keeps what it trained."""
    runs = LEVEL + three("flat", 0.6, 0.6, 0.6)
    for run in runs:
        after = None if run.config["experiment"]["method"]["name"] == "flat" else {"accuracy": 0.9}
        run.summary.update(before_training={"accuracy": run.summary["accuracy"]}, after_training=after)
    table = paper_table(runs, ["accuracy", "before_training", "after_training"])
    assert [title for _, title in table.heads] == ["accuracy", "before training", "after training"]
    assert [[cell.text for cell in line[1:]] for line in table.cells] == [
        ["71.0", "90.0"],
        ["71.3", "90.0"],
        ["60.0", "–"],
    ]


def test_tasks_stand_beside_each_other_and_what_was_not_run_is_a_dash() -> None:
    table = paper_table(FAR + LEVEL + three("one", 0.4, 0.4, 0.4, dataset="cifar10"))
    assert table.heads == [(data, name) for data in ("svhn", "cifar10") for name in ("accuracy", "worst edge")]
    assert [line[2].text for line in table.cells] == ["–", "40.0", "–"]
    rows = list(csv.DictReader(io.StringIO(table.csv())))
    (found,) = [row for row in rows if (row["method"], row["block"], row["column"]) == ("low", "svhn", "accuracy")]
    assert float(found["mean"]) == pytest.approx(0.51)
    assert found["seeds"] == "3"


def test_settings_that_differ_under_one_name_make_rows_or_are_refused() -> None:
    runs = three("ditto", 0.5, 0.5, 0.5) + three("ditto", 0.6, 0.6, 0.6, strength=0.1)
    assert paper_table(runs).rows == ["ditto [strength=1.0]", "ditto [strength=0.1]"]
    assert paper_table(runs, rows=["method.personalization.strength"]).rows == ["1.0", "0.1"]
    with pytest.raises(ConfigError, match=r"differ in method\.personalization\.strength; name one of these in --rows"):
        paper_table(runs, rows=["task"])


def test_wrong_words_are_named() -> None:
    with pytest.raises(ConfigError, match=r"--columns: unknown column 'accurcy'; did you mean 'accuracy'"):
        paper_table(FAR, ["accurcy"])
    with pytest.raises(ConfigError, match=r"--by: unknown setting 'task\.datset'; did you mean 'task\.dataset'"):
        paper_table(FAR, by=["task.datset"])


def test_the_help_names_the_columns() -> None:
    assert tuple(COLUMNS) == PAPER_COLUMNS


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no LaTeX")
@pytest.mark.parametrize("columns", [["accuracy", "worst_edge"], ["accuracy", "worst_edge", "sigma", "bytes"]])
def test_latex_takes_it_and_it_fits_the_page(columns: list[str], tmp_path: Path) -> None:
    """Three data sets fit a page's width with two columns each, one with four."""
    runs = FAR + LEVEL + three("fedbac_plus & 5 %", 0.7, 0.71, 0.73)
    if len(columns) == 2:
        runs += three("one", 0.7, 0.7, 0.71, dataset="cifar10") + three("one", 0.9, 0.9, 0.91, dataset="fashion-mnist")
    page = r"\documentclass{article}\usepackage{booktabs}\begin{document}\noindent"
    (tmp_path / "t.tex").write_text(f"{page}\n{paper_table(runs, columns).latex()}\n\\end{{document}}\n")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
