"""Column "Client selection" of Table I: one policy that picks the clients of an edge."""

from fedbac.selection.bandit import Thompson, ThompsonState
from fedbac.selection.cells import COCS, COCSState
from fedbac.selection.contextual import Contextual, ContextualState
from fedbac.selection.credit import CreditState, CreditThompson, Sound, SoundState
from fedbac.selection.latency_ucb import LatencyUCB, LatencyUCBState
from fedbac.selection.loss_ucb import LossUCB, LossUCBState
from fedbac.selection.oort import Oort, OortState
from fedbac.selection.power_of_choice import LastLosses, PowerOfChoice
from fedbac.selection.resources import ResourceScore, ResourceState
from fedbac.selection.simple import Random

__all__ = [
    "COCS",
    "COCSState",
    "Contextual",
    "ContextualState",
    "CreditState",
    "CreditThompson",
    "LastLosses",
    "LatencyUCB",
    "LatencyUCBState",
    "LossUCB",
    "LossUCBState",
    "Oort",
    "OortState",
    "PowerOfChoice",
    "Random",
    "ResourceScore",
    "ResourceState",
    "Sound",
    "SoundState",
    "Thompson",
    "ThompsonState",
]
