"""Column "Architecture" of Table I: who is attached to whom, and how often tiers meet."""

from fedbac.topology.flat import Flat
from fedbac.topology.hierarchical import Hierarchical

__all__ = ["Flat", "Hierarchical"]
