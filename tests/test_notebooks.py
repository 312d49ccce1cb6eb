"""The notebooks run from the first cell to the last, and show what they are stored with."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent.parent / "examples"


def kinds(book: Any) -> list[list[set[str]]]:
    """Return what every code cell shows: of each output, in which forms."""
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    shown = [
        [output for output in cell.outputs if output.get("name") != "stderr"] for cell in cells
    ]  # it warns if short
    return [[set(output.get("data", {"text": ""})) for output in outputs] for outputs in shown]


@pytest.mark.full
@pytest.mark.parametrize(("name", "rounds"), [("quickstart", 25), ("own_data", 10)])
def test_a_notebook_runs(name: str, rounds: int) -> None:
    """With fewer rounds than it has: cells that show the last one show that of the shorter run."""
    text = (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    stored, fresh = (nbformat.reads(text, as_version=4) for _ in range(2))  # type: ignore[no-untyped-call]
    sources = [cell.source for cell in fresh.cells if cell.cell_type == "code"]
    assert any(f"rounds={rounds}," in source for source in sources)
    for cell in fresh.cells:
        cell.source = cell.source.replace(f"rounds={rounds},", "rounds=2,").replace(f"== {rounds}]", "== 2]")
    NotebookClient(fresh, timeout=120, kernel_name="python3").execute()
    assert kinds(fresh) == kinds(stored)
    assert any("text/html" in forms for cell in kinds(stored) for forms in cell), "a table is shown"
