"""Whose rows of the parts a site works with: members, the rows they hold, and what links remember of them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from fedbac.core import trees
from fedbac.core.codecs import Chains, nothing_left, remembering
from fedbac.core.links import DIRECTIONS, INNER, Link, Tier
from fedbac.core.parts import Params, Part, Parts, Personalization, Scope
from fedbac.core.settings import BoolArray, FloatArray, IntArray
from fedbac.rounds.messages import Site

T = TypeVar("T", int, tuple[int, ...])


class SiteRows(NamedTuple):
    """The rows of one part that a site holds during a round."""

    owner_R: IntArray
    """The owner of each row: its place in the cloud's stack."""
    row_N: IntArray
    """The row that each client of the site uses."""


class Rows(NamedTuple):
    """What the parent of a site or a node hears: rows of parts, whose they are, and what is behind each."""

    bank: Parts
    owner: Mapping[str, IntArray]
    weight: Mapping[str, FloatArray]
    """What it counts; 0 where no client trained it."""
    trained: Mapping[str, FloatArray]
    """Examples of the clients that trained it."""
    loss: float = np.nan
    """The mean loss in training; NaN if nobody trained."""
    numbers: int = 0
    """How many plain numbers come with them."""
    seconds: float = 0.0
    """How long it would have taken."""


def site_rows(parts: Mapping[str, Part], site: Site, label_C: IntArray) -> dict[str, SiteRows]:
    """Return what a site holds of each part: a row for all its clients, for each cluster among them, or for each."""
    shared = np.zeros(len(site.clients), dtype=np.int64)
    each, together = np.arange(len(site.clients)), label_C.size > 0 and bool((label_C == label_C[0]).all())
    by_scope: dict[Scope, SiteRows] = {
        "cloud": SiteRows(np.array([0]), shared),
        "cluster": SiteRows(label_C[:1], shared) if together else SiteRows(*np.unique(label_C, return_inverse=True)),
        "edge": SiteRows(np.array([site.index]), shared),
        "client": SiteRows(np.array(site.clients), each),
    }
    by_scope |= {tier: SiteRows(np.array([node]), shared) for tier, node in zip(INNER, site.above, strict=False)}
    return {part: by_scope[spec.scope] for part, spec in parts.items()}


def distinct(values: Iterable[T]) -> tuple[list[T], IntArray]:
    """Return the different values in order, and the place of each among them: for a few, faster than numpy.unique."""
    given = list(values)
    different = sorted(set(given))
    place = {value: number for number, value in enumerate(different)}
    return different, np.array([place[value] for value in given], dtype=np.int64)


def compact(bank: Parts, row_V: Mapping[str, IntArray]) -> tuple[Parts, dict[str, IntArray]]:
    """Return only those rows of a bank that models use, each once, and where every model finds its own."""
    kept: Parts = {}
    places: dict[str, IntArray] = {}
    for part, rows in row_V.items():
        used, places[part] = distinct(rows.tolist())
        kept[part] = trees.select(bank[part], np.array(used, dtype=np.int64))
    return kept, places


def rows_of(bank: Parts, part: str, own: SiteRows, known: dict[tuple[str, bytes], Params]) -> Params:
    """Return a site's rows of a part; sites with the same rows get the same object, and an engine makes use of that."""
    if (key := (part, own.owner_R.tobytes())) not in known:
        known[key] = trees.select(bank[part], own.owner_R)
    return known[key]


Unit = Literal["edge", "client"]


class Members:
    """The members of clusters, sites or clients by their own numbers, and where each of them is."""

    def __init__(self, unit: Unit, sites: Sequence[Site]) -> None:
        self.unit, self.sites = unit, sites
        if unit == "edge":
            self.size_N = np.array([site.size for site in sites])
        else:
            self.size_N = np.zeros(num_clients(sites), dtype=np.int64)
            for site in sites:
                self.size_N[list(site.clients)] = site.size_N
        self.count = self.size_N.size
        """N."""

    def at(self, m: int) -> list[int]:
        """Return the members at a site, in the order of its clients."""
        return [m] if self.unit == "edge" else list(self.sites[m].clients)

    def site_rows(self, parts: Mapping[str, Part], label_N: IntArray) -> list[dict[str, SiteRows]]:
        """Return what every site holds of each part."""
        return [site_rows(parts, site, self.labels(label_N, m)) for m, site in enumerate(self.sites)]

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


Memory = dict[str, Parts]
"""By the name of a link that compresses; rows are owners, or clients for what clients have left."""


def first_memory(
    chains: Chains, scheme: Personalization, parts: Parts, tiers: Sequence[Tier], num_clients: int = 0
) -> Memory:
    """Return what the links around a site or a node remember before the first round: everybody has the initial
    networks."""
    memory: Memory = {}
    for name, passing in _passing(chains, scheme, tiers).items():
        mine = {part: stack for part, stack in parts.items() if part in passing}
        if name == "client_up":
            each = np.zeros(num_clients, dtype=np.int64)
            mine = {part: trees.select(stack, each) for part, stack in mine.items()}
        memory[name] = mine if name.endswith("_down") else nothing_left(mine)
    return memory


def remembered(
    chains: Chains, scheme: Personalization, owners: Mapping[Scope, int], count: Mapping[Tier, int]
) -> Counter[str]:
    """Return how many rows of each part all links remember, given how many there are of each."""
    rows: Counter[str] = Counter()
    for tier, number in count.items():
        for name, passing in _passing(chains, scheme, [tier]).items():
            for part in passing:
                each = owners["client"] if name == "client_up" else number * owners[scheme.parts[part].scope]
                rows[part] += each
    return rows


def _passing(chains: Chains, scheme: Personalization, tiers: Sequence[Tier]) -> dict[str, frozenset[str]]:
    """Return the parts that pass each link that compresses."""
    passing = {
        f"{tier}_{direction}": Link(tier, scheme).passing[direction] for tier in tiers for direction in DIRECTIONS
    }
    return {name: passing[name] for name in remembering(chains) if name in passing}


@dataclass(frozen=True)
class Remembered:
    """The memory of a site's links during a round: only the rows that the site holds."""

    whole: Memory
    held: Mapping[str, SiteRows]

    def of(self, name: str) -> Parts:
        """Return what a link remembers of the rows that are held; nothing if it does not compress."""
        found = self.whole.get(name, {})
        if name == "client_up":
            return found
        return {part: trees.select(stack, self.held[part].owner_R) for part, stack in found.items()}

    def after(self, changed: Mapping[str, Parts]) -> "Remembered":
        """Return it after some of the round."""
        return Remembered(self.with_(changed), self.held)

    def with_(self, changed: Mapping[str, Parts]) -> Memory:
        """Return the memory after the round."""
        after = dict(self.whole)
        for name, parts in changed.items():
            if name not in after:
                continue
            after[name] = {
                part: parts[part] if name == "client_up" else trees.put(stack, self.held[part].owner_R, parts[part])
                for part, stack in after[name].items()
            }
        return after
