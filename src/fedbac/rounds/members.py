"""Who is clustered: sites with all their clients, or every client for itself."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from fedbac.core.parts import Part
from fedbac.core.settings import BoolArray, FloatArray, IntArray
from fedbac.rounds.holdings import Holding, holdings
from fedbac.rounds.orders import Site

Unit = Literal["edge", "client"]


class Members:
    """The members of clusters, and where each of them is.

    A site is the member of its own number; a client is too.
    """

    def __init__(self, unit: Unit, sites: Sequence[Site]) -> None:
        self.unit, self.sites = unit, sites
        if unit == "edge":
            self.size_N = np.array([site.size for site in sites])
        else:
            self.size_N = np.zeros(num_clients(sites), dtype=np.int64)
            for site in sites:
                self.size_N[list(site.clients)] = site.size_N

    @property
    def count(self) -> int:
        """N."""
        return self.size_N.size

    def at(self, m: int) -> list[int]:
        """Return the members at a site, in the order of its clients."""
        return [m] if self.unit == "edge" else list(self.sites[m].clients)

    def holdings(self, parts: Mapping[str, Part], label_N: IntArray) -> list[dict[str, Holding]]:
        """Return what every site holds of each part."""
        return [holdings(parts, site, self.labels(label_N, m)) for m, site in enumerate(self.sites)]

    def labels(self, label_N: IntArray, m: int) -> IntArray:
        """Return the cluster of each client of a site."""
        if self.unit == "edge":
            return np.full(len(self.sites[m].clients), label_N[m])
        return label_N[list(self.sites[m].clients)]


def num_clients(sites: Sequence[Site]) -> int:
    """Return how many clients there are; they are numbered from 0."""
    return 1 + max(client for site in sites for client in site.clients)


def given_another(label_N: IntArray, origin_KJ: FloatArray | None) -> BoolArray:
    """Return which members find another network in their cluster, though they may never have left it."""
    if origin_KJ is None:
        return np.zeros(label_N.size, dtype=bool)
    changed_K: BoolArray = (origin_KJ != np.eye(len(origin_KJ))).any(axis=1)
    return changed_K[label_N]
