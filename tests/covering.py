"""Few of many combinations of parameters, so that every value still occurs."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest


def covering(rows: Sequence[tuple[str, ...]]) -> list[int]:
    """Return the numbers of rows that together hold every value that is in any row.

    Greedy, and always the same: the row with the most that is new; of several, the one whose values occur least.
    """
    open_ = {value for row in rows for value in row}
    used: Counter[str] = Counter()
    chosen = []
    while open_:
        best = max(
            range(len(rows)),
            key=lambda row: (len(open_.intersection(rows[row])), -sum(used[value] for value in rows[row])),
        )
        chosen.append(best)
        open_.difference_update(rows[best])
        used.update(rows[best])
    return chosen


def first(count: int, values: Iterable[Any]) -> list[Any]:
    """Return parameters of a test; those after the first so many are left to ``make test-all``."""
    return [value if i < count else pytest.param(value, marks=pytest.mark.full) for i, value in enumerate(values)]


def of_each_kind(policies: Mapping[str, Any]) -> list[Any]:
    """Return policies as parameters; those after the first of their kind are left to ``make test-all``."""
    firsts = {policy.kind: name for name, policy in reversed(list(policies.items()))}
    return [
        pytest.param(policy, id=name, marks=() if firsts[policy.kind] == name else pytest.mark.full)
        for name, policy in policies.items()
    ]


def presets(*columns: str) -> list[Any]:
    """Return the names of all presets as parameters; ``make test`` takes some that have every kind of these columns."""
    from fedbac.presets.methods import METHODS  # with torch, which the process that hands out tests can do without
    from fedbac.presets.tasks import TASKS

    rows = []
    for preset in METHODS.values():
        method = preset(TASKS["demo"])
        named = columns or ("topology", "clustering", "selection", "sharing", "personalization")
        rows.append((method.unit, *(getattr(method, column).kind for column in named)))
    kept = covering(rows)
    return [name if i in kept else pytest.param(name, marks=pytest.mark.full) for i, name in enumerate(METHODS)]
