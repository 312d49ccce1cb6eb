"""Imports point down only, columns never import each other, and heavy libraries stay where they are needed."""

import ast
import functools
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedbac
from fedbac import AGGREGATION, CLOCK, CLUSTERING, METHODS, PERSONALIZATION, SELECTION, SHARING, STEP, TOPOLOGY

LAYERS = [
    {"errors", "version", "statistics"},
    {"files"},
    {"core"},
    {"packages", "language", "lowrank"},
    {"losses", "networks"},
    {"data", "models", "topology", "native", "gpu"},
    {"clustering", "selection", "sharing", "personalization", "aggregation", "steps", "clocks", "privacy"},
    {"config", "contracts"},
    {"rounds", "local", "federation"},
    {"engines"},
    {"presets"},
    {"runs", "report"},
    {"deploy"},
    {"api"},
    {"fedbac_paper", "cli"},
    {"__main__"},
]
LEVEL = {unit: level for level, units in enumerate(LAYERS) for unit in units}
COLUMNS = {"topology", "clustering", "selection", "sharing", "personalization", "aggregation", "steps", "clocks"}
ALGORITHM = {"core", "rounds", "local", "engines"}
"""What serves every method, and so may know none."""
ALLOWED_ONLY_IN = {
    "matplotlib": {"report", "fedbac_paper", "api"},
    "typer": {"cli", "fedbac_paper"},
    "loky": {"local", "runs"},
    "cloudpickle": {"local"},
    "pooch": {"data"},
    "ray": {"engines"},
    "starlette": {"report"},
    "uvicorn": {"report"},
    "grpc": {"deploy"},
    "cryptography": {"deploy"},
    "nvflare": {"deploy"},
    "dp_accounting": {"privacy"},
}
CHOICES = (TOPOLOGY, CLUSTERING, SELECTION, SHARING, PERSONALIZATION, AGGREGATION, STEP, CLOCK)
ROOT = Path(fedbac.__file__).parent
STUDY = ROOT.parent / "fedbac_paper"
FILES = sorted([*(file for file in ROOT.rglob("*.py") if file != ROOT / "__init__.py"), *STUDY.rglob("*.py")])


def unit_of(file: Path) -> str:
    if STUDY in file.parents:
        return STUDY.name
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
    found = {name.split(".")[1] for name in imports(file) if name.startswith("fedbac.")}
    found |= {STUDY.name for name in imports(file) if name.split(".")[0] == STUDY.name}
    return found - {unit_of(file)}


@functools.cache
def graph() -> dict[str, set[str]]:
    """Return the units that each unit imports."""
    return {unit: {u for file in FILES if unit_of(file) == unit for u in units_imported(file)} for unit in LEVEL}


def test_every_module_has_its_layer() -> None:
    assert {unit_of(file) for file in FILES} == set(LEVEL)


@pytest.mark.parametrize("unit", sorted(LEVEL))
def test_imports_point_down(unit: str) -> None:
    """To lower layers, or to neighbours of the same layer as long as none imports back."""
    allowed = {("fedbac_paper", "cli"), ("cli", "fedbac_paper")}  # the study brings one command and uses its terminal
    for other in graph()[unit]:
        if (unit, other) in allowed:
            continue
        assert LEVEL[other] <= LEVEL[unit], f"{unit} imports {other}"
        seen, todo = set(), [other]
        while todo:
            step = todo.pop()
            if step not in seen:
                seen.add(step)
                todo += graph()[step]
        assert unit not in seen, f"{unit} and {other} import each other"


def test_columns_do_not_see_each_other_and_the_algorithm_sees_none() -> None:
    for column in COLUMNS:
        assert not graph()[column] & (COLUMNS | {"config"})
    for unit in (*ALGORITHM, "federation", "runs", "contracts"):
        assert not graph()[unit] & COLUMNS


def test_the_rounds_run_without_a_column_in_memory() -> None:
    """The core knows no method, by import too: which kinds there are is found out when one is chosen."""
    code = "import sys, fedbac.rounds.cloud, fedbac.rounds.edge, fedbac.engines; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[1] for name in done.stdout.split() if name.startswith("fedbac.")}
    assert {"rounds", "config"} <= loaded
    assert not loaded & (COLUMNS | {"presets"})


def test_no_class_has_the_name_of_another() -> None:
    """So that a name means one thing wherever it is read."""
    defined: dict[str, list[str]] = {}
    for file in FILES:
        for node in ast.parse(file.read_text(encoding="utf-8")).body if STUDY not in file.parents else ():
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined.setdefault(node.name, []).append(file.relative_to(ROOT).as_posix())
    assert not {name: places for name, places in defined.items() if len(places) > 1}


def test_only_the_command_deploys() -> None:
    """Runs on one machine need none of it, nor its extra; who loads the run of a federation needs its charter."""
    assert {unit for unit, others in graph().items() if "deploy" in others} <= {"cli", "api"}
    for file in (ROOT / "api").glob("*.py"):
        assert not {name for name in imports(file) if name.startswith("fedbac.deploy.")} - {
            "fedbac.deploy.models.cloud_models"
        }


