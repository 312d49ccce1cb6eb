"""How an owner combines what its children changed: by the mean, or by a rule that a few liars cannot move far."""

from fedbac.aggregation.mean import Mean
from fedbac.aggregation.robust import GeometricMedian, Krum, Median, TrimmedMean

__all__ = ["GeometricMedian", "Krum", "Mean", "Median", "TrimmedMean"]
