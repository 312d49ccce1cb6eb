"""The demo's order, the wheel, and the examples that people start from."""

import ast
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import fedbac
from fedbac import METHODS, ConfigError, Experiment, Random, Thompson
from fedbac.core.policies import Opening
from fedbac.report.guard import waits

ROOT = Path(__file__).resolve().parent.parent
CALLS = r"fedbac\.(run|compare|sweep|play|tune)"


@pytest.mark.full
def test_the_readme_s_snippet_prints_what_stands_there() -> None:
    """But for rounding, which is not the same on every machine."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    code, said = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", page, re.DOTALL)[0]
    done = subprocess.run([sys.executable, "-"], input=code, cwd=ROOT, capture_output=True, text=True, timeout=280)
    number = re.compile(r"\d+(?=%)")
    assert number.sub("", done.stdout) == number.sub("", said), done.stderr
    found, stated = (list(map(float, number.findall(text))) for text in (done.stdout, said))
    assert len(stated) == 4
    assert found == pytest.approx(stated, abs=4)


def test_make_demo_plays_four_methods_and_writes_a_page(tmp_path: Path) -> None:
    """Its own command, for one round: each has a line in the table that it prints, and the page shows it."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (command,) = re.findall(r"^demo: .*\n\t\$\(BIN\)/(.*)$", makefile, re.MULTILINE)
    words = [sys.executable, "-m", *shlex.split(command), "--rounds", "1"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "runs" / "demo" / "report.html").read_text(encoding="utf-8")
    for method in ("fedfork", "ifca-edges", "fed-bac", "hierfavg"):
        assert method in done.stdout
        assert method in page


@pytest.mark.full
def test_the_custom_policy_example_runs() -> None:
    script = ROOT / "examples" / "my_selection.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("round ") == 3


