"""Work on a GPU that is captured once in a CUDA graph and then replayed, without a Python call per layer.

A graph serves the first clients of a stack, and knows how many: there is one for each of a few prefixes.
"""

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from fedbac.core import trees
from fedbac.core.parts import Params
from fedbac.core.runtime import generator_of, out_of_memory

log = logging.getLogger("fedbac")

GRAPH_SHRINK = 0.9
"""Captured prefixes shrink by this factor: at most a tenth of the clients in a step are idle, and graphs stay few."""


def prefix(capacity: int, active: int) -> int:
    """Return how many clients the smallest captured prefix has that holds the active ones."""
    rows = capacity
    while rows > 1 and (smaller := max(1, int(rows * GRAPH_SHRINK))) >= active:
        rows = smaller
    return rows


class Replayable(Protocol):
    """What a CUDA graph is to those who replay it."""

    def replay(self) -> None:
        """Do the work once more, with what lies in its buffers now."""


def captured(
    work: Callable[[], None], device: torch.device, pool: Any, changed: Sequence[Tensor] = ()
) -> torch.cuda.CUDAGraph:
    """Record the kernels of some work, and the tensors it changes; trial runs before it, which libraries need, are
    undone. ``pool`` is memory that graphs share: none needs what another left, and only one runs at a time."""
    saved, generator = [tensor.clone() for tensor in changed], generator_of(device)
    drawn = generator.get_state()

    def undo() -> None:
        for tensor, value in zip(changed, saved, strict=True):
            tensor.copy_(value)

    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(side):
            for _ in range(2):
                undo()  # no trial may run past the last step: the schedule ends there
                work()
    finally:  # whoever takes the step otherwise begins where it began
        torch.cuda.current_stream().wait_stream(side)
        undo()
        generator.set_state(drawn)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    # Other threads may use the GPU meanwhile: what they do is no part of this graph, and no error.
    with _uncollected(), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        work()
    return graph


@contextmanager
def _uncollected() -> Iterator[None]:
    """Hold the collector off: a graph of an earlier trainer that is freed in the middle would spoil a capture."""
    gc.collect()
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def refused(error: RuntimeError) -> None:
    """Say why there are no graphs: the network asked the GPU for a value, say. Memory that runs out is no reason."""
    if out_of_memory(error):
        raise error
    reason = str(error).partition("\n")[0]
    log.warning("no CUDA graphs of this network's steps, which makes small ones slower: %s", reason)


Found = tuple[Params, Tensor, Tensor]
"""By client: a gradient, the mean loss, and the sum of squared losses."""
Take = Callable[..., Found]
"""Takes the gradient of the first of some stacks, given all of them."""
Capture = Callable[[Callable[[], None]], Replayable]


class CapturedGradients:
    """Gradients that are replayed from graphs. What is returned stays as it is when others are taken."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.buffers: dict[tuple[object, ...], Buffers] = {}
        """By what is given: the names, shapes and number types of stacks."""

    def __call__(self, take: Take, *stacks: Params) -> Found:
        """Return what ``take`` makes of stacks, some of which may be empty."""
        kind = tuple(tuple((name, v.shape[1:], v.dtype) for name, v in stack.items()) for stack in stacks)
        known = self.buffers.get(kind)
        if known is None or known.capacity < trees.count(stacks[0]):
            known = None
            self.buffers.pop(kind, None)  # the old ones go before the new ones come
            known = self.buffers[kind] = Buffers(stacks)
        return known.found(take, stacks, self.capture)

    def close(self) -> None:
        """Let go of buffers and graphs."""
        self.buffers.clear()


class Buffers:
    """Stacks, and what is found of them, in matrices that stay where they are."""

    def __init__(self, stacks: Sequence[Params]) -> None:
        given = [trees.rows(stack) for stack in stacks if stack]
        self.capacity, width = given[0].shape
        self.given = [matrix.new_zeros(matrix.shape) for matrix in given]
        self.out = given[0].new_zeros(
            (self.capacity, width + 2), dtype=torch.promote_types(given[0].dtype, torch.float)
        )
        """Gradients, mean losses and sums of squared losses."""
        self.graphs: dict[int, Replayable] = {}
        """By how many rows they serve."""

    def found(self, take: Take, stacks: Sequence[Params], capture: Capture) -> Found:
        """Return what ``take`` makes of the stacks, by a graph."""
        active = trees.count(stacks[0])
        for matrix, stack in zip(self.given, filter(None, stacks), strict=True):
            matrix[:active] = trees.rows(stack)  # no row reads those below: of nobody, or of who has finished
        rows = prefix(self.capacity, active)
        if rows not in self.graphs:
            self.graphs[rows] = capture(lambda: self._take(take, stacks, rows))
        self.graphs[rows].replay()
        out = self.out[:active].clone()
        return trees.shaped(out[:, :-2], stacks[0]), out[:, -2], out[:, -1]

    def _take(self, take: Take, like: Sequence[Params], rows: int) -> None:
        matrices = iter(self.given)
        stacks = [trees.shaped(next(matrices)[:rows], stack) if stack else stack for stack in like]
        # Each weight by itself, where libraries' products are quickest.
        gradient, loss_A, square_A = take(*({n: v.contiguous() for n, v in stack.items()} for stack in stacks))
        torch.cat([trees.rows(gradient), loss_A[:, None], square_A[:, None]], 1, out=self.out[:rows])
