"""Pages from result files: complete, the same every time, and honest about what they are."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedbac.errors import ConfigError
from fedbac_paper import ARTEFACT_NAMES, pages
from fedbac_paper.artefacts import ARTEFACTS
from fedbac_paper.paper import READINGS, all_numbers, rounds_to
from fedbac_paper.plan import Pass
from fedbac_paper.results import Bytes, Results, read_results, write_results
from fedbac_paper.settings import CALIBRATED
from fedbac_paper.tables import fixed, ratio
from fedbac_paper.tasks import SIX, task_name
from fedbac_paper.verdicts import Verdict
from tests.covering import first
from tests.reproduce import invented

DRAWN = {"figure-convergence", "figure-dynamics", "communication", "participation"}


@pytest.mark.parametrize("name", first(5, ARTEFACTS))
def test_every_row_is_on_the_page(name: str, tmp_path: Path) -> None:
    write_results(invented.results(name), tmp_path)
    (path,) = pages.write_pages([name], tmp_path, tmp_path / "pages")
    told = (tmp_path / "pages" / pages.HOW).read_text()
    assert "cut out of the full images (Format 1)" in told
    assert all(f"`{setting}`" in told for settings in CALIBRATED.values() for setting in settings)
    text = path.read_text()
    artefact = ARTEFACTS[name]
    assert text.startswith(f"# {artefact.title}\n")
    written = (tmp_path / "pages" / f"{name}.csv").read_text()
    for cell in artefact.cells:
        assert task_name(cell.task) in written
        assert cell.variant in written
    assert f"{3 * len(artefact.cells)} runs, seeds 0, 1, 2" in text
    assert ("Settings that the paper leaves open" in text) == (name not in {"planted", "noisy", "calibration"})
    usual = invented.results(name).model_copy(update={"settings": CALIBRATED})
    assert "Settings that the paper leaves open" not in page(usual), "said once, of all pages"
    assert "a machine" in text
    assert (tmp_path / "pages" / f"{name}.svg").exists() == (name in DRAWN)
    assert ("## Verdicts" in text) == bool(artefact.claims(invented.results(name)))
    assert "nan" not in text


def test_rendering_again_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("figure-dynamics", "table-2"):
        write_results(invented.results(name), tmp_path)
    before = {}
    for folder in ("a", "b"):
        pages.write_pages(["figure-dynamics", "table-2"], tmp_path, tmp_path / folder)
        before[folder] = {path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()}
    assert before["a"] == before["b"]
    assert len(before["a"]) == 8


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    for name in ("table-2", "figure-convergence"):
        whole = invented.results(name)
        write_results(whole, tmp_path)
        assert read_results(name, tmp_path) == whole
    assert read_results("capacity", tmp_path) is None
    (tmp_path / "capacity.json").write_text('{"artefact": "capacity", "findings": [{}]}')
    with pytest.raises(ConfigError, match=r"capacity\.json"):
        read_results("capacity", tmp_path)


def test_the_numbers_are_means_over_seeds() -> None:
    results = invented.results("table-2")
    # hierfavg at 60, 62 and 64 %: mean 62, deviation 2, last rounds 0.1, paper 57.53
    row = row_of(results, task_name("cifar10"), "hierfavg")
    assert [*row.values()][2:] == ["57.53", "0.13", "62.00", "2.00", "0.10", "+4.47", "100.0", "3"]
    assert cell_of(page(results), "Numbers", task_name("cifar10"), "hierfavg") == "62.00 (57.53)"
    assert "`task.training.batch_size=64`" in page(results)


@pytest.mark.parametrize("name", ["table-2", "beyond"])
def test_rows_over_other_seeds_are_not_to_be_compared(name: str) -> None:
    whole = invented.results(name, seeds=4)
    warning = "Rows with other seeds have other data"
    assert warning not in page(whole)
    assert warning in page(invented.without(whole, "svhn", "ifca-paper", 3))


def test_a_quick_pass_says_so_in_its_title() -> None:
    quick = invented.results("table-2").model_copy(update={"changes": ("5 rounds", "10 % of the data")})
    text = page(quick)
    assert text.startswith("# Quick pass, not a reproduction (5 rounds, 10 % of the data): Distributed accuracy\n")
    assert "## Verdicts (quick pass)" in text
    other = quick.model_copy(update={"changes": ("task.training.momentum=0.5",)})
    assert pages.heading(other).startswith("Changed settings, not a reproduction (task.training.momentum=0.5): ")
    words = Pass(rounds=1, fraction=0.1, settings=("seed=1",)).changes
    assert words == ("1 round", "10 % of the data", "minimums of the partition at 1", "seed=1")


def test_verdicts_come_first_and_the_evidence_for_every_part_is_beside_them() -> None:
    for name, artefact in ARTEFACTS.items():
        results = invented.results(name)
        written, claims = pages.files(results), artefact.claims(results)
        text, evidence = written[f"{name}.md"], written.get(f"{name}-evidence.csv", "")
        headings = [line for line in text.splitlines() if line.startswith("## ")]
        assert headings == ["## Verdicts"] * bool(claims) + ["## Numbers"]
        parts = [[*row.values()] for row in csv.DictReader(io.StringIO(evidence))]
        for claim in claims:
            ours = claim.subject in READINGS
            alike = [one for one in claims if one.sentence == claim.sentence and (one.subject in READINGS) == ours]
            told = claim.text if len(alike) == 1 else claim.sentence.format("Fed-BAC" if ours else "it")
            column = "verdict" if len(alike) == 1 else f"`{claim.subject}`"
            (shown,) = (dict(row)[column] for _, row in rows(text) if row[0][1] == told and column in dict(row))
            assert shown == pages.in_short(claim.verdict)
            for part in claim.verdict.detail.split("; "):
                assert [claim.text, claim.verdict.word, part.replace("−", "-")] in parts


def test_a_verdict_is_a_word_and_how_many_parts_hold() -> None:
    several = Verdict("not clear", "holds in 2 of 6, refuted in 1; SVHN: does not hold")
    assert pages.in_short(several) == "**not clear**, 2/6, 1 refuted"
    assert pages.in_short(Verdict("holds", "+1.00 ± 0.10 points")) == "**holds**, +1.00 ± 0.10 points"
    assert pages.in_short(Verdict("not run", "a, b")) == "**not run**"


def test_nothing_run_yet_is_a_page_too() -> None:
    for name in ARTEFACTS:
        assert "No run is finished yet." in page(Results(artefact=name))


def page(results: Results) -> str:
    """The page of some results."""
    return pages.files(results)[f"{results.artefact}.md"]


def rows(text: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """The rows of a page's tables: the section, and the cells with what stands above them."""
    found, section, header = [], "", list[str]()
    for line in text.splitlines():
        if line.startswith(("## ", "### ")):
            section = line.strip("# ")
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and header and set(cells) != {"---"}:
            found.append((section, list(zip(header, cells, strict=True))))
        header = [] if not cells else header or cells
    return found


