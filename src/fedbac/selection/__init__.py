"""Column "Client selection" of Table I: one policy that picks the clients of an edge."""

from fedbac.selection.bandit import Thompson as Thompson
from fedbac.selection.bandit import ThompsonState as ThompsonState
from fedbac.selection.credit import CreditState as CreditState
from fedbac.selection.credit import CreditThompson as CreditThompson
from fedbac.selection.credit import Sound as Sound
from fedbac.selection.learned import COCS as COCS
from fedbac.selection.learned import Contextual as Contextual
from fedbac.selection.learned import LatencyUCB as LatencyUCB
from fedbac.selection.learned import LatencyUCBState as LatencyUCBState
from fedbac.selection.learned import LossUCB as LossUCB
from fedbac.selection.learned import LossUCBState as LossUCBState
from fedbac.selection.scored import Oort as Oort
from fedbac.selection.scored import OortState as OortState
from fedbac.selection.scored import ResourceScore as ResourceScore
from fedbac.selection.scored import ResourceState as ResourceState
from fedbac.selection.simple import LastLosses as LastLosses
from fedbac.selection.simple import Poisson as Poisson
from fedbac.selection.simple import PowerOfChoice as PowerOfChoice
from fedbac.selection.simple import Random as Random
