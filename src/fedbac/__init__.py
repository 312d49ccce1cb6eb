"""Hierarchical, clustered, personalized federated learning with learned decisions: Fed-BAC and its relatives.

A name is imported when it is first asked for: torch takes seconds, and whoever wants a version or a help text, or only
waits for work, needs none of it.
"""

import ast
from importlib import import_module
from typing import TYPE_CHECKING

from fedbac.version import __version__

if TYPE_CHECKING:
    # fmt: off
    # isort: off
    from fedbac.aggregation import (Bucketing, CentredClipping, GeometricMedian, Krum, Mean, Median, MinimumDiameter,
        NearestNeighbours, OneVoice, TrimmedMean)
    from fedbac.api import Playing, Run, Runs, compare, load, play, report, resume, run, sweep, tune, verify
    from fedbac.clocks import Asynchronous, Buffered, Deadline, Synchronous
    from fedbac.clustering import (Agglomerative, CosineSplits, Drifting, Fixed, GaussianRewards, KMeans, LinUCB,
        LowestLoss, Merging)
    from fedbac.config.changes import Change
    from fedbac.config.columns import (AGGREGATION, CLOCK, CLUSTERING, LINKS, PERSONALIZATION, SELECTION, SHARING,
        STEP, TOPOLOGY, Links)
    from fedbac.config.experiment import Evaluation, Experiment, Measurement, Method, Runtime, Task
    from fedbac.config.tiers import InnerTier
    from fedbac.config.training import AdamW, Sgd, Training
    from fedbac.core.codecs import Alteration, Clip, Codec, EightBits, GaussianNoise, TopK
    from fedbac.core.parts import LocalRun, LocalSteps, Part, Phase, Pull, Start
    from fedbac.core.policies import Assignment, Exchange, NoState, Teaching
    from fedbac.core.queries import Accuracy, Ask, Evidence, Gram, Loss, Moment, Seconds, Slope, Statistic
    from fedbac.core.settings import Settings
    from fedbac.data import Augment, Dataset, Noise, Partition, Shards
    from fedbac.errors import (CheckpointError, ConfigError, DataNotFoundError, DeployError, EngineError, Error,
        FederationError, NotEnoughMemoryError, OutputError, PartitionError, PolicyError, RunFolderError, RunInUseError)
    from fedbac.networks import LSTM, LeNet5, Perceptron, ResNet, Transformer
    from fedbac.personalization import (Adapters, AdaptiveStart, Additive, ControlVariates, Directed, DynamicPull,
        GroupCorrections, HeadsTogether, Interpolated, LateHead, MoreauEnvelope, PerCluster, Personal, PersonalHead,
        Shared, TwoHeads)
    from fedbac.presets.methods import METHODS, method
    from fedbac.presets.tasks import TASKS, task
    from fedbac.privacy import Privacy
    from fedbac.runs.configure import configure
    from fedbac.runs.store import RunFolder
    from fedbac.selection import (COCS, Contextual, CreditThompson, LatencyUCB, LossUCB, Oort, Poisson, PowerOfChoice,
        Random, ResourceScore, Sound, Thompson)
    from fedbac.sharing import (Apart, Blend, Distill, DistillAdaptive, LeaveOneOut, MeanThenApart, OnceOverfitted,
        PredictTowardsMean, Similar, TowardsMean)
    from fedbac.steps import Adam, Dynamic, Momentum, Take, Yogi
    from fedbac.topology import Flat, Hierarchical
    # fmt: on
    # isort: on

__all__ = [
    "AGGREGATION", "CLOCK", "CLUSTERING", "COCS", "LINKS", "LSTM", "METHODS", "PERSONALIZATION", "SELECTION", "SHARING",
    "STEP", "TASKS", "TOPOLOGY", "Accuracy", "Adam", "AdamW", "Adapters", "AdaptiveStart", "Additive", "Agglomerative",
    "Alteration", "Apart", "Ask", "Assignment", "Asynchronous", "Augment", "Blend", "Bucketing", "Buffered",
    "CentredClipping", "Change", "CheckpointError", "Clip", "Codec", "ConfigError", "Contextual", "ControlVariates",
    "CosineSplits", "CreditThompson", "DataNotFoundError", "Dataset", "Deadline", "DeployError", "Directed", "Distill",
    "DistillAdaptive", "Drifting", "Dynamic", "DynamicPull", "EightBits", "EngineError", "Error", "Evaluation",
    "Evidence", "Exchange", "Experiment", "FederationError", "Fixed", "Flat", "GaussianNoise", "GaussianRewards",
    "GeometricMedian", "Gram", "GroupCorrections", "HeadsTogether", "Hierarchical", "InnerTier", "Interpolated",
    "KMeans", "Krum", "LateHead", "LatencyUCB", "LeNet5", "LeaveOneOut", "LinUCB", "Links", "LocalRun", "LocalSteps",
    "Loss", "LossUCB", "LowestLoss", "Mean", "MeanThenApart", "Measurement", "Median", "Merging", "Method",
    "MinimumDiameter", "Moment", "Momentum", "MoreauEnvelope", "NearestNeighbours", "NoState", "Noise",
    "NotEnoughMemoryError", "OnceOverfitted", "OneVoice", "Oort", "OutputError", "Part", "Partition", "PartitionError",
    "PerCluster", "Perceptron", "Personal", "PersonalHead", "Phase", "Playing", "Poisson", "PolicyError",
    "PowerOfChoice", "PredictTowardsMean", "Privacy", "Pull", "Random", "ResNet", "ResourceScore", "Run", "RunFolder",
    "RunFolderError", "RunInUseError", "Runs", "Runtime", "Seconds", "Settings", "Sgd", "Shards", "Shared", "Similar",
    "Slope", "Sound", "Start", "Statistic", "Synchronous", "Take", "Task", "Teaching", "Thompson", "TopK",
    "TowardsMean", "Training", "Transformer", "TrimmedMean", "TwoHeads", "Yogi", "__version__", "compare", "configure",
    "load", "method", "play", "report", "resume", "run", "sweep", "task", "tune", "verify",
]  # fmt: skip

if not TYPE_CHECKING:  # who checks types has the imports above, and finds a name that there is not
    _HOME = {
        alias.name: node.module
        for node in ast.walk(ast.parse(__spec__.loader.get_source(__name__)))
        if isinstance(node, ast.ImportFrom) and node.module.startswith("fedbac.")
        for alias in node.names
    }
    """The modules that the names come from: those of the imports above."""

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
