"""Column "Personalization" of Table I: which networks make a prediction and who owns each."""

from fedbac.personalization.adapters import Adapters as Adapters
from fedbac.personalization.corrected import ControlVariates as ControlVariates
from fedbac.personalization.corrected import DynamicPull as DynamicPull
from fedbac.personalization.corrected import GroupCorrections as GroupCorrections
from fedbac.personalization.joint import Additive as Additive
from fedbac.personalization.joint import Directed as Directed
from fedbac.personalization.joint import PerCluster as PerCluster
from fedbac.personalization.joint import Shared as Shared
from fedbac.personalization.personal import AdaptiveStart as AdaptiveStart
from fedbac.personalization.personal import Interpolated as Interpolated
from fedbac.personalization.personal import MoreauEnvelope as MoreauEnvelope
from fedbac.personalization.personal import Personal as Personal
from fedbac.personalization.split import HeadsTogether as HeadsTogether
from fedbac.personalization.split import LateHead as LateHead
from fedbac.personalization.split import PersonalHead as PersonalHead
from fedbac.personalization.split import TwoHeads as TwoHeads
