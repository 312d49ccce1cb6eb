"""Runs of a reproduction: found by their configuration, resumed, collected; the command as a person types it."""

import json
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import yaml

from fedbac.config.experiment import Experiment, Method, Task, Training
from fedbac.config.explain import changes_of, override, parse
from fedbac.core.settings import Settings
from fedbac.errors import ConfigError, RunFolderError
from fedbac.presets.tasks import TASKS
from fedbac.runs.configure import Inputs, configure
from fedbac.runs.play import finish, play
from fedbac.runs.stopping import Stop
from fedbac.runs.store import RunFolder
from fedbac_paper import settings
from fedbac_paper.artefact import Cell
from fedbac_paper.artefacts import ARTEFACTS, EVERYTHING
from fedbac_paper.artefacts.participation import FRACTIONS
from fedbac_paper.collect import collect, curve_of
from fedbac_paper.plan import (
    REVISIONS,
    Filter,
    Pass,
    experiment_of,
    identity,
    point_of,
    points,
    seconds_left,
    status,
    work,
)
from fedbac_paper.results import read_results
from tests.reproduce import invented
from tests.test_cli import Shell, fedbac  # noqa: F401 (a fixture)

SMALL = (
    "task.num_edges=5",
    "task.clients_per_edge=2",
    "task.network={kind: mlp, hidden: [4]}",
    "task.training.epochs=1",
)
QUICK = Pass(rounds=2, fraction=0.5, settings=SMALL)
TYPED = ["--rounds", "2", "--fraction-of-data", "0.5", *(word for change in SMALL for word in ("--set", change))]
HIERFAVG, IFCA = (Cell("fashion-mnist", name, name) for name in ("hierfavg", "ifca-paper"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny data set under the name of the full one."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    labels = {"y_train": np.repeat(np.arange(10), 40), "y_test": np.repeat(np.arange(10), 20)}
    images = {key.replace("y", "x"): rng.integers(0, 256, (y.size, 28, 28), np.uint8) for key, y in labels.items()}
    np.savez(folder / "fashion_mnist.npz", **labels, **images)  # type: ignore[arg-type]  # numpy's stub wants a flag
    return folder


@pytest.mark.full
def test_runs_come_seed_by_seed_and_once(tmp_path: Path) -> None:
    everything = [ARTEFACTS[name] for name in EVERYTHING]
    found = points(everything, range(2), Pass(), tmp_path, Filter())
    assert len({point.folder.path for point in found}) == len(found)
    assert [point.experiment.seed for point in found] == sorted(point.experiment.seed for point in found)
    shared = [ARTEFACTS[name] for name in ("table-2", "table-fairness", "figure-convergence", "communication")]
    assert len(points(shared, range(3), Pass(), tmp_path, Filter())) == 6 * 5 * 3
    only = points(everything, range(1), Pass(), tmp_path, Filter(datasets=("svhn",), variants=("ifca-paper",)))
    assert {point.experiment.task.dataset for point in only} == {"svhn"}
    assert {point.experiment.method.name for point in only} == {"ifca-paper"}
    with pytest.raises(ConfigError, match="--task 'cifar'"):
        Filter(tasks=("cifar",)).check(everything)


def test_what_the_paper_leaves_out_is_there() -> None:
    swept = {experiment_of(cell, 0, Pass()).method.selection.fraction for cell in ARTEFACTS["participation"].cells}
    assert swept == set(FRACTIONS) == {0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0}
    rows = {cell.variant: experiment_of(cell, 0, Pass()).method for cell in ARTEFACTS["ablation"].cells}
    chosen = {name: (row.personalization.kind, row.clustering.kind) for name, row in rows.items()}
    assert chosen["additive, frozen singletons"] == ("additive", "fixed")
    assert chosen["additive, lowest loss, K = M"] == ("additive", "lowest_loss")
    assert chosen["additive, random assignment"] == ("additive", "fixed")
    assert chosen["LinUCB, not additive"] == ("per_cluster", "linucb")
    assert rows["ifca-paper, K = M"].clustering.clusters(10) == 10
    wide = rows["ifca-paper, twice the weights"].network
    assert wide is not None
    assert rows["LinUCB, not additive, twice the weights"].network == wide
    assert rows["LinUCB, not additive, twice the weights"].clustering == rows["LinUCB, not additive"].clustering
    periods = {name: getattr(rows[name].clustering, "period", None) for name in ("paper-figures", "paper-text")}
    assert periods == {"paper-figures": 1, "paper-text": 20}


def test_the_tasks_of_our_own_have_no_calibrated_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"planted", "noisy"} <= {*EVERYTHING}
    monkeypatch.setitem(settings.CALIBRATED, "fashion-mnist", ("task.training.batch_size=77",))
    cells = (*ARTEFACTS["planted"].cells, *ARTEFACTS["noisy"].cells)
    rows = {cell.variant: experiment_of(cell, 0, Pass()) for cell in cells}
    assert {cell.dataset for cell in cells} == {"fashion-mnist-mini"}
    assert all(experiment_of(cell, 0, Pass()).task == TASKS[cell.task] for cell in cells)
    known = rows["known groups"]
    assert known.method.clustering.clusters(known.task.num_edges) == known.task.partition.edge_distributions == 4
    for kind in ("credit_thompson", "thompson", "random"):
        chosen = rows[kind].method
        assert (chosen.selection.kind, chosen.selection.fraction) == (kind, 0.3)
        assert chosen.clustering == rows["singletons"].method.clustering


def test_the_hash_is_that_of_what_differs_from_the_defaults() -> None:
    base = experiment_of(HIERFAVG, 0, Pass())
    again = parse(Experiment, base.model_dump(mode="json"))
    assert identity(again) == identity(base)
    tree = base.model_dump(mode="json")
    del tree["task"]["data_fraction"]  # as a run from before the setting was there
    assert identity(parse(Experiment, tree)) == identity(base)
    others = [
        experiment_of(HIERFAVG, 1, Pass()),
        experiment_of(HIERFAVG, 0, Pass(rounds=3)),
        experiment_of(HIERFAVG, 0, Pass(fraction=0.5)),
        experiment_of(IFCA, 0, Pass()),
        experiment_of(Cell("fashion-mnist", "x", "ifca-paper", ("method.clustering={kind: linucb}",)), 0, Pass()),
    ]
    assert len({identity(base), *map(identity, others)}) == 6


class Bend(Settings):
    """A group of settings inside a new one."""

    strength: float = 0.0


class Column(Settings):
    """A new group of settings, as a later version may add it."""

    kind: Literal["straight"] = "straight"
    bend: Bend = Bend()


class LaterTraining(Training):
    column: Column = Column()


class LaterTask(Task):
    training: LaterTraining = LaterTraining()


class LaterMethod(Method):
    column: Column = Column()


class LaterExperiment(Experiment):
    task: LaterTask
    method: LaterMethod
    column: Column = Column()


@pytest.mark.parametrize("method", ["hierfavg", "fed-bac", "fedbac-plus"])
def test_a_new_group_of_settings_at_its_default_changes_no_hash(method: str) -> None:
    """Otherwise a new column of the method would leave all results behind."""
    today = configure(method, "noisy")
    later = LaterExperiment.model_validate(today.model_dump(mode="json"))
    assert later.method.column == later.task.training.column == later.column == Column()
    assert identity(later) == identity(today)
    bent = [
        parse(LaterExperiment, override(later.model_dump(mode="json"), changes_of([f"{path}.bend.strength=0.5"])))
        for path in ("column", "method.column", "task.training.column")
    ]
    assert len({identity(today), *map(identity, bent)}) == 4


def test_a_policy_whose_rule_has_changed_makes_other_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    plus, plain = (configure(name, "fashion-mnist-mini") for name in ("fedbac-plus", "fed-bac"))
    before = identity(plus), identity(plain)
    for kind in ("merging", "once_overfitted", "credit_thompson"):
        with monkeypatch.context() as changed:
            changed.setitem(REVISIONS, kind, "another rule")
            assert identity(plus) != before[0]
            assert identity(plain) == before[1]


def test_a_run_that_was_saved_under_a_preset_s_first_name_is_found(tmp_path: Path) -> None:
    point = point_of(IFCA, 0, Pass(rounds=2), tmp_path)
    assert "_ifca_seed0_" in point.folder.path.name
    saved = point.experiment.model_dump(mode="json")
    saved["method"]["name"] = "ifca"
    assert identity(parse(Experiment, saved)) == identity(point.experiment)
    point.folder.path.mkdir()
    point.folder.write_config({"experiment": saved})
    assert status(point) == "missing", "nothing is played, and nothing is refused"
    saved["method"]["clustering"]["period"] = 3
    point.folder.write_config({"experiment": saved})
    with pytest.raises(ConfigError, match="another configuration"):
        status(point)


@pytest.mark.parametrize("name", sorted(ARTEFACTS))
def test_the_repository_s_results_are_of_the_configurations_of_today(name: str) -> None:
    """A preset or a default that changes leaves results behind that are not its own."""
    results = read_results(name, Path(__file__).parents[2] / "results")
    assert results is not None
    cells = {(cell.task, cell.variant): cell for cell in ARTEFACTS[name].cells}
    of_today = {
        place: experiment_of(cells[place], 0, Pass()) for place in {(f.task, f.variant) for f in results.findings}
    }
    for found in results.findings:
        experiment = of_today[found.task, found.variant].model_copy(update={"seed": found.seed})
        assert found.config == identity(experiment), (found.task, found.variant, found.seed)


def test_calibrated_settings_are_those_of_the_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(settings.CALIBRATED, "fashion-mnist", ("task.training.batch_size=77",))
    assert experiment_of(HIERFAVG, 0, Pass()).task.training.batch_size == 77
    assert experiment_of(Cell("cifar10", "ifca-paper", "ifca-paper"), 0, Pass()).task.training.batch_size != 77
    candidate = next(cell for cell in ARTEFACTS["calibration"].cells if cell.task == "fashion-mnist")
    assert (
        f"task.training.batch_size={experiment_of(candidate, 0, Pass()).task.training.batch_size}" in candidate.settings
    )


def test_networks_are_clipped_each_by_itself_unless_a_row_says_otherwise() -> None:
    for cell in ARTEFACTS["ablation"].cells:
        scope = experiment_of(cell, 0, Pass()).task.training.clip_scope
        assert (scope == "joint") == ("clipped as one" in cell.variant), cell


def test_quick_pass_from_the_command(fedbac: Shell, tmp_path: Path, data: Path) -> None:  # noqa: F811
    """One run was interrupted before; other data sets are missing; a second command finds everything done."""
    begun, other = (point_of(cell, 0, QUICK, tmp_path / "out") for cell in (HIERFAVG, IFCA))
    stop = Stop()
    playing = play(begun.experiment, folder=begun.folder, inputs=Inputs(data_folder=data), stop=stop)
    first = next(playing)
    stop.wanted = True
    finish(playing)
    assert (status(begun), status(other)) == ("begun", "missing")

    rows = ["--variant", "hierfavg", "--variant", "ifca-paper", "--seeds", "1"]
    words = ["table-2", *TYPED, *rows, "--data", str(data), "--device", "cpu", "--jobs", "1", "--out", "out"]
    said = fedbac("reproduce", *words, "--task", "fashion-mnist", "--minutes", "0")
    assert "2 runs are not finished; the same command resumes them" in said
    assert "1 of 2 rounds" in said
    said = fedbac("reproduce", *words, code=2)
    assert said.count("cifar10") == said.count("svhn") == 1
    assert "the data sets cifar10, svhn are not here; run `fedbac data get NAME` for each" in said
    assert "name them with --data-set" in said
    assert not list((tmp_path / "out").glob("svhn*")), "nothing was begun"
    fedbac("reproduce", *words, "--task", "fashion-mnist")
    assert (status(begun), status(other)) == ("finished", "finished")
    records = begun.folder.read_records()
    assert records[0] == first, "it went on with the interrupted run"
    assert not begun.folder.checkpoints.exists()
    page = (tmp_path / "out" / "pages" / "table-2.md").read_text()
    assert page.startswith("# Quick pass, not a reproduction (2 rounds, 50 % of the data")

    (tmp_path / "out" / "results" / "table-2.json").unlink()
    fedbac("reproduce", *words, "--task", "fashion-mnist", "--collect-only")
    assert (tmp_path / "out" / "pages" / "table-2.md").read_text() == page

    untouched = {path: path.read_bytes() for path in (tmp_path / "out").rglob("rounds.jsonl")}
    words[0] = "figure-convergence"
    said = fedbac("reproduce", *words, "--task", "fashion-mnist")
    assert "2 of 2 runs are finished, 0 to go" in said
    assert untouched == {path: path.read_bytes() for path in (tmp_path / "out").rglob("rounds.jsonl")}
    assert (tmp_path / "out" / "pages" / "figure-convergence.svg").exists()
    assert "2 of 4 runs to go" in fedbac("reproduce", *words, "--task", "fashion-mnist", "--plan", "--seeds", "2")
    later = ("--seeds", "2", "--first-seed", "1")
    said = fedbac("reproduce", *words, "--task", "fashion-mnist", "--plan", *later)
    assert "2 of 2 runs to go" in said
    assert "seed0" not in said

    for folder in tmp_path.joinpath("out").glob("fashion-mnist_*"):
        folder.rename(tmp_path / folder.name)
    fedbac("reproduce", "table-2", "--render-only", "--out", "out", "--pages", "again")
    assert (tmp_path / "again" / "table-2.md").read_text() == page, "without the run folders"
    place = RunFolder(tmp_path / begun.folder.path.name)
    again = play(begun.experiment, folder=place, inputs=Inputs(data_folder=data))
    with pytest.raises(RunFolderError, match="checkpoints were removed"):
        finish(again)
    assert place.read_records() == records


def test_bad_words_are_one_clear_message(fedbac: Shell) -> None:  # noqa: F811
    assert "did you mean 'table-2'" in fedbac("reproduce", "table2", code=2)
    assert "--variant 'ifka'" in fedbac("reproduce", "table-2", "--variant", "ifka", "--render-only", code=2)
    assert "--data-set 'mnist'" in fedbac("reproduce", "all", "--data-set", "mnist", code=2)
    assert "the last of --seeds 3 is 2" in fedbac("reproduce", "table-2", "--first-seed", "3", "--plan", code=2)
    assert "30 of 30 runs to go" in fedbac("reproduce", "table-2", "communication", "--plan", "--seeds", "1")


def finished(cell: Cell, seed: int, parent: Path, data: Path) -> None:
    point = point_of(cell, seed, QUICK, parent)
    finish(play(point.experiment, folder=point.folder, inputs=Inputs(data_folder=data)))


def test_collecting_adds_to_what_is_known_and_drops_what_has_changed(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artefact = ARTEFACTS["table-2"]
    finished(HIERFAVG, 0, tmp_path / "here", data)
    first = collect(artefact, 1, QUICK, tmp_path / "here", None)
    (found,) = first.findings
    summary = json.loads((point_of(HIERFAVG, 0, QUICK, tmp_path / "here").folder.summary_file).read_text())
    assert found.accuracy == pytest.approx(summary["accuracy"], abs=1e-5)
    assert found.bytes.everything == summary["bytes_total"]
    finished(IFCA, 0, tmp_path / "there", data)
    both = collect(artefact, 1, QUICK, tmp_path / "there", first)
    assert [(f.variant, f.seed) for f in both.findings] == [("hierfavg", 0), ("ifca-paper", 0)]
    monkeypatch.setitem(settings.CALIBRATED, "fashion-mnist", ("task.training.batch_size=77",))
    assert not collect(artefact, 1, QUICK, tmp_path / "nowhere", both).findings, "of another configuration"
    with pytest.raises(ConfigError, match="a full pass"):
        collect(artefact, 1, QUICK, tmp_path, invented.results("table-2"))


def test_curves_keep_half_time_and_the_end() -> None:
    records = [{"accuracy": 0.5, "moves": int(t in (3, 98)), "active_clusters": 4} for t in range(1, 202)]
    curve = curve_of(records)
    assert {1, 10, 20, 100, 201} <= set(curve.round)
    assert curve.moves[curve.round.index(100)] == 2
    assert curve.last_move() == 99, "the first round kept with all moves"
    assert curve_of(records[:40]).last_move() == 3, "exact where every round is kept"
    assert curve_of(records[:1]).round == (1,)
    assert curve_of(records[:2]).last_move() is None


def test_a_folder_whose_run_is_not_the_one_it_promises_is_refused(tmp_path: Path, data: Path) -> None:
    point = point_of(HIERFAVG, 0, QUICK, tmp_path)
    finished(HIERFAVG, 0, tmp_path, data)
    config = yaml.safe_load(point.folder.config_file.read_text())
    config["experiment"]["task"]["training"]["momentum"] = 0.5  # as if that had been the default
    point.folder.write_config(config)
    with pytest.raises(ConfigError, match="another configuration"):
        status(point)


def test_estimates_scale_with_the_work(tmp_path: Path) -> None:
    cells = [Cell("fashion-mnist", name, name) for name in ("hierfavg", "fed-bac")]
    one, two = (point_of(cell, 0, Pass(), tmp_path) for cell in cells)
    assert work(two.experiment) == pytest.approx(1.6 * work(one.experiment)), "two networks, 80 % of the clients"
    assert seconds_left([two], {one.folder.path: 100.0}, [one]) == pytest.approx(160)
    assert seconds_left([two], {}, []) is None
