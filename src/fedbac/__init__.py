"""Hierarchical, clustered, personalized federated learning with learned decisions: Fed-BAC and its relatives."""

from fedbac.clustering import Fixed, LinUCB, LowestLoss, Merging
from fedbac.config.experiment import (
    CLUSTERING,
    PERSONALIZATION,
    SELECTION,
    Evaluation,
    Experiment,
    Measurement,
    Method,
    Runtime,
    Task,
    Training,
)
from fedbac.core.policies import NoState
from fedbac.core.queries import Ask, Evidence
from fedbac.core.settings import Settings
from fedbac.data import Augment, Dataset, Noise, Partition, Shards
from fedbac.errors import (
    CheckpointError,
    ConfigError,
    DataNotFoundError,
    FederationError,
    PartitionError,
    RunFolderError,
    RunInUseError,
)
from fedbac.models import LeNet5, Perceptron
from fedbac.personalization import Additive, PerCluster, Shared
from fedbac.presets.methods import METHODS, method
from fedbac.presets.tasks import TASKS, task
from fedbac.runs.play import configure, load, play, resume, run
from fedbac.runs.store import Run, RunFolder
from fedbac.selection import CreditThompson, Random, Thompson
from fedbac.topology import Hierarchical
from fedbac.version import __version__

__all__ = [
    "CLUSTERING",
    "METHODS",
    "PERSONALIZATION",
    "SELECTION",
    "TASKS",
    "Additive",
    "Ask",
    "Augment",
    "CheckpointError",
    "ConfigError",
    "CreditThompson",
    "DataNotFoundError",
    "Dataset",
    "Evaluation",
    "Evidence",
    "Experiment",
    "FederationError",
    "Fixed",
    "Hierarchical",
    "LeNet5",
    "LinUCB",
    "LowestLoss",
    "Measurement",
    "Merging",
    "Method",
    "NoState",
    "Noise",
    "Partition",
    "PartitionError",
    "PerCluster",
    "Perceptron",
    "Random",
    "Run",
    "RunFolder",
    "RunFolderError",
    "RunInUseError",
    "Runtime",
    "Settings",
    "Shards",
    "Shared",
    "Task",
    "Thompson",
    "Training",
    "__version__",
    "configure",
    "load",
    "method",
    "play",
    "resume",
    "run",
    "task",
]