RULES = {"cfl", "credit", "ditto", "fedavg", "fedper", "fedprox", "hierfavg", "ifca", "linucb", "overfit", "thompson"}
"""Names that literature or our own rules go by, beside those of presets and kinds."""
PLAIN_WORDS = {
    "fixed",
    "personal",
    "random",
    "shared",
    "additive",
    "flat",
    "hierarchical",
    "apart",
    "per_cluster",
    "blend",
    "distill",
    "local",
    "similar",
    "sound",
    "mean",
    "median",
    "take",
    "momentum",
    "adam",  # also an optimizer of clients
    "dynamic",
    "deadline",  # devices have one too
}
"""Kinds that are words of everyday."""


def names_of_methods() -> set[str]:
    """Return what may not be named where every method is served: presets, and kinds that are no everyday words."""
    kinds = {kind for choice in CHOICES for kind in choice.kinds}
    spelled = {*METHODS, *kinds, *RULES} - PLAIN_WORDS
    return {re.sub("[-_]", sign, name) for name in spelled for sign in "-_ "}


@pytest.mark.parametrize("unit", sorted(ALGORITHM))
def test_the_algorithm_names_no_method(unit: str) -> None:
    """In code or comments. A branch on a method starts with its name; what a method needs is a verb of its column.

    The package is named after a method, so its own name may stand alone.
    """
    texts = {file: file.read_text(encoding="utf-8") for file in sorted((ROOT / unit).rglob("*.py"))}
    everything = "\n".join(texts.values()).lower()
    words = [name for name in names_of_methods() if name.lower() in everything]
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file, text in texts.items()
        for number, line in enumerate(text.splitlines(), start=1)
        if any(word.lower() in line.lower() for word in words)
    ]
    assert not found, "\n".join(found)


def test_the_rounds_know_nothing_of_a_device_that_works_ahead() -> None:
    """Algorithms 1 and 2 read as they are in the paper; what is done early, and where, is a matter of engines."""
    words = re.compile(r"\b(prefetch|ahead|queue|cuda|gpu|foresee|foreseen|underway)", re.IGNORECASE)
    assert not [file.name for file in (ROOT / "rounds").glob("*.py") if words.search(file.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("library", sorted(ALLOWED_ONLY_IN))
def test_heavy_libraries_are_imported_in_one_place(library: str) -> None:
    users = {unit_of(file) for file in FILES if any(name.split(".")[0] == library for name in imports(file))}
    assert users <= ALLOWED_ONLY_IN[library]


@pytest.mark.parametrize(
    "code",
    [
        "import fedbac; assert 'run' in dir(fedbac) and fedbac.__version__",
        "import fedbac.files, fedbac.errors, fedbac.version, fedbac.config.text",
        "sys.argv = ['fedbac', '--help']; from fedbac_command import main; main()",
        "sys.argv = ['fedbac', 'run', '--help']; from fedbac_command import main; main()",
        pytest.param(
            "sys.argv = ['fedbac', 'data', 'get', '--help']; from fedbac_command import main; main()",
            marks=pytest.mark.full,
        ),
    ],
)
def test_torch_is_imported_when_it_is_needed(code: str) -> None:
    """A help text, or a process that waits for work, needs none of its seconds and hundreds of megabytes."""
    wrapped = f"import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); {code}"
    done = subprocess.run([sys.executable, "-c", wrapped], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_every_name_of_the_library_comes_from_where_type_checkers_look_for_it() -> None:
    homes: dict[str, str] = vars(fedbac)["_HOME"]
    assert set(homes) == set(fedbac.__all__)
    for name, module in homes.items():
        found = getattr(importlib.import_module(module), name)
        assert getattr(fedbac, name) is found or name == "report"  # the package of that name may be in its place


def test_the_library_knows_its_modules_and_no_other_names() -> None:
    assert fedbac.models.LeNet5 is fedbac.LeNet5
    assert not hasattr(fedbac, "no_such_name")


@pytest.mark.full
def test_what_is_slow_to_import_is_left_alone_by_a_run_and_its_report(tmp_path: Path) -> None:
    """And by ``from fedbac import *``. Torch's compiler alone takes as long as the rounds of a small run."""
    heavy = [
        "matplotlib",
        "torch._dynamo",
        "loky",
        "cloudpickle",
        "typer",
        "rich",
        "pooch",
        "sklearn",
        "ray",
        "starlette",
        "uvicorn",
        "grpc",
        "cryptography",
        "fedbac_paper",
    ]
    code = f"""
import sys
from fedbac import *
from fedbac.data import toy
few = ["task.num_edges=2", "task.clients_per_edge=2"]
played = run("fed-bac", dataset=toy(size=16, train=99), settings=few, rounds=1, device="cpu", workers=1, progress=False)
report(played, sys.argv[1])
print([name for name in {heavy} if name in sys.modules])
"""
    words = [sys.executable, "-c", code, str(tmp_path / "report.html")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_only_the_report_and_the_study_s_drawing_draw() -> None:
    """``import fedbac`` and ``fedbac --help`` stay quick: elsewhere matplotlib is imported when something is drawn."""
    for file in (ROOT / "__init__.py", *FILES):
        if ROOT / "report" in file.parents or file == STUDY / "drawing.py":
            continue
        heavy = re.search(
            r"^(import|from) (matplotlib|fedbac\.report|fedbac import .*\breport\b|fedbac_paper import .*\bdrawing\b)",
            file.read_text(encoding="utf-8"),
            re.MULTILINE,
        )
        assert heavy is None, file
