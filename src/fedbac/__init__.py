"""Hierarchical, clustered, personalized federated learning with learned decisions: Fed-BAC and its relatives.

A name is imported when it is first asked for: torch takes seconds, and whoever wants a version or a help text, or only
waits for work, needs none of it.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from fedbac.version import __version__ as __version__

if TYPE_CHECKING:  # each as itself: that is how type checkers know a name that is meant for others
    from fedbac.aggregation import GeometricMedian as GeometricMedian
    from fedbac.aggregation import Krum as Krum
    from fedbac.aggregation import Mean as Mean
    from fedbac.aggregation import Median as Median
    from fedbac.aggregation import TrimmedMean as TrimmedMean
    from fedbac.api import Playing as Playing
    from fedbac.api import Run as Run
    from fedbac.api import Runs as Runs
    from fedbac.api import compare as compare
    from fedbac.api import load as load
    from fedbac.api import play as play
    from fedbac.api import report as report
    from fedbac.api import resume as resume
    from fedbac.api import run as run
    from fedbac.api import sweep as sweep
    from fedbac.clustering import Agglomerative as Agglomerative
    from fedbac.clustering import CosineSplits as CosineSplits
    from fedbac.clustering import Fixed as Fixed
    from fedbac.clustering import GaussianRewards as GaussianRewards
    from fedbac.clustering import KMeans as KMeans
    from fedbac.clustering import LinUCB as LinUCB
    from fedbac.clustering import LowestLoss as LowestLoss
    from fedbac.clustering import Merging as Merging
    from fedbac.config.columns import AGGREGATION as AGGREGATION
    from fedbac.config.columns import CLUSTERING as CLUSTERING
    from fedbac.config.columns import LINKS as LINKS
    from fedbac.config.columns import PERSONALIZATION as PERSONALIZATION
    from fedbac.config.columns import SELECTION as SELECTION
    from fedbac.config.columns import SHARING as SHARING
    from fedbac.config.columns import STEP as STEP
    from fedbac.config.columns import TOPOLOGY as TOPOLOGY
    from fedbac.config.columns import Links as Links
    from fedbac.config.experiment import Evaluation as Evaluation
    from fedbac.config.experiment import Experiment as Experiment
    from fedbac.config.experiment import Measurement as Measurement
    from fedbac.config.experiment import Method as Method
    from fedbac.config.experiment import Runtime as Runtime
    from fedbac.config.experiment import Task as Task
    from fedbac.config.training import AdamW as AdamW
    from fedbac.config.training import Sgd as Sgd
    from fedbac.config.training import Training as Training
    from fedbac.core.codecs import Alteration as Alteration
    from fedbac.core.codecs import Clip as Clip
    from fedbac.core.codecs import Codec as Codec
    from fedbac.core.codecs import EightBits as EightBits
    from fedbac.core.codecs import GaussianNoise as GaussianNoise
    from fedbac.core.codecs import TopK as TopK
    from fedbac.core.parts import LocalRun as LocalRun
    from fedbac.core.parts import LocalSteps as LocalSteps
    from fedbac.core.parts import Part as Part
    from fedbac.core.parts import Phase as Phase
    from fedbac.core.parts import Pull as Pull
    from fedbac.core.parts import Start as Start
    from fedbac.core.policies import Assignment as Assignment
    from fedbac.core.policies import Exchange as Exchange
    from fedbac.core.policies import NoState as NoState
    from fedbac.core.policies import Teaching as Teaching
    from fedbac.core.queries import Accuracy as Accuracy
    from fedbac.core.queries import Ask as Ask
    from fedbac.core.queries import Evidence as Evidence
    from fedbac.core.queries import Gram as Gram
    from fedbac.core.queries import Loss as Loss
    from fedbac.core.queries import Moment as Moment
    from fedbac.core.queries import Seconds as Seconds
    from fedbac.core.queries import Slope as Slope
    from fedbac.core.queries import Statistic as Statistic
    from fedbac.core.settings import Settings as Settings
    from fedbac.data import Augment as Augment
    from fedbac.data import Dataset as Dataset
    from fedbac.data import Noise as Noise
    from fedbac.data import Partition as Partition
    from fedbac.data import Shards as Shards
    from fedbac.errors import CheckpointError as CheckpointError
    from fedbac.errors import ConfigError as ConfigError
    from fedbac.errors import DataNotFoundError as DataNotFoundError
    from fedbac.errors import DeployError as DeployError
    from fedbac.errors import EngineError as EngineError
    from fedbac.errors import Error as Error
    from fedbac.errors import FederationError as FederationError
    from fedbac.errors import NotEnoughMemoryError as NotEnoughMemoryError
    from fedbac.errors import OutputError as OutputError
    from fedbac.errors import PartitionError as PartitionError
    from fedbac.errors import PolicyError as PolicyError
    from fedbac.errors import RunFolderError as RunFolderError
    from fedbac.errors import RunInUseError as RunInUseError
    from fedbac.models import LeNet5 as LeNet5
    from fedbac.models import Perceptron as Perceptron
    from fedbac.personalization import AdaptiveStart as AdaptiveStart
    from fedbac.personalization import Additive as Additive
    from fedbac.personalization import ControlVariates as ControlVariates
    from fedbac.personalization import DynamicPull as DynamicPull
    from fedbac.personalization import GroupCorrections as GroupCorrections
    from fedbac.personalization import Interpolated as Interpolated
    from fedbac.personalization import LateHead as LateHead
    from fedbac.personalization import MoreauEnvelope as MoreauEnvelope
    from fedbac.personalization import PerCluster as PerCluster
    from fedbac.personalization import Personal as Personal
    from fedbac.personalization import PersonalHead as PersonalHead
    from fedbac.personalization import Shared as Shared
    from fedbac.personalization import TwoHeads as TwoHeads
    from fedbac.presets.methods import METHODS as METHODS
    from fedbac.presets.methods import method as method
    from fedbac.presets.tasks import TASKS as TASKS
    from fedbac.presets.tasks import task as task
    from fedbac.runs.configure import configure as configure
    from fedbac.runs.store import RunFolder as RunFolder
    from fedbac.selection import COCS as COCS
    from fedbac.selection import Contextual as Contextual
    from fedbac.selection import CreditThompson as CreditThompson
    from fedbac.selection import LatencyUCB as LatencyUCB
    from fedbac.selection import LossUCB as LossUCB
    from fedbac.selection import Oort as Oort
    from fedbac.selection import PowerOfChoice as PowerOfChoice
    from fedbac.selection import Random as Random
    from fedbac.selection import ResourceScore as ResourceScore
    from fedbac.selection import Sound as Sound
    from fedbac.selection import Thompson as Thompson
    from fedbac.sharing import Apart as Apart
    from fedbac.sharing import Blend as Blend
    from fedbac.sharing import Distill as Distill
    from fedbac.sharing import DistillAdaptive as DistillAdaptive
    from fedbac.sharing import LeaveOneOut as LeaveOneOut
    from fedbac.sharing import MeanThenApart as MeanThenApart
    from fedbac.sharing import OnceOverfitted as OnceOverfitted
    from fedbac.sharing import PredictTowardsMean as PredictTowardsMean
    from fedbac.sharing import Similar as Similar
    from fedbac.sharing import TowardsMean as TowardsMean
    from fedbac.steps import Adam as Adam
    from fedbac.steps import Dynamic as Dynamic
    from fedbac.steps import Momentum as Momentum
    from fedbac.steps import Take as Take
    from fedbac.steps import Yogi as Yogi
    from fedbac.topology import Flat as Flat
    from fedbac.topology import Hierarchical as Hierarchical

_HOME = {
    name: module for module, name in re.findall(r"^    from (\S+) import (\w+) as", Path(__file__).read_text(), re.M)
}
"""The modules that the names come from, as the imports for type checkers say."""
__all__ = sorted([*_HOME, "__version__"], key=lambda name: (not name.isupper(), not name[0].isupper(), name))


if not TYPE_CHECKING:  # who checks types has the imports above, and finds a name that there is not

    def __getattr__(name: str) -> object:
        """Import a name, or a module of the package, when it is first asked for."""
        if name in _HOME:
            found = getattr(import_module(_HOME[name]), name)
            globals()[name] = found
            return found
        if not name.startswith("_"):
            try:
                return import_module(f"{__name__}.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"{__name__}.{name}":
                    raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
