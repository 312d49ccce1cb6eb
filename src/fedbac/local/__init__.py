"""Local training and evaluation of many clients, behind one interface."""

import logging
import os
import platform
from pathlib import Path

import torch
from torch import nn

from fedbac import gpu, native
from fedbac.config.experiment import Runtime
from fedbac.core.parts import Anatomy, Personalization, Stepping
from fedbac.core.requests import Trainer
from fedbac.core.runtime import one_thread
from fedbac.errors import ConfigError
from fedbac.local.batched import BatchedTrainer, fits
from fedbac.local.examples import Examples
from fedbac.local.folding import why_alone
from fedbac.local.fused import FusedTrainer, plan_for
from fedbac.local.graphs import graph_of
from fedbac.local.kernel import NativeTrainer, as_image, described
from fedbac.local.loop import LoopTrainer
from fedbac.local.own_steps import HandedOver
from fedbac.local.per_example import PerExample, per_example
from fedbac.local.pool import PoolTrainer
from fedbac.local.stages import obstacle, stages_of
from fedbac.local.vmapped import VmapTrainer

log = logging.getLogger("fedbac")


def make_trainer(
    network: nn.Module,
    scheme: Personalization,
    examples: Examples,
    runtime: Runtime,
    gradients: PerExample | None = None,
) -> Trainer:
    """Return the trainer that fits the machine and the network. Where our kernels know the network they train it, on a
    GPU as on a CPU. Others go through torch: all clients at once on a GPU, one process per core on a CPU. So are those
    that take the steps of their scheme, whatever the network."""
    check_device(runtime)
    if gradients is not None:
        return _by_example(network, scheme, examples, runtime, gradients)
    if not isinstance(scheme, Stepping):
        return _fitting(network, scheme, examples, runtime)
    if runtime.trainer == "native":
        raise _no_kernel(f"personalization {scheme.kind!r} takes steps of its own")
    learner = judge = _fitting(network, scheme, examples, runtime)
    if isinstance(judge, NativeTrainer | FusedTrainer):
        learner = _fitting(network, scheme, examples, runtime.model_copy(update={"trainer": "torch"}))
    handed_over = HandedOver(learner, judge)
    if judge is not learner and runtime.trainer == "auto":
        _say_slow(handed_over.path, f"method.personalization {scheme.kind!r} takes steps of its own", examples)
    return handed_over


def _by_example(
    network: nn.Module, scheme: Personalization, examples: Examples, runtime: Runtime, gradients: PerExample
) -> Trainer:
    """Return the trainer that clips the gradient of every example."""
    reason = "method.privacy with guarantee=example clips the gradient of every example"
    if runtime.trainer == "native":
        raise _no_kernel(reason)
    on_gpu = torch.cuda.is_available() and runtime.device != "cpu"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    trainer = VmapTrainer(network, scheme, examples, device, runtime.precision if on_gpu else "float32", gradients)
    if runtime.trainer == "auto":
        _say_slow(trainer.path, reason, examples)
    return trainer


def _fitting(network: nn.Module, scheme: Personalization, examples: Examples, runtime: Runtime) -> Trainer:
    on_gpu, alone = torch.cuda.is_available() and runtime.device != "cpu", None
    if on_gpu and runtime.device == "auto" and (alone := why_alone(network, examples)) is not None:
        on_gpu = False
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    layers = _known(network, examples, on_gpu)
    reason, missing = alone or _reason(network, scheme, examples, layers), None
    workers = runtime.workers or num_cores()
    if runtime.trainer != "torch" and not isinstance(layers, str) and reason is None:
        if not on_gpu and (missing := native.missing()) is None:
            return NativeTrainer(network, scheme, examples, layers, workers)
        if on_gpu and isinstance(layers, native.Layers):
            plan, rows = plan_for(layers, examples), examples.dataset.x_train.ndim == 2
            missing = _lacking(plan, len(Anatomy(scheme, network).networks), rows)
            if missing is None:
                return FusedTrainer(network, scheme, examples, plan, device)
    if runtime.trainer == "native":
        raise _no_kernel(reason or missing)
    trainer: Trainer
    if fits(network, scheme):
        batched = BatchedTrainer(network, scheme, examples, device, runtime.precision, workers)
        if batched.apart:
            return batched
        reason = "the network does not take the examples of a batch one by one, so clients cannot share a batch"
    if on_gpu:
        trainer = VmapTrainer(network, scheme, examples, device, runtime.precision)
    elif workers == 1:
        trainer = LoopTrainer(network, scheme, examples)
    else:
        trainer = PoolTrainer(network, scheme, examples, workers)
    if runtime.trainer == "auto":
        _say_slow(trainer.path, reason or missing, examples)
    return trainer


