"""The sums of clients' changes as a site releases them where clients are protected (``method.privacy``)."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fedbac.config.experiment import Experiment
from fedbac.core import trees
from fedbac.core.bandits import budget
from fedbac.core.codecs import GaussianNoise
from fedbac.core.parts import Parts
from fedbac.core.requests import Average, Averaged
from fedbac.core.rng import Rng
from fedbac.core.settings import FloatArray, IntArray
from fedbac.privacy import Promise
from fedbac.rounds.messages import Site, TrainOrder

Once = Callable[[tuple[int, int], Parts, Callable[[], Parts]], Parts]
"""Given a round and an edge round, what a sum starts from, and how it is made with noise, returns what is released."""


def at_once(moment: tuple[int, int], start: Parts, make: Callable[[], Parts]) -> Parts:
    """Release what is made: where all noise comes from the seed, a round that is played again has the same."""
    return make()


def silent(loss_C: FloatArray) -> FloatArray:
    """Return of losses only whether they are finite: how large they are would be another answer about data."""
    return np.where(np.isfinite(loss_C), 0.0, np.nan)


def nobody(average: Average, num_epochs: int) -> Averaged:
    """Return what a site hears where chance has selected nobody."""
    bank, none = average.train.bank, np.zeros(0)
    return Averaged(
        bank=bank,
        weight={part: np.zeros(trees.count(params), dtype=np.int64) for part, params in bank.items()},
        healthy_C=np.zeros(0, dtype=bool),
        loss_C=none,
        square_C=none,
        epoch_CE=np.zeros((0, num_epochs)),
        kept={part: trees.select(bank[part], none.astype(np.int64)) for part in average.keep},
        left=dict(average.left),
    )


class Release:
    """How a site makes of the average of its clients what may be known of it."""

    def __init__(self, experiment: Experiment, promise: Promise, once: Once) -> None:
        self.experiment, self.promise, self.once = experiment, promise, once
        self.shares = promise.privacy.where == "clients"

    def expected(self, part: str, size_N: IntArray, order: TrainOrder, site: Site) -> FloatArray:
        """Return by row what clients count that are to be expected; who came would be another answer about them."""
        selection, num = self.experiment.method.selection, len(site.clients)
        sampling = self.promise.sampling
        share = sampling if sampling < 1 else budget(selection.fraction, num) / num
        count_R: FloatArray = np.bincount(order.row_N[part], size_N, trees.count(order.bank[part])).astype(np.float64)
        return share * count_R

    def of(self, trained: Averaged, order: TrainOrder, site: Site, start: Parts, edge_round: int, rng: Rng) -> Averaged:
        """Return the average of the parts that clients send as it is released, with weights that tell nothing."""
        if self.shares and int(trained.healthy_C.sum()) < self.experiment.fewest:  # too little noise is in it
            nothing = {part: np.zeros_like(weight) for part, weight in trained.weight.items()}
            return replace(trained, bank={**trained.bank, **start}, weight=nothing)

        def make() -> Parts:
            return self._noised(trained, start, order, site, rng)

        bank = self.once((order.round, edge_round), start, make)
        counted_N = self.experiment.method.counted(site.size_N)
        weight = {part: np.ceil(self.expected(part, counted_N, order, site)).astype(np.int64) for part in start}
        return replace(trained, bank={**trained.bank, **bank}, weight={**trained.weight, **weight})

    def _noised(self, trained: Averaged, start: Parts, order: TrainOrder, site: Site, rng: Rng) -> Parts:
        """Θ_r + (Σ_i w_i Δ_i + N(0, (σwC)²)) / W_r for every row r. A client is in one row of each part, and all that
        it sends is clipped together, so that all rows need the same noise. One of which nothing is expected stays."""
        adding, bound = GaussianNoise(multiplier=self.promise.noise_multiplier), self.promise.privacy.bound
        bank, counted_N = {}, self.promise.privacy.counted(self.experiment.method.counted(site.size_N))
        for part, before in sorted(start.items()):
            rows_RD = trees.rows(before).clone()
            change_RD = trees.rows(trained.bank[part]).to(rows_RD.device) - rows_RD
            expected_R = self.expected(part, counted_N, order, site)
            for row, total in enumerate(expected_R.tolist()):
                if total > 0:
                    sum_D = float(trained.weight[part][row]) * change_RD[row]
                    rows_RD[row] += (sum_D if self.shares else adding.alter(sum_D, bound, rng)) / total
            bank[part] = trees.shaped(rows_RD, before)
        return bank
