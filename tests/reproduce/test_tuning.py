"""Tuning: every method has as many points, seeds are kept apart, and ours is judged by the rule of the protocol."""

import argparse
import json
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
    few = {"hierfavg": 3, "local": 0}
    for method, grid in tuning.GRIDS.items():
        assert len(grid) == few.get(method, 5), method
        task, common = tuning.SETTINGS["planted"]
        found = [configure(method, task, settings=[*common, *point]) for point in [(), *grid]]
        assert len({one.model_dump_json() for one in found}) == len(found), method


@pytest.mark.parametrize(("what", "seed"), [("run", 12), ("run", 20), ("confirm", 0), ("confirm", 100)])
def test_seeds_that_confirm_never_choose(tmp_path: Path, what: str, seed: int) -> None:
    with pytest.raises(SystemExit, match="see the protocol"):
        tuning.main([what, str(tmp_path / "x.jsonl"), "--seeds", str(seed)])
    assert not (tmp_path / "x.jsonl").exists()


def rows(method: str, accuracy: dict[tuple[str, ...], float], *settings: str) -> list[dict[str, Any]]:
    return [
        json.loads(line(method, point, setting, 0, value)) for point, value in accuracy.items() for setting in settings
    ]


def complete(**changed: float) -> list[dict[str, Any]]:
    """Return all runs that are needed to confirm, all alike but for the presets that are named; ours is 0.9."""
    found = []
    for method, grid in tuning.GRIDS.items():
        preset = 0.9 if method == confirmed.OURS else changed.get(method.replace("-", "_"), 0.5)
        found += rows(method, {(): preset}, *tuning.SETTINGS)
        found += rows(method, dict.fromkeys(grid, 0.4), *tuning.GRIDS_ON)
    return found


def test_the_best_point_is_chosen_on_the_settings_with_grids() -> None:
    """The preset has one more run, on an easy setting, which must not count; nor does a point outside the grid."""
    first, second = tuning.GRIDS["ditto-edges"][:2]
    found = rows("ditto-edges", {(): 0.5, first: 0.6, ("task.rounds=1",): 0.9}, *tuning.GRIDS_ON)
    found += rows("ditto-edges", {(): 0.99}, "cifar10")
    found += rows("ditto-edges", {second: 0.9}, tuning.GRIDS_ON[0])  # not complete
    assert tuning.best_points(found) == {"ditto-edges": first}


def going_on(
    tmp_path: Path, found: list[dict[str, Any]], setting: str, seed: int = 29
) -> set[tuple[str, tuple[str, ...]]]:
    """Return who is confirmed in a setting beside ours and its kin."""
    tuned = tmp_path / "tuning.jsonl"
    tuned.write_text("\n".join(map(json.dumps, found)), encoding="utf-8")
    options = argparse.Namespace(
        what="confirm", tuned=tuned, seeds=[seed], settings=[setting], methods=[*tuning.GRIDS, *tuning.MADE]
    )
    jobs = {(job.method, job.point) for job in tuning.jobs(options, {})}
    if jobs:
        assert {(confirmed.OURS, ()), (confirmed.KIN, ())} <= jobs
    return {job for job in jobs if job[0] not in (confirmed.OURS, confirmed.KIN)}


def test_the_best_rivals_of_a_setting_by_either_measure_are_confirmed(tmp_path: Path) -> None:
    """The three most accurate, and one more for its worst edge; our earlier method takes nobody's place."""
    found = complete(fedbac_plus=0.99, fedper_edges=0.9, fedrod_edges=0.89, ditto_edges=0.87, fedala_edges=0.8)
    for one in found:
        if (one["method"], one["setting"]) == ("local", "svhn"):
            one["edge_min"] = 0.85
    three = {("fedper-edges", ()), ("fedrod-edges", ()), ("ditto-edges", ())}
    assert going_on(tmp_path, found, "svhn") == three | {("local", ())}
    assert going_on(tmp_path, found, "noisy") == three


def test_where_all_rivals_are_far_behind_ours_only_the_first_is_confirmed(tmp_path: Path) -> None:
    found = complete(fedbac_plus=0.99, fedper_edges=0.87, fedrod_edges=0.86)
    assert going_on(tmp_path, found, "svhn") == {("fedper-edges", ())}


