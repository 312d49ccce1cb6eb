"""The lock pins all that the project asks for, to versions that it allows, for every platform alike."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent


def test_the_lock_pins_what_the_project_asks_for() -> None:
    lines = (ROOT / "requirements-dev.lock").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    pinned = {canonicalize_name(name): version for name, version in pinned.items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    every = (text for extra in extras if extra not in ("peers", "fluke", "wandb", "nvflare") for text in extras[extra])
    for text in (*project["dependencies"], *every):
        wanted = Requirement(text)
        if wanted.name in ("fedbac", "setuptools"):  # this project, and what every environment brings
            continue
        assert pinned[canonicalize_name(wanted.name)] in wanted.specifier, text
    assert not any("+" in version for version in pinned.values()), "a build of one platform"
    (torch,) = re.findall(r"^TORCH := torch==(\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert pinned["torch"] == torch


def test_the_page_names_the_versions_of_torch_that_are_tried() -> None:
    page, flow = (ROOT / "docs/compatibility.md").read_text(), (ROOT / ".github/workflows/tests.yml").read_text()
    (newest,) = re.findall(r"^torch==(\S+)$", (ROOT / "requirements-dev.lock").read_text(), re.MULTILINE)
    (oldest,) = re.findall(r'torch: "(\d\S+)"', flow)
    assert f"torch {newest}." in page
    assert f"for {oldest}, the oldest allowed" in page
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"torch>={oldest.removesuffix('.0')}" in project["dependencies"]
