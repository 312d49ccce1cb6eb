"""Local training and evaluation of many clients, behind one interface."""

import os

import torch
from torch import nn

from fedbac.errors import ConfigError
from fedbac.experiment import Runtime
from fedbac.local.examples import Examples
from fedbac.local.loop import LoopTrainer
from fedbac.local.pool import PoolTrainer
from fedbac.local.vmapped import VmapTrainer
from fedbac.types import Personalization, Trainer


def make_trainer(network: nn.Module, scheme: Personalization, examples: Examples, runtime: Runtime) -> Trainer:
    """Return the trainer that fits the machine: all clients at once on a GPU, one process per core on a CPU."""
    if runtime.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "runtime.device: 'cuda' was asked for but this machine has none that torch can use; use cpu or auto"
        )
    if runtime.device != "cpu" and torch.cuda.is_available():
        return VmapTrainer(network, scheme, examples, torch.device("cuda"))
    workers = runtime.workers or _cores()
    if workers == 1:
        return LoopTrainer(network, scheme, examples)
    return PoolTrainer(network, scheme, examples, workers)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


__all__ = ["Examples", "LoopTrainer", "PoolTrainer", "VmapTrainer", "make_trainer"]
