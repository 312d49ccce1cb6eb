"""Column "Client selection" of Table I: one policy that picks the clients of an edge."""

from fedbac.selection.bandit import Thompson, ThompsonState
from fedbac.selection.credit import CreditState, CreditThompson
from fedbac.selection.simple import Random

__all__ = ["CreditState", "CreditThompson", "Random", "Thompson", "ThompsonState"]
