"""Torch on one thread: small tensors gain nothing from more, and results must not depend on the number of cores."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread, and put the number back afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's generators (layers such as dropout draw from them), and put their state back afterwards."""
    gpus = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        # Not torch.manual_seed: for a GPU that nobody uses it keeps a stack trace, which takes longer than a batch.
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        yield
