"""Fields whose value is chosen by its kind, and the kinds and methods that other packages bring by entry points."""

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from importlib import import_module
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

from fedbac.core.policies import lacking
from fedbac.core.settings import Settings
from fedbac.errors import ConfigError, quoted, unknown
from fedbac.packages import announced, imported

GROUP = "fedbac.methods"

log = logging.getLogger("fedbac")


@cache
def plugins() -> dict[str, Callable[[Any], Any]]:
    """Return the presets that installed packages announce; one that cannot be loaded is left out, with a warning."""
    found: dict[str, Callable[[Any], Any]] = {}
    for name, code in announced(GROUP).items():
        try:
            preset = imported(code, "method")
        except ConfigError as error:
            log.warning("method %r of %s cannot be loaded: %s", name, code, error)
            continue
        if isinstance(preset, type) or not callable(preset):
            log.warning("method %r: %s is no function from a task to a Method", name, code)
        else:
            found[name] = preset
    return found


@cache
def say_hidden(names: frozenset[str]) -> None:
    """Say once which methods of other packages cannot be chosen."""
    for name in sorted(names):
        log.warning("method %r of another package is left out: fedbac has one of that name; rename it", name)


class Choice:
    """Annotation of a field whose value is chosen by its ``kind``; ``register`` adds a kind of the user's.

    The module of the built-in kinds is imported when one is wanted: who only serves methods need not know any. As a
    collection, it holds the names of its kinds.
    """

    def __init__(self, protocol: type, module: str, names: str) -> None:
        self.protocol, self.module, self.names = protocol, module, names.split()

    @cached_property
    def builtin(self) -> tuple[type[Settings], ...]:
        """The kinds that are always there."""
        module = import_module(self.module)
        return tuple(getattr(module, name) for name in self.names)

    @cached_property
    def kinds(self) -> dict[str, type[Settings]]:
        """All kinds by their names."""
        return {kind_of(cls): cls for cls in self.builtin}

    def __iter__(self) -> Iterator[str]:
        return iter(self.kinds)

    def __contains__(self, kind: object) -> bool:
        return kind in self.kinds

    def __len__(self) -> int:
        return len(self.kinds)

    def default(self, **fields: Any) -> Any:
        """Return the first kind, with these fields."""
        return self.builtin[0](**fields)

    def register(self, cls: type[Settings]) -> type[Settings]:
        """Make a class of the user's known by its kind, so that configurations that name it can be read."""
        if not isinstance(cls, type) or not issubclass(cls, Settings):
            raise ConfigError(f"register: {quoted(cls)} is no class that derives from fedbac.Settings; give the class")
        if "kind" not in cls.model_fields:
            raise ConfigError(
                f"register: {cls.__name__} has no field kind; give it one, as in kind: Literal['mine'] = 'mine'"
            )
        kind = kind_of(cls)
        known = self.kinds.get(kind)
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ConfigError(
                f"register: {known.__name__} is called {kind!r} already; give {cls.__name__} another kind"
            )
        if trouble := lacking(cls, self.protocol):
            raise ConfigError(f"register: {trouble}")
        self.kinds[kind] = cls
        return cls

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        union = self.builtin[0]
        for cls in self.builtin[1:]:
            union = union | cls  # type: ignore[assignment]
        tagged = Annotated[union, Field(discriminator="kind")] if len(self.builtin) > 1 else union
        return core_schema.no_info_wrap_validator_function(
            self._validate,
            handler.generate_schema(tagged),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda value: value.model_dump(mode="json")),
        )

    def _validate(self, value: Any, inner: Callable[[Any], Any]) -> Any:
        if isinstance(value, Settings):
            if isinstance(value, self.protocol):
                return value
            if trouble := lacking(type(value), self.protocol):
                raise PydanticCustomError("unknown_kind", "{text}", {"text": trouble})
            return inner(value)
        if isinstance(value, str):
            value = {"kind": value}
        if not isinstance(value, Mapping):
            first = next(iter(self.kinds))
            text = f"{quoted(value)} is no choice; give a kind, such as {first!r}, or settings with a kind"
            raise PydanticCustomError("unknown_kind", "{text}", {"text": text})
        if "kind" not in value:
            return inner(value)
        kind = value["kind"]
        if isinstance(kind, str) and kind not in self.kinds:
            plugins()  # a package may register it
        if not isinstance(kind, str) or kind not in self.kinds:
            text = (
                f"{unknown('kind', kind, self.kinds)}; register a class of your own first, in Python; the command and "
                "other processes find it if its package is installed with an entry point"
            )
            raise PydanticCustomError("unknown_kind", "{text}", {"text": text})
        if self.kinds[kind] in self.builtin:
            return inner(value)
        for field in set(value) - set(self.kinds[kind].model_fields):
            text = unknown("field", field, self.kinds[kind].model_fields)
            raise PydanticCustomError("unknown_kind", "{text}", {"text": text})
        return self.kinds[kind].model_validate(value)


def kind_of(cls: type[Settings]) -> str:
    """Return the kind that a class of settings is known by."""
    return str(cls.model_fields["kind"].default)
