"""Who computed which rounds: a list of segments, kept in the records where each begins, and what to do if they mix."""

import logging
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedbac.config.experiment import Runtime
from fedbac.errors import ConfigError, RunFolderError
from fedbac.local import arithmetic, num_cores
from fedbac.rounds.messages import Edges
from fedbac.version import full_version

log = logging.getLogger("fedbac")

DECIDES = ("fedbac", "torch", "numpy", "trainer", "arithmetic", "precision")
"""What may change the last bits of a round; Python and the number of threads do not."""


def environment(edges: Edges, runtime: Runtime) -> dict[str, Any]:
    """Return what computes rounds here and now, as a record states it."""
    return {
        "fedbac": full_version(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "trainer": edges.path,
        "arithmetic": arithmetic(edges.device),
        "threads": runtime.workers or num_cores(),
        "precision": runtime.precision,
    }


def in_words(by: Mapping[str, Any]) -> str:
    """Return what computed rounds, on one line."""
    return ", ".join(f"{name} {value}" for name, value in by.items())


def admit(
    before: Mapping[str, Any], now: Mapping[str, Any], policy: str, place: Path, replay: Callable[[], str | None] | None
) -> None:
    """Apply the policy for a run that goes on elsewhere than it stopped; ``replay`` says how its last round differs."""
    changed = [f"{key} {before[key]} is now {now[key]}" for key in DECIDES if key in before and before[key] != now[key]]
    if not changed:
        return
    problem = f"{place}: what computed its last rounds is not here ({'; '.join(changed)})"
    if policy == "refuse":
        raise RunFolderError(
            f"{problem}; resume it where it stopped, or allow the mixture with --mixed allow or replay"
        )
    if policy == "replay":
        if replay is None:
            raise ConfigError("runtime.mixed: rounds of a federation cannot be replayed; use allow or refuse")
        difference = replay()
        if difference is not None:
            raise RunFolderError(f"{problem}, and its last round does not repeat its bits: {difference}")
        return
    log.warning("%s, so the next ones may round differently; its report shows both", problem)
