"""The documentation: pages are short and say what they need, and links of the repository lead somewhere."""

import json
import re
import shutil
from pathlib import Path

import pytest
from tools import make_screenshots

from fedbac_paper import demo

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
MOST_WORDS = 1200


def test_pages_outside_the_navigation_are_linked_from_their_index() -> None:
    for pages, index in (
        ([DOCS / "open-questions.md", *(DOCS / "reproduce").glob("*.md")], "reproduce.md"),
        ([*(DOCS / "decisions").glob("0*.md")], "decisions/index.md"),
    ):
        text = (DOCS / index).read_text(encoding="utf-8")
        assert [page.name for page in pages if page.name not in text] == []


def test_the_report_of_the_demo_is_of_the_runs_in_its_table() -> None:
    page = demo.report(ROOT)
    for row in json.loads((ROOT / demo.KEPT).read_text(encoding="utf-8"))["rows"].values():
        numbers = f"</span>{row['method']}</th><td>{row['accuracy (%)']} ± [0-9.]+</td><td>{row['last round (%)']}</td>"
        assert re.search(numbers, page)


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_no_page_is_too_long(page: Path) -> None:
    """A word is whatever has a letter or a digit."""
    words = sum(any(sign.isalnum() for sign in word) for word in page.read_text(encoding="utf-8").split())
    assert words <= MOST_WORDS, f"{words} words; split the page, or put long tables beside it as CSV"


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_what_a_page_needs_to_be_installed_stands_at_its_top(page: Path) -> None:
    top, _, rest = page.read_text(encoding="utf-8").partition("\n## ")
    needed = re.findall(r"fedbac\[\w+\]", rest) + ["fedbac[frames]"] * (".to_frame(" in rest)
    assert [extra for extra in needed if extra not in top] == []


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
    settings = [row for row in rows if row.startswith("- `")]
    assert len(settings) > 200
    assert [row for row in settings if row.endswith(":")] == []


def test_the_threat_model_names_tests_that_exist() -> None:
    """Its notes; all are used, and every line of its tables has one."""
    page = (DOCS / "threat-model.md").read_text(encoding="utf-8")
    text, notes = re.split(r"\n(?=\[\^)", page, maxsplit=1)
    defined = [line.partition(": ") for line in notes.strip().splitlines()]
    assert sorted(label for label, _, _ in defined) == sorted(set(re.findall(r"\[\^\w+\]", text)))
    for label, _, tests in defined:
        named = re.findall(r"\[`([^`]+)::(\w+)`\]\(\.\./([^)]+)\)", tests)
        assert len(named) == tests.count("](") > 0, label
        for path, name, link in named:
            assert path == link
            assert re.search(rf"^def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), name
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert [row for row in rows if "[^" not in row and not row.startswith("| who |")] == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_outside_the_site_lead_to_files_and_headings(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)", text):
        file, _, anchor = link.partition("#")
        if "://" not in link:
            assert (ROOT / (file or name)).exists(), link
            assert not anchor or anchor in headings(ROOT / (file or name)), link


def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in found)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in plain}


def test_the_readme_names_the_command_that_checks_a_change() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert "`make test`" in (ROOT / "README.md").read_text(encoding="utf-8")
