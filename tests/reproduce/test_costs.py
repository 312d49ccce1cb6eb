"""What differences cost: by seed, as the original has it less ours."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks import originals

import fedbac
from fedbac import PERSONALIZATION
from fedbac.contracts import check_personalization
from fedbac.presets.notes import Difference
from fedbac.rounds import measure
from fedbac.runs.configure import configure
from fedbac_paper import costs


@pytest.fixture(autouse=True)
def known_kinds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(measure, "gram", measure.gram)  # which they replace
    originals.register()
    yield
    for choice, policies in originals.KINDS.items():
        for policy in policies:
            choice.kinds.pop(str(policy.model_fields["kind"].default))


@pytest.mark.parametrize("scheme", originals.KINDS[PERSONALIZATION])
def test_schemes_of_originals_keep_the_promises_of_schemes(scheme: Any) -> None:
    check_personalization(scheme())


ROOT = Path(__file__).parents[2]
KEPT, PAGES = ROOT / "results" / "methods", ROOT / "docs" / "methods"


def test_a_cost_is_the_mean_over_seeds_of_the_original_less_ours() -> None:
    difference = Difference("Half train.", ("method.selection.fraction=0.1",))
    runs = {}
    for task in costs.TASKS:
        for seed in costs.SEEDS:
            runs[costs.key("fedgwc", (), task, seed)] = 0.5
            runs[costs.key("fedgwc", difference.original, task, seed)] = 0.5 - 0.01 * seed
    assert costs.line("fedgwc", difference, {"runs": runs}) == "Half train. Cost: −1.0, −1.0, −1.0."
    del runs[costs.key("fedgwc", (), "demo", 1)]
    assert costs.line("fedgwc", difference, {"runs": runs}) == "Half train.", "three seeds or nothing"


def test_what_three_seeds_show_on_a_task_twelve_decide_on() -> None:
    difference = Difference("Half train.", ("method.selection.fraction=0.1",))
    runs: dict[str, float] = {}

    def known(seeds: Sequence[int], gains: Sequence[float]) -> bool:
        for task, gain in zip(costs.TASKS, gains, strict=True):
            for seed in seeds:
                runs[costs.key("fedgwc", (), task, seed)] = 0.5
                runs[costs.key("fedgwc", difference.original, task, seed)] = 0.5 + gain
        return "Cost: " in costs.line("fedgwc", difference, {"runs": runs})

    assert not known(costs.SEEDS, (0.03, 0.0, 0.0)), "it costs three points on one task"
    assert costs.asked({"runs": runs}, "fedgwc", difference) == tuple(range(12))
    assert known(costs.MORE, (0.009, 0.0, 0.0))
    assert costs.line("fedgwc", difference, {"runs": runs}) == "Half train. Cost: +1.4, +0.0, +0.0."
    assert not costs.dear("fedgwc", difference, {"runs": runs})
    assert known(costs.MORE, (0.02, 0.0, 0.0))
    assert costs.dear("fedgwc", difference, {"runs": runs}), "0.75 over all tasks"


@pytest.mark.parametrize("method", costs.said())
def test_every_difference_has_a_price_or_says_why_it_has_none(method: str) -> None:
    found = costs.read(KEPT)
    page = "".join(file.read_text(encoding="utf-8") for file in PAGES.glob("*.md"))
    for difference in costs.said()[method]:
        assert bool(difference.original) != bool(difference.unpriced), difference.words
        if difference.original:
            line = costs.line(method, difference, found)
            assert "Cost: " in line, f"measure it: python benchmarks/paired.py costs {method}"
            assert not costs.dear(method, difference, found), line
            configure(method, "demo", settings=costs.settings(method, difference.original))
            price = costs.price(method, difference, found)
            assert [one for one in page.splitlines() if one.startswith(f"- {difference.words} ") and price in one]
    for line in costs.lines(method, found):
        assert f"\n- {line}\n" in page, "python tools/make_docs.py"


def test_no_run_is_kept_that_no_price_needs() -> None:
    found = costs.read(KEPT)
    keys = {
        costs.key(name, settings, task, seed)
        for seed in (*costs.SEEDS, *costs.MORE)
        for name, settings, task in costs.needed(found, seed)
    }
    assert not found["runs"].keys() - keys


@pytest.mark.full
@pytest.mark.parametrize("method", costs.priced())
def test_a_price_is_no_older_than_the_code(method: str) -> None:
    """What is kept is what today's code plays; machines round otherwise."""
    found = costs.read(KEPT)["runs"][costs.key(method, (), "demo", 0)]
    run = fedbac.run(method, "demo", seed=0, settings=costs.settings(method, ()), workers=1, progress=False)
    assert run.summary["accuracy"] == pytest.approx(found, abs=0.005), f"measure {method} --again"
