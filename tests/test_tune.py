"""The same effort for every method: points, rungs, what is frozen, and seeds that chose nothing."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import fedbac as package
from fedbac import METHODS, ConfigError
from fedbac.config.experiment import Runtime
from fedbac.errors import RunFolderError
from fedbac.runs import tune
from fedbac.runs.configure import Inputs
from fedbac.runs.store import StoredRun
from fedbac.runs.sweep import Point, lay_out, run_all
from tests.support import without
from tests.test_cli import SMALL, Shell
from tests.test_cli import fedbac as fedbac  # a fixture
from tests.unit.tiny import tiny_data, tiny_run, tiny_task

INPUTS, ALONE = Inputs(dataset=tiny_data()), Runtime(workers=1, device="cpu")
RATE = "method.learning_rate"
TINY: dict[str, Any] = {"task": tiny_task(), "dataset": tiny_data(), "device": "cpu", "workers": 1}


def planned(out: Path, *names: str, **asked: Any) -> tune.Plan:
    usual: dict[str, Any] = {"budget": 4, "seeds": (0,), "confirm": (1, 2), "rounds": 3}
    return tune.plan(names or ("hierfavg", "ditto"), tiny_task(), out, inputs=INPUTS, **usual | asked)


class KilledError(Exception):
    """In place of a signal that nobody can catch."""


def played(plan: tune.Plan, most: int = 10_000, told: Callable[[str], None] = lambda line: None) -> Sequence[StoredRun]:
    """Tune in this process, which dies after so many rounds."""
    left = most

    def play(points: Sequence[Point], folder: Path, until: int | None) -> Sequence[StoredRun]:
        nonlocal left
        lay_out(points, ALONE, parent=folder)
        folders = [point.folder for point in points]
        before = None
        for done in run_all(folders, ALONE, 1, INPUTS, until=until):
            left -= 0 if before is None else sum(done.values()) - before
            before = sum(done.values())
            if left <= 0:
                raise KilledError
        return [folder.read() for folder in folders]

    return tune.tune(plan, play, told)


def files(folder: Path) -> dict[str, Any]:
    """What a tuning left: its notes, what is frozen, and the numbers of all its runs."""
    texts: dict[str, Any] = {path.name: path.read_text() for path in [*folder.glob("*.json"), *folder.glob("*.yaml")]}
    runs = [package.load(path.parent) for path in sorted(folder.glob("*/*/config.yaml"))]
    return texts | {str(run.folder.relative_to(folder)): without(run.records) for run in runs if run.folder}


def test_rungs_thin_out_and_the_last_has_a_choice() -> None:
    assert tune.rungs(20, 27) == [(3, 20), (9, 7), (27, 3)]
    assert tune.rungs(4, 10) == [(4, 4), (10, 2)]
    assert tune.rungs(3, 10) == [(10, 3)]
    assert tune.rungs(1, 10) == []
    for budget in range(2, 60):
        found = tune.rungs(budget, 200)
        assert (found[0][1], found[-1][0]) == (budget, 200)
        assert found[-1][1] >= 2
        assert found == sorted(found, key=lambda rung: (rung[0], -rung[1]))


def test_every_method_has_as_many_points_and_the_preset_is_the_first(tmp_path: Path) -> None:
    names = ("hierfavg", "fedper-edges", "feddyn")  # of which one has few layers, and one has one number in two places
    plan = planned(tmp_path, *names, budget=9)
    assert {name: len(points) for name, points in plan.candidates.items()} == dict.fromkeys(names, 9)
    for name, points in plan.candidates.items():
        assert points[0].experiment == package.configure(name, tiny_task(), rounds=3, inputs=INPUTS)
        assert all(one.experiment != other.experiment for one in points for other in points if one is not other)
    layers = {point.settings.get("method.personalization.head_layers", 1) for point in plan.candidates["fedper-edges"]}
    assert layers == {1}, "the network has two, and one must be left for the body"
    alphas = [[point.settings[f"method.{column}.alpha"] for point in plan.candidates["feddyn"][1:]]
              for column in ("step", "personalization")]  # fmt: skip
    assert alphas[0] == alphas[1], "else it is refused"
    rates = {name: [point.settings[RATE] for point in points[1:]] for name, points in plan.candidates.items()}
    assert rates["hierfavg"] == rates["feddyn"], "all methods are tried at the same learning rates"
    assert max(rates["hierfavg"]) / min(rates["hierfavg"]) > 5
    fewer = planned(tmp_path, *names, budget=5)
    assert all(points[:5] == fewer.candidates[name] for name, points in plan.candidates.items())
    other = planned(tmp_path, *names, budget=5, seeds=(3,))
    assert other.candidates["hierfavg"][1].settings != fewer.candidates["hierfavg"][1].settings


@pytest.mark.full
@pytest.mark.parametrize("name", METHODS)
def test_every_preset_can_be_tuned_and_spends_no_more_work(name: str, tmp_path: Path) -> None:
    plan = tune.plan([name], "demo", tmp_path, budget=5)
    preset, *others = next(iter(plan.candidates.values()))
    for point in others:
        assert RATE in point.settings
        assert point.experiment.method.topology == preset.experiment.method.topology
        own = [experiment.method.selection for experiment in (point.experiment, preset.experiment)]
        assert own[0].fraction == own[1].fraction
        changed = {path.rpartition(".")[2] for path in point.settings}
        assert not changed & tune.WORK
        assert len(changed) <= 1 + tune.AT_ONCE


def test_the_best_is_frozen_runs_and_is_compared_on_other_seeds(tmp_path: Path) -> None:
    """The preset and one value of a grid learn nothing; the other does."""
    asked: dict[str, Any] = {**TINY, "seed": [0, 3], "confirm": [1, 2], "over": {RATE: [1e-7, 0.2]}, "budget": 3}
    asked["task"] = tiny_task(training=tiny_task().training.model_copy(update={"learning_rate": 1e-8}))
    runs = package.tune(["hierfavg", "ditto"], **asked, out=tmp_path)
    notes = json.loads((tmp_path / "tuning.json").read_text())
    for name in ("hierfavg", "ditto"):
        best = notes["points"][name][notes["frozen"][name]]
        assert best["settings"] == {RATE: 0.2}
        assert [point["dropped_after"] for point in notes["points"][name] if point is not best] == [2, 2]
        again = package.run(tmp_path / f"{name}.yaml", dataset=tiny_data(), device="cpu", workers=1)
        folder = f"{name}_point={notes['frozen'][name]}_seed"
        both = [package.load(tmp_path / "tuning" / f"{folder}{seed}") for seed in (0, 3)]
        assert without(again.records) == without(both[0].records)
        assert best["accuracy"]["2"] == pytest.approx(sum(run.summary["accuracy"] for run in both) / 2)
    seeds = {part: {path.name.rpartition("_seed")[2] for path in (tmp_path / part).glob("*_seed*")}
             for part in ("tuning", "confirmed")}  # fmt: skip
    assert seeds == {"tuning": {"0", "3"}, "confirmed": {"1", "2"}}
    assert [run.name for run in runs] == [f"{name} (seed {seed})" for name in ("hierfavg", "ditto") for seed in (1, 2)]
    assert {run.config["experiment"]["method"]["learning_rate"] for run in runs} == {0.2}
    assert "different tasks" not in runs._repr_html_()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"}
    package.tune(["hierfavg", "ditto"], **asked, out=tmp_path)
    assert {path: path.read_bytes() for path in before} == before, "nothing is run or decided again"
    with pytest.raises(ConfigError, match=r"another tuning is in this folder \(confirm: \[1, 2\] is now \[1, 4\]\)"):
        package.tune(["hierfavg", "ditto"], **asked | {"confirm": [1, 4]}, out=tmp_path)
    with pytest.raises(ConfigError, match=r"presets\.ditto\.task\.rounds: 2 is now 3"):
        package.tune(["hierfavg", "ditto"], **asked, rounds=3, out=tmp_path)
    with pytest.raises(ConfigError, match=r"methods: \['hierfavg', 'ditto'\] is now"):
        package.tune("hierfavg", **asked, out=tmp_path)
    frozen = tmp_path / "ditto.yaml"
    frozen.write_text(frozen.read_text().replace("learning_rate: 0.2", "learning_rate: 0.3"))
    with pytest.raises(RunFolderError, match="changed after it was frozen"):
        package.tune(["hierfavg", "ditto"], **asked, out=tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("most", range(1, 25))
def test_a_tuning_that_is_killed_goes_on_as_if_it_had_not_been(
    most: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """8 points to round 1, 4 to round 3, then 4 confirming runs of 3 rounds: within each of them, and between."""
    whole = whole_tuning(tmp_path_factory)
    with pytest.raises(KilledError):
        played(planned(tmp_path), most)
    assert files(tmp_path) != whole
    played(planned(tmp_path))
    assert files(tmp_path) == whole


_WHOLE: list[dict[str, Any]] = []


def whole_tuning(factory: pytest.TempPathFactory) -> dict[str, Any]:
    if not _WHOLE:
        folder = factory.mktemp("whole")
        told: list[str] = []
        played(planned(folder), told=told.append)
        assert [line.partition(":")[0] for line in told] == ["Tuning", "Tuning", "Frozen", "Frozen", "Confirming"]
        _WHOLE.append(files(folder))
    return _WHOLE[0]


def test_nothing_is_confirmed_before_all_is_frozen_and_records_bind(tmp_path: Path) -> None:
    plan = planned(tmp_path, "hierfavg", budget=2, rounds=1)
    with pytest.raises(KilledError):
        played(plan, 2)
    assert json.loads((tmp_path / "tuning.json").read_text())["frozen"] is None
    assert not list(tmp_path.glob("*.yaml"))
    with pytest.raises(KilledError):
        played(plan, 1)  # the first confirming round
    assert (tmp_path / "hierfavg.yaml").exists()
    notes = json.loads((tmp_path / "tuning.json").read_text())
    notes["frozen"]["hierfavg"] = 1 - notes["frozen"]["hierfavg"]
    (tmp_path / "tuning.json").write_text(json.dumps(notes))
    with pytest.raises(RunFolderError, match="may not change"):
        played(plan)


def test_what_makes_no_fair_tuning_is_refused(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"confirm": (1, 0)}, "confirm: seed 0 is a tuning seed too"),
        ({"confirm": ()}, "confirm: it is empty"),
        ({"seeds": (0, 0)}, "seed: 0 is given twice"),
        ({"budget": 0}, "budget: 0 is no number"),
        ({"budget": 9_000}, "more than 10,000 runs"),
        ({"over": [[("task.training.epochs", 1)]]}, r"over: 'task\.training\.epochs' is the same for all methods"),
        ({"over": [[("method.sharing.nonsense", 1)]]}, "is a setting of none of these methods"),
        ({"over": [[(RATE, 0.1), (RATE, 0.2)]]}, "there are 3 points of hierfavg, .* budget 3"),
        ({"over": [[(RATE, -1.0)]]}, r"method\.learning_rate: -1"),
    ]
    for asked, message in wrong:
        with pytest.raises(ConfigError, match=message):
            planned(tmp_path, **asked)
    with pytest.raises(ConfigError, match="'hierfavg' is there twice"):
        tune.plan(["hierfavg", METHODS["hierfavg"](tiny_task())], tiny_task(), tmp_path, inputs=INPUTS)
    assert not list(tmp_path.iterdir())


def test_a_grid_is_for_those_who_have_its_settings(tmp_path: Path) -> None:
    over = [[("method.personalization.strength", value) for value in (0.1, 0.5, 2.0, 5.0)]]
    plan = planned(tmp_path, over=over)
    drawn = [point.settings for point in plan.candidates["ditto"][1:]]
    assert all(list(settings) == ["method.personalization.strength"] for settings in drawn)
    assert len({str(settings) for settings in drawn}) == 3
    assert all(list(point.settings) == [RATE] for point in plan.candidates["hierfavg"][1:])


def test_a_learning_rate_of_the_method_is_one_of_the_task() -> None:
    own, common = tiny_run("hierfavg", f"{RATE}=0.2"), tiny_run("hierfavg", "task.training.learning_rate=0.2")
    assert without(own.records) == without(common.records)
    assert without(own.records) != without(tiny_run("hierfavg").records)


@pytest.mark.full
def test_the_command_tunes_and_says_that_all_had_the_same(fedbac: Shell, tmp_path: Path) -> None:
    few = ["tune", "hierfavg", "fedper-edges", "--rounds", "1", "--jobs", "1", "--out", "t", *SMALL[2:]]
    assert "confirm: seed 2 is a tuning seed too" in fedbac(*few, "--seed", "2", "--confirm", "2", code=2)
    said = fedbac(*few, "--budget", "2", "--seed", "1", "--confirm", "2", "--over", f"{RATE}=0.02")
    assert "Each method had the same budget: 2 points, 2 rounds of tuning on seed 1. Compared on seed 2, which" in said
    assert (tmp_path / "t" / "confirmed" / "report.html").exists()


@pytest.mark.full
def test_points_side_by_side_choose_the_same(fedbac: Shell, tmp_path: Path) -> None:
    few = ["tune", "hierfavg", "ditto", "--rounds", "3", "--budget", "4", "--confirm", "1", *SMALL[2:]]
    fedbac(*few, "--jobs", "1", "--out", "a")
    fedbac(*few, "--jobs", "2", "--out", "b")
    assert files(tmp_path / "a") == files(tmp_path / "b")
