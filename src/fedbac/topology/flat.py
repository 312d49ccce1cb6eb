"""Two tiers: every client meets the cloud itself."""

from typing import ClassVar, Literal

from fedbac.core.settings import Settings


class Flat(Settings):
    """One site that holds everybody; edges of the task are groups of test data and nothing else."""

    kind: Literal["flat"] = "flat"
    edge_rounds: ClassVar[int] = 1
    tiers: ClassVar[int] = 2

    def sites(self, num_edges: int) -> tuple[tuple[int, ...], ...]:
        """Return all edges as one site."""
        return (tuple(range(num_edges)),)