def test_controls_run_on_three_seeds_and_a_seed_that_was_used_is_left_out(tmp_path: Path) -> None:
    found = complete(fedper_edges=0.9, fedrod_edges=0.8)
    controls = {(confirmed.WIDE, ()), (confirmed.ONE, ())}
    assert controls <= going_on(tmp_path, found, "svhn", seed=20)
    assert controls <= going_on(tmp_path, found, "planted", seed=21)
    assert not controls & going_on(tmp_path, found, "planted", seed=23)
    assert going_on(tmp_path, found, "planted", seed=20) == set()


def test_a_rival_is_confirmed_at_its_best_points_of_the_setting(tmp_path: Path) -> None:
    """Two points are best by one measure each on SVHN at 0.1."""
    first, second = tuning.GRIDS["ditto-edges"][:2]
    found = complete(ditto_edges=0.6)
    for one in found:
        if one["method"] == "ditto-edges" and tuple(one["point"]) == first:
            one["accuracy"] = 0.8
        if (one["method"], one["setting"], tuple(one["point"])) == ("ditto-edges", "svhn-severe", second):
            one["edge_min"] = 0.75
    assert going_on(tmp_path, found, "svhn-severe") == {("ditto-edges", first), ("ditto-edges", second)}
    assert going_on(tmp_path, found, "noisy") == {("ditto-edges", ())}
    absent = tuning.missing(found)
    assert {job.setting for job in absent} == set(tuning.SETTINGS) - set(tuning.GRIDS_ON)
    assert {(job.method, job.point) for job in absent} == {("ditto-edges", first)}
    found += rows("ditto-edges", {first: 0.7}, *{job.setting for job in absent})
    assert not tuning.missing(found)
    assert going_on(tmp_path, found, "noisy") == {("ditto-edges", first)}


def test_nothing_is_confirmed_before_all_that_chooses_has_been_run(tmp_path: Path) -> None:
    tuned = tmp_path / "tuning.jsonl"
    found = complete()
    tuned.write_text("\n".join(map(json.dumps, found[:-1])), encoding="utf-8")
    with pytest.raises(SystemExit, match="lacks 1 runs, such as local in per-class; first: "):
        tuning.main(["confirm", str(tmp_path / "x.jsonl"), "--tuned", str(tuned)])
    assert not tuning.missing(found)


def test_the_plan_is_written_before_the_first_run_and_holds(tmp_path: Path) -> None:
    tuned, file = tmp_path / "tuning.jsonl", tmp_path / "confirmed.jsonl"
    found = complete(local=0.6)
    tuned.write_text("\n".join(map(json.dumps, found)), encoding="utf-8")
    options = argparse.Namespace(
        what="confirm", file=file, tuned=tuned, seeds=[20], settings=["noisy"], methods=["local"]
    )
    tuning.keep_plan(options)
    planned = tuning.lines(tmp_path / confirmed.PLANNED)
    assert tuning.Job("local", (), "noisy", 29) in planned
    assert sum(job.method == confirmed.OURS for job in planned) == 10 * len(tuning.SETTINGS) - 1, "one seed of planted"
    tuning.keep_plan(options)
    found = complete(local=0.5, fedper_edges=0.8)
    tuned.write_text("\n".join(map(json.dumps, found)), encoding="utf-8")
    with pytest.raises(SystemExit, match="asks for other runs"):
        tuning.keep_plan(options)


def test_the_verdict_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "confirmed.jsonl"
    accuracy = {confirmed.OURS: 0.8, "local": 0.7, confirmed.WIDE: 0.9}
    runs = [
        line(method, (), setting, seed, value)
        for method, value in accuracy.items()
        for setting in tuning.SETTINGS
        for seed in range(20, 30)
    ]
    file.write_text("\n".join(runs), encoding="utf-8")
    tuning.verdict(argparse.Namespace(file=file))
    told = capsys.readouterr().out
    assert "The claim holds: ahead in 18 of 18 comparisons." in told
    assert told.count("best of 1: local (10 seeds); fedavg-ft-wide -10.00") == 18
