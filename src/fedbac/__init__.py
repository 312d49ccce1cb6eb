"""Hierarchical, clustered, personalized federated learning with learned decisions: Fed-BAC and its relatives."""

from fedbac.clustering import CosineSplits, Fixed, LinUCB, LowestLoss, Merging
from fedbac.config.experiment import (
    CLUSTERING,
    PERSONALIZATION,
    SELECTION,
    SHARING,
    TOPOLOGY,
    Evaluation,
    Experiment,
    Measurement,
    Method,
    Runtime,
    Task,
    Training,
)
from fedbac.core.parts import LocalRun, Part, Phase, Pull
from fedbac.core.policies import Assignment, Exchange, NoState
from fedbac.core.queries import Accuracy, Ask, Evidence, Gram, Loss, Moment, Statistic
from fedbac.core.settings import Settings
from fedbac.data import Augment, Dataset, Noise, Partition, Shards
from fedbac.errors import (
    CheckpointError,
    ConfigError,
    DataNotFoundError,
    FederationError,
    PartitionError,
    PolicyError,
    RunFolderError,
    RunInUseError,
)
from fedbac.models import LeNet5, Perceptron
from fedbac.personalization import (
    AdaptiveStart,
    Additive,
    Interpolated,
    LateHead,
    PerCluster,
    Personal,
    PersonalHead,
    Shared,
    TwoHeads,
)
from fedbac.presets.methods import METHODS, method
from fedbac.presets.tasks import TASKS, task
from fedbac.runs.configure import configure
from fedbac.runs.play import load, play, resume, run
from fedbac.runs.store import Run, RunFolder
from fedbac.selection import CreditThompson, Random, Thompson
from fedbac.sharing import Apart, OnceOverfitted, TowardsMean
from fedbac.topology import Flat, Hierarchical
from fedbac.version import __version__

__all__ = [
    "CLUSTERING",
    "METHODS",
    "PERSONALIZATION",
    "SELECTION",
    "SHARING",
    "TASKS",
    "TOPOLOGY",
    "Accuracy",
    "AdaptiveStart",
    "Additive",
    "Apart",
    "Ask",
    "Assignment",
    "Augment",
    "CheckpointError",
    "ConfigError",
    "CosineSplits",
    "CreditThompson",
    "DataNotFoundError",
    "Dataset",
    "Evaluation",
    "Evidence",
    "Exchange",
    "Experiment",
    "FederationError",
    "Fixed",
    "Flat",
    "Gram",
    "Hierarchical",
    "Interpolated",
    "LateHead",
    "LeNet5",
    "LinUCB",
    "LocalRun",
    "Loss",
    "LowestLoss",
    "Measurement",
    "Merging",
    "Method",
    "Moment",
    "NoState",
    "Noise",
    "OnceOverfitted",
    "Part",
    "Partition",
    "PartitionError",
    "PerCluster",
    "Perceptron",
    "Personal",
    "PersonalHead",
    "Phase",
    "PolicyError",
    "Pull",
    "Random",
    "Run",
    "RunFolder",
    "RunFolderError",
    "RunInUseError",
    "Runtime",
    "Settings",
    "Shards",
    "Shared",
    "Statistic",
    "Task",
    "Thompson",
    "TowardsMean",
    "Training",
    "TwoHeads",
    "__version__",
    "configure",
    "load",
    "method",
    "play",
    "resume",
    "run",
    "task",
]
