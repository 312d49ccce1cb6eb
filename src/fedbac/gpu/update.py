"""A step of SGD of many clients by ``update.cu``: all their weights in two launches."""

from collections.abc import Callable, Sequence
from ctypes import Structure, c_float, c_int, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedbac.gpu.driver import Module, current_stream, header, pointers, text

CHUNK, THREADS, MOST = 8192, 256, 56
"""Numbers of a block, its threads, and kinds of weights in a launch: its arguments may have 4 KiB."""


@dataclass(frozen=True)
class Weights:
    """Weights ``[client, …]`` of one name, with all that moves them."""

    weight: Tensor
    velocity: Tensor
    gradient: Tensor
    anchor: Tensor | None
    shift: Tensor | None
    decay: float
    penalty: float
    scope: int
    """Those of the same scope are clipped together."""


class _Kind(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("weight", "velocity", "gradient", "anchor", "shift")),
        *((name, c_int) for name in ("size", "chunk", "begin", "end")),
        *((name, c_float) for name in ("decay", "penalty")),
    ]


def step(
    all_weights: Sequence[Weights],
    counts: Tensor,
    rates: Tensor,
    momentum: float,
    max_norm: float | None,
    load: Callable[[str], Any] = Module,
) -> None:
    """Move the weights of all clients that have examples, ``counts [client]``, at their rates."""
    moving = [one for one in sorted(all_weights, key=lambda one: one.scope) if one.weight.numel()]
    if not moving:
        return
    module, stream = _module(load), current_stream(counts.device)
    gradients = [one.gradient.contiguous() for one in moving]
    firsts, chunks = [], 0
    for one in moving:
        firsts.append(chunks)
        chunks += -(-one.weight[0].numel() // CHUNK)
    ends = [*firsts[1:], chunks]
    scopes = [one.scope for one in moving]
    kinds = []
    for number, one in enumerate(moving):
        begin, end = firsts[scopes.index(one.scope)], ends[len(scopes) - 1 - scopes[::-1].index(one.scope)]
        anchor, shift = (None if given is None else given.data_ptr() for given in (one.anchor, one.shift))
        places = one.weight.data_ptr(), one.velocity.data_ptr(), gradients[number].data_ptr(), anchor, shift
        kinds.append(_Kind(*places, one.weight[0].numel(), firsts[number], begin, end, one.decay, one.penalty))
    partial = torch.empty((len(counts), chunks), device=counts.device)

    def launch(name: str, *more: Any) -> None:
        for begin in range(0, len(kinds), MOST):
            some = (_Kind * MOST)(*kinds[begin : begin + MOST])
            last = min(begin + MOST, len(kinds))
            values = [some, c_int(last - begin), c_int(firsts[begin]), c_int(chunks), c_void_p(partial.data_ptr())]
            grid = (len(counts), ends[last - 1] - firsts[begin], 1)
            module.launch(module.kernel(name), grid, THREADS, 0, stream, pointers([*values, *more]))

    if max_norm is not None:
        launch("squares")
    rates, counts = rates.contiguous(), counts.contiguous()
    given = c_void_p(counts.data_ptr()), c_void_p(rates.data_ptr()), c_float(momentum), c_float(max_norm or 0.0)
    launch("update", *given)


@cache
def _module(load: Callable[[str], Any]) -> Any:
    return load("\n".join([header({"CHUNK": CHUNK, "THREADS": THREADS, "MOST": MOST}), text("update.cu")]))
