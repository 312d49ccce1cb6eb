"""The batches that many clients visit in step."""

from collections.abc import Collection, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedbac.core.requests import Train
from fedbac.core.settings import IntArray
from fedbac.local.examples import Examples
from fedbac.local.stages import Stage


class Visits:
    """The examples of clients in order of visit, those of the next round drawn while a device is busy with this one.
    What is drawn depends on its address alone: early or late, the same order comes out."""

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
        return self.examples.visits(client, round_, edge_round, epochs).astype(np.int32) if found is None else found

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
                    self.drawn[client, *moment, count] = self.of(client, *moment, count)


Seat = tuple[Train, int]
"""A client: its request, and its place there."""


class BatchTable:
    """Which examples every client visits at every step of every phase: the batches of its epochs, one after another."""

    def __init__(self, examples: Examples, jobs: Sequence[Seat], stages: Sequence[Stage], known: Visits) -> None:
        batch = examples.batch_room
        sizes = [examples.shards.train[request.clients[c]].size for request, c in jobs]
        cut = {size: examples.batches(size) for size in set(sizes)}
        used = [(cut[size] or [slice(0, 0)])[-1].stop for size in sizes]
        per_epoch = np.array([len(cut[size]) for size in sizes], dtype=np.int64)
        self.steps_FC = np.array([stage.epochs * per_epoch for stage in stages])
        self.num_steps = int(self.steps_FC.max(initial=0))
        self.used, self.per_epoch = np.array(used, dtype=np.float64), per_epoch
        """Examples and batches of an epoch, by client."""
        self.first_F = np.cumsum([0, *(stage.epochs for stage in stages)]).tolist()
        """The first epoch of every phase among those of all, and their number."""
        shape = (len(stages), self.num_steps, len(jobs))
        self.count = np.zeros(shape, dtype=np.int64)
        self.index = np.zeros((*shape, batch), dtype=np.int64)
        self.offset = np.zeros((*shape, batch, 2), dtype=np.int64) if examples.augment else None
        self.flip = np.zeros((*shape, batch), dtype=bool) if examples.augment else None
        for _, alike in groupby(range(len(jobs)), key=lambda c: sizes[c]):  # those of a size lie side by side
            mine = list(alike)
            rows, many, seen = slice(mine[0], mine[-1] + 1), int(per_epoch[mine[0]]), used[mine[0]]
            if seen == 0:
                continue
            full = np.full(many, batch)
            full[-1] = seen - (many - 1) * batch
            for f, stage in enumerate(stages):
                addresses = [(jobs[c][0].clients[jobs[c][1]], jobs[c][0].round, jobs[c][0].edge_round) for c in mine]
                visits = [known.of(*address, stage.epochs) for address in addresses]
                at = (f, slice(0, stage.epochs * many), rows)

                lists: list[tuple[np.ndarray, Sequence[np.ndarray]]] = [(self.index, visits)]
                self.count[at] = np.tile(full, stage.epochs)[:, None]
                if self.offset is not None and self.flip is not None:
                    drawn = [examples.distortions(*a, v) for a, v in zip(addresses, visits, strict=True)]
                    lists.append((self.offset, [one[0].numpy() for one in drawn if one is not None]))
                    lists.append((self.flip, [one[1].numpy() for one in drawn if one is not None]))
                for table, values in lists:  # rows are cut into batches, the last padded, and lie step after step
                    rows_CE = np.array(values)
                    # Padding repeats the client's own: another's example could be broken, and 0 · NaN is NaN.
                    padded = np.repeat(rows_CE[:, :, :1], many * batch, axis=2)
                    padded[:, :, :seen] = rows_CE[:, :, :seen]
                    table[at] = padded.reshape(len(values), -1, batch, *rows_CE.shape[3:]).swapaxes(0, 1)

    def active(self, phase: int, step: int) -> int:
        """Return how many clients, the first of the stack, still have a batch at this step of a phase."""
        return int((self.steps_FC[phase] > step).sum())

    def largest(self, phase: int, step: int) -> int:
        """Return the examples of the largest batch at this step of a phase."""
        return int(self.count[phase, step].max(initial=0))


LANES = 4
"""Rows of launches that run beside each other: what one leaves of the device, as it begins or ends, another uses."""
FEW = 4
"""Times the clients of this round up to which visits are drawn for all clients, as nobody knows who trains next."""


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
        self.crop, self.flip = examples.crops_and_flips(at, visits)


def shared_out(order: IntArray, batches_J: IntArray) -> list[IntArray]:
    """Return clients, those with most batches first, in lanes of about as many batches each and similar sizes."""
    middle_J = np.cumsum(batches_J) - batches_J / 2
    lane_J = np.minimum((LANES * middle_J / max(batches_J.sum(), 1)).astype(np.int64), LANES - 1)
    return [order[lane_J == lane] for lane in range(LANES) if (lane_J == lane).any()]


def _lane(jobs: slice, steps_J: IntArray) -> Lane:
    mine = steps_J[jobs]
    return Lane(jobs, (mine[:, None] > np.arange(mine[0])).sum(0).tolist())
