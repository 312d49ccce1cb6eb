"""Column "Personalization" of Table I: which networks make a prediction and where each is averaged."""

from fedbac.personalization.joint import Additive, PerCluster, Shared

__all__ = ["Additive", "PerCluster", "Shared"]
