"""Clients in chunks that fit into memory: a round needs room for one chunk and for the edges, however many clients."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fedbac.core import trees
from fedbac.core.aggregation import EdgeAverage, Foreseen, begin_look
from fedbac.core.codecs import passed
from fedbac.core.parts import Parts
from fedbac.core.requests import Average, Averaged, Beginning, Train, Trained, Trainer
from fedbac.core.shortage import out_of_memory
from fedbac.engines.pausing import Pausing
from fedbac.errors import NotEnoughMemoryError
from fedbac.local import num_cores

COPIES = 4
"""A client in training takes about this many times the memory of its networks: weights, momentum, gradients, and
the copy that comes back."""
GIB = 2**30
FREE_SHARE, PER_CORE = 0.25, GIB // 2
"""When no budget is given: this share of the memory that is free, and on a CPU at most so many bytes per core, which
keep it busy; more would only grow with the number of clients."""

log = logging.getLogger("fedbac")


Told = tuple[Trained, Parts]
"""What some clients came back with, and what they left out of their updates."""


class Piece(NamedTuple):
    """Some consecutive clients of one request."""

    request: int
    clients: slice


class Chunks:
    """Puts clients through a trainer chunk by chunk and averages them as they come back."""

    def __init__(self, trainer: Trainer, memory: float | None, sharers: int) -> None:
        self.trainer = trainer
        self.beginning = trainer if isinstance(trainer, Beginning) else None
        """The trainer, if it can go on while its device works."""
        self.memory = memory
        """Bytes; ``default_memory`` when not given."""
        self.sharers = sharers
        """How many processes share it."""
        self.most: int | None = None
        """Clients in a chunk; None before the first."""

    def average(
        self, requests: Sequence[Average], upon: Callable[[list[Foreseen]], None] = lambda averages: None
    ) -> Pausing[list[Averaged]]:
        """Train the clients of all requests and average those of each by the rows that they started from.

        Where a device has been told to make all averages before they are known to be sound, ``upon`` is given them;
        and nothing, if memory ran out before they were made.
        """
        averages = [
            EdgeAverage(request.size_C, request.train.bank, request.train.row_C, request.rules) for request in requests
        ]
        told: list[list[Told]] = [[] for _ in requests]
        if self.most is None:
            self.most = self._fitting(requests)
        left = [Piece(r, slice(0, request.size_C.size)) for r, request in enumerate(requests)]
        while left:
            chunk, rest = cut(left, self.most)
            if (yield from self._fold(chunk, requests, averages, told, upon)):
                left = rest
        return [_averaged(average, pieces) for average, pieces in zip(averages, told, strict=True)]

    def _fitting(self, requests: Sequence[Average]) -> int:
        bank, rules = requests[0].train.bank, requests[0].rules
        size = {part: sum(value[0].nbytes for value in params.values()) for part, params in bank.items()}
        per_client = (COPIES + getattr(self.trainer, "more_copies", 0)) * sum(size.values())
        per_client = max(per_client, getattr(self.trainer, "bytes_per_client", 0))  # a trainer may know better
        memory = (default_memory(self.trainer.device) if self.memory is None else self.memory) / self.sharers
        # Clients that are held until all have come take from it too; half is left, or training would crawl.
        held = sum(request.size_C.size for request in requests) * sum(size[part] for part in rules)
        return max(1, int(max(memory - held, memory / 2) / per_client))

    def _fold(
        self,
        chunk: Sequence[Piece],
        requests: Sequence[Average],
        averages: Sequence[EdgeAverage],
        told: Sequence[list[Told]],
        upon: Callable[[list[Foreseen]], None],
    ) -> Pausing[bool]:
        """Train a chunk, add it to the averages and let go of it; return False when memory ran out."""
        mine = [averages[piece.request] for piece in chunk if requests[piece.request].codec is None]
        whole = len(mine) == len(chunk)
        looks: list[Callable[[], None]] = []

        def foresee(parts: Sequence[Parts]) -> None:
            for average, parts_C in zip(mine, parts, strict=True):
                average.foresee(parts_C)
            looks.append(begin_look(mine))
            foreseen = [average.ahead for average in averages if average.ahead is not None]
            if len(foreseen) == len(averages):
                upon(foreseen)

        orders = [requests[piece.request].train.part(piece.clients) for piece in chunk]
        trained = yield from self._train(orders, foresee if whole else None)
        if trained is None:
            for average in mine:
                average.ahead = None  # it holds on to memory
            upon([])
            return False
        for look in looks:
            look()
        for piece, result in zip(chunk, trained, strict=True):
            left: Parts = {}
            if requests[piece.request].codec is not None:
                result, left = _compressed(requests[piece.request], piece.clients, result)
            averages[piece.request].add(result.parts_C, result.loss_C)
            own = {part: trees.join([result.parts_C[part]]) for part in requests[piece.request].keep}
            told[piece.request].append((replace(result, parts_C=own), left))
        return True

    def _train(
        self, requests: list[Train], meanwhile: Callable[[Sequence[Parts]], None] | None = None
    ) -> Pausing[list[Trained] | None]:
        """Train a chunk; when memory runs out, return None, and let chunks be half as large from now on.

        What is to be done ``meanwhile``, while a device trains, is given what the clients will come back with.
        """
        count = sum(len(request.clients) for request in requests)
        try:
            if self.beginning is None:
                return self.trainer.train(requests)
            begun = self.beginning.begin(requests)
            if meanwhile is not None:
                meanwhile(begun.parts)
            yield
            return begun.finish()
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            if count == 1:
                raise NotEnoughMemoryError(
                    f"not enough memory to train a single client ({error}); use a smaller network or batch "
                    "(task.network, task.training.batch_size), or a machine with more memory"
                ) from error
            self.most = count // 2
            log.warning("out of memory with %d clients at once; going on with %d", count, self.most)
        if self.trainer.device.type == "cuda":
            torch.cuda.empty_cache()
        return None


def cut(left: Sequence[Piece], most: int) -> tuple[list[Piece], list[Piece]]:
    """Return the first chunk of at most ``most`` clients, and what remains; chunks come out of equal size."""
    total = sum(piece.clients.stop - piece.clients.start for piece in left)
    num_chunks = -(-total // most)
    room = -(-total // num_chunks)
    chunk: list[Piece] = []
    for i, (request, clients) in enumerate(left):
        stop = min(clients.stop, clients.start + room)
        room -= stop - clients.start
        chunk.append(Piece(request, slice(clients.start, stop)))
        rest = [Piece(request, slice(stop, clients.stop))] if stop < clients.stop else []
        if room == 0:
            return chunk, [*rest, *left[i + 1 :]]
    return chunk, []


def default_memory(device: torch.device) -> float:
    """Return the bytes that clients in training may take when nobody says."""
    share = FREE_SHARE * free_memory(device)
    return share if device.type == "cuda" else min(share, PER_CORE * num_cores())


def free_memory(device: torch.device) -> int:
    """Return the bytes that are free on a GPU, or on this machine within the limits set to this process."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # not Linux
        return 4 * GIB
    try:
        group = Path("/sys/fs/cgroup")
        limit, used = ((group / f"memory.{name}").read_text() for name in ("max", "current"))
        return min(free, max(int(limit) - int(used), 0))
    except (OSError, ValueError):  # no limit
        return free


