"""Hierarchical, clustered, personalized federated learning with learned decisions: Fed-BAC and its relatives."""

from fedbac.clustering import Fixed, LinUCB, LowestLoss, Merging
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
from fedbac.experiment import (
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
from fedbac.methods import METHODS, method
from fedbac.models import LeNet5, Perceptron
from fedbac.personalization import Additive, PerCluster, Shared
from fedbac.runs import configure, load, play, resume, run
from fedbac.selection import CreditThompson, Random, Thompson
from fedbac.store import Run, RunFolder
from fedbac.tasks import TASKS, task
from fedbac.topology import Hierarchical
from fedbac.types import Ask, Evidence, NoState, Settings
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