@pytest.mark.full
def test_the_page_on_policies_runs_as_it_stands() -> None:
    """Its snippets, one after another: every class passes its check and all of them train."""
    page = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
    snippets = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(snippets) == 4
    done = subprocess.run(
        [sys.executable, "-"], input="\n".join(snippets), cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert 0 < float(done.stdout) < 1


@pytest.mark.full
def test_the_page_on_python_runs_as_it_stands(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    assert len(page.split()) < 900
    snippets = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(snippets) == 7
    done = subprocess.run(
        [sys.executable, "-"], input="\n".join(snippets), cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Run(ifca-edges on fashion-mnist-mini: 3 rounds, accuracy ")
    assert "['hierfavg [fraction=0.3]', 'hierfavg [fraction=0.8]']" in done.stdout
    assert "did you mean 'fraction'" in done.stdout
    assert {"mine.html", "edge3.safetensors", "edge3.pt2"} <= {path.name for path in (tmp_path / "runs").iterdir()}


def test_the_package_on_the_page_of_plug_ins_brings_its_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry point that its project file names is a preset; tests/unit/test_plugins.py installs such packages."""
    monkeypatch.setattr(fedbac.SELECTION, "kinds", dict(fedbac.SELECTION.kinds))
    monkeypatch.syspath_prepend(ROOT / "examples")
    page = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    (project,), (module,) = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("toml", "python"))
    found: dict[str, Any] = {}
    exec(module, found)
    for name, entry in tomllib.loads(project)["project"]["entry-points"]["fedbac.methods"].items():
        where, _, preset = entry.partition(":")
        assert f"{where}.py" in page
        experiment = fedbac.configure(found[preset](fedbac.task("demo")), "demo")
        assert (experiment.method.name, experiment.method.selection.kind) == (name, "largest_first")
    assert fedbac.configure("ifca-edges", "demo", settings=["method.selection=largest_first"])


@pytest.mark.full
@pytest.mark.parametrize("name", ["schemes", "devices", "aggregation"])
def test_a_page_on_classes_of_the_users_runs_as_it_stands(name: str) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    snippets = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    code = "\n".join(snippets)
    done = subprocess.run([sys.executable, "-"], input=code, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    printed = [float(line) for line in done.stdout.splitlines()]
    assert len(printed) == len(snippets)
    assert all(0 < accuracy < 1 for accuracy in printed)


class Example(NamedTuple):
    """A command or call of the documentation that runs methods."""

    text: str
    methods: list[str]
    """Names, not all of them of presets."""
    given: dict[str, Any]
    """Task, rounds and settings, as ``configure`` takes them."""


def examples() -> Iterator[Example]:
    """Go through those of README, Makefile, all pages and notebooks."""
    for page in (ROOT / "README.md", ROOT / "Makefile", *sorted((ROOT / "docs").rglob("*.md"))):
        text = page.read_text(encoding="utf-8")
        yield from commands(text)
        yield from calls(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    for page in sorted((ROOT / "examples").glob("*.ipynb")):
        cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
        yield from calls(["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"])


def commands(text: str) -> Iterator[Example]:
    """Yield the commands of a page; what ``fedbac show`` wrote to a file stands for the file."""
    shown: dict[str, tuple[list[str], list[str]]] = {}
    typed = r"(?:^\s*(?:\$\(BIN\)/)?|`)fedbac ((?:run|compare|sweep|tune|show) [^`\n]*)"
    for line in re.findall(typed, text.replace("\\\n", " "), re.MULTILINE):
        verb, *words = shlex.split(line, comments=True)
        names = list(takewhile(lambda word: word[0] not in "->", words))
        if verb == "show" and words[-2:-1] == [">"]:
            shown[words[-1]] = names, words[len(names) : -2]
        for name in names:
            methods, more = shown.get(name, ([name], []))
            pairs = list(pairwise(words[len(names) :] + more))
            given: dict[str, Any] = {key.strip("-"): value for key, value in pairs if key in ("--task", "--rounds")}
            if "rounds" in given:
                given["rounds"] = int(given["rounds"])
            yield Example(line, methods, given | {"settings": [value for key, value in pairs if key == "--set"]})


def calls(snippets: Sequence[str]) -> Iterator[Example]:
    """Yield the calls in the snippets of a page, which run in order."""
    known: dict[str, Any] = {}

    def value(node: ast.expr) -> Any:
        """Return what an expression stands for, if that can be read."""
        with suppress(ValueError):
            return ast.literal_eval(node)
        return known.get(ast.unparse(node))

    for node in ast.walk(ast.parse("\n".join(snippets))):  # what pages assign comes before what is within a call
        if isinstance(node, ast.Assign):
            known[ast.unparse(node.targets[0])] = value(node.value)
        if isinstance(node, ast.Call) and re.fullmatch(CALLS, ast.unparse(node.func)):
            given = dict(zip(("method", "task"), map(value, node.args), strict=False))
            given |= {word.arg: value(word.value) for word in node.keywords if word.arg}
            methods = given.get("method") or []
            chosen = {name: given[name] for name in ("task", "rounds", "settings") if given.get(name) is not None}
            yield Example(ast.unparse(node), [methods] if isinstance(methods, str) else methods, chosen)


def idle(experiment: Experiment) -> dict[str, int]:
    """Return the settings for which a method cannot act twice in a run, as far as settings decide it."""
    clustering, rounds = experiment.method.clustering, experiment.task.rounds
    found = waits(experiment.method.model_dump(mode="json"), rounds)
    if (period := getattr(clustering, "period", None)) is not None:
        first = isinstance(clustering, Opening) and clustering.first() is not None
        if (rounds - 1) // period + first < 2:
            found["clustering.period"] = period
    return found


def test_all_methods_of_an_example_act() -> None:
    """Twice at least in time for a round to use it; and examples are of settings that there are."""
    seen = 0
    for example in examples():
        for name in (name for name in example.methods if name in METHODS):
            seen += 1
            try:
                experiment = fedbac.configure(name, **example.given)
            except ConfigError as error:
                if not re.search("unknown kind|fractoin", str(error)):  # a class of the reader's, and a page on errors
                    raise
                continue
            assert not idle(experiment), example.text
    assert seen > 100, "the patterns find them"


def test_a_method_changed_in_python_is_checked_too() -> None:
    task = fedbac.task("demo")
    method = fedbac.method("fed-bac", task)
    for update, message in (
        ({"selektion": Random()}, "did you mean 'selection'"),
        ({"selection": Thompson.model_construct(fraction=1.5)}, r"method\.selection\.fraction: 1\.5"),
        ({"cloud_weight": "median"}, r"method\.cloud_weight: 'median'"),
    ):
        with pytest.raises(ConfigError, match=message):
            fedbac.configure(method.model_copy(update=update), task)
