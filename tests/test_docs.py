"""The documentation: the site builds without a warning, pages are short, and links of the repository lead somewhere."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tools import make_screenshots

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
MOST_WORDS = 1200
GENERATED = ("ritten by `tools/make_docs.py`", "This page is written from `results/")
"""What a page says that no person writes."""


@pytest.mark.full
def test_the_site_builds_without_a_warning_or_anything_from_outside(tmp_path: Path) -> None:
    """Strictly: links and anchors lead somewhere, and every page is in the navigation."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    home = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert not re.findall(r'(?:src|<link[^>]*href)="https?://[^"]*', home)
    assert "fedbac.run" in (tmp_path / "api.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_no_page_is_too_long(page: Path) -> None:
    """Of a generated page counts what is not folded away; a word is whatever has a letter or a digit."""
    text = page.read_text(encoding="utf-8")
    if any(mark in text for mark in GENERATED):
        text = re.sub(r"<details.*?</details>", "", text, flags=re.DOTALL)
    words = sum(any(sign.isalnum() for sign in word) for word in text.split())
    assert words <= MOST_WORDS, f"{words} words; split the page, or fold long tables of a generated one"


def test_screenshots_show_the_page_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = make_screenshots.changed()
    assert not changed, f"{', '.join(changed)} changed since the screenshots were taken; run make screenshots"
    shutil.copytree(make_screenshots.REPORT, tmp_path / "report")
    monkeypatch.setattr(make_screenshots, "REPORT", tmp_path / "report")
    (tmp_path / "report" / "static" / "draw.js").write_text("// another one")
    (tmp_path / "report" / "static" / "more.js").touch()
    assert make_screenshots.changed() == ["static/draw.js", "static/more.js"]


def test_every_setting_has_a_meaning() -> None:
    rows = [line for page in (DOCS / "settings").glob("*.md") for line in page.read_text(encoding="utf-8").splitlines()]
    assert [row for row in rows if row.startswith("| `") and row.endswith("|  |")] == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_outside_the_site_lead_to_files(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#\s]+)", text)
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []
