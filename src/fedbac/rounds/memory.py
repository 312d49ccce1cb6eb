"""What the links of a site remember between rounds: what receivers have, and what was left out of the last update."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedbac.core import trees
from fedbac.core.codecs import Chains, nothing_left, remembering
from fedbac.core.links import DIRECTIONS, TIERS, Link
from fedbac.core.parts import Parts, Personalization, Scope
from fedbac.rounds.holdings import Holding
from fedbac.rounds.orders import Site

Memory = dict[str, Parts]
"""By the name of a link that compresses; rows are owners, or clients for what clients have left."""
AT_SITES = ("client_down", "client_up", "cloud_up")
"""The links whose senders are a site and its clients."""


def first_memory(chains: Chains, scheme: Personalization, parts: Parts, site: Site) -> Memory:
    """Return what the links of a site remember before the first round: everybody has the initial networks."""
    memory: Memory = {}
    for name, passing in _passing(chains, scheme).items():
        mine = {part: stack for part, stack in parts.items() if part in passing}
        if name == "client_up":
            each = np.zeros(len(site.clients), dtype=np.int64)
            mine = {part: trees.select(stack, each) for part, stack in mine.items()}
        memory[name] = mine if name in ("client_down", "cloud_down") else nothing_left(mine)
    return memory


def remembered(
    chains: Chains, scheme: Personalization, owners: Mapping[Scope, int], sites: Sequence[Site]
) -> Counter[str]:
    """Return how many rows of each part the links of all sites remember."""
    rows: Counter[str] = Counter()
    for name, passing in _passing(chains, scheme).items():
        for part in passing:
            every = owners[scheme.parts[part].scope]
            rows[part] += sum(len(site.clients) if name == "client_up" else every for site in sites)
    return rows


def _passing(chains: Chains, scheme: Personalization) -> dict[str, frozenset[str]]:
    """Return the parts that pass each link that compresses."""
    passing = {
        f"{tier}_{direction}": Link(tier, scheme).passing[direction] for tier in TIERS for direction in DIRECTIONS
    }
    return {name: passing[name] for name in remembering(chains)}


@dataclass(frozen=True)
class Remembered:
    """The memory of a site's links during a round: only the rows that the site holds."""

    whole: Memory
    held: Mapping[str, Holding]

    def of(self, name: str) -> Parts:
        """Return what a link remembers of the rows that are held; nothing if it does not compress."""
        found = self.whole.get(name, {})
        if name == "client_up":
            return found
        return {part: trees.select(stack, self.held[part].owner_R) for part, stack in found.items()}

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
