"""The report's page stands alone, and nothing in a run can break it."""

import base64
import hashlib
import json
import os
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbac.core.links import Ledger
from fedbac.errors import OutputError
from fedbac.report import table, write_report
from fedbac.report.figures import save_figures
from fedbac.report.outcome import caveats
from fedbac.report.sections import facts
from fedbac.runs.store import StoredRun
from tests.made_up_runs import TOP, fake, page_of, renamed, with_task

LEAK = "leaks the test set into training"


@pytest.fixture(scope="module")
def three() -> list[StoredRun]:
    return [fake(name) for name in TOP]


@pytest.fixture(scope="module")
def page(three: list[StoredRun], tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_of(three, tmp_path_factory.mktemp("page"), "A title")


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


def document_in(page: str) -> dict[str, Any]:
    """Return the data of the figures."""
    (text,) = re.findall(r'<script type="application/json" id="document">(.*?)</script>', page, flags=re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    return found


def test_what_limits_the_outcome_is_on_the_page(three: list[StoredRun], page: str) -> None:
    *_, note = caveats(three)
    assert note in page


def test_means_over_seeds_are_on_the_page(tmp_path: Path) -> None:
    runs = [fake(name, seed=seed) for name in ("fed-bac", "ifca-edges") for seed in (0, 1)]
    page = page_of(runs, tmp_path)
    accuracy = [run.summary["accuracy"] for run in runs[:2]]
    assert f"{100 * np.mean(accuracy):.1f} ± {100 * np.std(accuracy, ddof=1):.1f}" in page
    assert "Means over seeds" in page
    assert "fed-bac (seed 1)" in page


def test_the_headline_begins_with_the_data_and_bold_is_the_best_method_not_the_best_run(tmp_path: Path) -> None:
    runs = [fake(name, seed=seed) for name in ("fed-bac", "hierfavg") for seed in (0, 1, 2)]
    page = page_of(runs, tmp_path)
    headline = re.sub("<[^>]*>", "", page[page.index("<h1>") : page.index("</h1>")])
    assert headline.startswith("fashion-mnist-mini · 12 rounds · 5 edges with 10 clients each · ")
    means, single = page.split('aria-label="Final numbers of every run"')
    assert 'class="best"' in means
    assert 'class="best"' not in single


def test_page_is_complete_and_stands_alone(three: list[StoredRun], page: str) -> None:
    outline = Outline(page)
    for row in table(three)[1]:
        for cell in row:
            assert cell in outline.text
    assert outline.text.count("A title") == 2
    for phrase in (
        "fashion-mnist-mini", "5 edges with 10 clients each", "α = 0.1 over edges, 0.5", "batched",
        "Policies measure on", "clustering: train; selection: validation", "nothing: no policy needs a model measured",
        "not counted", "learning_rate_decay: 0.995", "with the clusters of the round",
    ):  # fmt: skip
        assert phrase in outline.text
    assert not {"link", "img", "iframe"} & set(outline.tags)
    assert outline.tags.count("script") == 2  # the data, and what draws them
    assert not [value for name, value in outline.attributes if name in {"src", "href"}]
    assert page.count("://") == page.count("http://www.w3.org/2000/svg") == 1
    assert "@import" not in page
    assert "prefers-color-scheme:dark" in page


@pytest.mark.parametrize(
    ("partition", "said"),
    [
        ({"natural": True}, "the data's own edges and clients"),
        ({"edge_distributions": 4}, "α = 0.1 over 4 mixes of classes that edges share, 0.5 over an edge's clients"),
    ],
)
def test_the_page_says_who_got_which_data(partition: dict[str, Any], said: str) -> None:
    run = fake("hierfavg")
    spread = run.config["experiment"]["task"]["partition"]
    assert facts(with_task(run, partition=spread | partition))["Partition"] == said


def test_only_the_page_s_own_script_may_run(page: str) -> None:
    policy = next(value for name, value in Outline(page).attributes if value.startswith("default-src"))
    script = page.rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; script-src 'sha256-{digest}';" in policy
    assert "connect-src" not in policy


def test_page_repeats_and_is_replaced_at_once(
    three: list[StoredRun], page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = page_of(three, tmp_path, "A title")
    assert before == page

    def broken(*_: object) -> None:
        raise OSError("disk")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OutputError, match="disk"):
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
    assert outline.tags.count("script") == 2
    assert "img" not in outline.tags
    assert outline.text.count(HOSTILE[1]) >= 4  # table, ledger, card, configuration
    labels = [run["label"] for run in document_in(page)["runs"]]
    assert labels[:3] == list(HOSTILE[:3])
    assert not re.search(r"[\x00-\x08]", "".join(labels))
    for path in save_figures(runs, tmp_path / "figures", formats=("svg",)):
        ET.parse(path)


def test_leak_is_flagged_only_when_test_data_gave_the_reward(three: list[StoredRun], page: str, tmp_path: Path) -> None:
    assert LEAK not in page
    leaking = page_of([three[2], fake("paper-text")], tmp_path)
    flagged = re.findall(r'<p class="warn"[^>]*>(.*?)</p>', leaking)
    assert len(flagged) == 2  # at the top, and where the run is described
    assert all(LEAK in text for text in flagged)
    assert flagged[0].startswith("paper-text: ")


def test_failed_clients_are_stated(tmp_path: Path) -> None:
    assert "36 (client, round) pairs left out" in page_of([fake(failed=[1, 2, 3])], tmp_path)


def test_what_devices_cost_is_stated(tmp_path: Path) -> None:
    costly = fake("hierfavg", dropped=[1, 2], late=[3], simulated_seconds=30.0)
    page = Outline(page_of([costly, fake()], tmp_path)).text
    assert re.search(r"\d+ dropped out and \d+ were late, of \d+ selected", page)
    header, rows = table([costly, fake()])
    lost, time = header.index("dropped or late"), header.index("simulated time")
    assert [rows[0][lost], rows[0][time]] == ["36", "6.0 min"]
    assert [rows[1][lost], rows[1][time]] == ["0", "–"]


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
    assert len(document_in(page)["runs"]) == len(names)
