"""For the site: links to files of the repository outside docs/ become plain text, since the site does not hold them.
The report of the demo is added.

Results and decisions are not searched: they would hide the pages that people look for.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from fedbac_paper import demo

DOCS = Path(__file__).resolve().parent.parent / "docs"
NOT_SEARCHED = ("reproduce/", "decisions/", "open-questions.md")
FIRST = {"extend.md": 4, "first-run.md": 2, "deploy.md": 2, "policies.md": 2, "teach.md": 2}
"""What a beginning of a path weighs in the search."""
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\.?/[^)\s#]+)\)")


def on_files(files: Files, *, config: Any) -> Files:
    """Add the report of the demo."""
    files.append(File.generated(config, "demo-report.html", content=demo.report(DOCS.parent)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return a page with such links replaced by their text; say whether it is searched."""
    name = page.file.src_uri
    page.meta["search"] = {"exclude": name.startswith(NOT_SEARCHED), "boost": FIRST.get(name, 1)}
    if name == "api-methods.md":  # the pages of settings list the fields
        markdown = re.sub("(?m)^::: .*", r"\g<0>\n    options:\n      members: false", markdown)
    return without_outside_links(markdown, DOCS / page.file.src_uri)


def without_outside_links(markdown: str, path: Path) -> str:
    """Keep only the text of links that lead outside docs/ to an existing file; others stay, for MkDocs to judge."""

    def text_or_link(found: re.Match[str]) -> str:
        target = (path.parent / found[2]).resolve()
        return found[0] if DOCS in target.parents or not target.exists() else found[1]

    return LINK.sub(text_or_link, markdown)
