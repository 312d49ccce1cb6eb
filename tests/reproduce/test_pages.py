"""Pages from result files: complete, the same every time, and honest about what they are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedbac.errors import ConfigError
from fedbac.reproduce import pages
from fedbac.reproduce import results as store
from fedbac.reproduce.artefacts import ARTEFACTS, SIX
from fedbac.reproduce.claims import claims
from fedbac.reproduce.names import task_name
from fedbac.reproduce.paper import printed, rounds_to
from fedbac.reproduce.results import Results
from tests.reproduce import planted

DRAWN = {"figure-convergence", "figure-dynamics", "communication", "participation"}


@pytest.mark.parametrize("name", list(ARTEFACTS))
def test_every_row_is_on_the_page(name: str, tmp_path: Path) -> None:
    store.write(planted.results(name), tmp_path)
    (path,) = pages.write([name], tmp_path, tmp_path / "pages")
    text = path.read_text()
    artefact = ARTEFACTS[name]
    assert text.startswith(f"# {artefact.title}\n")
    for task in artefact.tasks:
        assert task_name(task, full=name != "calibration") in text
    if name != "participation":  # its rows are named by their p alone
        for variant in artefact.variants:
            assert f"| {variant}" in text
    assert f"{3 * len(artefact.cells)} runs, seeds 0, 1, 2" in text
    assert "a machine" in text
    assert ("rebuilt from Format 1" in text) == any(task.startswith("svhn") for task in artefact.tasks)
    assert (tmp_path / "pages" / f"{name}.svg").exists() == (name in DRAWN)
    assert ("## Verdicts" in text) == (name != "calibration")
    assert "nan" not in text


def test_rendering_again_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("figure-dynamics", "table-2"):
        store.write(planted.results(name), tmp_path)
    before = {}
    for folder in ("a", "b"):
        pages.write(["figure-dynamics", "table-2"], tmp_path, tmp_path / folder)
        before[folder] = {path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()}
    assert before["a"] == before["b"]
    assert len(before["a"]) == 3


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    for name in ("table-2", "figure-convergence"):
        whole = planted.results(name)
        store.write(whole, tmp_path)
        assert store.read(name, tmp_path) == whole
    assert store.read("capacity", tmp_path) is None
    (tmp_path / "capacity.json").write_text('{"artefact": "capacity", "findings": [{}]}')
    with pytest.raises(ConfigError, match=r"capacity\.json"):
        store.read("capacity", tmp_path)


def test_the_numbers_are_means_over_seeds() -> None:
    text = pages.page(planted.results("table-2"))
    # hierfavg at 60, 62 and 64 %: mean 62, deviation 2, last rounds 0.1, paper 57.53
    assert "| hierfavg | 57.53 ± 0.13 | 62.00 | 2.00 | 0.10 | +4.47 | 3 |" in text
    assert "`task.training.batch_size=64`" in text


def test_a_quick_pass_says_so_in_its_title() -> None:
    quick = planted.results("table-2").model_copy(update={"changes": ("5 rounds", "10 % of the data")})
    first = pages.page(quick).splitlines()[0]
    assert first == "# Quick pass, not a reproduction (5 rounds, 10 % of the data): Distributed accuracy"


def test_nothing_run_yet_is_a_page_too() -> None:
    for name in ARTEFACTS:
        assert "No run is finished yet." in pages.page(Results(artefact=name))


def test_the_index_and_the_short_table(tmp_path: Path) -> None:
    store.write(planted.results("table-2"), tmp_path)
    text = pages.index(tmp_path, "reproduce")
    assert "[`table-2`](reproduce/table-2.md)" in text
    assert "90 runs, 30 of 30 rows" in text
    assert pages.tally(claims(planted.results("table-2"))) in text
    assert text.count("not run yet") == len(ARTEFACTS) - 1
    short = pages.main_table(planted.results("table-2"))
    assert "| hierfavg | 62.0 (57.5) |" in short
    assert "seeds" not in short
    few = pages.main_table(planted.results("table-2", seeds=2))
    assert "† (57.5) |" in few
    assert few.endswith("fewer than 3 seeds so far")


def test_the_command_does_not_load_matplotlib_before_it_draws() -> None:
    code = "import sys, fedbac.cli; print('matplotlib' in sys.modules)"
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
    ours = printed()
    for task in SIX:
        key = task.replace("-severe", "/0.1") if task.endswith("-severe") else f"{task}/0.5"
        for method in ("hierfavg", "ifca", "fed-bac"):
            assert ours["accuracy"][task][method] == reference["table_2_main"][method][key]["mean"]
            assert ours["accuracy_pm"][task][method] == reference["table_2_main"][method][key]["pm"]
            fairness = reference["table_fairness"][method][key]
            assert ours["fairness"][task][method] == {k: fairness[k] for k in ("min", "max", "sigma")}
            assert ours["curves"][task][method] == reference["figure_convergence_smoothed"][key][method]
        if key in reference["figures_cluster_dynamics"]:
            for method in ("ifca", "fed-bac"):
                curves = reference["figures_cluster_dynamics"][key]
                assert ours["dynamics"][task][method]["moves"] == curves[f"{method}/reassignments"]
                assert ours["dynamics"][task][method]["active_clusters"] == curves[f"{method}/active_clusters"]
    scaling = reference["table_scaling_cifar10_M20_N500"]
    for method in ("hierfavg", "ifca", "fed-bac"):
        assert ours["accuracy"]["cifar10-500"][method] == scaling[method]["mean"]
        assert ours["round_20"]["cifar10-500"][method] == scaling["round_20"][method]
    assert ours["selection"] == reference["table_selection_alpha0.5_p0.8"]
    assert ours["accuracy"]["cifar10"]["hierfavg-wide"] == reference["capacity_cifar10_alpha0.5"]["hierfavg-2x"]
