"""Configurations as text: the one place that reads and writes YAML."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fedbac.errors import ConfigError

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same, but many times as fast where it was built


def parse_yaml(text: str, source: str) -> Any:
    """Return what a text says; ``source`` is the file or the option that it comes from, for the message."""
    try:
        return yaml.load(text, Loader=_LOADER)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that there is not, such as 2024-13-01
        raise ConfigError(f"{source}: not readable YAML ({_place(error)}); correct it, or quote text") from error


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the settings in a file."""
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ConfigError(f"{path}: the file cannot be read ({error.strerror}); check its name") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not readable YAML ({error}); save it as UTF-8") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: it must hold settings as 'name: value', not {type(tree).__name__}")
    return tree


def to_yaml(tree: Mapping[str, Any]) -> str:
    """Return settings as text, in their order."""
    return yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True)


def _place(error: Exception) -> str:
    """Return a parser's complaint on one line."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())
