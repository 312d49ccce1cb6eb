"""Which examples every client visits, in the order of its batches; and what our GPU kernels are told of it."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedbac.core.requests import Train
from fedbac.core.settings import IntArray
from fedbac.local.examples import Examples

LANES = 4
"""Rows of launches that run beside each other: what one leaves of the device, as it begins or ends, another uses."""

FEW = 4
"""Times the clients of this round up to which visits are drawn for all clients, as nobody knows who trains next."""


class Visits:
    """The examples of clients in order of visit, those of the next round drawn while a device is busy with this one.

    What is drawn depends on its address alone: early or late, the same order comes out.
    """

    def __init__(self, examples: Examples) -> None:
        self.examples = examples
        self.drawn: dict[tuple[int, int, int, int], NDArray[np.int32]] = {}
        self.moment: tuple[int, int] | None = None
        """The round and edge round that was drawn for."""
        self.last_edge_round = 0
        """Of those seen so far."""

    def of(self, client: int, round_: int, edge_round: int, epochs: int) -> NDArray[np.int32]:
        """Return the examples of a client, as ``Examples`` draws them, as 32-bit numbers."""
        found = self.drawn.get((client, round_, edge_round, epochs))
        return self._draw(client, round_, edge_round, epochs) if found is None else found

    def prefetch(self, requests: Sequence[Train], epochs: Collection[int]) -> None:
        """Draw for the moment that probably follows; to be called when the device has all its work."""
        round_, edge_round = requests[0].round, requests[0].edge_round
        self.last_edge_round = max(self.last_edge_round, edge_round)
        moment = (round_ + 1, 0) if edge_round == self.last_edge_round else (round_, edge_round + 1)
        if moment == self.moment:  # another chunk of the same clients
            return
        self.moment, self.drawn = moment, {}
        num_clients = len(self.examples.shards.train)
        if num_clients <= FEW * sum(len(request.clients) for request in requests):
            for client in range(num_clients):
                for count in epochs:
                    self.drawn[client, *moment, count] = self._draw(client, *moment, count)

    def _draw(self, client: int, round_: int, edge_round: int, epochs: int) -> NDArray[np.int32]:
        return self.examples.visits(client, round_, edge_round, epochs).astype(np.int32)


class Lane(NamedTuple):
    """Clients that are trained in step."""

    jobs: slice
    active: list[int]
    """How many of them have a batch at each step: always the first."""


class VisitTable:
    """Which examples clients visit in a phase: in lanes, and in a lane those with most batches first."""

    def __init__(self, examples: Examples, jobs: Sequence[tuple[Train, int]], epochs: int, drawn: Visits) -> None:
        size_J, per_epoch_J, used_J = examples.epochs[:, [client for _, client in jobs]]
        by_size = np.argsort(-per_epoch_J, kind="stable")
        lanes = shared_out(by_size, per_epoch_J[by_size])
        self.order = np.concatenate([by_size[:0], *lanes])
        size_J, self.used_J, per_epoch_J = size_J[self.order], used_J[self.order], per_epoch_J[self.order]
        at = [(client, request.round, request.edge_round) for request, client in (jobs[j] for j in self.order)]
        visits = [drawn.of(*address, epochs) for address in at]
        self.visits = np.concatenate([visit.reshape(-1) for visit in visits])
        first_J = np.cumsum(epochs * size_J) - epochs * size_J
        self.jobs = np.stack([first_J, size_J, self.used_J, per_epoch_J], 1).astype(np.int32)
        """What the kernels need to find a client's batch at any step."""
        ends = np.cumsum([lane.size for lane in lanes]).tolist()
        begins = [0, *ends[:-1]]
        self.lanes = [_lane(slice(*ends_), epochs * per_epoch_J) for ends_ in zip(begins, ends, strict=True)]
        self.crop: NDArray[Any] | None = None
        self.flip: NDArray[Any] | None = None
        if examples.augment is not None:
            changes = [examples.distortions(*address, visit) for address, visit in zip(at, visits, strict=True)]
            offsets = np.concatenate([pair[0].reshape(-1, 2).numpy() for pair in changes if pair is not None])
            self.crop = (offsets - examples.augment.crop_padding).astype(np.int8)
            self.flip = np.concatenate([pair[1].reshape(-1).numpy() for pair in changes if pair is not None])


def shared_out(order: IntArray, batches_J: IntArray) -> list[IntArray]:
    """Return clients, those with most batches first, in lanes of about as many batches each.

    A lane takes as many steps as its first client has batches, so clients of similar size belong together.
    """
    middle_J = np.cumsum(batches_J) - batches_J / 2
    lane_J = np.minimum((LANES * middle_J / max(batches_J.sum(), 1)).astype(np.int64), LANES - 1)
    return [order[lane_J == lane] for lane in range(LANES) if (lane_J == lane).any()]


def _lane(jobs: slice, steps_J: IntArray) -> Lane:
    mine = steps_J[jobs]
    return Lane(jobs, (mine[:, None] > np.arange(mine[0])).sum(0).tolist())