def numbers(results: Results) -> list[dict[str, str]]:
    """All numbers of an artefact, as any program reads them."""
    return list(csv.DictReader(io.StringIO(pages.files(results)[f"{results.artefact}.csv"])))


def row_of(results: Results, *cells: str) -> dict[str, str]:
    """The one row of all numbers that has all these cells."""
    (found,) = (row for row in numbers(results) if {*cells} <= {*row.values()})
    return found


def cell_of(text: str, section: str, column: str, *words: str) -> str:
    """The cell of the one row in a section of a page that has all these cells."""
    (found,) = (dict(row) for under, row in rows(text) if section in under and {*words} <= {cell for _, cell in row})
    return found[column]


@pytest.mark.parametrize(
    ("name", "task", "variant"),
    [
        ("table-2", "svhn", "ifca-paper"),
        ("table-fairness", "svhn", "ifca-paper"),
        ("table-selection", "cifar10", "fed-bac, random clients"),
        ("figure-convergence", "svhn", "ifca-paper"),
        ("communication", "svhn", "ifca-paper"),
        ("ablation", "svhn", "ifca-paper"),
    ],
)
def test_every_row_says_how_many_seeds_it_has(name: str, task: str, variant: str) -> None:
    for row in numbers(invented.without(invented.results(name), task, variant, 1)):
        partial = row["setting"] == task_name(task) and variant in row.values()
        assert row["seeds"] == ("2" if partial else "3"), row


