"""Every registered kind with every value of its named options: a new kind or option joins the contracts by itself."""

from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError

from fedbac.config.choices import Choice
from fedbac.core.settings import Settings


def variants(choice: Choice, **always: Any) -> dict[str, Settings]:
    """Return each kind by default, and once per other value of an option that lists its values.

    ``always`` holds settings to make wherever a kind has them.
    """
    found: dict[str, Settings] = {}
    for kind, cls in sorted(choice.kinds.items()):
        common = {field: value for field, value in always.items() if field in cls.model_fields}
        found[kind] = cls(**common)
        for field, info in cls.model_fields.items():
            if field == "kind":
                continue
            options = get_args(info.annotation) if get_origin(info.annotation) is Literal else ()
            options = (True, False) if info.annotation is bool else options
            for option in options:
                if option != info.default:
                    found[f"{kind}-{field}={option}"] = cls(**common | {field: option})
    return found


def refuses_change(settings: Settings) -> bool:
    """Whether a policy or scheme cannot be changed once made."""
    try:
        settings.kind = "other"  # type: ignore[attr-defined]
    except ValidationError:
        return True
    return False
