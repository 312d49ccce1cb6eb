"""The verdict on our method: who is compared with whom, on which seeds, and what the page and its figure show."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedbac.statistics import gap, holm
from fedbac_paper import confirmed, marks


def row(method: str, seed: int, accuracy: float, setting: str = "svhn", point: tuple[str, ...] = ()) -> dict[str, Any]:
    numbers = {"accuracy": accuracy, "edge_min": accuracy - 0.1}
    return {"method": method, "point": list(point), "setting": setting, "seed": seed, **numbers}


def of(method: str, accuracy: float, seeds: range = range(20, 30), **where: Any) -> list[dict[str, Any]]:
    return [row(method, seed, accuracy, **where) for seed in seeds]


def part(*differences: float, seeds: int = 10) -> confirmed.Part:
    return confirmed.Part("svhn", "accuracy", seeds, 80.0, "local", 1, gap(differences), {})


@pytest.mark.parametrize(
    ("differences", "word"),
    [
        ([0.2, 0.3, 0.25], "ahead"),
        ([-0.1, -0.12, -0.11], "level"),
        ([-0.5, -0.6, -0.55], "behind"),
        ([-3.0, 3.0, 0.1], "not clear"),
    ],
)
def test_a_part_is_judged_by_its_interval(differences: list[float], word: str) -> None:
    one = part(*differences)
    (sure,) = holm([one.gap.chance])
    assert confirmed.judged(one, sure).word == word
    assert confirmed.judged(part(*differences, seeds=9), sure).word == "too few seeds"
    if word == "ahead":
        assert confirmed.judged(one, significant=False).word == "level", "not after a correction for many"


def test_ours_is_compared_with_the_best_point_of_all_rivals_on_the_seeds_that_all_have() -> None:
    better = ("method.personalization.strength=0.3", "method.sharing={kind: towards_mean, share: 0.3}")
    runs = [
        *of(confirmed.OURS, 0.8, range(20, 30)),
        *of("ditto-edges", 0.7, range(20, 30)),
        *of("ditto-edges", 0.79, range(20, 32), point=better),
        *of(confirmed.WIDE, 0.9, range(20, 23)),
    ]
    mean, worst = confirmed.parts(runs)
    assert (mean.seeds, mean.rivals, mean.best, mean.word) == (
        10,
        2,
        "ditto-edges strength=0.3 towards_mean(0.3)",
        "ahead",
    )
    assert mean.gap.mean == pytest.approx(1.0)
    assert mean.controls == {confirmed.WIDE: pytest.approx(-10.0)}
    assert worst.measure == "edge_min"


def test_a_rival_may_be_left_out() -> None:
    runs = [*of(confirmed.OURS, 0.8), *of(confirmed.KIN, 0.81), *of("local", 0.7)]
    assert confirmed.parts(runs)[0].best == confirmed.KIN
    assert confirmed.parts(runs, but=confirmed.KIN)[0].best == "local"


@pytest.mark.parametrize(
    ("above", "missing", "verdict"),
    [
        (0.01, (), "holds: ahead in 18 of 18 comparisons"),
        (-0.02, (), "does not hold: ahead in 16 of 18 comparisons, behind in 2"),
        (0.01, ("noisy",), "is not clear: ahead in 16 of 18 comparisons, not run in 2"),
        (None, (), "is not clear: ahead in 16 of 18 comparisons, too few seeds in 2"),
    ],
)
def test_the_claim_holds_if_no_part_is_missing_or_short_of_seeds_or_worse_than_level(
    above: float | None, missing: tuple[str, ...], verdict: str
) -> None:
    runs = []
    for setting in confirmed.SETTINGS:
        if setting not in missing:
            ours = 0.7 + above if above is not None and setting == "planted" else 0.71
            seeds = range(21, 29 if above is None and setting == "planted" else 30)
            runs += of(confirmed.OURS, ours, seeds if setting == "planted" else range(20, 30), setting=setting)
            runs += of("local", 0.7, setting=setting)
    parts = sorted(confirmed.parts(runs), key=lambda part: part.setting == "planted")
    assert confirmed.claim(parts) == f"The claim {verdict}."


def write(file: Path, runs: list[dict[str, Any]]) -> None:
    file.write_text("\n".join(map(json.dumps, runs)), encoding="utf-8")


def test_nothing_is_told_before_all_planned_runs_are_done(tmp_path: Path) -> None:
    file = tmp_path / "confirmed.jsonl"
    assert confirmed.in_short(file) == "The test has not begun."
    runs = [*of(confirmed.OURS, 0.8), *of("local", 0.7, point=("method.sharing=apart",))]
    write(tmp_path / confirmed.PLANNED, runs)
    write(file, runs[:-1])
    assert "19 of 20 runs are done" in confirmed.in_short(file)
    assert confirmed.table(file).strip() == confirmed.in_short(file)
    write(file, [*runs[:-1], *of("local", 0.7, range(29, 30))])
    assert "19 of 20 runs are done" in confirmed.in_short(file), "another point"
    write(file, runs)
    assert (
        confirmed.in_short(file)
        == "The claim is not clear: ahead in 2 of 18 comparisons, not run in 16 (10 seeds each)."
    )


def test_the_page_shows_the_verdict_and_the_figure_carries_its_results(tmp_path: Path) -> None:
    file, figure = tmp_path / "confirmed.jsonl", tmp_path / "rivals.svg"
    runs = [*of(confirmed.OURS, 0.8), *of("local", 0.7), *of(confirmed.OURS, 0.8, setting="noisy")]
    for name in (file, tmp_path / confirmed.PLANNED):
        write(name, [*runs, *of("local", 0.75, setting="noisy")])
    page = confirmed.table(file)
    assert "**The claim is not clear: ahead in 4 of 18 comparisons, not run in 14 (10 seeds each).**" in page
    assert "Without `planted` and `noisy`, which we made, it is level or ahead in 2 of 14." in page
    judged = "+10.00 ± 0.00, ahead (`local`)"
    assert f"| SVHN, 0.5 | 80.00 / 70.00 | {judged} | {judged} |" in page
    assert confirmed.numbers(file)[1][:7] == ["SVHN, 0.5", "mean over edges", "10", "80.00", "local", "+10.00", "0.00"]
    confirmed.draw(file, figure)
    assert marks.current(figure, file)
    assert "Fashion" not in figure.read_text(encoding="utf-8")
    file.write_text(file.read_text(encoding="utf-8") + "\n" + json.dumps(row("local", 30, 0.5)), encoding="utf-8")
    assert not marks.current(figure, file), "other results"
