"""Every registered kind with every value of its named options: a new kind or option joins the contracts by itself."""

from dataclasses import replace
from typing import Any, Literal, get_args, get_origin

import numpy as np
import safetensors.torch
from pydantic import ValidationError

from fedbac import Experiment, Fixed, Method, Perceptron, PerCluster, Random
from fedbac.config.choices import Choice
from fedbac.core.settings import Settings
from fedbac.models import builder
from fedbac.rounds.cloud import start
from fedbac.rounds.edge import EdgeSite
from fedbac.runs.store import flatten, unflatten
from tests.unit.tiny import tiny_task


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


def save_and_load(clustering: tuple[Any, Any] | None = None, selection: tuple[Any, Any] | None = None) -> Any:
    """Return a policy's state after a trip through a checkpoint's bytes, with a fresh start as the template."""
    method = Method(
        name="x",
        clustering=clustering[0] if clustering else Fixed(),
        selection=selection[0] if selection else Random(),
        personalization=PerCluster(),
    )
    experiment = Experiment(task=tiny_task(num_edges=6, clients_per_edge=10), method=method)
    sites = [EdgeSite(m, tuple(range(10 * m, 10 * m + 10)), np.ones(10, int), np.ones(10, int)) for m in range(6)]
    template = start(experiment, builder(Perceptron(hidden=()), None, (1,), 2, seed=0), sites)
    before = replace(
        template,
        clustering=clustering[1] if clustering else template.clustering,
        selection_M=(*template.selection_M[:3], selection[1], *template.selection_M[4:])
        if selection
        else template.selection_M,
    )
    after = unflatten(template, safetensors.torch.load(safetensors.torch.save(flatten(before))), 0)
    return after.clustering if clustering else after.selection_M[3]


def is_state(state: Any) -> bool:
    """Whether it is a named tuple of numpy arrays."""
    return isinstance(state, tuple) and hasattr(state, "_fields") and all(isinstance(a, np.ndarray) for a in state)


def same(left: Any, right: Any) -> bool:
    """Whether two states hold the same arrays, types and shapes included."""
    return type(left) is type(right) and all(
        a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        for a, b in zip(left, right, strict=True)
    )


def thawed(state: Any) -> Any:
    """Return a state of its own, writeable arrays."""
    return type(state)(*(array.copy() for array in state))


def frozen(arrays: Any) -> Any:
    """Make the arrays of a state or of evidence read-only, so that whoever writes to them is found out."""
    values = arrays if isinstance(arrays, tuple) else vars(arrays).values()
    for value in values:
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    return arrays


def refuses_change(settings: Settings) -> bool:
    """Whether a policy or scheme cannot be changed once made."""
    try:
        settings.kind = "other"  # type: ignore[attr-defined]
    except ValidationError:
        return True
    return False
