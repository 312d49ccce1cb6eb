"""The page in a real browser: what it shows, and that every control does what it says."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from fedbac.data import toy
from fedbac.report import write_report
from fedbac.rounds import metrics
from fedbac.runs.configure import Inputs, configure
from fedbac.runs.play import play
from fedbac.runs.store import RunFolder, StoredRun
from tests.covering import first
from tests.made_up_runs import fake, renamed
from tests.page import drawn
from tests.page.conftest import NEEDS_BROWSER, Tab
from tests.page.growing import SMALL, served
from tests.page.rich import rich, rich_runs
from tests.test_absent_edges import with_absences
from tests.test_report_page import HOSTILE

pytestmark = NEEDS_BROWSER
FIGURES = ["accuracy", "cost", "fairness", "clusters", "traffic", "flow", "edges", "mix", "clients", "gaps"]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(rich_runs(), tmp_path_factory.mktemp("report") / "report.html").as_uri()


def place(page: Page, figure: str, mark: str, attribute: str) -> float:
    value = page.locator(f"#figure-{figure} {mark}").first.get_attribute(attribute)
    assert value is not None
    return float(value)


def test_every_figure_is_drawn_without_errors_and_without_a_network(tab: Tab, report: str) -> None:
    page = tab.open(report)
    for name in FIGURES:
        expect(page.locator(f"#figure-{name} svg")).to_be_visible()
        assert page.locator(f"#figure-{name} svg path, #figure-{name} svg rect").count() > 2, name
    assert page.locator("#figure-accuracy .bold").count() >= 3
    expect(page.locator("#figure-accuracy")).to_contain_text("hierfavg 70.2 %")
    assert tab.problems == []
    assert tab.requests == [report]


def test_the_round_moves_all_figures_together(tab: Tab, report: str) -> None:
    page = tab.open(report)
    slider = page.get_by_label("Round", exact=True)
    expect(page.locator("output")).to_have_text("12 of 12")
    line, frame = place(page, "accuracy", ".cursor", "x1"), place(page, "edges", ".frame", "x")
    expect(page.locator("#figure-gaps")).to_contain_text("compared in round 6")
    slider.focus()
    for _ in range(8):
        page.keyboard.press("ArrowLeft")
    expect(page.locator("output")).to_have_text("4 of 12")
    assert place(page, "accuracy", ".cursor", "x1") < line
    assert place(page, "edges", ".frame", "x") < frame
    expect(page.locator("#figure-traffic")).to_contain_text("21.2 MB")  # 4 rounds of 5.29 MB
    page.keyboard.press("End")
    expect(page.locator("#figure-traffic")).to_contain_text("63.5 MB")
    assert tab.problems == []


def test_methods_and_seeds_are_switched_off_and_on(tab: Tab, report: str) -> None:
    page = tab.open(report)
    names = page.locator("#figure-accuracy .name")
    expect(names).to_have_count(3)
    page.get_by_label("fed-bac", exact=True).focus()
    page.keyboard.press("Space")
    expect(names).to_have_count(2)
    expect(page.locator("#figure-traffic .name")).to_have_count(4)  # two methods, each with a number
    thin = page.locator("#figure-accuracy .thin")
    expect(thin).to_have_count(2)
    page.get_by_label("1", exact=True).uncheck()
    expect(thin).to_have_count(0)
    page.get_by_role("button", name="None").click()
    expect(names).to_have_count(0)
    page.get_by_role("button", name="All").click()
    expect(names).to_have_count(3)
    assert tab.problems == []


@pytest.mark.full
def test_values_are_shown_by_pointer_and_by_keyboard(tab: Tab, report: str) -> None:
    page = tab.open(report)
    tip = page.locator("#tip")
    expect(tip).to_be_hidden()
    page.locator("#figure-accuracy svg").hover(position={"x": 500, "y": 100})
    expect(tip).to_contain_text(re.compile(r"Round \d+"))
    expect(tip).to_contain_text(re.compile(r"hierfavg\d\d\.\d %, worst \d\d\.\d %"))
    page.mouse.move(0, 0)
    expect(tip).to_be_hidden()
    page.get_by_label("Round", exact=True).focus()
    for name in FIGURES:
        page.locator(f"#figure-{name} svg").focus()
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowDown")
        expect(tip).to_be_visible()
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    expect(page.locator("output")).to_have_text("2 of 12")
    page.locator("#figure-edges svg").focus()
    page.keyboard.press("Home")
    expect(tip).to_contain_text("Edge 1, round 1")
    assert tab.problems == []


@pytest.mark.full
def test_a_run_is_chosen_and_figures_that_it_lacks_are_not_there(tab: Tab, report: str) -> None:
    page = tab.open(report)
    page.get_by_label("Run", exact=True).select_option("hierfavg")
    for name in ("flow", "mix", "gaps"):
        expect(page.locator(f"#figure-{name}")).to_be_hidden()
    expect(page.locator("#figure-edges")).to_be_visible()
    page.get_by_label("Simulated time").check()
    expect(page.locator("#figure-cost")).to_contain_text("simulated time (minutes)")
    assert tab.problems == []


# ------------------------------------------------------------------------- what is drawn, of planted values


def planted(seed: int = 0, **values_T: Sequence[Any]) -> StoredRun:
    """Return a run whose records have these values, one of each a round."""
    rounds = len(next(iter(values_T.values())))
    run = fake("fed-bac", seed=seed, rounds=rounds, edges=len(values_T.get("accuracy_per_edge", [[0, 0]])[0]))
    records = []
    for t, record in enumerate(run.records):
        mine = {name: values[t] for name, values in values_T.items()}
        accuracy = np.array(mine.get("accuracy_per_edge", record["accuracy_per_edge"]))
        records.append({**record, **metrics.distributed(accuracy, np.ones(accuracy.size, dtype=np.int64)), **mine})
    return replace(run, records=records, summary={})


@pytest.mark.full
def test_the_shade_reaches_from_the_mean_down_to_the_worst_edge(tab: Tab, tmp_path: Path) -> None:
    seeds = [
        [[0.2, 0.5, 0.8], [0.7, 0.3, 0.5], [0.1, 0.7, 0.7], [0.4, 0.6, 0.8]],
        [[0.4, 0.5, 0.6], [0.1, 0.8, 0.9], [0.5, 0.5, 0.5], [0.9, 0.7, 0.2]],
    ]
    runs = [planted(seed, accuracy_per_edge=accuracy) for seed, accuracy in enumerate(seeds)]
    page = tab.open(write_report(runs, tmp_path / "report.html").as_uri())
    shade = page.locator("#figure-accuracy path[opacity]")
    expect(shade).to_have_count(1)
    corners, percent = drawn.points(drawn.attribute(shade, "d")), drawn.percents(page, "accuracy")
    assert [x for x, _ in corners[:4]] == pytest.approx(list(drawn.rounds(page, "accuracy").values()), abs=0.1)
    upper, lower = [percent(y) for _, y in corners[:4]], [percent(y) for _, y in corners[:3:-1]]
    accuracy_STE = 100 * np.array(seeds)
    assert upper == pytest.approx(accuracy_STE.mean(2).mean(0), abs=0.3)
    assert lower == pytest.approx(accuracy_STE.min(2).mean(0), abs=0.3)


@pytest.mark.full
def test_the_colour_of_a_cell_is_what_is_expected_of_the_client(tab: Tab, tmp_path: Path) -> None:
    belief_TN = np.array([[(7 * client + 5 * t) % 20 / 19 for client in range(20)] for t in range(4)])
    trained_TN = np.array([[(client + t) % 3 == 0 for client in range(20)] for t in range(4)])
    selected = [[np.flatnonzero(row[:10]).tolist(), (10 + np.flatnonzero(row[10:])).tolist()] for row in trained_TN]
    run = planted(beliefs=belief_TN.reshape(4, 2, 10).tolist(), selected=selected)
    page = tab.open(write_report([run], tmp_path / "report.html").as_uri())
    cells = drawn.blocks(page.locator("#figure-clients svg > g:first-child path"))
    rows, tallest = sorted({round(cell.middle, 1) for cell in cells}), max(cell.height for cell in cells)
    assert len(rows) == 20, "a row is a client"
    for number, x in drawn.rounds(page, "clients").items():
        for client, y in enumerate(rows):
            (cell,) = [c for c in cells if c.left < x < c.right and c.top < y < c.bottom]
            assert (cell.height > 0.9 * tallest) == trained_TN[number - 1, client]
            assert drawn.heat_of(cell.fill) == pytest.approx(belief_TN[number - 1, client], abs=1 / 24 + 0.02)


@pytest.mark.full
def test_flows_are_as_wide_as_the_edges_that_move(tab: Tab, tmp_path: Path) -> None:
    before, after = [0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 1, 1]
    run = planted(accuracy_per_edge=[[0.5] * 6] * 6, assignment=[before] * 3 + [after] * 3, active_clusters=[3] * 6)
    page = tab.open(write_report([run], tmp_path / "report.html").as_uri())
    expect(page.locator("#figure-flow svg")).to_be_visible()
    at = drawn.rounds(page, "flow")
    there = drawn.blocks(page.locator("#figure-flow path[opacity='1']"))
    sides = [{drawn.cluster_of(b.fill): b for b in there if b.left < at[number] < b.right} for number in (2, 5)]
    edge = sides[0][2].height
    assert [{k: round(b.height / edge, 1) for k, b in side.items()} for side in sides] == [
        {0: 3, 1: 2, 2: 1},
        {0: 2, 1: 4},
    ]
    for opacity, flows in (("0.3", {(0, 0): 2, (1, 1): 2}), ("0.75", {(0, 1): 1, (2, 1): 1})):  # who stays is paler
        found: Counter[tuple[int, int]] = Counter()
        for start, end, thick, style in drawn.ribbons(page.locator(f"#figure-flow path[opacity='{opacity}']")):
            (source,) = [k for k, block in sides[0].items() if block.holds(start, start + thick)]
            (target,) = [k for k, block in sides[1].items() if block.holds(end, end + thick)]
            assert thick == pytest.approx(edge, abs=0.2)
            assert drawn.cluster_of(style) == target
            found[source, target] += 1
        assert found == flows


# -------------------------------------------------------------------------------------- wherever it is shown


@pytest.mark.full
def test_an_edge_that_was_away_has_no_accuracy(tab: Tab, tmp_path: Path) -> None:
    page = tab.open(write_report([with_absences(fake())], tmp_path / "report.html").as_uri())
    page.locator("#figure-edges svg").focus()
    said = set()
    for key in ["ArrowUp"] * 5 + ["ArrowDown"] * 5:
        page.keyboard.press(key)
        said.add(page.locator("#tip").inner_text())
    assert len(said) == 5
    assert sum("–" in text for text in said) == 2  # in the last round edge 2, and edge 4, which never was there
    assert "NaN" not in page.locator("#figure-edges").inner_html()
    assert tab.problems == []


@pytest.mark.full
@pytest.mark.parametrize("scheme", first(1, ["light", "dark"]))
def test_it_is_readable_on_a_small_screen(tab: Tab, report: str, scheme: Literal["light", "dark"]) -> None:
    tab.page.set_viewport_size({"width": 400, "height": 800})
    tab.page.emulate_media(color_scheme=scheme)
    page = tab.open(report)
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    for name in FIGURES:  # drawn at the width there is, so that text keeps its size
        drawn = page.locator(f"#figure-{name} svg").evaluate(
            "svg => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width"
        )
        assert drawn == pytest.approx(1, abs=0.02), name
    red = int(page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]"))
    assert (red < 60) == (scheme == "dark")
    page.emulate_media(media="print", color_scheme=scheme)
    ink = page.evaluate("getComputedStyle(document.body).color")
    assert ink == "rgb(28, 36, 48)", "paper is white"


@pytest.mark.full
def test_tables_fit_a_laptop_names_stay_whole_and_lines_end_where_they_say(tab: Tab, report: str) -> None:
    tab.page.set_viewport_size({"width": 1280, "height": 900})
    page = tab.open(report)
    page.locator("#figure-accuracy svg path").first.wait_for()
    clipped = "[...document.querySelectorAll('.numbers')].filter(t => t.offsetWidth > t.parentNode.clientWidth).length"
    assert page.evaluate("document.querySelectorAll('.numbers').length") == 2
    assert page.evaluate(clipped) == 0
    assert page.evaluate("[...document.querySelectorAll('.whole')].every(s => s.getClientRects().length == 1)")
    last = page.evaluate("""() => {
      const data = JSON.parse(document.getElementById("document").textContent);
      const ends = data.runs.filter(run => run.group == 0).map(run => run.accuracy.at(-1) / data.scale);
      return (100 * ends.reduce((a, b) => a + b) / ends.length).toFixed(1);
    }""")
    assert last in page.locator("#figure-accuracy text.name").first.text_content()  # type: ignore[operator]


@pytest.mark.full
def test_without_a_script_there_is_still_text(browser: Browser, report: str) -> None:
    page = browser.new_page(java_script_enabled=False)
    page.goto(report)
    expect(page.get_by_text("The figures need JavaScript")).to_be_visible()
    expect(page.get_by_role("table", name="Final numbers of every run")).to_be_visible()
    page.close()


def test_hostile_names_stay_text(tab: Tab, tmp_path: Path) -> None:
    runs = [renamed(rich(), HOSTILE[0]), *(renamed(fake(rounds=2), name) for name in HOSTILE[1:])]
    page = tab.open(write_report(runs, tmp_path / "report.html", title=HOSTILE[0]).as_uri())
    expect(page.locator("#methods .chip").first).to_have_text(HOSTILE[0])
    page.locator("#figure-accuracy svg").hover(position={"x": 50, "y": 100})
    expect(page.locator("#tip")).to_contain_text(HOSTILE[1])
    assert page.locator("img").count() == 0
    assert tab.problems == []


@pytest.mark.full
@pytest.mark.parametrize("rounds", [1, 2])
def test_a_run_that_has_just_begun_is_shown(tab: Tab, tmp_path: Path, rounds: int) -> None:
    page = tab.open(write_report([fake("ifca-edges", rounds=rounds)], tmp_path / "report.html").as_uri())
    expect(page.locator("#figure-accuracy svg")).to_be_visible()
    expect(page.locator("output")).to_have_text(f"{rounds} of {rounds}")
    assert tab.problems == []


@pytest.mark.full
def test_a_page_follows_a_real_run_and_keeps_what_it_showed(tab: Tab, tmp_path: Path) -> None:
    inputs = Inputs(dataset=toy(size=8))
    experiment = configure("fedbac-plus", "planted", rounds=3, settings=SMALL, inputs=inputs)
    folder = RunFolder(tmp_path / "run")
    playing = play(experiment, folder=folder, inputs=inputs)
    with served(lambda: [folder] if folder.has_run() else []) as address:
        page = tab.open(address)
        expect(page.get_by_text("No round is finished yet.")).to_be_visible()
        expect(page.locator("#figures")).to_be_hidden()
        for done in (1, 2):
            next(playing)
            expect(page.locator("output")).to_have_text(f"{done} of {done}")
            expect(page.locator("#live")).to_have_text(f"Live: 1 run, 0 finished; round {done} of 3 in all")
        expect(page.locator("h1 + .lead")).to_contain_text("fedbac-plus reaches")
        page.locator("#round").press("Home")  # who looks at an earlier round stays there
        next(playing)
        expect(page.locator("output")).to_have_text("1 of 3")
        expect(page.locator("#live")).to_have_text("Live: 1 run, 1 finished; round 3 of 3 in all")
        assert tab.problems == []
        assert {re.sub(r"\?.*", "", url) for url in tab.requests} == {address, f"{address}events"}
    playing.close()
    expect(page.locator("#live")).to_contain_text("This page keeps what it showed last")
    expect(page.locator("#figure-accuracy svg")).to_be_visible()