def _compressed(request: Average, clients: slice, trained: Trained) -> tuple[Trained, Parts]:
    """Return what arrives of the clients' updates, and what they leave out."""
    assert request.codec is not None
    parts_C, left = dict(trained.parts_C), {}
    for part, left_C in request.left.items():
        start_C = trees.select(request.train.bank[part], request.train.row_C[part][clients])
        start_C = trees.to(start_C, next(iter(parts_C[part].values())).device)
        before_C = {name: value[clients] for name, value in left_C.items()}
        parts_C[part], left[part], _ = passed(request.codec, parts_C[part], start_C, before_C)
    return replace(trained, parts_C=parts_C), left


def _averaged(average: EdgeAverage, pieces: Sequence[Told]) -> Averaged:
    """Return the average of clients with what else they told, piece by piece."""
    told, lefts = zip(*pieces, strict=True)
    momenta = [piece.momentum for piece in told if piece.momentum is not None]
    squares = [piece.square_C for piece in told if piece.square_C is not None]
    epochs = [piece.epoch_CE for piece in told if piece.epoch_CE is not None]
    return Averaged(
        average.bank,
        average.weight,
        average.healthy_C,
        average.loss_C,
        {part: trees.join([momentum[part] for momentum in momenta]) for part in momenta[0]} if momenta else None,
        np.concatenate(squares) if squares else None,
        np.concatenate(epochs) if epochs else None,
        {part: trees.join([piece.parts_C[part] for piece in told]) for part in told[0].parts_C},
        {part: trees.join([left[part] for left in lefts]) for part in lefts[0]},
    )
