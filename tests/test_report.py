"""The report: its numbers come from the records, its page stands alone, and nothing in a run can break it."""

import os
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import fedbac
from fedbac.config.experiment import Experiment
from fedbac.core.links import Ledger
from fedbac.presets.methods import method
from fedbac.presets.tasks import task
from fedbac.report import best, figures, final, outcome, save_figures, table, write_report
from fedbac.report.canvas import apart
from fedbac.report.groups import groups, labels
from fedbac.report.outcome import caveats
from fedbac.report.page import inline_svg
from fedbac.report.table import human_bytes
from fedbac.rounds import metrics
from fedbac.runs.store import Run

TOP = {"fed-bac": 0.88, "ifca": 0.8, "hierfavg": 0.7}
LEAK = "leaks the test set into training"


def fake(
    name: str = "fed-bac", *, seed: int = 0, rounds: int = 12, edges: int = 5, top: float | None = None, **changes: Any
) -> Run:
    """Return a run with made-up but realistic records; ``changes`` replace fields of every record."""
    settings = task("demo").model_copy(update={"rounds": rounds, "num_edges": edges, "targets": (0.6, 0.7, 0.8, 0.85)})
    experiment = Experiment(seed=seed, task=settings, method=method(name, settings))
    rng = np.random.default_rng([seed, *name.encode()])
    num_clusters = experiment.method.clustering.clusters(edges)
    records = [_record(t, edges, num_clusters, top or TOP.get(name, 0.75), rng) | changes for t in range(1, rounds + 1)]
    config = {"experiment": experiment.model_dump(mode="json"), "runtime": {"device": "cpu"}, "trainer": "batched"}
    return Run(None, config, records, _summary(config, records))


def _record(round_: int, edges: int, num_clusters: int, top: float, rng: np.random.Generator) -> dict[str, Any]:
    accuracy_M = np.clip(top * (1 - np.exp(-round_)) + rng.normal(0, 0.02, edges), 0, 1)
    label_M = (np.arange(edges) + (round_ > 6)) % num_clusters
    ledger = Ledger()
    ledger.add("client", "down", "train", 1_000_000 * edges)
    ledger.add("cloud", "up", "train", 250_000)
    ledger.add("client", "up", "evaluate", 40_000)
    return {
        "round": round_,
        **metrics.distributed(accuracy_M, np.ones(edges, dtype=np.int64)),
        "accuracy_per_edge": accuracy_M.tolist(),
        "accuracy_global": 0.5,
        "loss": 1 / round_,
        "assignment": label_M.tolist(),
        "assignment_next": label_M.tolist(),
        "moves": edges if round_ == 6 and num_clusters > 1 else 0,
        "entered_empty": 0,
        "active_clusters": int(np.unique(label_M).size),
        "selected": [[0]] * edges,
        "failed": [],
        "bytes": ledger.nested(),
        "seconds": 0.5,
    }


def _summary(config: dict[str, Any], records: list[dict[str, Any]]) -> dict[str, Any]:
    if any(record["loss"] is None for record in records):
        return {}
    experiment = config["experiment"]
    judge = experiment["evaluation"]
    shown = metrics.summarize(records, experiment["task"]["targets"], judge["last_rounds"], judge["target_patience"])
    return {"method": experiment["method"]["name"], "seed": experiment["seed"], **shown}


def renamed(run: Run, name: str) -> Run:
    experiment = run.config["experiment"]
    return replace(
        run, config={**run.config, "experiment": {**experiment, "method": {**experiment["method"], "name": name}}}
    )


def with_task(run: Run, **changes: Any) -> Run:
    experiment = run.config["experiment"]
    return replace(run, config={**run.config, "experiment": {**experiment, "task": {**experiment["task"], **changes}}})


@pytest.fixture(scope="module")
def three() -> list[Run]:
    return [fake(name) for name in TOP]


