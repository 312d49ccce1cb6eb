"""Column "Knowledge sharing" of Table I: what clusters give each other of their networks."""

from fedbac.sharing.blends import Blend as Blend
from fedbac.sharing.blends import BlendState as BlendState
from fedbac.sharing.blends import LeaveOneOut as LeaveOneOut
from fedbac.sharing.blends import Similar as Similar
from fedbac.sharing.blends import SimilarState as SimilarState
from fedbac.sharing.mean import Apart as Apart
from fedbac.sharing.mean import LeaningState as LeaningState
from fedbac.sharing.mean import MeanThenApart as MeanThenApart
from fedbac.sharing.mean import OnceOverfitted as OnceOverfitted
from fedbac.sharing.mean import OverfittingState as OverfittingState
from fedbac.sharing.mean import PredictTowardsMean as PredictTowardsMean
from fedbac.sharing.mean import TowardsMean as TowardsMean
from fedbac.sharing.teachers import Distill as Distill
from fedbac.sharing.teachers import DistillAdaptive as DistillAdaptive
from fedbac.sharing.teachers import DistillAdaptiveState as DistillAdaptiveState
from fedbac.sharing.teachers import DistillState as DistillState
