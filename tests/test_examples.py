"""The demo's order, the wheel, and the examples that people start from."""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedbac
from fedbac import METHODS, ConfigError, Random, Thompson
from fedbac.core.policies import Opening

ROOT = Path(__file__).resolve().parent.parent


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


def examples() -> Iterator[tuple[str, list[str], dict[str, str], list[str]]]:
    """Go through the commands and calls of the documentation that run methods: methods, task, and their clustering."""
    notebooks = sorted((ROOT / "examples").glob("*.ipynb"))
    for page in (ROOT / "README.md", ROOT / "Makefile", *sorted((ROOT / "docs").glob("*.md")), *notebooks):
        text = page.read_text(encoding="utf-8")
        if page in notebooks:
            text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
        for line in re.findall(r"^\s*(?:\$\(BIN\)/)?fedbac (?:run|compare|sweep|tune) (.*)$", text, re.MULTILINE):
            names = re.split(r" -|#", line)[0].split()
            yield (
                line,
                names,
                dict(re.findall(r"--(task|rounds) (\S+)", line)),
                re.findall(r"(method\.clustering\S+=\d+)", line),
            )
        for call in re.findall(r"fedbac\.(?:run|compare|sweep|play|tune)\((.*?)\)", text, re.DOTALL):
            names = re.findall(r'"([\w-]+)"', call.split("=")[0])
            often = ["method.clustering.period=4"] * ("settings=often" in call)
            yield call, names, dict(re.findall(r'(task|rounds)="?([\w-]+)', call)), often


def test_all_methods_of_an_example_act() -> None:
    """Twice at least in time for a round to use it."""
    seen = 0
    for text, names, given, settings in examples():
        for name in (name for name in names if name in METHODS):
            rounds = int(given["rounds"]) if "rounds" in given else None
            experiment = fedbac.configure(name, given.get("task"), rounds=rounds, settings=settings)
            clustering = experiment.method.clustering
            if (period := getattr(clustering, "period", None)) is not None:
                seen += 1
                decisions = (experiment.task.rounds - 1) // period + isinstance(clustering, Opening)
                assert decisions >= 2, text
    assert seen > 20, "the patterns find them"


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
