"""Notebooks of examples/ as pages of the documentation, with the outputs that are stored in them."""

import base64
import json
from pathlib import Path
from typing import Any

BOOKS = {"quickstart": "quickstart"}
"""By the name of a notebook, that of its page."""
ABOUT = {"own_data": "extend"}
"""By the name of a notebook without a page, that of the page about its subject."""


def page(file: Path, images: str) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its pictures by name; ``images`` is the folder that the page finds them in."""
    lines, pictures = [], dict[str, bytes]()
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            for name, there in (BOOKS | ABOUT).items():
                text = text.replace(f"({name}.ipynb)", f"({there}.md)")
            lines += [text, ""]
            continue
        lines += ["```python", text, "```", ""]
        for output in cell["outputs"]:
            shown: dict[str, Any] = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in shown:
                name = f"{file.stem}-{len(pictures)}.png"
                pictures[name] = base64.b64decode("".join(shown["image/png"]))
                lines += [f"![The figure that the cell shows]({images}/{name})", ""]
            else:
                lines += ["```", "".join(shown["text/plain"]).rstrip(), "```", ""]
    head, _, rest = "\n".join(lines).partition("\n")
    origin = f"This page is the notebook `examples/{file.name}`."
    return f"{head}\n\n{origin}\n{rest}", pictures
