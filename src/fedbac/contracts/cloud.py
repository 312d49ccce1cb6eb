"""What the cloud makes up for policies that it asks: answers with a row for each member."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from fedbac.core.queries import Accuracy, Evidence, Gram, Loss, Query, Seconds, Slope, Split, Statistic
from fedbac.core.rng import Rng, stream
from fedbac.core.settings import BoolArray, FloatArray, IntArray

ALL_ROUNDS = 200
STEPS = 5.0
"""Batches that a client trains on in a round."""
EPOCHS = 3
TABLES = ("clusters", "occupied")
"""Queries about several models: a column for each cluster."""


def made_up(query: Statistic, trained_N: BoolArray, rng: Rng) -> FloatArray:
    """Return a statistic of those that trained; NaN of the others."""
    shape = (trained_N.size, EPOCHS) if query.name == "epochs" else (trained_N.size,)
    value_N: FloatArray = rng.uniform(0.1, 2, shape)
    value_N[~trained_N] = np.nan
    return value_N


@dataclass(frozen=True)
class World:
    """Members in clusters, of which some fail to train now and then, and some models diverge."""

    label_N: IntArray
    used_K: BoolArray
    silent: bool = False
    """Whether some members are not asked, as happens where members are clients."""

    def evidence(self, t: int, queries: Iterable[Query] = ()) -> Evidence:
        """Return what a policy is shown after round t."""
        return Evidence(
            round=t,
            num_rounds=ALL_ROUNDS,
            num_classes=10,
            size_N=stream(0, "sizes").integers(50, 500, size=self.label_N.size),
            readings={query: self._answer(query, t) for query in queries},
            label_N=self.label_N.copy(),
            used_K=self.used_K.copy(),
        )

    def moved(self, label_N: IntArray) -> "World":
        """Return the world with these labels."""
        return replace(self, label_N=label_N.copy(), used_K=self.used_K | np.isin(np.arange(self.used_K.size), label_N))

    def _answer(self, query: Query, t: int) -> FloatArray:
        if isinstance(query, Gram | Slope):
            update_NF = np.where(self._idle(t)[:, None], np.nan, stream(0, "updates", t).normal(size=(self._num, 8)))
            network_KF = stream(0, "networks", t).normal(size=(self.used_K.size, 8))
            return update_NF @ (update_NF.T if isinstance(query, Gram) else network_KF.T)
        if isinstance(query, Statistic):
            return made_up(query, ~self._idle(t), stream(0, "statistic", t))
        assert not isinstance(query, Seconds), "only selection hears how long clients take"
        table_NK = self._table(query, t, "averaged")
        if self.silent:
            table_NK[stream(0, "silent", t).random(self._num) < 0.3] = np.nan
        own_N = table_NK[np.arange(self._num), self.label_N]
        if isinstance(query, Loss) and query.candidates is not None:
            for n, label in enumerate(self.label_N):
                measured = query.columns(int(label), self.used_K.size, stream(0, "candidates", t, n))
                table_NK[n, np.setdiff1d(np.arange(self.used_K.size), measured)] = np.nan
        if query.of in TABLES:
            return table_NK
        if query.of == "unaveraged":
            alone_N = np.bincount(self.label_N)[self.label_N] == 1
            return np.where(alone_N, own_N, self._table(query, t, "alone")[:, 0])
        if query.of in ("others", "mean"):
            return self._table(query, t, query.of)[:, 0]
        return np.where(self._idle(t), np.nan, own_N) if query.of == "trained" else own_N

    def _table(self, query: Loss | Accuracy, t: int, what: str) -> FloatArray:
        splits: tuple[Split, ...] = ("train", "validation", "test")
        rng = stream(0, what, t, splits.index(query.on or "train"))
        shape = (self._num, self.used_K.size)
        loss_NK = rng.uniform(0.1, 2, shape)
        loss_NK[rng.random(shape) < 0.02] = np.inf  # a model that has diverged
        if query.of == "occupied":
            loss_NK[:, np.setdiff1d(np.arange(shape[1]), self.label_N)] = np.inf
        return loss_NK if isinstance(query, Loss) else np.exp(-loss_NK)

    def _idle(self, t: int) -> BoolArray:
        """Return who did not train: some, and in some rounds nobody did."""
        idle_N: BoolArray = (stream(0, "idle", t).random(self._num) < 0.1) | (t % 13 == 6)
        return idle_N

    @property
    def _num(self) -> int:
        return self.label_N.size
