"""How what policies say is written into the record of a round: short, and without what JSON cannot hold."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from fedbac.config.experiment import Method
from fedbac.core.policies import Believing, Gaps, Noting
from fedbac.core.state import State

DIGITS = 4


def written(numbers: Iterable[float]) -> list[float | None]:
    """Return numbers rounded for a reader; None where one is not finite."""
    return [round(float(number), DIGITS) if np.isfinite(number) else None for number in numbers]


def written_gaps(gaps: Gaps) -> dict[str, Any]:
    """Return the clusters, the gaps between them, and the limit below which they may merge."""
    return {
        "clusters": [int(label) for label in gaps.label_G],
        "gap": [written(row) for row in gaps.gap_GG],
        "limit": round(float(gaps.limit), DIGITS),
    }


def notes(method: Method, state: State) -> dict[str, float | None]:
    """Return the numbers of the method's own policies, those that are not finite as missing; of selection, means over
    sites."""
    found: dict[str, Any] = {}
    for policy, memory in ((method.clustering, state.clustering), (method.sharing, state.sharing)):
        if isinstance(policy, Noting):
            found |= policy.notes(memory)
    if isinstance(method.selection, Noting):
        by_site = [method.selection.notes(memory) for memory in state.selection_M]
        found |= {name: np.mean([noted[name] for noted in by_site]) for name in by_site[0]}
    return {name: float(value) if np.isfinite(value) else None for name, value in found.items()}


def beliefs(method: Method, state: State) -> list[list[float | None]] | None:
    """Return what selection expects of each client, by site, if it is a policy that can say so."""
    policy = method.selection
    if not isinstance(policy, Believing):
        return None
    return [written(policy.beliefs(memory)) for memory in state.selection_M]
