"""A client's part in one sum."""

import secrets
from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from fedbac.core.secret import Words
from fedbac.deploy.secret.primitives import (
    PUBLIC,
    SEED,
    SHARE,
    Pair,
    SumError,
    derived,
    mask,
    opened,
    sealed,
    shares_of,
)

LENGTH = 2
"""Bytes of the number before a signature and before a certificate."""


class Signer(Protocol):
    """Who a client is, and how it knows others: then whoever passes messages on cannot put keys of its own in them."""

    certificate: bytes
    """As DER, by which others know it."""

    def sign(self, content: bytes) -> bytes:
        """Return the client's signature."""

    def check(self, place: int, certificate: bytes, content: bytes, signature: bytes) -> None:
        """Raise a DeployError unless the client at a place has this certificate and signed this."""


class Keys(NamedTuple):
    """The public keys of a client for one sum, and what proves whose they are."""

    sealing: bytes
    masking: bytes
    signature: bytes
    certificate: bytes

    def encoded(self) -> bytes:
        """Return them as they travel."""
        tail = b"".join(len(one).to_bytes(LENGTH, "big") + one for one in (self.signature, self.certificate))
        return self.sealing + self.masking + tail

    @classmethod
    def decoded(cls, data: bytes) -> "Keys":
        """Return what was encoded; a SumError if it was not."""
        parts, at = [data[:PUBLIC], data[PUBLIC : 2 * PUBLIC]], 2 * PUBLIC
        for _ in range(2):
            end = at + LENGTH + int.from_bytes(data[at : at + LENGTH], "big")
            parts.append(data[at + LENGTH : end])
            at = end
        if at != len(data):
            raise SumError("a client's keys are cut short, or too long")
        return cls(*parts)


def needed(threshold: int, holders: int) -> int:
    """Return how many of so many holders must give their shares: a majority, so that never two groups of holders can
    tell both secrets of a client, and as many as the threshold where there are as many."""
    return max(min(threshold, holders), holders // 2 + 1)


def mask_key(mine: Pair, other: bytes, context: bytes) -> bytes:
    """Return the key of the mask that two clients share."""
    return mine.agreed(other, b"mask " + context)


def self_key(seed: bytes, context: bytes) -> bytes:
    """Return the key of the mask that a client has for itself."""
    return derived(seed, b"self " + context)


class Member:
    """A client in one sum: keys, shares, the masked numbers, shares of others' secrets. Each step is taken once, and
    its secrets are nowhere but here: a client that is started again has none, and can reuse no mask."""

    def __init__(self, context: bytes, place: int, threshold: int, signer: Signer) -> None:
        self.context, self.place, self.threshold, self.signer = context, place, threshold, signer
        self._seed, self._mask_seed = secrets.token_bytes(SEED), secrets.token_bytes(SEED)
        self._sealing, self._masking = Pair(secrets.token_bytes(SEED)), Pair(self._mask_seed)
        self._step = 0
        self._neighbours: dict[int, Keys] = {}
        self._quorum = threshold
        """How many of the neighbours and itself it takes to know a secret."""
        self._sealed: dict[int, bytes] = {}
        """By neighbour, the key under which the two seal shares for each other."""
        self._own = b""
        """Its own shares of its own secrets."""

    def _take(self, step: int) -> None:
        if self._step != step:
            raise SumError(f"step {step} of a secret sum was asked for, and {self._step} was due; it begins anew")
        self._step += 1

    @property
    def sharers(self) -> frozenset[int]:
        """The neighbours who have shared their secrets, once the numbers are masked."""
        return frozenset(self._neighbours)

    def keys(self) -> bytes:
        """Step 0: return public keys, signed."""
        self._take(0)
        public = (self._sealing.public, self._masking.public)
        signature = self.signer.sign(signed(self.context, self.place, *public))
        return Keys(*public, signature, self.signer.certificate).encoded()

    def shares(self, keys: Mapping[int, bytes]) -> dict[int, bytes]:
        """Step 1: take the keys of the neighbours, and return for each of them shares of both secrets."""
        self._take(1)
        self._neighbours = {place: Keys.decoded(one) for place, one in keys.items()}
        if self.place in keys or min(keys, default=0) < 1 or len(keys) + 1 < self.threshold:
            raise SumError(f"a sum of {len(keys) + 1} clients is refused; {self.threshold} are the fewest")
        for place, one in self._neighbours.items():
            content = signed(self.context, place, one.sealing, one.masking)
            self.signer.check(place, one.certificate, content, one.signature)
        holders = [*keys, self.place]
        self._quorum = needed(self.threshold, len(holders))
        each = [shares_of(seed, self._quorum, holders) for seed in (self._seed, self._mask_seed)]
        self._own = each[0][self.place] + each[1][self.place]
        self._sealed = {
            place: self._sealing.agreed(one.sealing, b"seal " + self.context) for place, one in self._neighbours.items()
        }
        return {
            place: sealed(derived(key, b"from %d" % self.place), each[0][place] + each[1][place])
            for place, key in self._sealed.items()
        }

    def mask(self, words: Words, sharers: Collection[int]) -> None:
        """Step 2: mask the numbers, in place, with those neighbours who have shared their secrets too."""
        self._take(2)
        if not set(sharers) <= self._neighbours.keys() or len(set(sharers)) + 1 < self._quorum:
            raise SumError(
                f"a sum of {len(sharers) + 1} clients is refused; {self._quorum} are needed of those it knows"
            )
        self._neighbours = {place: one for place, one in self._neighbours.items() if place in sharers}
        mask(words, self_key(self._seed, self.context), add=True)
        for place, one in self._neighbours.items():
            mask(words, mask_key(self._masking, one.masking, self.context), add=self.place < place)

    def reveal(self, survivors: Collection[int], shares: Mapping[int, bytes]) -> bytes:
        """Step 3: return a share of one secret of each neighbour that had shared its own, in their order: of the mask
        of its own where its numbers are in the sum, of those that it had with others where they are not. Never of
        both: whoever had both could take all masks off."""
        self._take(3)
        holders, alive = {*self._neighbours, self.place}, set(survivors)
        if not alive <= holders or self.place not in alive or len(alive) < self._quorum:
            raise SumError(f"a sum of {len(alive)} clients is refused; {self._quorum} are needed of those it knows")
        told = []
        for place in sorted(holders):
            both = self._own
            if place != self.place:
                both = opened(derived(self._sealed[place], b"from %d" % place), shares[place])
            told.append(both[:SHARE] if place in alive else both[SHARE:])
        return b"".join(told)


def signed(context: bytes, place: int, sealing: bytes, masking: bytes) -> bytes:
    """Return what a client signs: its keys, and the one sum that they are for."""
    return b"keys %d " % place + context + sealing + masking
