"""The paper's Table I against the rows of choices: every cell is the paper's, or its difference is explained."""

from pathlib import Path

import pytest

from fedbac import METHODS, TASKS, LeNet5, Runtime
from fedbac.cli import lists
from fedbac.data import toy
from fedbac.engines import connect
from fedbac.federation import assemble
from fedbac.presets.notes import NOTES
from fedbac.presets.table import Cells, row
from fedbac.runs.configure import Inputs, configure
from fedbac_paper.method_pages import DEVIATIONS
from tests.support import NO_KERNEL
from tests.unit.tiny import tiny_task

PAPER = {
    "hierfavg": Cells("3-tier", "✗", "Random", "✗", "Full", "✗"),
    "abad": Cells("3-tier", "✗", "Random", "✗", "Full", "✗"),
    "trindade": Cells("3-tier", "✗", "Resource-aware", "✓", "Full", "✗"),
    "chpfl": Cells("3-tier", "K-Means++", "Random", "✗", "Full", "Cluster"),
    "phe-fl": Cells("3-tier", "✗", "Random", "✗", "Distillation", "Edge"),
    "ifca": Cells("2-tier", "Loss-based", "Random", "✗", "None", "Cluster"),
    "cfl": Cells("2-tier", "Gradient-based", "Random", "✗", "None", "Cluster"),
    "fl-hc": Cells("2-tier", "Hierarchical", "Random", "✗", "None", "Cluster"),
    "fed-cam": Cells("2-tier", "Loss-based", "Random", "✗", "Full (additive)", "Cluster"),
    "fedgwc": Cells("2-tier", "Gaussian-weighted", "Random", "✗", "None", "Cluster"),
    "power-of-choice": Cells("2-tier", "✗", "Power-of-choice", "✗", "Full", "✗"),
    "oort": Cells("2-tier", "✗", "Utility-based", "✓", "Full", "✗"),
    "cs-ucb": Cells("2-tier", "✗", "MAB", "✓", "Full", "✗"),
    "cocs": Cells("3-tier", "✗", "CC-MAB", "✓", "Full", "✗"),
    "fed-csad": Cells("3-tier", "✗", "Contextual bandit", "✓", "Distillation", "Edge"),
    "ditto": Cells("2-tier", "✗", "Random", "✗", "Regularization", "Client"),
    "fedrep": Cells("2-tier", "✗", "Random", "✗", "Shared layers", "Client"),
    "fed-bac": Cells("3-tier", "LinUCB", "Thompson Sampling", "✓", "Full (additive)", "Cluster"),
}
EXPLAINED = {
    **{name: {"architecture"} for name in ("power-of-choice", "oort", "cs-ucb", "ditto", "fedrep")},
    "chpfl": {"adaptive", "sharing"},
    "phe-fl": {"adaptive", "sharing"},
    "cfl": {"adaptive"},
    "fedgwc": {"adaptive"},
}
"""The cells that ``DEVIATIONS`` speaks of."""


@pytest.mark.parametrize("name", PAPER)
def test_a_row_is_the_papers_but_for_what_is_explained(name: str) -> None:
    ours, theirs = row(METHODS[name](TASKS["demo"]))._asdict(), PAPER[name]._asdict()
    assert {column for column in ours if ours[column] != theirs[column]} == EXPLAINED.get(name, set())


@pytest.mark.parametrize("name", [name for name in METHODS if name.endswith("-edges")])
def test_only_a_method_that_says_so_serves_edges_instead_of_clients(name: str) -> None:
    published, ours = (METHODS[one](TASKS["demo"]) for one in (name.removesuffix("-edges"), name))
    owners = [{part.scope for part in one.personalization.parts.values()} for one in (published, ours)]
    assert (published.unit, ours.unit) == ("client", "edge") or ("client" in owners[0] and "client" not in owners[1])


def test_every_method_has_its_note_and_every_deviation_is_said() -> None:
    assert set(NOTES) == set(METHODS)
    assert all(note.reference and note.summary for note in NOTES.values())
    said = " ".join(DEVIATIONS.values())
    assert all(f"`{name}`" in said for name in ("chpfl", "phe-fl", "cfl", "fedgwc"))


def test_readings_are_said_to_be_ours_in_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    lists.methods(verbose=True)
    told = capsys.readouterr().out
    assert told.count("This is our reading") == sum(note.interpretation for note in NOTES.values()) > 0


def test_what_could_not_be_found_is_marked() -> None:
    assert {"trindade", "fed-csad", "cflhkd", "chpfl"} <= {name for name, note in NOTES.items() if note.interpretation}


@NO_KERNEL
def test_all_methods_use_the_native_kernel_but_those_with_teachers_or_gradients_of_their_own() -> None:
    inputs = Inputs(toy(size=16, train=300, test=60))
    task = tiny_task(num_edges=6, clients_per_edge=3, network=LeNet5())
    through_torch = set()
    for name in METHODS:
        experiment = configure(name, task, inputs=inputs)
        federation = assemble(experiment, dataset=inputs.dataset)
        edges = connect(experiment, federation, Runtime(device="cpu", workers=1))
        if not edges.path.startswith("native"):
            through_torch.add(name)
        edges.close()
    assert through_torch == {
        "cflhkd",
        "cflhkd-edges",
        "fed-csad",
        "phe-fl-kd",
        "apfl",
        "apfl-edges",
        "pfedme",
        "pfedgraph",
        "pfedgraph-edges",
    }


def test_the_readme_counts_the_methods() -> None:
    readme = Path(__file__).resolve().parents[2] / "README.md"
    assert f"[{len(METHODS)} presets]" in readme.read_text(encoding="utf-8")
