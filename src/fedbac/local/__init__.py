"""Local training and evaluation of many clients, behind one interface."""

import logging
import os
import platform
from pathlib import Path

import torch
from torch import nn

from fedbac import native
from fedbac.errors import ConfigError
from fedbac.experiment import Runtime
from fedbac.local.examples import Examples
from fedbac.local.kernel import NativeTrainer, layers_of
from fedbac.local.loop import LoopTrainer
from fedbac.local.pool import PoolTrainer
from fedbac.local.threads import one_thread
from fedbac.local.vmapped import VmapTrainer
from fedbac.types import Personalization, Trainer

log = logging.getLogger("fedbac")


def make_trainer(network: nn.Module, scheme: Personalization, examples: Examples, runtime: Runtime) -> Trainer:
    """Return the trainer that fits the machine and the network.

    On a GPU all clients at once; on a CPU the native kernel where it knows the network, else one process per core.
    """
    if runtime.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("runtime.device: 'cuda' is not allowed: torch finds no such device here; use cpu or auto")
    if runtime.device == "cuda" and runtime.trainer == "native":
        raise ConfigError("runtime.trainer: 'native' is the CPU's; with runtime.device 'cuda' use torch or auto")
    buffered = any(True for _ in network.buffers())  # many clients at once cannot share them
    wants_gpu = runtime.device == "cuda" or (runtime.device == "auto" and not buffered)
    if wants_gpu and torch.cuda.is_available() and runtime.trainer != "native":
        return VmapTrainer(network, scheme, examples, torch.device("cuda"))
    workers = runtime.workers or num_cores()
    if runtime.trainer != "torch":
        layers = layers_of(network, examples.dataset.x_train.shape[1:]) if scheme.sums_logits else None
        if layers is not None and native.available():
            return NativeTrainer(network, scheme, examples, layers, workers)
        if layers is not None and runtime.trainer == "auto":
            log.warning("training through torch, which is slow: the native kernel was not built (no C++ compiler)")
        if runtime.trainer == "native":
            reason = "it was not built (no C++ compiler when fedbac was installed)"
            if native.available():
                reason = "it knows only blocks of convolution, ReLU and 2×2 pooling followed by linear layers"
            if not scheme.sums_logits:
                reason = f"personalization {scheme.kind!r} is not a sum of logits"
            raise ConfigError(f"runtime.trainer: the native kernel cannot be used: {reason}; use torch or auto")
    if workers == 1:
        return LoopTrainer(network, scheme, examples)
    return PoolTrainer(network, scheme, examples, workers)


def num_cores() -> int:
    """Return the cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe(device: torch.device) -> str:
    """Return in words the processor that does the work: the GPU's name, or the cores and model of the CPU."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        named = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = named[0].partition(":")[2].strip() if named else model
    return f"{num_cores()} cores of {model}"


__all__ = [
    "Examples",
    "LoopTrainer",
    "NativeTrainer",
    "PoolTrainer",
    "VmapTrainer",
    "describe",
    "make_trainer",
    "num_cores",
    "one_thread",
]
