"""Column "Architecture" of Table I: who is attached to whom, and how often tiers meet."""

from typing import ClassVar, Literal

from fedbac.core.settings import Epochs, Settings

__all__ = ["Flat", "Hierarchical"]


class Flat(Settings):
    """One site holds all clients; edges of the task are only groups of test data."""

    kind: Literal["flat"] = "flat"
    edge_rounds: ClassVar[int] = 1
    tiers: ClassVar[int] = 2

    def sites(self, num_edges: int) -> tuple[tuple[int, ...], ...]:
        """Return all edges as one site."""
        return (tuple(range(num_edges)),)


class Hierarchical(Settings):
    """Every edge of the task is a site of its own."""

    kind: Literal["hierarchical"] = "hierarchical"
    edge_rounds: Epochs = 1
    """κ2: edge averages per cloud round; with 1 and all clients HierFAVG is FedAvg (C.9)."""
    tiers: ClassVar[int] = 3

    def sites(self, num_edges: int) -> tuple[tuple[int, ...], ...]:
        """Return each edge as a site."""
        return tuple((edge,) for edge in range(num_edges))
