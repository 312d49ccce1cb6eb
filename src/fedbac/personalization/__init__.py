"""Column "Personalization" of Table I: which networks make a prediction and who owns each."""

from fedbac.personalization.adaptive_start import AdaptiveStart
from fedbac.personalization.corrected import ControlVariates, DynamicPull, GroupCorrections
from fedbac.personalization.joint import Additive, PerCluster, Shared
from fedbac.personalization.personal import Interpolated, MoreauEnvelope, Personal
from fedbac.personalization.split import LateHead, PersonalHead
from fedbac.personalization.two_heads import TwoHeads

__all__ = [
    "AdaptiveStart",
    "Additive",
    "ControlVariates",
    "DynamicPull",
    "GroupCorrections",
    "Interpolated",
    "LateHead",
    "MoreauEnvelope",
    "PerCluster",
    "Personal",
    "PersonalHead",
    "Shared",
    "TwoHeads",
]
