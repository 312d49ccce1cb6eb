"""The site of the documentation, opened from its folder in a browser."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Locator, expect

from tests.page.conftest import NEEDS_BROWSER, Tab

ROOT = Path(__file__).resolve().parent.parent.parent
SEARCHES = [
    ("own data npz", "extend"), ("install", "first-run"), ("resume", "resume"), ("deploy", "deploy"), ("gpu", "gpu"),
    ("certificate", "deploy-keys"), ("own policy", "policies"), ("who leads", "report"), ("sweep", "sweeps"),
]  # fmt: skip
pytestmark = [pytest.mark.full, pytest.mark.timeout(900), NEEDS_BROWSER]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it strictly: links and anchors lead somewhere, and every page is in the navigation or in not_in_nav."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_it_loads_nothing_from_outside_and_searches_no_results(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    assert not re.findall(r'(?:src|<link[^>]*href)="https?://[^"]*', home)
    assert "fedbac.run" in (site / "api.html").read_text(encoding="utf-8")
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    searched = {entry["location"].partition("#")[0] for entry in index}
    assert "settings.html" in searched
    assert not [page for page in searched if page.startswith(("reproduce/", "decisions/", "open-questions"))]


@pytest.mark.parametrize(("words", "page"), SEARCHES)
def test_the_search_works_from_a_folder_and_finds_the_page_of_a_task_first(
    site: Path, tab: Tab, words: str, page: str
) -> None:
    home = tab.open((site / "index.html").as_uri())
    home.locator("input.md-search__input").press_sequentially(words)
    expect(home.locator("a.md-search-result__link").first).to_have_attribute("href", re.compile(rf"/{page}\.html"))
    assert tab.problems == []
    assert {address.partition(":")[0] for address in tab.requests} == {"file"}


def test_the_landing_page_has_a_live_report(site: Path, tab: Tab) -> None:
    home = tab.open((site / "index.html").as_uri())
    report = home.frame_locator("iframe[title]")
    report.locator("#round").fill("3")
    expect(report.locator("output")).to_have_text("3 of 40")
    expect(report.locator("#figure-flow svg path").first).to_be_attached()
    assert tab.problems == []


@pytest.mark.parametrize("page", ["index", "concepts", "quickstart"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figures_follow_dark_mode(site: Path, tab: Tab, page: str, scheme: Literal["light", "dark"]) -> None:
    tab.page.emulate_media(color_scheme=scheme)
    figure = tab.open((site / f"{page}.html").as_uri()).locator(".md-content img").first
    assert (brightness(figure) < 80) == (scheme == "dark")


def brightness(figure: Locator) -> float:
    """Return the middle one of all pixels, which is one of the ground."""
    return float(np.median(np.asarray(Image.open(io.BytesIO(figure.screenshot())).convert("L"))))
