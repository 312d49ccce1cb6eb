"""One self-contained HTML page, light and dark: text that needs no script, and figures that a script draws.

The script and its data are in the page, which loads nothing. ``fedbac watch`` serves the same page.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedbac.files import make_folder, write_whole
from fedbac.report.document import document
from fedbac.report.groups import summarized
from fedbac.report.sections import escaped, sections
from fedbac.report.theme import variables
from fedbac.runs.store import StoredRun

SCRIPTS = ("draw.js", "state.js", "panels.js", "detail.js", "page.js")
"""In the order in which they need each other."""
TITLE = "Federated learning report"
NO_SCRIPT = (
    "The figures need JavaScript; text and tables do not. <code>fedbac report --figures FOLDER</code> writes figures "
    "as files."
)
"""Stands where the script puts the figures."""


def write_report(runs: Sequence[StoredRun], path: Path, title: str = TITLE) -> Path:
    """Write the page, all at once, and return where it is."""
    runs = summarized(runs)
    text = page(title, sections(runs, title), document(runs))
    write_whole(make_folder(path.parent) / path.name, text)
    return path


def page(title: str, parts: Mapping[str, str], figures: Mapping[str, Any], live: bool = False) -> str:
    """Return the page with these parts of text and what the figures show; a live one listens to its server."""
    first = ("header",) if live else ("header", "final")  # who follows a run wants to see it; nothing is final yet
    text = {name: f'<section data-part="{name}">\n{html}\n</section>' for name, html in parts.items()}
    above = [html for name, html in text.items() if name in first]
    below = [html for name, html in text.items() if name not in first]
    status = ['<p id="live" role="status"></p>'] if live else []
    ending = "This page follows its server." if live else "This page is complete in itself and loads nothing."
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy(live)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escaped(title)}</title>",
            f"<style>\n{variables()}{_file('style.css')}</style>",
            "</head>",
            "<body>",
            "<main>",
            *status,
            *above,
            f'<div id="figures"><p class="note">{NO_SCRIPT}</p></div>',
            *below,
            f"<footer>Made by fedbac. {ending}</footer>",
            "</main>",
            f'<script type="application/json" id="document">{embedded(figures)}</script>',
            f"<script>{_script()}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def embedded(tree: Mapping[str, Any]) -> str:
    """Return data as JSON that no text in it can end early, wherever in a page it stands."""
    return json.dumps(tree, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def policy(live: bool = False) -> str:
    """Return what the page may do: run its own script, known by its hash, and nothing else; if live, ask its server."""
    digest = base64.b64encode(hashlib.sha256(_script().encode()).digest()).decode()
    connect = " connect-src 'self';" if live else ""
    return f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline';{connect} base-uri 'none'"


@cache
def _script() -> str:
    texts = [_file(name) for name in SCRIPTS]
    return '\n(() => {\n"use strict";\n' + "\n".join(texts) + "})();\n"


@cache
def _file(name: str) -> str:
    return files("fedbac.report").joinpath("static", name).read_text(encoding="utf-8")