def test_fairness_and_selection_show_differences_and_both_spreads() -> None:
    paper = all_numbers()["fairness"]["cifar10"]["hierfavg"]["min"]
    row = row_of(invented.results("table-fairness"), task_name("cifar10"), "hierfavg")
    assert (row["worst edge, ours"], row["worst edge, std over seeds"]) == ("52.00", "2.00")
    assert row["worst edge, difference"] == f"{52 - paper:+.2f}"
    row = row_of(invented.results("table-selection"), task_name("cifar10"), "fed-bac, Thompson sampling")
    assert row["std over the last ten rounds"] == "0.10"


def test_moves_stand_beside_the_ablation() -> None:
    assert row_of(invented.results("ablation"), task_name("cifar10"), "paper-figures")["moves"] == "100.0"


def test_whole_runs_are_compared_with_hierfavg() -> None:
    whole = invented.results("communication")
    sent = Bytes(client_train=320 * 10**6, train=500 * 10**6, everything=6000 * 10**6)
    findings = [f.model_copy(update={"bytes": sent}) if f.variant == "fed-bac" else f for f in whole.findings]
    whole = whole.model_copy(update={"findings": tuple(findings)})
    row = row_of(whole, task_name("cifar10"), "fed-bac", "whole run")
    assert row["training between clients and edges"] == "320 MB"
    assert row["ratio: training between clients and edges"] == "1.60 ×/÷ 1.00"
    assert row["ratio: all training"] == "1.25 ×/÷ 1.00"
    assert row["ratio: with evaluation and control"] == "3.00 ×/÷ 1.00"
    assert row["ratio, paper"] == "1.60"
    assert cell_of(page(whole), "Numbers", "with evaluation and control", "fed-bac") == "3.00 ×/÷ 1.00"


def test_ratios_are_geometric_and_say_when_they_are_bounds() -> None:
    assert ratio([2.0, 8.0]) == "4.00 ×/÷ 2.67"
    assert ratio([2.0], ">") == "> 2.00"
    assert ratio([]) == "–"
    assert fixed(-0.125) == "-0.13"


def test_a_seed_that_never_reaches_a_target_counts_with_its_whole_run() -> None:
    whole = invented.results("communication", lambda cell, seed: 0.48 + 0.03 * seed)  # 0.5 from seed 1 on
    rounds = [found.targets["0.5"].round or found.rounds for found in whole.of("cifar10", "ifca-paper").values()]
    assert rounds[0] == 200
    setting, counted = task_name("cifar10"), "training between clients and edges"
    assert row_of(whole, setting, "50%", "ifca-paper")[counted] == f"> {sum(rounds) / 3:.0f} MB"
    assert row_of(whole, setting, "60%", "ifca-paper")[counted] == "", "never reached"
    whole = invented.results("figure-convergence", lambda cell, seed: 0.48 + 0.03 * seed)
    bound, reached = row_of(whole, setting, "50%", "ifca-paper"), row_of(whole, setting, "40%", "fed-bac")
    assert bound["ours"] == f"> {sum(rounds) / 3:.1f}"
    assert bound["difference"] == "", "of a bound there is none"
    crossed = rounds_to("cifar10", "fed-bac", 0.4)
    assert crossed is not None
    assert float(reached["difference"]) == pytest.approx(float(reached["ours"]) - crossed, abs=0.11)
    assert float(reached["std over seeds"]) > 0


