"""Three tiers: clients meet at their edge, edges meet at the cloud."""

from typing import ClassVar, Literal

from fedbac.core.settings import Epochs, Settings


class Hierarchical(Settings):
    """Every edge of the task is a site of its own."""

    kind: Literal["hierarchical"] = "hierarchical"
    edge_rounds: Epochs = 1
    """κ2: edge averages per cloud round. With 1 and full participation HierFAVG is flat FedAvg (C.9)."""
    tiers: ClassVar[int] = 3

    def sites(self, num_edges: int) -> tuple[tuple[int, ...], ...]:
        """Return each edge as a site."""
        return tuple((edge,) for edge in range(num_edges))
