"""Column "Knowledge sharing" of Table I: what clusters give each other of their networks."""

from fedbac.sharing.apart import Apart
from fedbac.sharing.blends import Blend, BlendState, LeaveOneOut, Similar, SimilarState
from fedbac.sharing.mean import (
    LeaningState,
    MeanThenApart,
    OnceOverfitted,
    OverfittingState,
    PredictTowardsMean,
    TowardsMean,
)
from fedbac.sharing.teachers import Distill, DistillAdaptive, DistillAdaptiveState, DistillState

__all__ = [
    "Apart",
    "Blend",
    "BlendState",
    "Distill",
    "DistillAdaptive",
    "DistillAdaptiveState",
    "DistillState",
    "LeaningState",
    "LeaveOneOut",
    "MeanThenApart",
    "OnceOverfitted",
    "OverfittingState",
    "PredictTowardsMean",
    "Similar",
    "SimilarState",
    "TowardsMean",
]