def test_candidates_are_compared_on_the_seeds_they_share() -> None:
    whole = invented.results("calibration", lambda cell, seed: 0.8 if seed == 0 else 0.2 + 0.01 * len(cell.variant))
    task = "svhn"
    whole = invented.without(invented.without(whole, task, "batch 64", 1), task, "batch 64", 2)
    text = page(whole)
    _, _, section = text.partition(f"### {task_name(task, alpha=False)}\n\nOver seeds 0:\n\n")
    anchors = [all_numbers()["accuracy"][name]["hierfavg"] for name in ("svhn", "svhn-severe")]
    off = (sum((80 - anchor) ** 2 for anchor in anchors) / 2) ** 0.5
    for name in ("batch 64", "batch 128", "batch 64, crops and flips"):
        assert f"- {name}: {off:.2f}\n" in section.partition("###")[0]
    assert "Over seeds 0, 1, 2:" in text, "the other data sets share all seeds"
    for seed in range(3):
        whole = invented.without(whole, "svhn-severe", "batch 128", seed)
    text = page(whole)
    assert text.count("- batch 128: ") == 2, "of the other data sets"


def test_the_small_tasks_say_when_the_last_edge_moved() -> None:
    row = row_of(invented.results("planted"), "fedbac-plus")
    assert (row["last move in round"], row["moves"], row["GB"]) == ("20, 20, 20", "20, 20, 20", "0.40")


def test_the_command_s_help_names_what_there_is() -> None:
    """It has the names without importing what they stand for."""
    assert tuple(ARTEFACTS) == ARTEFACT_NAMES


@pytest.mark.full
def test_the_command_does_not_load_matplotlib_before_it_draws() -> None:
    code = "import sys, fedbac.cli.main, fedbac_paper.pages; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_papers_curves_cross_their_targets_where_the_paper_says() -> None:
    assert rounds_to("cifar10", "hierfavg", 0.5) == pytest.approx(72, abs=0.5)
    assert rounds_to("cifar10", "fed-bac", 0.5) == pytest.approx(15, abs=0.5)
    assert rounds_to("cifar10", "hierfavg", 0.7) is None
    assert rounds_to("cifar10-500", "hierfavg", 0.3) is None, "there is no such curve"


@pytest.mark.skipif("FEDBAC_PAPER_REFERENCE" not in os.environ, reason="FEDBAC_PAPER_REFERENCE names no file")
def test_the_papers_numbers_are_those_of_the_reference() -> None:
    reference = json.loads(Path(os.environ["FEDBAC_PAPER_REFERENCE"]).read_text())
    ours = all_numbers()
    for task in SIX:
        key = task.replace("-severe", "/0.1") if task.endswith("-severe") else f"{task}/0.5"
        for method in ("hierfavg", "ifca-paper", "fed-bac"):
            assert ours["accuracy"][task][method] == reference["table_2_main"][method][key]["mean"]
            assert ours["accuracy_pm"][task][method] == reference["table_2_main"][method][key]["pm"]
            fairness = reference["table_fairness"][method][key]
            assert ours["fairness"][task][method] == {k: fairness[k] for k in ("min", "max", "sigma")}
            assert ours["curves"][task][method] == reference["figure_convergence_smoothed"][key][method]
        if key in reference["figures_cluster_dynamics"]:
            for method in ("ifca-paper", "fed-bac"):
                curves = reference["figures_cluster_dynamics"][key]
                assert ours["dynamics"][task][method]["moves"] == curves[f"{method}/reassignments"]
                assert ours["dynamics"][task][method]["active_clusters"] == curves[f"{method}/active_clusters"]
    scaling = reference["table_scaling_cifar10_M20_N500"]
    for method in ("hierfavg", "ifca-paper", "fed-bac"):
        assert ours["accuracy"]["cifar10-500"][method] == scaling[method]["mean"]
        assert ours["round_20"]["cifar10-500"][method] == scaling["round_20"][method]
    assert ours["selection"] == reference["table_selection_alpha0.5_p0.8"]
    assert ours["accuracy"]["cifar10"]["hierfavg-wide"] == reference["capacity_cifar10_alpha0.5"]["hierfavg-2x"]
