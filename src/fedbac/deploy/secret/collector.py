"""An edge's part in one sum: it passes on keys and shares, adds up masked numbers as they come, and takes the masks off
the sum."""

import secrets
from collections.abc import Callable, Collection, Mapping
from functools import cache

from fedbac.core.secret import Words, around
from fedbac.deploy.secret.member import Keys, mask_key, needed, self_key, view_of
from fedbac.deploy.secret.primitives import PROOF, SHARE, TAG, Pair, SumError, cut, mask, recovered, weights_at_zero

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
        self.ring: list[int] = []
        """All that gave keys, in an order drawn by lot."""
        self.view = b""
        self.neighbours: dict[int, list[int]] = {}
        """Of each of these."""
        self.shares: dict[int, dict[int, bytes]] = {}
        """By who shared, what is sealed for each of its neighbours."""
        self.total: Words | None = None
        """The sum so far, with masks."""
        self.added: set[int] = set()

    def _require(self, left: Collection[int]) -> None:
        """Refuse to go on with too few, of all or of the holders of a secret."""
        least = max(self.threshold, self._quorum)
        if len(left) < least or any(self._holding(place, left) < self._quorum for place in self.shares):
            raise TooFewError(len(left), len(self.places), least)

    @property
    def _quorum(self) -> int:
        return needed(self.threshold, len(self.ring or self.places))

    def _holding(self, place: int, left: Collection[int]) -> int:
        return (place in left) + sum(other in left for other in self.neighbours[place])

    def rosters(self, keys: Mapping[int, bytes]) -> dict[int, dict[int, bytes]]:
        """Take the keys of clients; return for each those of its neighbours, on a ring in an order drawn by lot."""
        for place, said in keys.items():
            self.keys[place] = Keys.decoded(said)
        self.ring = list(self.keys)
        secrets.SystemRandom().shuffle(self.ring)
        self.view = view_of(self.context, self.ring)
        self.neighbours = {place: around(self.ring, place) for place in self.ring}
        self._require(self.keys)
        return {place: {other: keys[other] for other in self.neighbours[place]} for place in self.keys}

    def sharers(self, sealed: Mapping[int, bytes]) -> dict[int, list[int]]:
        """Take sealed shares, each client's in the order of its neighbours; return which of these shared, for each."""
        for place, said in sealed.items():
            self.shares[place] = cut(said, SEALED, self.neighbours[place])
        self._require(self.shares)
        return {place: [other for other in self.neighbours[place] if other in self.shares] for place in self.shares}

    def add(self, place: int, words: Words) -> None:
        """Add the masked numbers of a client."""
        if self.total is None:
            self.total = Words.zeros(words.network.size, words.numbers.size)
        self.total.add(words)
        self.added.add(place)

    def survivors(self) -> list[int]:
        """Return all whose numbers have come, whom each of them is told."""
        self._require(self.added)
        return sorted(self.added)

    def reveals(self, proofs: Mapping[int, bytes]) -> dict[int, tuple[dict[int, bytes], dict[int, bytes]]]:
        """Take proofs of what survivors were told; return for each of these what its neighbours prove to it, and what
        they and those who vanished had sealed for it."""
        given = {
            place: cut(said, PROOF, [other for other in self.neighbours[place] if other in self.added])
            for place, said in proofs.items()
        }
        self._require(given)
        return {
            place: (
                {other: given[other][place] for other in self.neighbours[place] if other in given},
                {other: self.shares[other][place] for other in self.neighbours[place] if other in self.shares},
            )
            for place in sorted(given)
        }

    def opened(self, revealed: Mapping[int, bytes], work: Callable[[], bytes]) -> Words:
        """Take the shares that clients reveal, and return the sum without masks; ``work`` is asked for the hash of what
        clients were to do if one was lost."""
        found: dict[int, dict[int, bytes]] = {place: {} for place in self.shares}
        for holder, said in revealed.items():
            told = sorted(other for other in (*self.neighbours[holder], holder) if other in self.shares)
            for place, share in cut(said, SHARE, told).items():
                found[place][holder] = share
        self._require(revealed)
        assert self.total is not None
        weights = cache(weights_at_zero)
        for place, mine in found.items():
            holders = tuple(sorted(mine)[: self._quorum])
            seed = recovered([mine[holder] for holder in holders], weights(holders))
            if place in self.added:
                mask(self.total, self_key(seed, self.view), add=False)
            else:
                self._unmask_lost(place, Pair(seed), work())
        return self.total

    def _unmask_lost(self, place: int, pair: Pair, work: bytes) -> None:
        """Take off the masks that others have with a client whose own numbers never came."""
        if pair.public != self.keys[place].masking:
            raise SumError("the shares of a client's secret do not fit its public key")
        for other in self.neighbours[place]:
            if other in self.added:
                key = mask_key(pair, self.keys[other].masking, self.view, work)
                mask(self.total, key, add=other > place)  # type: ignore[arg-type]
