"""Fields that hold one of several registered kinds, or any object of the user's that follows the protocol."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

from fedbac.core.settings import Settings
from fedbac.errors import unknown


class Choice:
    """Annotation of a field whose value is chosen by its ``kind``; ``register`` adds a kind of the user's."""

    def __init__(self, protocol: type, *builtin: type[Settings]) -> None:
        self.protocol = protocol
        self.builtin = builtin
        self.kinds: dict[str, type[Settings]] = {kind_of(cls): cls for cls in builtin}

    def register(self, cls: type[Settings]) -> type[Settings]:
        """Make a class of the user's known by its kind, so that configurations that name it can be read."""
        self.kinds[kind_of(cls)] = cls
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
        if isinstance(value, self.protocol) and isinstance(value, Settings):
            return value
        if isinstance(value, Settings):
            members = {*vars(self.protocol), *self.protocol.__annotations__}
            missing = sorted(name for name in members if not name.startswith("_") and not hasattr(value, name))
            if missing:
                text = f"{type(value).__name__} lacks {', '.join(missing)}, which {self.protocol.__name__} asks for"
                raise PydanticCustomError("unknown_kind", "{text}", {"text": text})
        if isinstance(value, str):
            value = {"kind": value}
        if isinstance(value, Mapping) and "kind" in value:
            kind = value["kind"]
            if not isinstance(kind, str) or kind not in self.kinds:
                raise PydanticCustomError("unknown_kind", "{text}", {"text": unknown("kind", kind, self.kinds)})
            if self.kinds[kind] not in self.builtin:
                for field in set(value) - set(self.kinds[kind].model_fields):
                    text = unknown("field", field, self.kinds[kind].model_fields)
                    raise PydanticCustomError("unknown_kind", "{text}", {"text": text})
                return self.kinds[kind].model_validate(value)
        return inner(value)


def kind_of(cls: type[Settings]) -> str:
    """Return the kind that a class of settings is known by."""
    return str(cls.model_fields["kind"].default)
