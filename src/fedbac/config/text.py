"""Configurations as text: the one place that reads and writes YAML.

A text is measured before anything is built of it: its size, how deep it is nested, and how much it repeats by aliases.
It may hold plain settings only: null, true and false, numbers, text, lists, and mappings with text as their keys.
"""

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from fedbac.errors import ConfigError, quoted
from fedbac.files import read_bytes

MAX_FILE, MAX_VALUE = 2**20, 2**16
"""Bytes of a file, and of a value on the command line."""
MAX_DEPTH = 50
MAX_VALUES = 50_000
"""Of one text; an alias counts for all that it stands for."""
LONG = 32
"""Characters of a text that count as a value."""
MAX_BITS = 1024
"""Of a whole number; what is larger no setting takes and no message can write."""
STANDARD = "tag:yaml.org,2002:"
PLAIN = tuple(STANDARD + kind for kind in ("null", "bool", "int", "float", "str", "seq", "map"))

_FAST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same, but many times as fast where it was built


class _Loader(_FAST):  # type: ignore[misc]
    """YAML's plain values alone: there are no dates, so ``2001-99-99`` is text, and no merging of mappings."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in known if tag in PLAIN]
        for first, known in _FAST.yaml_implicit_resolvers.items()
    }
    yaml_constructors = {  # noqa: RUF012
        tag: build for tag, build in _FAST.yaml_constructors.items() if tag is None or tag in PLAIN
    }

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return what a node stands for; a text that is not what it is said to be gives a message with its place."""
        try:
            value = super().construct_object(node, deep=deep)
        except yaml.YAMLError:
            raise
        except Exception as error:
            kind = node.tag.removeprefix(STANDARD)
            raise _error(node, f"{quoted(node.value)} cannot be read as {quoted(kind)}") from error
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise _error(node, f"{quoted(node.value)} is too large a number")
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return a mapping whose keys are text, each given once."""
        names = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if key.tag != f"{STANDARD}str" or not isinstance(key, yaml.ScalarNode):
                raise _error(key, "a name must be text")
            if key.value in names:
                raise _error(key, f"{quoted(key.value)} is given twice")
            names.add(key.value)
        built: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return built


def _error(place: Any, problem: str) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(problem=problem, problem_mark=place.start_mark)


def parse_yaml(text: str, source: str, limit: int = MAX_VALUE) -> Any:
    """Return what a text says; ``source`` is the file or the option that it comes from, for the message."""
    if len(text) > limit:
        raise ConfigError(f"{source}: it is longer than {limit:,} bytes, which no settings need; shorten it")
    try:
        _measure(text)
        return yaml.load(text, Loader=_Loader)
    except Exception as error:  # a YAMLError, or whatever else the library lets out on strange text
        raise ConfigError(f"{source}: not readable YAML ({_place(error)}); correct it, or quote text") from error


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the settings in a file."""
    try:
        tree = parse_yaml(read_bytes(path, MAX_FILE).decode("utf-8"), str(path), MAX_FILE)
    except OSError as error:
        raise ConfigError(f"{path}: the file cannot be read ({error.strerror}); check its name") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not readable YAML ({error}); save it as UTF-8") from error
    if tree is None:
        raise ConfigError(f"{path}: it is empty; write settings as 'name: value', as fedbac show prints them")
    if not isinstance(tree, dict):
        kind = "a list" if isinstance(tree, list) else f"only {quoted(tree)}"
        raise ConfigError(f"{path}: it must hold settings as 'name: value', not {kind}")
    return tree


def to_yaml(tree: Mapping[str, Any]) -> str:
    """Return settings as text, in their order."""
    return yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True)


def _measure(text: str) -> None:
    """Refuse a text that is nested too deep or stands for too many values, before anything is built of it."""
    values = 0
    around: list[tuple[str | None, int]] = []  # of every collection around: its anchor, and the values before it
    size: dict[str, int] = {}  # how many values each anchor stands for
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = around.pop()
            if anchor:
                size[anchor] = values - before
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in size:
                raise _error(event, f"the alias {quoted(event.anchor)} stands for nothing complete")
            values += size[event.anchor]
        elif isinstance(event, yaml.NodeEvent):
            weight = 1 + len(event.value) // LONG if isinstance(event, yaml.ScalarEvent) else 1
            values += weight
            if event.anchor:
                size[event.anchor] = weight
            if isinstance(event, yaml.CollectionStartEvent):
                around.append((event.anchor, values - weight))
                size.pop(event.anchor or "", None)  # not complete yet, so it cannot stand in itself
        if len(around) > MAX_DEPTH:
            raise _error(event, f"nested deeper than {MAX_DEPTH} levels")
        if values > MAX_VALUES:
            raise _error(event, f"more than {MAX_VALUES:,} values")


def _place(error: Exception) -> str:
    """Return a parser's complaint on one line."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())