@pytest.fixture(scope="module")
def page(three: list[Run], tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_of(three, tmp_path_factory.mktemp("page"), "A title")


def page_of(runs: list[Run], folder: Path, title: str = "Report") -> str:
    return write_report(runs, folder / "report.html", title).read_text(encoding="utf-8")


class Outline(HTMLParser):
    """Checks that tags nest; collects tags, attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def svgs(page: str) -> list[str]:
    return re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)


def thick_lines(figure: Figure) -> list[tuple[str, Any]]:
    return [(to_hex(line.get_color()), line.get_ydata()) for line in figure.axes[0].lines if line.get_linewidth() > 2]


# ------------------------------------------------------------------------------------------------- numbers


def test_table_shows_the_numbers_of_the_records(three: list[Run]) -> None:
    header, rows = table(three)
    run = three[0]
    last = [record["accuracy_per_edge"] for record in run.records[-10:]]
    row = dict(zip(header, rows[0], strict=True))
    mean_T = np.mean(last, axis=1)
    assert row["method"] == "fed-bac"
    assert row["accuracy (%)"] == f"{100 * mean_T.mean():.1f} ± {100 * mean_T.std():.1f}"
    assert row["σ over edges (points)"] == f"{100 * np.std(last, axis=1).mean():.1f}"
    assert row["worst edge (%)"] == f"{100 * np.min(last, axis=1).mean():.1f}"
    assert row["bytes to train"] == "63.0 MB"  # 12 rounds of 5 × 1 MB and 0.25 MB
    assert row["bytes in all"] == "63.5 MB"
    assert (row["moves"], row["clusters"], row["seconds"]) == ("5", "5", "6.0")
    assert int(row["rounds to 60 %"]) == 1 + next(t for t, a in enumerate(run.records) if a["accuracy"] >= 0.6)
    assert [r[header.index("rounds to 85 %")] for r in rows][1:] == ["–", "–"]
    assert best(three) == 0
    assert all(len(r) == len(header) for r in rows)


def test_only_common_targets_are_columns(three: list[Run]) -> None:
    other = replace(three[1], summary={**three[1].summary, "rounds_to_target": {"0.7": 3, "0.9": None}})
    header, rows = table([three[0], other])
    assert [title for title in header if title.startswith("rounds to")] == ["rounds to 70 %"]
    assert rows[1][header.index("rounds to 70 %")] == "3"


def test_missing_or_old_summary_is_made_anew(three: list[Run]) -> None:
    cut_off = replace(three[0], summary={})
    old = replace(three[0], summary={**three[0].summary, "rounds": 3, "accuracy": 0.1})
    assert table([cut_off]) == table([old]) == table([three[0]])
    assert best([three[1], cut_off]) == 1


def test_bytes_for_people() -> None:
    shown = [human_bytes(n) for n in (0, 999, 1000, 999_499, 999_999, 12_345_678, 3.2e12, 5e15)]
    assert shown == ["–", "999 B", "1.00 kB", "999 kB", "1.00 MB", "12.3 MB", "3.20 TB", "5,000 TB"]


def test_nothing_to_report_is_an_error(three: list[Run]) -> None:
    with pytest.raises(ValueError, match="no runs"):
        table([])
    with pytest.raises(ValueError, match="'ifca' has no complete round"):
        figures([replace(three[1], records=[], summary={})])


# ------------------------------------------------------------------------------------------------- outcome


def test_outcome_names_the_leader_and_its_distance(three: list[Run]) -> None:
    first, second, third = (100 * run.summary["accuracy"] for run in three)
    assert outcome(three[::-1]) == (
        f"fed-bac leads with {first:.1f} % distributed accuracy, {first - second:.1f} points above ifca "
        f"({second:.1f} %) and {first - third:.1f} above hierfavg ({third:.1f} %)."
    )


def test_outcome_admits_a_tie(three: list[Run]) -> None:
    close = fake("ifca", top=TOP["fed-bac"] + 0.001)
    text = outcome([three[0], close, three[2]])
    assert text.startswith("No clear winner")
    assert "within the spread; it is" in text
    assert "leads" not in text


def test_rising_together_is_not_a_tie() -> None:
    """Both still learn, so each varies much over the last rounds, but the gap between them does not."""
    low, high = fake("ifca", rounds=12), fake("fed-bac", rounds=12)
    for t, (a, b) in enumerate(zip(low.records, high.records, strict=True)):
        a["accuracy"], b["accuracy"] = 0.1 + 0.05 * t, 0.13 + 0.05 * t + 0.001 * (t % 2)
    assert "leads" in outcome([replace(run, summary={}) for run in (low, high)])


def test_outcome_does_not_compare_different_tasks(three: list[Run]) -> None:
    other = with_task(three[1], dataset="svhn")
    assert "leads" not in outcome([three[0], other])
    assert "The runs differ in dataset." in caveats([three[0], other])
    assert "leads" in outcome([three[0], with_task(three[1], rounds=99, targets=[0.1])])


def test_what_limits_the_outcome_is_said(three: list[Run], page: str) -> None:
    (note,) = caveats(three)
    assert note.startswith("Each method ran once")
    assert note in page
    short = with_task(fake("ifca", rounds=5), rounds=12)
    assert {"ifca stopped after 5 of 12 rounds.", "The runs are not equally long."} <= set(caveats([three[0], short]))
    assert any("different seeds" in note for note in caveats([three[0], fake("ifca", seed=1)]))


# -------------------------------------------------------------------------------------------------- groups


def test_seeds_are_drawn_thin_with_a_bold_mean() -> None:
    runs = [fake(seed=0), fake(seed=1), with_task(fake(seed=2, rounds=8), rounds=12)]
    figure = figures(runs)["accuracy"]
    ((_, mean_T),) = thick_lines(figure)
    expected_T = np.mean([[100 * record["accuracy"] for record in run.records[:8]] for run in runs], axis=0)
    np.testing.assert_allclose(mean_T, expected_T)
    thin = [np.asarray(line.get_ydata()) for line in figure.axes[0].lines if line.get_linewidth() < 1]
    assert [line.size for line in thin] == [12, 12, 8]


def test_means_over_seeds_are_on_the_page(tmp_path: Path) -> None:
    runs = [fake(name, seed=seed) for name in ("fed-bac", "ifca") for seed in (0, 1)]
    page = page_of(runs, tmp_path)
    accuracy = [run.summary["accuracy"] for run in runs[:2]]
    assert f"{100 * np.mean(accuracy):.1f} ± {100 * np.std(accuracy, ddof=1):.1f}" in page
    assert "Means over seeds" in page
    assert "fed-bac (seed 1)" in page


def test_a_command_ends_with_one_row_per_method_when_there_are_several_seeds() -> None:
    runs = [fake(name, seed=seed) for seed in (0, 1) for name in ("ifca", "fed-bac")]
    (header, rows), chosen = final(runs)
    assert [row[0] for row in rows] == ["ifca", "fed-bac"]
    assert rows[chosen][0] == "fed-bac"
    mine = dict(zip(header, rows[1], strict=True))
    accuracy = [runs[i].summary["accuracy"] for i in (1, 3)]
    reached = [runs[i].summary["rounds_to_target"]["0.7"] for i in (1, 3)]
    assert mine["seeds"] == "2"
    assert mine["accuracy (%)"] == f"{100 * np.mean(accuracy):.1f} ± {100 * np.std(accuracy, ddof=1):.1f}"
    assert mine["rounds to 70 %"] == f"{np.mean(reached):g}"
    never = [fake("ifca", seed=0), fake("ifca", seed=1, top=0.3)]
    (header, rows), chosen = final(never)
    assert dict(zip(header, rows[0], strict=True))["rounds to 70 %"] == "–", "a seed that never gets there has no mean"
    assert chosen == -1, "one method has nothing to be better than"
    assert final(runs[:2]) == (table(runs[:2]), best(runs[:2]))


def test_same_method_with_other_settings_is_another_line(three: list[Run]) -> None:
    method_ = three[0].config["experiment"]["method"] | {"cloud_weight": "uniform"}
    other = replace(three[0], config={"experiment": {**three[0].config["experiment"], "method": method_}})
    two = groups([three[0], other])
    assert [group.label for group in two] == ["fed-bac", "fed-bac #2"]
    assert two[0].look != two[1].look
    folders = [replace(run, folder=Path("runs") / name) for run, name in zip((three[0], other), "ab", strict=True)]
    assert labels(folders) == ["fed-bac [a]", "fed-bac [b]"]


def test_colour_of_a_method_does_not_depend_on_company(three: list[Run]) -> None:
    alone = groups([three[1]])[0].look
    among = groups([renamed(three[0], "new"), *three[::-1], renamed(three[2], "newer")])
    assert next(group.look for group in among if group.label == "ifca") == alone
    assert len({group.look for group in among}) == 5
    many = groups([renamed(three[0], f"method {i}") for i in range(20)])
    assert len({(group.look.colour, group.look.dash) for group in many}) == 20


# ------------------------------------------------------------------------------------------------- figures


def test_figures_show_the_records(three: list[Run]) -> None:
    drawn = figures(three)
    assert list(drawn) == ["accuracy", "clusters", "edges", "bytes", "assignment"]
    lines = dict(thick_lines(drawn["accuracy"]))
    expected_T = [100 * record["accuracy"] for record in three[2].records]
    np.testing.assert_allclose(lines[groups(three)[2].look.colour], expected_T)
    assert [list(line[1])[-1] for line in thick_lines(drawn["clusters"])] == [5, 5, 0]
    assert len(drawn["assignment"].axes) == 2  # hierfavg has one cluster
    words = {text.get_text() for axes in drawn["accuracy"].axes for text in axes.texts}
    assert words == {f"{run.name} {100 * run.summary['accuracy']:.1f} %" for run in three}


def test_one_cluster_has_no_assignment() -> None:
    assert "assignment" not in figures([fake("hierfavg")])


def test_nothing_global_is_changed() -> None:
    before = dict(matplotlib.rcParams)
    page_svg = inline_svg(figures([fake("hierfavg", rounds=2)])["bytes"], "x", "y")
    assert page_svg.startswith("<svg")
    assert dict(matplotlib.rcParams) == before


DRAWING = {"bodies", "cells", "figures", "pages"}
"""Modules of the reproduction that draw; the command imports them when it comes to that."""


def test_only_the_report_draws() -> None:
    """``import fedbac`` stays quick: no other module imports matplotlib, or the report, when it is itself imported."""
    package = Path(fedbac.__file__).parent
    for path in package.rglob("*.py"):
        drawing = package / "report" in path.parents or (path.parent.name == "fedbac_paper" and path.stem in DRAWING)
        if not drawing:
            heavy = re.search(
                r"^(import|from) (matplotlib|fedbac\.report|fedbac import .*\breport\b)", path.read_text(), re.M
            )
            assert heavy is None, path


def test_saved_figures_repeat(three: list[Run], tmp_path: Path) -> None:
    paths = save_figures(three[2:], tmp_path / "a")
    assert {path.name for path in paths} >= {"accuracy.svg", "accuracy.png", "edges.svg", "bytes.png"}
    for path in save_figures(three[2:], tmp_path / "b", formats=("svg",)):
        assert path.read_bytes() == (tmp_path / "a" / path.name).read_bytes()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0.01, 0.2))
def test_labels_never_overlap(wanted: list[float], gap: float) -> None:
    places = apart(np.sort(wanted), gap)
    assert (np.diff(places) >= gap - 1e-9).all()
    assert places[-1] <= max(1.0, gap * (len(wanted) - 1)) + 1e-9


# ---------------------------------------------------------------------------------------------------- page


def test_page_is_complete_and_stands_alone(three: list[Run], page: str) -> None:
    outline = Outline(page)
    for row in table(three)[1]:
        for cell in row:
            assert cell in outline.text
    assert outline.text.count("A title") == 2
    for phrase in (
        "fashion-mnist-mini", "5 edges with 10 clients each", "α = 0.1 over edges, 0.5", "batched",
        "measured on validation data", "not counted", "learning_rate_decay: 0.995", "with the clusters of the round",
    ):  # fmt: skip
        assert phrase in outline.text
    assert not {"script", "link", "img", "iframe"} & set(outline.tags)
    assert not [value for name, value in outline.attributes if name in {"src", "href"} and not value.startswith("#")]
    namespaces = [value for name, value in outline.attributes if name.startswith("xmlns")]
    assert page.count("://") == len(namespaces)
    assert "@import" not in page
    assert "prefers-color-scheme:dark" in page


def test_inline_figures_are_xml_and_keep_their_ids_apart(page: str) -> None:
    outline = Outline(page)
    assert len([ET.fromstring(svg) for svg in svgs(page)]) == 5
    ids = [value for name, value in outline.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    used = re.findall(r'(?:url\(#|href="#)([^)"]+)', page)
    assert used
    assert set(used) <= set(ids)
    assert all("var(--ink)" in svg and "<style" not in svg for svg in svgs(page))


def test_page_repeats_and_is_replaced_at_once(
    three: list[Run], page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = page_of(three, tmp_path, "A title")
    assert before == page

    def broken(*_: object) -> None:
        raise OSError("disk")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="disk"):
        write_report(three[:1], tmp_path / "report.html")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == before


HOSTILE = (
    "</pre></svg><script>alert(1)</script>",
    '"><img src=x onerror=y>',
    "a$b_{$c",
    "漢 \x00\n\ud800 & x",
    "n" * 300,
    "",
)


def test_hostile_names_are_only_text(tmp_path: Path) -> None:
    runs = [with_task(renamed(fake(rounds=2), name), dataset=name) for name in HOSTILE]
    page = page_of(runs, tmp_path, title=HOSTILE[0])
    outline = Outline(page)
    assert not {"script", "img"} & set(outline.tags)
    assert outline.text.count(HOSTILE[1]) >= 4  # table, ledger, card, configuration
    for svg in svgs(page):
        ET.fromstring(svg)
    for path in save_figures(runs, tmp_path / "figures", formats=("svg",)):
        ET.parse(path)


def test_leak_is_flagged_only_when_test_data_gave_the_reward(three: list[Run], page: str, tmp_path: Path) -> None:
    assert LEAK not in page
    leaking = page_of([three[2], fake("paper-text")], tmp_path)
    flagged = re.findall(r'<p class="warn"[^>]*>(.*?)</p>', leaking)
    assert len(flagged) == 2  # at the top, and where the run is described
    assert all(LEAK in text for text in flagged)
    assert flagged[0].startswith("paper-text: ")


def test_failed_clients_are_stated(tmp_path: Path) -> None:
    assert "36 (client, round) pairs left out" in page_of([fake(failed=[1, 2, 3])], tmp_path)


UNUSUAL = {
    "one round": fake(rounds=1),
    "one round, one edge": fake("hierfavg", rounds=1, edges=1),
    "no loss": fake(loss=None),
    "no bytes": fake("hierfavg", bytes=Ledger().nested()),
    "many edges": fake(edges=40, rounds=2),
    "zero": fake(accuracy=0.0, accuracy_per_edge=[0.0] * 5, accuracy_min=0.0, accuracy_max=0.0),
    "an edge without a number": fake("hierfavg", accuracy_per_edge=[None, 0.5, 0.5, 0.5, 0.5]),
}


@pytest.mark.parametrize("names", [*([name] for name in UNUSUAL), list(UNUSUAL)], ids=lambda names: names[-1])
def test_unusual_runs_are_reported(names: list[str], tmp_path: Path) -> None:
    page = page_of([UNUSUAL[name] for name in names], tmp_path)
    Outline(page)
    for svg in svgs(page):
        ET.fromstring(svg)
