"""Methods and policies of other packages, found by their entry points.

A package announces a method in its ``pyproject.toml``:

    [project.entry-points."fedbac.methods"]
    my-method = "my_package.methods:my_method"

The entry is a preset: a function from a task to a ``Method``. Importing its module may ``register`` policies.
"""

import logging
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import Any

GROUP = "fedbac.methods"

log = logging.getLogger("fedbac")


@cache
def plugins() -> dict[str, Callable[[Any], Any]]:
    """Return the presets that installed packages announce; one that cannot be loaded is left out, with a warning."""
    found: dict[str, Callable[[Any], Any]] = {}
    for entry in entry_points(group=GROUP):
        try:
            preset = entry.load()
        except Exception as error:  # whatever a stranger's module does when it is imported
            log.warning("method %r of %s cannot be loaded: %s", entry.name, entry.value, error)
            continue
        if isinstance(preset, type) or not callable(preset):
            log.warning("method %r: %s is no function from a task to a Method", entry.name, entry.value)
        else:
            found[entry.name] = preset
    return found


@cache
def say_hidden(names: frozenset[str]) -> None:
    """Say once which methods of other packages cannot be chosen."""
    for name in sorted(names):
        log.warning("method %r of another package is left out: fedbac has one of that name; rename it", name)
