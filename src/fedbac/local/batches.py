"""The batches that many clients visit in step."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from fedbac.core.requests import Train
from fedbac.local.examples import Examples
from fedbac.local.stages import Stage
from fedbac.local.visits import Visits

Job = tuple[Train, int]
"""A client: its request, and its place there."""


class BatchTable:
    """Which examples every client visits at every step of every phase: the batches of its epochs, one after another."""

    def __init__(self, examples: Examples, jobs: Sequence[Job], stages: Sequence[Stage], known: Visits) -> None:
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

                def lay(
                    target: np.ndarray, values: list[np.ndarray], many: int = many, seen: int = seen, at: Any = at
                ) -> None:
                    """Cut rows of visits into batches, the last padded, and lay them out step after step."""
                    # Padding repeats the client's own: another's example could be broken, and 0 · NaN is NaN.
                    told = np.array(values)
                    padded = np.repeat(told[:, :, :1], many * batch, axis=2)
                    padded[:, :, :seen] = told[:, :, :seen]
                    target[at] = padded.reshape(len(told), -1, batch, *told.shape[3:]).swapaxes(0, 1)

                lay(self.index, visits)
                self.count[at] = np.tile(full, stage.epochs)[:, None]
                if self.offset is not None and self.flip is not None:
                    drawn = [examples.distortions(*a, v) for a, v in zip(addresses, visits, strict=True)]
                    lay(self.offset, [one[0].numpy() for one in drawn if one is not None])
                    lay(self.flip, [one[1].numpy() for one in drawn if one is not None])

    def active(self, phase: int, step: int) -> int:
        """Return how many clients, the first of the stack, still have a batch at this step of a phase."""
        return int((self.steps_FC[phase] > step).sum())

    def largest(self, phase: int, step: int) -> int:
        """Return the examples of the largest batch at this step of a phase."""
        return int(self.count[phase, step].max(initial=0))
