"""Tuning: every method has as many points, seeds are kept apart, and ours is judged by the rule of the protocol."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks import tuning

from fedbac import configure
from fedbac_paper import confirmed


def line(method: str, point: tuple[str, ...], setting: str, seed: int, accuracy: float) -> str:
    row = {"method": method, "point": point, "setting": setting, "seed": seed}
    return json.dumps(row | {"accuracy": accuracy, "edge_min": accuracy - 0.1})


def test_grids_have_the_same_size_and_their_points_differ() -> None:
    few = {"hierfavg": 3, "local": 0, confirmed.CONTROL: 0}
    for method, grid in tuning.GRIDS.items():
        assert len(grid) == few.get(method, 5), method
        task, common = tuning.SETTINGS["planted"]
        preset = tuning.CONTROLLED if method == confirmed.CONTROL else method
        found = [configure(preset, task, settings=[*common, *point]) for point in [(), *grid]]
        assert len({one.model_dump_json() for one in found}) == len(found), method


@pytest.mark.parametrize(("what", "seed"), [("run", 12), ("run", 20), ("confirm", 0), ("confirm", 100)])
def test_seeds_that_confirm_never_choose(tmp_path: Path, what: str, seed: int) -> None:
    command = [sys.executable, tuning.__file__, what, str(tmp_path / "x.jsonl"), "--seeds", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "see the protocol" in done.stderr
    assert not (tmp_path / "x.jsonl").exists()


def test_the_best_point_is_chosen_on_runs_that_all_points_have(tmp_path: Path) -> None:
    """The preset has one more run, on an easy setting, which must not count."""
    file = tmp_path / "tuning.jsonl"
    other = tuning.GRIDS["local"] + tuning.GRIDS["ditto-edges"][:1]
    rows = [
        line("ditto-edges", (), "cifar10", 0, 0.5),
        line("ditto-edges", (), "svhn", 0, 0.99),
        line("ditto-edges", other[0], "cifar10", 0, 0.6),
    ]
    file.write_text("\n".join(rows), encoding="utf-8")
    assert tuning.best_points(tuning.lines(file).values()) == {"ditto-edges": other[0]}


def going_on(tmp_path: Path, rows: list[dict[str, Any]], seed: int = 20) -> set[tuple[str, str, tuple[str, ...]]]:
    """Return what is confirmed of rivals and of the control in two settings."""
    tuned = tmp_path / "tuning.jsonl"
    tuned.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    options = argparse.Namespace(
        what="confirm", tuned=tuned, seeds=[seed], settings=["svhn", "noisy"], methods=list(tuning.GRIDS)
    )
    found = {(job.setting, job.method, job.point) for job in tuning.jobs(options, {})}
    assert {(setting, confirmed.OURS, ()) for setting in options.settings} <= found
    return {one for one in found if one[1] != confirmed.OURS}


def test_the_best_rivals_of_a_setting_by_either_measure_are_confirmed(tmp_path: Path) -> None:
    """Six rivals: of the three most accurate, the two that are not far behind; and one more for its worst edge."""
    accuracy = {"fedper": 0.9, "fedrod": 0.89, "ditto-edges": 0.87, "local": 0.6, "fedala": 0.5}
    rows = [json.loads(line(rival, (), "svhn", 0, value)) for rival, value in accuracy.items()]
    rows[3]["edge_min"] = 0.82
    found = going_on(tmp_path, rows, seed=29)
    assert found == {("svhn", rival, ()) for rival in ("fedper", "fedrod", "local")}
    control = {(setting, confirmed.CONTROL, ()) for setting in ("svhn", "noisy")}
    assert going_on(tmp_path, rows, seed=20) == found | control, "which runs on three seeds"


def test_a_rival_is_confirmed_at_its_best_point_of_the_setting_or_at_preset_and_best_point(tmp_path: Path) -> None:
    """Its grid was run on SVHN, where two points are best by one measure each; on noisy data only the preset was."""
    first, second, third = tuning.GRIDS["ditto-edges"][:3]
    rows = [
        json.loads(line("ditto-edges", point, "svhn", 0, value))
        for point, value in (((), 0.5), (first, 0.8), (second, 0.7), (third, 0.6))
    ]
    rows[2]["edge_min"] = 0.75
    rows.append(json.loads(line("ditto-edges", (), "noisy", 0, 0.5)))
    assert going_on(tmp_path, rows, seed=29) == {
        ("svhn", "ditto-edges", first),
        ("svhn", "ditto-edges", second),
        ("noisy", "ditto-edges", ()),
        ("noisy", "ditto-edges", first),
    }


def test_points_outside_the_grid_choose_nothing(tmp_path: Path) -> None:
    rows = [
        json.loads(line("local", ("task.rounds=1",), "svhn", 0, 0.9)),
        json.loads(line("local", (), "svhn", 0, 0.5)),
    ]
    assert going_on(tmp_path, rows, seed=29) == {("svhn", "local", ())}


def test_the_best_point_of_the_rivals_is_judged_and_the_control_is_shown_but_is_no_rival(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "confirmed.jsonl"
    better = ("task.rounds=1",)
    accuracy = {(confirmed.OURS, ()): 0.8, ("local", ()): 0.6, ("local", better): 0.7, (confirmed.CONTROL, ()): 0.9}
    rows = [
        line(method, point, setting, seed, value + 0.001 * seed)
        for (method, point), value in accuracy.items()
        for setting in tuning.SETTINGS
        for seed in (20, 21)
    ]
    file.write_text("\n".join(rows), encoding="utf-8")
    tuning.verdict(argparse.Namespace(file=file))
    told = capsys.readouterr().out
    assert "The claim holds: 18 ahead." in told
    assert told.count("best of 2: local rounds=1 (2 seeds); control -10.00") == 18
