"""How a site measures models on its clients' data, or on the test data of its edges."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedbac.config.experiment import Method
from fedbac.core.answers import checked_trust
from fedbac.core.parts import Parts
from fedbac.core.policies import Trusting
from fedbac.core.queries import Split
from fedbac.core.requests import Evaluate, Measured, Request, Result
from fedbac.core.settings import FloatArray, IntArray
from fedbac.rounds.orders import Reading, Site


@dataclass(frozen=True)
class Survey:
    """What each group of examples said, and how much it counts; a group is a client, or the test data of an edge."""

    clients: tuple[int, ...]
    """Whose groups they are; none where groups are edges."""
    weight_G: FloatArray
    measured: Measured

    def mean(self, value_VG: FloatArray, among: tuple[int, ...] | None = None) -> FloatArray:
        """Return the mean over groups, weighted by their data; over the clients among these, if any of them count."""
        weight_G = self.weight_G
        if among is not None and weight_G[counts_G := np.isin(self.clients, among)].any():
            value_VG, weight_G = value_VG[:, counts_G], weight_G[counts_G]
        return weighted(value_VG, weight_G)

    def together(self) -> Reading:
        """Return one number of each model for the site."""
        loss_V, accuracy_V = self.mean(self.measured.loss_VG), self.mean(self.measured.accuracy_VG)
        return Reading(loss_V[:, None], accuracy_V[:, None], np.array([self.measured.count_G.sum()]))

    def one_by_one(self, site: Site) -> Reading:
        """Return a number of each model for each client of the site; of those that say nothing, none."""
        loss_VN, accuracy_VN = (
            np.stack([self.by_client(value_G, site) for value_G in value_VG])
            for value_VG in (self.measured.loss_VG, self.measured.accuracy_VG)
        )
        count_N = np.zeros(len(site.clients), dtype=np.int64)
        told = [site.clients.index(client) for client in self.clients]
        count_N[told] = np.where(self.weight_G > 0, self.measured.count_G, 0)
        return Reading(loss_VN, accuracy_VN, count_N)

    def by_client(self, value_G: FloatArray, site: Site) -> FloatArray:
        """Return the number of each client of a site; NaN of those that hold no such data or are broken."""
        value_N = np.full(len(site.clients), np.nan)
        value_N[[site.clients.index(client) for client in self.clients]] = np.where(self.weight_G > 0, value_G, np.nan)
        return value_N


def weighted(value_VG: FloatArray, weight_G: FloatArray | IntArray) -> FloatArray:
    """Return the weighted means over the last axis: ``numpy.average`` without what it does for other shapes.

    Groups are added in their order, however many models there are.
    """
    total = weight_G.sum(dtype=np.float64)
    if total == 0:
        raise ZeroDivisionError("there is nothing to weigh")
    mean_V: FloatArray = np.multiply(value_VG, weight_G, order="F").sum(-1) / total
    return mean_V


def clients_to_ask(method: Method, site: Site, selection: Any, selected: tuple[int, ...]) -> tuple[int, ...]:
    """Return the clients of a site whose measurements count (``method.measurement.clients``)."""
    if method.measurement.clients == "selected":
        return selected or site.clients
    if method.measurement.clients == "trusted" and isinstance(method.selection, Trusting):
        policy, count = method.selection, len(site.clients)
        trusted_N = checked_trust(policy, "trusted()", policy.trusted(selection), count)
        return tuple(client for client, sound in zip(site.clients, trusted_N, strict=True) if sound) or site.clients
    return site.clients


def survey(
    bank: Parts,
    row_V: Mapping[str, IntArray],
    split: Split,
    clients: tuple[int, ...],
    site: Site,
    max_samples: int | None = None,
) -> Generator[Request, Result, Survey]:
    """Measure models, each on the data of each of these clients that hold any; test data belong to edges."""
    if split == "test":
        measured = yield Evaluate(bank, row_V, "test", site.edges, level="edge")
        assert isinstance(measured, Measured)
        return Survey((), measured.count_G.astype(np.float64), _told(measured))
    holders = _holders(site, split, clients)
    asked = tuple(site.clients[i] for i in holders)
    measured = yield Evaluate(bank, row_V, split, asked, max_samples=max_samples)
    assert isinstance(measured, Measured)
    size_G = np.where(measured.count_G > 0, _sizes(site, split)[holders], 0)
    return _sound(Survey(asked, size_G.astype(np.float64), _told(measured)))


def survey_own(
    bank: Parts, row_N: Mapping[str, IntArray], split: Split, clients: tuple[int, ...], site: Site
) -> Generator[Request, Result, Survey]:
    """Measure the site's model with these clients; where they have models of their own, each measures its own."""
    if all((rows == rows[0]).all() for rows in row_N.values()):
        row_V = {part: rows[:1] for part, rows in row_N.items()}
        return (yield from survey(bank, row_V, split, clients, site))
    holders = np.arange(len(site.clients)) if split == "test" else _holders(site, split, clients)
    row_V = {part: rows[holders] for part, rows in row_N.items()}
    asked = tuple(site.clients[i] for i in holders)
    measured = yield Evaluate(bank, row_V, split, asked, paired=True)
    assert isinstance(measured, Measured)
    return _sound(Survey(asked, measured.count_G.astype(np.float64), _told(measured)))


def _sizes(site: Site, split: Split) -> IntArray:
    return site.validation_N if split == "validation" else site.size_N


def _holders(site: Site, split: Split, clients: tuple[int, ...]) -> IntArray:
    """Return which of the clients hold data; all that do, where none of those asked does."""
    size_N = _sizes(site, split)
    asked_N = size_N > 0 if clients is site.clients else np.isin(site.clients, clients) & (size_N > 0)
    return np.flatnonzero(asked_N if asked_N.any() else size_N > 0)


def _told(measured: Measured) -> Measured:
    """Return zeros instead of nothing where there was nothing to measure, or nobody answered: they weigh nothing."""
    held_G = measured.count_G > 0
    if held_G.all():
        return measured
    return replace(
        measured,
        loss_VG=np.where(held_G, measured.loss_VG, 0.0),
        accuracy_VG=np.where(held_G, measured.accuracy_VG, 0.0),
    )


def _sound(found: Survey) -> Survey:
    """Leave out a client whose loss is not finite under any model: it is broken and says nothing about the models."""
    measured = found.measured
    sound_G = np.isfinite(measured.loss_VG).any(0)
    if sound_G.all() or not (sound_G & (measured.count_G > 0)).any():
        return found
    return Survey(
        found.clients,
        found.weight_G * sound_G,
        replace(
            measured,
            loss_VG=np.where(sound_G, measured.loss_VG, 0.0),
            accuracy_VG=np.where(sound_G, measured.accuracy_VG, 0.0),
        ),
    )
