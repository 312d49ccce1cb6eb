"""How torch works here: on one thread, by seeds of ours, by kernels that repeat their bits; and if memory is short."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


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


@contextmanager
def kernels(exact: bool) -> Iterator[None]:
    """Choose the libraries' kernels: those that repeat their bits, in float32, or the fastest."""
    products = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = not exact
    try:
        with (
            torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=exact, allow_tf32=not exact),
            sdpa_kernel(SDPBackend.MATH),  # attention whose gradients are sums in a fixed order
        ):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = products


def out_of_memory(error: Exception) -> bool:
    """Whether an error says so, or came of one that does; torch and the GPU's driver do it by a RuntimeError."""
    cause: BaseException | None = error
    while cause is not None:
        text = str(cause).lower()
        if (
            isinstance(cause, MemoryError | torch.OutOfMemoryError)
            or "allocate memory" in text
            or "out of memory" in text
        ):
            return True
        cause = cause.__context__
    return False