def _known(network: nn.Module, examples: Examples, on_gpu: bool) -> native.Network | str:
    """Return how our kernels know a network, or what keeps it from them. Those for a GPU know plain layers only."""
    pixels = examples.dataset.x_train
    plain = described(network, as_image(pixels))
    return plain if on_gpu or not isinstance(plain, str) else graph_of(network, as_image(pixels), pixels.ndim == 2)


def _say_slow(path: str, reason: str | None, examples: Examples) -> None:
    """Say once for a run what keeps it from our kernels, and what would not."""
    if reason not in examples.said:
        log.warning("training through torch (%s), which is slower than our kernels: %s", path, reason)
    examples.said.add(reason)


def check_device(runtime: Runtime) -> None:
    """Refuse a GPU where there is none."""
    if runtime.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("runtime.device: 'cuda' is not allowed: torch finds no such device here; use cpu or auto")


def _lacking(plan: gpu.NetworkPlan, networks: int, rows: bool) -> str | None:
    """Return why the kernels of a plan cannot run on this GPU, or None where they can."""
    if rows:
        return "on a GPU they know images alone; rows of numbers are fast on the CPU (runtime.device=cpu)"
    if not gpu.available():
        return "torch's build for CUDA lacks the run-time compiler (NVRTC)"
    if networks > gpu.MAX_PARTS:
        return f"it knows at most {gpu.MAX_PARTS} networks"
    return "the network is too large for this GPU's shared memory" if plan.shared > gpu.shared_limit() else None


def _reason(
    network: nn.Module, scheme: Personalization, examples: Examples, layers: native.Network | str
) -> str | None:
    """Return why our kernels cannot train this network by this scheme, and what they could; None where they can."""
    if (optimizer := examples.training.optimizer.kind) != "sgd":
        return f"task.training.optimizer {optimizer!r} is not in our kernels; sgd would be"
    if examples.loss.kind != "cross_entropy":
        return f"task.loss {examples.loss.kind!r} is not in our kernels; cross_entropy would be"
    if isinstance(layers, str):
        return layers
    if scheme.terms is None:
        return f"method.personalization {scheme.kind!r} is no sum of logits, which is what our kernels know"
    found = obstacle(stages_of(Anatomy(scheme, network), examples.training), dict(network.named_parameters()))
    return None if found is None else f"method.personalization {scheme.kind!r}: {found}"


def _no_kernel(reason: str | None) -> ConfigError:
    return ConfigError(f"runtime.trainer: the native kernel cannot be used: {reason}; use torch or auto")


def num_cores() -> int:
    """Return the cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def kernels() -> list[str]:
    """Return in words which of our kernels are at hand, or why not."""
    missing = native.missing()
    cpu = f"CPU: native, {native.default_instruction_set()}" if missing is None else f"CPU: torch, as {missing}"
    if not torch.cuda.is_available():
        return [cpu, "GPU: none"]
    kind = "native" if gpu.available() else "torch, for lack of the run-time compiler (NVRTC)"
    return [cpu, f"GPU: {kind}, CUDA {torch.version.cuda}, {torch.cuda.get_device_name()}"]


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


def arithmetic(device: torch.device) -> str:
    """Return what decides how the processor rounds: the GPU's name, or the instructions that kernels and torch use."""
    if device.type == "cuda":
        return describe(device)
    ours = [native.default_instruction_set()] if native.missing() is None else []
    return ", ".join([*ours, f"torch {torch.backends.cpu.get_cpu_capability()}"])


__all__ = [
    "BatchedTrainer", "Examples", "FusedTrainer", "LoopTrainer", "NativeTrainer", "PoolTrainer", "VmapTrainer",
    "arithmetic", "check_device", "describe", "kernels", "make_trainer", "num_cores", "one_thread", "per_example",
]  # fmt: skip
