"""Whether a class follows a protocol: it has all members, and its verbs take what the loop gives them."""

import inspect
from abc import ABC


def lacking(cls: type, protocol: type) -> str | None:
    """Return in which way a class of settings does not follow a protocol or a base class, or None if it does."""
    if ABC in protocol.__mro__ and not issubclass(cls, protocol):
        return f"{cls.__name__} does not derive from {protocol.__name__}"
    fields = getattr(cls, "model_fields", {})
    members = {name for name in (*vars(protocol), *protocol.__annotations__) if not name.startswith("_")}
    missing = sorted(name for name in members if not hasattr(cls, name) and name not in fields)
    missing += sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        return f"{cls.__name__} lacks {', '.join(missing)}, which {protocol.__name__} asks for"
    for name, wanted in vars(protocol).items():
        if name in members and inspect.isfunction(wanted) and not _takes(getattr(cls, name), wanted):
            given = ", ".join(list(inspect.signature(wanted).parameters)[1:])
            return f"{cls.__name__} has a verb {name}() that does not take what it is given: {name}({given})"
    return None


def _takes(verb: object, wanted: object) -> bool:
    if not inspect.isfunction(verb) or not inspect.isfunction(wanted):
        return callable(verb)
    try:
        inspect.signature(verb).bind(*inspect.signature(wanted).parameters)
    except TypeError:
        return False
    return True
