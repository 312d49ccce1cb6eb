"""Lowest-loss assignment: the rule of IFCA and, with additive personalization, of Fed-CAM."""

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveInt

from fedbac.clustering.fixed import Start, start_labels
from fedbac.core.policies import NoState
from fedbac.core.queries import Ask, Evidence
from fedbac.core.rng import Rng
from fedbac.core.settings import FloatArray, IntArray, Settings


def lowest_loss(loss_NK: FloatArray, label_N: IntArray, threshold: float) -> IntArray:
    """Return argmin_k L^(k) where it is below ``threshold`` times the current loss, else the current label.

    A tie keeps the current label, else the lowest index wins.
    """
    current = np.take_along_axis(loss_NK, label_N[:, None], axis=1)[:, 0]
    best = loss_NK.argmin(axis=1)
    limit = threshold * current if threshold > 0 else np.zeros_like(current)  # 0 · ∞ is no limit
    return np.where(loss_NK.min(axis=1) < limit, best, label_N)


class LowestLoss(Settings):
    """Every ``period`` rounds each edge moves to the cluster whose model has the lowest loss on its data."""

    kind: Literal["lowest_loss"] = "lowest_loss"
    adaptive: ClassVar[bool] = False
    num_clusters: PositiveInt | None = 5
    """Number of clusters; one per edge when null."""
    period: PositiveInt = 20
    """Rounds between assignments; 1 is the original IFCA."""
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.95
    """Move only if the best loss is below this share of the current one; 1 is the original IFCA, 0 never moves."""
    start_labels: Start = "round_robin"

    def clusters(self, num_members: int) -> int:
        """Return K."""
        return self.num_clusters or num_members

    def start(self, num_members: int, rng: Rng) -> IntArray:
        """Return the labels before anything is known."""
        return start_labels(self.start_labels, num_members, self.clusters(num_members), rng)

    def init(self, num_members: int) -> NoState:
        """Return the empty state."""
        return NoState()

    def ask(self, state: NoState, round_: int) -> Ask | None:
        """Ask for all losses when due."""
        return Ask(losses=True) if round_ % self.period == 0 else None

    def learn(self, state: NoState, evidence: Evidence) -> NoState:
        """Learn nothing: the rule looks only at the present."""
        return state

    def act(self, state: NoState, evidence: Evidence, rng: Rng) -> tuple[NoState, IntArray]:
        """Return the lowest-loss labels."""
        assert evidence.loss_NK is not None
        assert evidence.label_N is not None
        best_N = lowest_loss(evidence.loss_NK, evidence.label_N, self.threshold)
        return state, best_N if evidence.turn_N is None else np.where(evidence.turn_N, best_N, evidence.label_N)
