"""For the site: links to files of the repository outside docs/ become plain text, since the site does not hold them."""

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\.?/[^)\s#]+)\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return a page with such links replaced by their text."""
    return without_outside_links(markdown, DOCS / page.file.src_uri)


def without_outside_links(markdown: str, path: Path) -> str:
    """Keep only the text of links that lead outside docs/ to an existing file; others stay, for MkDocs to judge."""

    def text_or_link(found: re.Match[str]) -> str:
        target = (path.parent / found[2]).resolve()
        return found[0] if DOCS in target.parents or not target.exists() else found[1]

    return LINK.sub(text_or_link, markdown)
