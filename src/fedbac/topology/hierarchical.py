"""Column "Architecture" of Table I: who is attached to whom and how often tiers meet."""

from typing import Literal

from pydantic import PositiveInt

from fedbac.core.settings import Settings


class Hierarchical(Settings):
    """Three tiers: clients meet at their edge, edges meet at the cloud."""

    kind: Literal["hierarchical"] = "hierarchical"
    edge_rounds: PositiveInt = 1
    """κ2: edge averages per cloud round. With 1 and full participation HierFAVG is flat FedAvg (C.9)."""
