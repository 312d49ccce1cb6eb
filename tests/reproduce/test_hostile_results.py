"""Text of a result file stands in a page as text, and numbers that no run shows are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedbac.errors import ConfigError
from fedbac_paper.pages import files, write_pages
from fedbac_paper.results import read_results, write_results
from fedbac_paper.tables import code, literal
from tests.reproduce.invented import results

HOSTILE = "<img src=x onerror=alert(1)> | `x` [a](javascript:b) **c** &amp; \x1b\n# forged"
SAFE = "&lt;img src=x onerror=alert(1)&gt; \\| \\`x\\` \\[a\\](javascript:b) \\*\\*c\\*\\* &amp;amp; \\\\x1b # forged"


def written(folder: Path, change: Any, name: str = "table-fairness") -> Path:
    path = write_results(results(name), folder)
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))
    return folder


def test_hostile_text_is_only_text() -> None:
    assert literal(HOSTILE) == SAFE
    assert code(HOSTILE) == SAFE
    assert code("task.network={kind: mlp}") == "`task.network={kind: mlp}`"


def test_no_text_of_a_result_file_is_html_or_a_line_of_its_own(tmp_path: Path) -> None:
    def forge(tree: Any) -> None:
        tree["changes"] = [HOSTILE]
        tree["settings"] = {"cifar10": [HOSTILE]}
        for finding in tree["findings"]:
            finding["machine"] = finding["trainer"] = HOSTILE

    found = read_results("table-fairness", written(tmp_path, forge))
    assert found is not None
    text = files(found)["table-fairness.md"]
    assert text.count(SAFE) >= 3
    assert "<img" not in text
    assert "\x1b" not in text
    assert "\n# forged" not in text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("accuracy", 1e300),
        ("accuracy", -0.1),
        ("seconds", float("nan")),
        ("rounds", 10**30),
        ("machine", "x" * 10_000),
        ("targets", {"<b>": {"round": 1, "bytes": None}}),
        ("targets", {"nan": {"round": 1, "bytes": None}}),
        ("curve", {"round": [1, 2], "accuracy": [0.5], "moves": [0, 0], "active_clusters": [1, 1]}),
        ("curve", {"round": [], "accuracy": [], "moves": [], "active_clusters": []}),
    ],
)
def test_numbers_that_no_run_shows_are_refused(field: str, value: Any, tmp_path: Path) -> None:
    folder = written(tmp_path, lambda tree: tree["findings"][0].update({field: value}))
    with pytest.raises(ConfigError, match=r"table-fairness.json.*remove it"):
        read_results("table-fairness", folder)


def test_numbers_that_cannot_be_compared_name_their_file(tmp_path: Path) -> None:
    def still(tree: Any) -> None:
        for finding in tree["findings"]:
            finding["edge_std"] = 0.0

    with pytest.raises(ConfigError, match=r"table-fairness.json: no page can be made"):
        write_pages(["table-fairness"], written(tmp_path, still), tmp_path / "pages")


def test_a_deeply_nested_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "table-fairness.json").write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="cannot be read as results"):
        read_results("table-fairness", tmp_path)
