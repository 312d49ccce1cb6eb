"""Methods of other packages: found by their entry points, listed, run; broken ones harm nobody."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fedbac import AGGREGATION, METHODS, SELECTION, STEP, configure
from fedbac.cli import lists
from fedbac.config.choices import plugins, say_hidden
from fedbac.errors import ConfigError
from fedbac.presets.methods import known

MODULE = """
from typing import Literal
from fedbac import AGGREGATION, Median, Method, Momentum, Random, SELECTION, STEP

class Everybody(Random):
    kind: Literal["everybody"] = "everybody"

class Middle(Median):
    kind: Literal["middle"] = "middle"

class Slow(Momentum):
    kind: Literal["slow"] = "slow"

SELECTION.register(Everybody)
AGGREGATION.register(Middle)
STEP.register(Slow)

def mine(task):
    '''Everybody.

    In many words: and a colon.
    '''
    return Method(name="mine", selection=Everybody())

def wrong(task):
    return "no method"

def failing(task):
    return Method(name="mine", selecton=Everybody())
"""
ENTRIES = """[fedbac.methods]
mine = strangers_methods:mine
wrong = strangers_methods:wrong
failing = strangers_methods:failing
ifca-edges = strangers_methods:mine
everybody = strangers_methods:Everybody
broken = strangers_methods:missing
"""


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a package of somebody else's for a while."""
    (tmp_path / "strangers_methods.py").write_text(MODULE)
    metadata = tmp_path / "strangers_methods-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers-methods\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(tmp_path)
    plugins.cache_clear()
    say_hidden.cache_clear()
    yield
    plugins.cache_clear()
    for choice, kind in ((SELECTION, "everybody"), (AGGREGATION, "middle"), (STEP, "slow")):
        choice.kinds.pop(kind, None)
    sys.modules.pop("strangers_methods", None)


@pytest.mark.usefixtures("stranger")
def test_a_method_of_another_package_is_a_method(caplog: pytest.LogCaptureFixture) -> None:
    assert set(known()) == {*METHODS, "mine", "wrong", "failing"}
    assert "method 'broken' of strangers_methods:missing cannot be loaded" in caplog.text
    assert "method 'everybody': strangers_methods:Everybody is no function from a task to a Method" in caplog.text
    assert "method 'ifca-edges' of another package is left out: fedbac has one of that name" in caplog.text
    assert configure("ifca-edges", "demo").method.selection.kind == "random"
    assert configure("mine", "demo").method.selection.kind == "everybody"
    with pytest.raises(ConfigError, match="method 'wrong': its preset must return a Method, not a str"):
        configure("wrong", "demo")
    with pytest.raises(ConfigError, match=r"method 'failing': its preset failed with ValidationError: .*selecton"):
        configure("failing", "demo")


@pytest.mark.usefixtures("stranger")
def test_a_method_of_another_package_is_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    lists.methods()
    told = capsys.readouterr()
    assert "mine " in told.out
    assert "method 'wrong': its preset must return a Method" in told.err
    assert "method 'failing': its preset failed" in told.err
    lists.show("mine", "demo")
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["experiment"]["method"]["selection"]["kind"] == "everybody"


@pytest.mark.usefixtures("stranger")
def test_a_kind_of_another_package_is_found_when_a_setting_names_it() -> None:
    assert configure("hierfavg", "demo", settings=["method.selection.kind=everybody"]).method.selection.fraction == 1
    settings = ["method.cloud_aggregation=middle", "method.step={kind: slow, beta: 0.5}"]
    method = configure("hierfavg", "demo", settings=settings).method
    assert (method.aggregation.kind, method.cloud_aggregation and method.cloud_aggregation.kind) == ("mean", "middle")
    assert method.step.model_dump() == {"kind": "slow", "learning_rate": 1.0, "beta": 0.5}  # type: ignore[attr-defined]


def test_without_packages_there_are_our_methods() -> None:
    plugins.cache_clear()
    assert set(known()) == set(METHODS)
    with pytest.raises(ConfigError, match="everybody"):
        configure("hierfavg", "demo", settings=["method.selection.kind=everybody"])
