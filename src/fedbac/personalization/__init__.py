"""Column "Personalization" of Table I: which networks make a prediction and who owns each."""

from fedbac.personalization.joint import Additive, PerCluster, Shared
from fedbac.personalization.personal import Personal
from fedbac.personalization.split import PersonalHead

__all__ = ["Additive", "PerCluster", "Personal", "PersonalHead", "Shared"]
