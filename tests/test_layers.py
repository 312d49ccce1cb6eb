"""Imports point down only, columns never import each other, and heavy libraries stay where they are needed."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

import fedbac

LAYERS = [
    {"types", "errors", "rng", "trees", "version"},
    {"data", "models", "topology", "aggregation", "bandits", "choices", "native", "gpu"},
    {"clustering", "selection", "personalization", "experiment"},
    {"rounds", "edge", "local", "costs", "metrics", "federation"},
    {"engines"},
    {"methods", "store", "tasks"},
    {"runs", "report", "sweep"},
    {"reproduce", "terminal"},
    {"cli_reproduce", "cli_sweep"},
    {"cli"},
    {"__main__"},
]
LEVEL = {unit: level for level, units in enumerate(LAYERS) for unit in units}
COLUMNS = {"clustering", "selection", "personalization"}
ALLOWED_ONLY_IN = {
    "matplotlib": {"report", "reproduce"},
    "typer": {"cli", "cli_reproduce", "cli_sweep", "terminal"},
    "loky": {"local", "sweep"},
    "pooch": {"data"},
    "ray": {"engines"},
}
ROOT = Path(fedbac.__file__).parent
FILES = sorted(file for file in ROOT.rglob("*.py") if file != ROOT / "__init__.py")


def unit_of(file: Path) -> str:
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


@functools.cache
def imports(file: Path) -> set[str]:
    """Return the dotted names a file imports, also inside functions; ``from fedbac import x`` counts as fedbac.x."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def units_imported(file: Path) -> set[str]:
    return {name.split(".")[1] for name in imports(file) if name.startswith("fedbac.")} - {unit_of(file)}


GRAPH = {unit: {u for file in FILES if unit_of(file) == unit for u in units_imported(file)} for unit in LEVEL}


def test_every_module_has_its_layer() -> None:
    assert {unit_of(file) for file in FILES} == set(LEVEL)


@pytest.mark.parametrize("unit", sorted(LEVEL))
def test_imports_point_down(unit: str) -> None:
    """To lower layers, or to neighbours of the same layer as long as none imports back."""
    for other in GRAPH[unit]:
        assert LEVEL[other] <= LEVEL[unit], f"{unit} imports {other}"
        seen, todo = set(), [other]
        while todo:
            step = todo.pop()
            if step not in seen:
                seen.add(step)
                todo += GRAPH[step]
        assert unit not in seen, f"{unit} and {other} import each other"


def test_columns_do_not_see_each_other_and_the_loop_sees_none() -> None:
    for column in COLUMNS:
        assert not GRAPH[column] & (COLUMNS | {"experiment"})
    for unit in ("rounds", "edge", "local", "engines", "federation", "costs", "metrics", "store"):
        assert not GRAPH[unit] & COLUMNS


@pytest.mark.parametrize("library", sorted(ALLOWED_ONLY_IN))
def test_heavy_libraries_are_imported_in_one_place(library: str) -> None:
    users = {unit_of(file) for file in FILES if any(name.split(".")[0] == library for name in imports(file))}
    assert users <= ALLOWED_ONLY_IN[library]


def test_importing_the_library_stays_light() -> None:
    heavy = ["matplotlib", "loky", "typer", "rich", "pooch", "sklearn", "ray"]
    code = f"import sys, fedbac; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
