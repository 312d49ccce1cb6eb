"""Text is measured before anything is built of it, and holds plain values only."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedbac.config.text import MAX_DEPTH, MAX_FILE, MAX_VALUE, MAX_VALUES, parse_yaml, read_yaml
from fedbac.errors import ConfigError
from tests.inputs.hostile import BOMB


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("!!bool x", "line 1, column 1: 'x' cannot be read as 'bool'"),
        ("!!int ''", "cannot be read as 'int'"),
        ("0x_", "cannot be read as 'int'"),
        ("9" * 5000, "cannot be read as 'int'"),
        ("0x" + "f" * 5000, "too large a number"),
        ("[" * 3000, "nested deeper than 50 levels"),
        ("- " * 3000, "nested deeper than 50 levels"),
        (BOMB, "more than 50,000 values"),
        ("&a [*a]", "the alias 'a'"),
        ("{1: 2}", "a name must be text"),
        ("{!!str [a]: 2}", "a name must be text"),
        ("{a: 1, a: 2}", "'a' is given twice"),
        ("!!timestamp 2001-01-01", "tag:yaml.org,2002:timestamp"),
        ("!!python/object/apply:os.getcwd []", "python/object/apply"),
        ("\ud800", "surrogates not allowed"),
        ("x" * (MAX_VALUE + 1), "longer than 65,536 bytes"),
    ],
)
def test_what_cannot_be_settings_is_one_error_with_its_place(given: str, said: str) -> None:
    with pytest.raises(ConfigError, match=r"^--set: ") as caught:
        parse_yaml(given, "--set")
    assert said in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("2001-99-99", "2001-99-99"),
        ("2001-01-01", "2001-01-01"),
        ("0.1", 0.1),
        ("[1, {a: ~}]", [1, {"a": None}]),
        ("{a: &x [1], b: *x}", {"a": [1], "b": [1]}),
        ("[" * MAX_DEPTH + "]" * MAX_DEPTH, None),
    ],
)
def test_plain_values_are_read_and_dates_are_text(given: str, value: Any) -> None:
    assert value in (None, parse_yaml(given, "--set"))


def test_nothing_is_built_of_a_text_that_stands_for_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml, "load", lambda *_, **__: pytest.fail("it was built"))
    for given in (BOMB, "[" + "1," * MAX_VALUES + "1]", f"[&a '{'x' * 3000}'{', *a' * 600}]"):
        with pytest.raises(ConfigError, match="more than 50,000 values"):
            parse_yaml(given, "a file", MAX_FILE)


def test_a_file_is_not_read_past_its_limit(tmp_path: Path) -> None:
    file = tmp_path / "large.yaml"
    with file.open("wb") as sparse:
        sparse.truncate(2**40)
    with pytest.raises(ConfigError, match="longer than 1,048,576 bytes"):
        read_yaml(file)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "it is empty; write settings as 'name: value'"),
        ("# nothing yet\n", "it is empty"),
        ("[1, 2]", "it must hold settings as 'name: value', not a list"),
        ("ifca-edges", "it must hold settings as 'name: value', not only 'ifca-edges'"),
    ],
)
def test_a_file_without_settings_says_so_in_plain_words(content: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=re.escape(f"mine.yaml: {said}")):
        read_yaml(file)
