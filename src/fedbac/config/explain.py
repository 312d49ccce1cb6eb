"""Plain data → settings, and mistakes in words: which field, which value, what is allowed."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from fedbac.config.columns import CHOSEN
from fedbac.config.text import parse_yaml
from fedbac.core.settings import Settings
from fedbac.errors import ConfigError, quoted, unknown

S = TypeVar("S", bound=Settings)

MOST_MISTAKES = 10
"""As many are listed; of more, how many there are."""


def parse(cls: type[S], data: Any, where: str = "") -> S:
    """Return the settings in plain data, or raise a ConfigError that names field, value and what is allowed."""
    try:
        return cls.model_validate(data)
    except ValidationError as error:
        details = error.errors()
        lines = [_explain(cls, detail, where) for detail in details[:MOST_MISTAKES]]
        lines += [f"and {len(details) - MOST_MISTAKES} more mistakes"] * (len(details) > MOST_MISTAKES)
        raise ConfigError("\n".join(dict.fromkeys(lines))) from error


def override(tree: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """Return the tree with each ``path=value`` set; values are read as YAML, so 0.1, true, null and [1, 2] work."""
    out = _copy(tree)
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        source = f"--set {quoted(assignment)}"
        if not equals or not path:
            raise ConfigError(f"{source}: write it as path=value, for example task.training.batch_size=64")
        *parents, leaf = path.split(".")
        node = out
        for parent in parents:
            child = node.get(parent)
            if child is None:
                child = node[parent] = {}
            if isinstance(child, str) and parent in CHOSEN:
                child = node[parent] = {"kind": child}
            if not isinstance(child, dict):
                raise ConfigError(f"{source}: {quoted(parent)} is a value, not a group of settings")
            node = child
        value = parse_yaml(text, source)
        if leaf == "kind" and value != node.get("kind"):
            node.clear()  # the settings of one kind mean nothing to another
        node[leaf] = value
    return out


def _copy(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in tree.items()}


def _explain(cls: type[Settings], detail: Any, parent: str) -> str:
    # A choice puts its kind into the path; the user never wrote it there.
    # A field that takes two forms puts the form's own name into the path, as in clients_per_edge.constrained-int.
    path = [parent] * bool(parent)
    for step in map(str, detail["loc"]):
        if not (path and step in CHOSEN.get(path[-1], ())) and not step.startswith(("constrained-", "tuple[")):
            path.append(step)
    where, value, message = ".".join(path) or cls.__name__.lower(), detail["input"], detail["msg"]
    if detail["type"] == "extra_forbidden":
        return f"{where}: " + unknown("field", path[-1], _fields_at(cls, detail["loc"][:-1]))
    if detail["type"] == "union_tag_invalid":
        return f"{where}: " + unknown("kind", detail["ctx"]["tag"], CHOSEN[path[-1]])
    if detail["type"] in {"value_error", "unknown_kind", "missing"}:
        return f"{where}: {message.removeprefix('Value error, ')}" if path else message.removeprefix("Value error, ")
    return f"{where}: {quoted(value)} is not allowed: {message[0].lower()}{message[1:]}"


def _fields_at(cls: type[Settings], path: Sequence[object]) -> list[str]:
    """Return the field names of the settings at a path of a validation error."""
    schema: dict[str, Any] = cls.model_json_schema()
    node: dict[str, Any] = schema
    for step in path:
        node = _resolve(schema, node)
        if step in node.get("properties", {}):
            node = node["properties"][step]
        elif "discriminator" in node:
            node = {"$ref": node["discriminator"]["mapping"][step]}
    return list(_resolve(schema, node).get("properties", {}))


def _resolve(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    options = [option for option in node.get("anyOf", ()) if "$ref" in option or "discriminator" in option]
    if len(options) == 1:  # an optional group of settings
        node = options[0]
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    return node
