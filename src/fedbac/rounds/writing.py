"""How what policies say is written into the record of a round: short, and without what JSON cannot hold."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedbac.config.experiment import Method
from fedbac.core.answers import checked_notes
from fedbac.core.policies import Believing, Noting
from fedbac.core.state import State
from fedbac.rounds.orders import TrainReport

DIGITS = 4


class Heard(NamedTuple):
    """What a record tells of the sites' reports: clients and numbers, not the networks, which take up memory."""

    loss_M: list[float]
    selected_M: list[tuple[int, ...]]
    failed_M: list[tuple[int, ...]]
    dropped_M: list[tuple[int, ...]]
    late_M: list[tuple[int, ...]]
    absent_M: list[bool]
    seconds_M: list[float]

    @classmethod
    def of(cls, reports: Sequence[TrainReport]) -> "Heard":
        """Return what these reports say."""
        told = [(r.loss, r.selected, r.failed, r.dropped, r.late, r.absent, r.seconds or 0.0) for r in reports]
        return cls(*map(list, zip(*told, strict=True)))

    def loss(self, size_M: Sequence[int]) -> float | None:
        """Return the mean training loss over the sites that trained, weighted by their data; None when all failed."""
        pairs = [pair for pair in zip(self.loss_M, size_M, strict=True) if np.isfinite(pair[0])]
        if not pairs:
            return None
        loss_M, size_M = zip(*pairs, strict=True)
        return float(np.average(loss_M, weights=size_M))

    def clients(self) -> dict[str, list[Any]]:
        """Return who was selected at each site, and who did not come back; and the sites that did not answer."""
        apart = {"failed": self.failed_M, "dropped": self.dropped_M, "late": self.late_M}
        return {
            "selected": [list(selected) for selected in self.selected_M],
            **{name: [client for clients in by_site for client in clients] for name, by_site in apart.items()},
            "absent": [m for m, absent in enumerate(self.absent_M) if absent],
        }


def written(numbers: Iterable[float]) -> list[float | None]:
    """Return numbers rounded for a reader; None where one is not finite."""
    return [round(float(number), DIGITS) if np.isfinite(number) else None for number in numbers]


def notes(method: Method, state: State) -> dict[str, float | None]:
    """Return the numbers of the method's own policies, those that are not finite as missing; of selection, means over
    sites."""
    found: dict[str, Any] = {}
    at_cloud = (("clustering", method.clustering, state.clustering), ("sharing", method.sharing, state.sharing))
    for column, policy, memory in at_cloud:
        if isinstance(policy, Noting):
            found |= checked_notes(column, policy, policy.notes(memory))
    if isinstance(method.selection, Noting):
        noting = method.selection
        by_site = [checked_notes("selection", noting, noting.notes(memory)) for memory in state.selection_M]
        found |= {name: np.mean([noted[name] for noted in by_site]) for name in by_site[0]}
    return {name: float(value) if np.isfinite(value) else None for name, value in found.items()}


def beliefs(method: Method, state: State) -> list[list[float | None]] | None:
    """Return what selection expects of each client, by site, if it is a policy that can say so."""
    policy = method.selection
    if not isinstance(policy, Believing):
        return None
    return [written(policy.beliefs(memory)) for memory in state.selection_M]
