"""Plain data → settings, and mistakes in words: which field, which value, what is allowed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from fedbac.config.columns import CHOSEN
from fedbac.config.text import parse_yaml
from fedbac.core.settings import Settings, of_kind
from fedbac.errors import ConfigError, quoted, unknown

S = TypeVar("S", bound=Settings)

NO_SETTINGS = {"model_type", "model_attributes_type", "dict_type"}
"""What pydantic calls a value where a group of settings belongs."""

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


class Override(NamedTuple):
    """A setting to change."""

    path: str
    value: Any
    source: str
    """Where a person wrote it, for messages."""


def changes_of(settings: Mapping[str, Any] | Sequence[str]) -> list[Override]:
    """Return settings given as ``{path: value}`` or as ``path=value`` texts, whose values are YAML: 0.1, null, [1]."""
    if isinstance(settings, Mapping):
        plain = {p: v.model_dump(mode="json") if isinstance(v, Settings) else v for p, v in settings.items()}
        found = [Override(path, value, f"settings[{quoted(path)}]") for path, value in plain.items()]
        if all(isinstance(change.path, str) and change.path for change in found):
            return found
    listed = isinstance(settings, Sequence) and not isinstance(settings, str)
    if listed and all(isinstance(setting, str) for setting in settings):
        return [_change(setting) for setting in settings]
    raise ConfigError(f"settings: {quoted(settings)} is neither {{'path': value}} nor a list of 'path=value' texts")


def _change(assignment: str) -> Override:
    path, equals, text = assignment.partition("=")
    source = f"--set {quoted(assignment)}"
    if not equals or not path:
        raise ConfigError(f"{source}: write it as path=value, for example task.training.batch_size=64")
    return Override(path, parse_yaml(text, source), source)


def override(tree: Mapping[str, Any], changes: Iterable[Override]) -> dict[str, Any]:
    """Return the tree with each setting changed; the name of the kind that is there changes nothing."""
    out = dict(tree)
    for path, value, source in changes:
        *parents, leaf = path.split(".")
        node = out
        for parent in parents:
            child = node.get(parent)
            if child is None:
                child = node[parent] = {}
            if isinstance(child, str) and parent in CHOSEN:
                child = node[parent] = of_kind(child)
            if not isinstance(child, Mapping):
                found = "a list; give all of it" if isinstance(child, list) else "a value, not a group of settings"
                raise ConfigError(f"{source}: {quoted(parent)} is {found}")
            child = node[parent] = dict(child)  # a copy of what is on the way, and of nothing else
            node = child
        there = node.get(leaf)
        if leaf in CHOSEN and isinstance(value, str) and isinstance(there, Mapping) and there.get("kind") == value:
            continue
        if leaf == "kind" and value != node.get("kind"):
            node.clear()  # the settings of one kind mean nothing to another
        node[leaf] = value
    return out


def _explain(cls: type[Settings], detail: Any, parent: str) -> str:
    # A choice puts its kind into the path; the user never wrote it there.
    # A field that takes two forms puts the form's own name into the path, as in clients_per_edge.constrained-int.
    # A link puts the place in its list there.
    path = [parent] * bool(parent)
    for step in map(str, detail["loc"]):
        chosen = CHOSEN.get(path[-1], ()) if path else ()
        if not (chosen and (step in chosen or step.isdigit())) and not step.startswith(("constrained-", "tuple[")):
            path.append(step)
    where, value, message = ".".join(path) or cls.__name__.lower(), detail["input"], detail["msg"]
    if detail["type"] == "extra_forbidden":
        return f"{where}: " + unknown("field", path[-1], _fields_at(cls, detail["loc"][:-1]))
    if detail["type"] == "union_tag_invalid":
        return f"{where}: " + unknown("kind", detail["ctx"]["tag"], CHOSEN[path[-1]])
    if detail["type"] == "union_tag_not_found":
        return f"{where}: {quoted(value)} has no kind; give one of {', '.join(CHOSEN[path[-1]])}"
    if detail["type"] in NO_SETTINGS and path and path[-1] in CHOSEN:
        return f"{where}: {quoted(value)} is no choice; give a kind: {', '.join(CHOSEN[path[-1]])}"
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
        elif "items" in node:
            node = node["items"]
    return list(_resolve(schema, node).get("properties", {}))


def _resolve(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    options = [option for option in node.get("anyOf", ()) if "$ref" in option or "discriminator" in option]
    if len(options) == 1:  # an optional group of settings
        node = options[0]
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    return node
