"""Column "Knowledge sharing" of Table I: what clusters give each other of their networks."""

from fedbac.sharing.apart import Apart
from fedbac.sharing.mean import OnceOverfitted, OverfittingState, TowardsMean

__all__ = ["Apart", "OnceOverfitted", "OverfittingState", "TowardsMean"]
