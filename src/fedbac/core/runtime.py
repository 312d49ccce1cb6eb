"""How torch works here: on one thread, by seeds of ours, by kernels that repeat their bits; and if memory is short."""

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from fedbac.errors import Error


def _flushed() -> bool:
    """Whether numbers too small for the usual format count as zero, which torch does not tell."""
    return bool(torch.tensor(1e-310, dtype=torch.float64).mul(1.0) == 0)


def _products() -> str:
    """Return how exact products are; torch refuses to say so of a caller who set it part by part."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "highest"


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(on: tuple[bool, bool]) -> None:
    if on != _deterministic():  # torch imports its compiler, with sympy, even to set what is set
        torch.use_deterministic_algorithms(on[0], warn_only=on[1])


Setting = tuple[Callable[[], Any], Callable[[Any], object], Any]


def _parts() -> Iterator[tuple[str, Setting]]:
    """Yield the precision of parts of torch, which it has since 2.9; those of products follow from the one above."""
    for library, name in (("mkldnn", "conv"), ("mkldnn", "rnn"), ("mkldnn", "matmul"), ("cuda", "matmul")):
        part, key = getattr(getattr(torch.backends, library), name, None), "fp32_precision"
        if hasattr(part, key):
            yield f"precision of {library}.{name}", (partial(getattr, part, key), partial(setattr, part, key), "ieee")


COMMON: dict[str, Setting] = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype, torch.float32),
    "precision of matrix products": (_products, torch.set_float32_matmul_precision, "highest"),
    "deterministic algorithms": (_deterministic, _set_deterministic, (False, False)),
    "oneDNN": (lambda: torch.backends.mkldnn.enabled, torch._C._set_mkldnn_enabled, True),
    "NNPACK": (torch._C._get_nnpack_enabled, torch._C._set_nnpack_enabled, True),
    "number of threads": (torch.get_num_threads, torch.set_num_threads, 1),
    "denormal numbers": (_flushed, torch.set_flush_denormal, False),
    **dict(_parts()),
}  # fmt: skip
"""What all threads of a process have in common, and rounds depend on: how it is read, how it is set, and our value."""

_ONE_AT_A_TIME = threading.RLock()


def on_cpu() -> AbstractContextManager[object]:
    """Make tensors on the CPU, whatever device the caller made torch's default, which torch 2.6 does not tell."""
    return nullcontext() if torch.empty(0).device.type == "cpu" else torch.device("cpu")


def exactly(device: str) -> AbstractContextManager[object]:
    """End a caller's lower precision. It is asked for first: to end it makes torch count GPUs, which takes long."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


@contextmanager
def sealed() -> Iterator[None]:
    """Compute as if nobody else had touched torch, and put everything back afterwards. What belongs to a thread is set
    for this one. For the rest, runs of several threads take turns, and a change that somebody else makes meanwhile is
    an error: numbers may depend on it."""
    with (
        _ONE_AT_A_TIME,
        torch.inference_mode(False),
        torch.enable_grad(),
        exactly("cpu"),
        exactly("cuda"),
        on_cpu(),
        np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"),
    ):
        before = {name: get() for name, (get, _, _) in COMMON.items()}
        try:
            for _, put, ours in COMMON.values():
                put(ours)
            yield
            changed = [name for name, (get, _, ours) in COMMON.items() if get() != ours]
            if changed:
                raise Error(
                    f"torch's {changed[0]} was changed while a round was computed, by another thread or the network; "
                    "its numbers may depend on it, so the round is not kept; start the run in a process of its own"
                )
        finally:
            for name, (_, put, _) in COMMON.items():
                put(before[name])


@contextmanager
def some_threads(number: int) -> Iterator[None]:
    """Let torch use so many threads, and put the number back afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def one_thread() -> AbstractContextManager[None]:
    """Let torch use one thread, and put the number back afterwards."""
    return some_threads(1)


CPU = torch.device("cpu")


@cache
def generator_of(device: torch.device) -> torch.Generator:
    """Return our generator on a GPU. There is one, since a captured graph replays with the one it was captured with."""
    return torch.Generator(device)


class OwnDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Random numbers of this thread from a generator of its own: torch's is everybody's, and other threads draw too."""

    def __init__(self, seed: int, device: torch.device = CPU) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drew = False
        self._own = (torch.Generator() if device == CPU else generator_of(device)).manual_seed(seed)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Else torch imports its compiler, with sympy, for a second and a half before the first network is made."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Give a function that draws our generator."""
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        self.drew = True
        if not any(argument.name == "generator" for argument in func._schema.arguments):
            packet, own = func.overloadpacket, (f"{func._overloadname}_generator", "generator")
            if packet is torch.ops.aten.native_dropout:
                return self._dropout(*args, **kwargs)
            found = [name for name in own if name in packet.overloads()]
            if not found:  # of functions that draw in some cases alone, and then by calling others
                return func(*args, **kwargs)
            func = getattr(packet, found[0])
        return func(*args, **kwargs | {"generator": self._own})

    def _dropout(self, x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
        """What GPUs do at once, without a choice of generator."""
        kept = torch.empty_like(x, dtype=torch.bool)
        if train is False:
            return x.clone(), kept.fill_(True)
        kept.bernoulli_(1 - p, generator=self._own)
        return x * kept * (1 / (1 - p) if p < 1 else 0.0), kept


def seeded(seed: int, drawing: bool = True, device: torch.device = CPU) -> AbstractContextManager[object]:
    """Let layers such as dropout draw by a seed; nothing is done for networks that do not draw."""
    return OwnDraws(seed, device) if drawing else nullcontext()


@contextmanager
def kernels(exact: bool) -> Iterator[None]:
    """Choose the libraries' kernels: those that repeat their bits, in float32, or the fastest."""
    products = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = not exact
    try:
        with (
            torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=exact, allow_tf32=not exact),
            sdpa_kernel(SDPBackend.MATH) if exact else nullcontext(),  # its gradients are sums in a fixed order
        ):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = products


def draws(network: nn.Module, x: torch.Tensor) -> bool:
    """Whether a network draws random numbers in training, as dropout does, found by a look at some examples."""
    if not len(x):
        return False
    # Other attention than ours counts as drawing even where nothing is dropped.
    with torch.no_grad(), kernels(exact=True), OwnDraws(0, x.device) as own:
        copy.deepcopy(network).to(x.device).train()(x)
    return bool(own.drew)


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
