"""Tuning: every method has as many points, seeds are kept apart, and ours is judged by the rule of the protocol."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import tuning

from fedbac import configure
from fedbac.data import load
from fedbac.models import builder, weights
from fedbac_paper import confirmed


def line(method: str, point: tuple[str, ...], setting: str, seed: int, accuracy: float) -> str:
    row = {"method": method, "point": point, "setting": setting, "seed": seed}
    return json.dumps(row | {"accuracy": accuracy, "edge_min": accuracy - 0.1})


def test_grids_have_the_same_size_and_their_points_differ() -> None:
    assert confirmed.OURS not in tuning.GRIDS
    few = {"hierfavg": 3, "local": 0}
    for method, grid in tuning.GRIDS.items():
        assert len(grid) == few.get(method, 5), method
        task, common = tuning.SETTINGS["planted"]
        found = [configure(method, task, settings=[*common, *point]) for point in [(), *grid]]
        assert len({one.model_dump_json() for one in found}) == len(found), method


@pytest.mark.parametrize(
    ("what", "seed"), [("run", 12), ("run", 30), ("confirm", 0), ("confirm", 29), ("confirm", 100)]
)
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
    found = rows(confirmed.OURS, {(): 0.9}, *tuning.SETTINGS)
    for method, grid in tuning.GRIDS.items():
        preset = changed.get(method.replace("-", "_"), 0.5)
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


def going_on(found: list[dict[str, Any]], setting: str, part: str = "images") -> set[tuple[str, tuple[str, ...]]]:
    """Return who is confirmed in a setting beside ours and simple answers at their presets, and at which points; each
    also with twice the weights."""
    going = tuning.going_on(found, part)[setting]
    assert going[confirmed.OURS] == [()]
    wider = tuning.TWICE.get(setting, tuning.WIDER)
    points = {(method, tuple(point)) for method, some in going.items() for point in some if method != confirmed.OURS}
    plain = {(method, point) for method, point in points if wider not in point}
    assert {(method, (*point, wider)) for method, point in plain} == points - plain
    simple = {(method, ()) for method in confirmed.SIMPLE}
    assert {method for method, _ in simple} <= {method for method, _ in plain}
    return plain - simple


def test_the_best_rivals_of_a_setting_by_either_measure_are_confirmed() -> None:
    """The three most accurate, and one more for its worst edge."""
    found = complete(fedper_edges=0.9, fedrod_edges=0.89, ditto_edges=0.885, fedala_edges=0.8)
    for one in found:
        if (one["method"], one["setting"]) == ("phe-fl", "svhn"):
            one["edge_min"] = 0.85
    three = {("fedper-edges", ()), ("fedrod-edges", ()), ("ditto-edges", ())}
    assert going_on(found, "svhn") == three | {("phe-fl", ())}
    assert going_on(found, "noisy") == three


def test_where_all_rivals_are_far_behind_ours_only_the_first_is_confirmed() -> None:
    found = complete(fedper_edges=0.87, fedrod_edges=0.86)
    assert going_on(found, "svhn") == {("fedper-edges", ())}


def test_natural_settings_are_confirmed_by_presets_with_networks_of_their_own_kind() -> None:
    found = complete(fedper_edges=0.9)
    assert tuning.missing([row for row in found if row["setting"] in confirmed.NATURAL], "natural") == []
    assert ("fedper-edges", ()) in going_on(found, "udhr", "natural")


@pytest.mark.parametrize("setting", [*confirmed.NATURAL, "planted"])
def test_a_rival_of_twice_the_weights_has_about_twice_the_weights(setting: str) -> None:
    name, common = tuning.SETTINGS[setting]
    settings = ((*common, *more) for more in ((), (tuning.TWICE.get(setting, tuning.WIDER),)))
    tasks = [configure("hierfavg", name, settings=list(one)).task for one in settings]
    data = load(tasks[0].dataset)
    shape = data.x_train.shape[1:]
    plain, wide = (
        sum(value.numel() for value in weights(builder(task.network, None, shape, data.num_classes, 0)(0)).values())
        for task in tasks
    )
    assert 1.8 < wide / plain < 2.2


def test_a_rival_is_confirmed_at_its_best_points_of_the_setting() -> None:
    """Two points are best by one measure each on SVHN at 0.1."""
    first, second = tuning.GRIDS["ditto-edges"][:2]
    found = complete(ditto_edges=0.6)
    for one in found:
        if one["method"] == "ditto-edges" and tuple(one["point"]) == first:
            one["accuracy"] = 0.8
        if (one["method"], one["setting"], tuple(one["point"])) == ("ditto-edges", "svhn-severe", second):
            one["edge_min"] = 0.75
    assert going_on(found, "svhn-severe") == {("ditto-edges", first), ("ditto-edges", second)}
    assert going_on(found, "noisy") == {("ditto-edges", ())}
    absent = tuning.missing(found, "images")
    assert {job.setting for job in absent} == set(tuning.PARTS["images"]) - set(tuning.GRIDS_ON)
    assert {(job.method, job.point) for job in absent} == {("ditto-edges", first)}
    found += rows("ditto-edges", {first: 0.7}, *{job.setting for job in absent})
    assert not tuning.missing(found, "images")
    assert going_on(found, "noisy") == {("ditto-edges", first)}


def test_runs_of_methods_that_were_mended_later_do_not_count(tmp_path: Path) -> None:
    first, later = tmp_path / tuning.FIRST, tmp_path / "again.jsonl"
    first.write_text("\n".join(line(m, (), "svhn", 0, 0.5) for m in ("apfl-edges", "local")), encoding="utf-8")
    later.write_text(line("apfl-edges", (), "svhn", 0, 0.6), encoding="utf-8")
    assert [(row["method"], row["accuracy"]) for row in tuning.tuned([first, later])] == [
        ("local", 0.5), ("apfl-edges", 0.6),
    ]  # fmt: skip


def test_nothing_is_confirmed_before_all_that_chooses_has_been_run(tmp_path: Path) -> None:
    tuned = tmp_path / "tuned.jsonl"
    found = complete()
    images = [row for row in found if row["setting"] in tuning.PARTS["images"]]
    tuned.write_text("\n".join(map(json.dumps, images[:-1])), encoding="utf-8")
    with pytest.raises(SystemExit, match=r"1 runs are missing, such as local in .*; first: "):
        tuning.main(["confirm", str(tmp_path / "x.jsonl"), "--tuned", str(tuned)])
    assert not tuning.missing(images, "images")


def test_the_plan_is_written_before_the_first_run_and_holds(tmp_path: Path) -> None:
    tuned, file = tmp_path / "tuned.jsonl", tmp_path / "confirmed.jsonl"
    asked = ["plan", str(file), "--tuned", str(tuned)]
    tuned.write_text("\n".join(map(json.dumps, complete(phe_fl=0.6))), encoding="utf-8")
    tuning.main(asked)
    planned = list(tuning.lines(tmp_path / confirmed.PLANNED))
    assert tuning.Job("phe-fl", (tuning.WIDER,), "noisy", 39) in planned
    assert sum(job.method == confirmed.OURS for job in planned) == 10 * len(tuning.PARTS["images"])
    assert planned[0].setting == planned[len(planned) // 10].setting == "planted", "setting by setting"
    tuning.main([*asked, "--settings", "svhn"])
    tuned.write_text("\n".join(map(json.dumps, complete(fedper_edges=0.8))), encoding="utf-8")
    with pytest.raises(SystemExit, match="asks for other runs"):
        tuning.main(asked)


def test_the_verdict_takes_rivals_at_both_moments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After local training fine-tuning is above ours, in one setting by more than the margin."""
    file = tmp_path / "confirmed.jsonl"
    runs = []
    for setting in tuning.PARTS["images"]:
        for method, before, after in ((confirmed.OURS, 0.8, 0.99), ("local", 0.7, 0.75), ("fedavg-ft", 0.6, 0.79)):
            up = 0.05 * (method == "fedavg-ft" and setting == "svhn")
            for seed in range(30, 40):
                moments = {
                    name: {"accuracy": value, "edge_min": value - 0.1}
                    for name, value in (("before_training", before), ("after_training", after + up))
                }
                runs.append(json.dumps(json.loads(line(method, (), setting, seed, before)) | moments))
    file.write_text("\n".join(runs), encoding="utf-8")
    tuning.main(["verdict", str(file)])
    told = capsys.readouterr().out
    assert told.count("The claim does not hold: ahead in 16 of 18 comparisons, behind in 2.") == 2, "simple ones, too"
    assert told.count("best of 4: fedavg-ft after training (10 seeds)") == 36
