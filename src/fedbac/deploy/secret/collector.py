"""An edge's part in one sum: it passes on keys and shares, adds up masked numbers as they come, and takes the masks off
the sum."""

import secrets
from collections.abc import Collection, Mapping
from functools import cache

from fedbac.core.secret import Words, neighbours
from fedbac.deploy.secret.member import Keys, mask_key, needed, self_key
from fedbac.deploy.secret.primitives import SHARE, TAG, Pair, SumError, mask, recovered, weights_at_zero

SEALED = 2 * SHARE + TAG
"""Bytes of the shares of both secrets, sealed for one client."""


class TooFewError(SumError):
    """Too few clients are left to open a sum."""

    def __init__(self, left: int, count: int, least: int) -> None:
        super().__init__(f"{left} of {count} clients are left in a secret sum, which needs {least}")
        self.numbers = left, count, least


class Collector:
    """One sum, step by step; whoever gives no answer to one is missing from then on."""

    def __init__(self, context: bytes, places: Collection[int], threshold: int) -> None:
        self.context, self.places, self.threshold = context, sorted(places), threshold
        self.keys: dict[int, Keys] = {}
        self.neighbours: dict[int, list[int]] = {}
        """Of each that gave keys."""
        self.shares: dict[int, dict[int, bytes]] = {}
        """By who shared, what is sealed for each of its neighbours."""
        self.total: Words | None = None
        """The sum so far, with masks."""
        self.added: set[int] = set()

    def _require(self, left: Collection[int]) -> None:
        """Refuse to go on with too few: a majority must be left, and of the holders of each secret too."""
        least = max(self.threshold, needed(self.threshold, len(self.keys or self.places)))
        short = any(self._holding(place, left) < self._quorum(place) for place in self.shares)
        if len(left) < least or short:
            raise TooFewError(len(left), len(self.places), least)

    def _quorum(self, place: int) -> int:
        return needed(self.threshold, len(self.neighbours[place]) + 1)

    def _holding(self, place: int, left: Collection[int]) -> int:
        return (place in left) + sum(other in left for other in self.neighbours[place])

    def rosters(self, keys: Mapping[int, bytes]) -> dict[int, dict[int, bytes]]:
        """Take the keys of clients; return for each those of its neighbours, on a ring in an order drawn by lot."""
        for place, said in keys.items():
            self.keys[place] = Keys.decoded(said)
        ring, reach = list(self.keys), neighbours(len(self.keys))
        secrets.SystemRandom().shuffle(ring)
        sides = [*range(1, reach // 2 + 1), *range(-(reach - reach // 2), 0)]
        for at, place in enumerate(ring):
            self.neighbours[place] = sorted(ring[(at + side) % len(ring)] for side in sides)
        self._require(self.keys)
        return {place: {other: keys[other] for other in self.neighbours[place]} for place in self.keys}

    def sharers(self, sealed: Mapping[int, bytes]) -> dict[int, list[int]]:
        """Take sealed shares, each client's in the order of its neighbours; return which of these shared, for each."""
        for place, said in sealed.items():
            others = self.neighbours[place]
            if len(said) != SEALED * len(others):
                raise SumError("sealed shares are too few, or too many")
            self.shares[place] = {other: said[at * SEALED : (at + 1) * SEALED] for at, other in enumerate(others)}
        self._require(self.shares)
        return {place: [other for other in self.neighbours[place] if other in self.shares] for place in self.shares}

    def add(self, place: int, words: Words) -> None:
        """Add the masked numbers of a client."""
        if self.total is None:
            self.total = Words.zeros(words.network.size, words.numbers.size)
        self.total.add(words)
        self.added.add(place)

    def reveals(self) -> dict[int, tuple[list[int], dict[int, bytes]]]:
        """Return for each whose numbers have come: who else is in the sum of those it knows, and what these and those
        who vanished had sealed for it."""
        self._require(self.added)
        return {
            place: (
                [other for other in sorted((*self.neighbours[place], place)) if other in self.added],
                {other: self.shares[other][place] for other in self.neighbours[place] if other in self.shares},
            )
            for place in sorted(self.added)
        }

    def opened(self, revealed: Mapping[int, bytes]) -> Words:
        """Take the shares that clients reveal, and return the sum without masks."""
        found: dict[int, dict[int, bytes]] = {place: {} for place in self.shares}
        for holder, said in revealed.items():
            told = sorted(other for other in (*self.neighbours[holder], holder) if other in self.shares)
            if len(said) != SHARE * len(told):
                raise SumError("revealed shares are too few, or too many")
            for at, place in enumerate(told):
                found[place][holder] = said[at * SHARE : (at + 1) * SHARE]
        self._require(revealed)
        assert self.total is not None
        weights = cache(weights_at_zero)
        for place, mine in found.items():
            holders = tuple(sorted(mine)[: self._quorum(place)])
            seed = recovered([mine[holder] for holder in holders], weights(holders))
            if place in self.added:
                mask(self.total, self_key(seed, self.context), add=False)
            else:
                self._unmask_lost(place, Pair(seed))
        return self.total

    def _unmask_lost(self, place: int, pair: Pair) -> None:
        """Take off the masks that others have with a client whose own numbers never came."""
        if pair.public != self.keys[place].masking:
            raise SumError("the shares of a client's secret do not fit its public key")
        for other in self.neighbours[place]:
            if other in self.added:
                mask(self.total, mask_key(pair, self.keys[other].masking, self.context), add=other > place)  # type: ignore[arg-type]
