"""A client's part in one sum."""

import secrets
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from hmac import compare_digest
from typing import NamedTuple, Protocol

from fedbac.core.secret import Words, around, neighbours
from fedbac.deploy.secret.primitives import (
    PUBLIC,
    SEED,
    SHARE,
    Pair,
    SumError,
    apart,
    derived,
    joined,
    mask,
    opened,
    proof,
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
        return self.sealing + self.masking + joined((self.signature, self.certificate), LENGTH)

    @classmethod
    def decoded(cls, data: bytes) -> "Keys":
        """Return what was encoded; a SumError if it was not."""
        return cls(data[:PUBLIC], data[PUBLIC : 2 * PUBLIC], *apart(data[2 * PUBLIC :], LENGTH, 2))


def needed(threshold: int, count: int) -> int:
    """Return how many holders of a secret, t, must give their shares in a sum of so many clients, and as many as the
    threshold where there are as many.

    With n holders, c of whom collude with an edge that tells clients different things, no two groups of t can tell both
    secrets of a client if 2t > n + c. Two thirds allow for c = n/3, whoever else is lost; among the 128 neighbours in a
    large sum, of whom chance may lose more than elsewhere, 9/16 allow for c = 15.
    """
    holders = neighbours(count) + 1
    return max(min(threshold, holders), (2 * holders // 3 if holders == count else 9 * holders // 16) + 1)


def view_of(context: bytes, ring: Sequence[int]) -> bytes:
    """Return what all keys of a sum are made for: this one, of these clients."""
    return sha256(context + b" " + b",".join(b"%d" % place for place in ring)).digest()


def mask_key(mine: Pair, other: bytes, view: bytes, work: bytes) -> bytes:
    """Return the key of the mask that two clients share if they were asked for the same work; else none cancels."""
    return mine.agreed(other, b"mask " + view + work)


def self_key(seed: bytes, view: bytes) -> bytes:
    """Return the key of the mask that a client has for itself."""
    return derived(seed, b"self " + view)


class Member:
    """A client in one sum: keys, shares, the masked numbers, proofs of what it was told, shares of others' secrets.
    Each step is taken once, and its secrets are nowhere but here: a client that is started again has none, and can
    reuse no mask."""

    def __init__(self, context: bytes, place: int, threshold: int, signer: Signer) -> None:
        self.context, self.place, self.threshold, self.signer = context, place, threshold, signer
        self._seed, self._mask_seed = secrets.token_bytes(SEED), secrets.token_bytes(SEED)
        self._sealing, self._masking = Pair(secrets.token_bytes(SEED)), Pair(self._mask_seed)
        self._step = 0
        self._ring: tuple[int, ...] = ()
        self._view = self._work = self._told = b""
        self._neighbours: dict[int, Keys] = {}
        self._alive: set[int] = set()
        """The neighbours and itself whose numbers are in the sum."""
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

    def _require(self, count: int) -> None:
        if count < self._quorum:
            raise SumError(f"a sum of {count} clients is refused; {self._quorum} are needed of those it knows")

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

    def shares(self, ring: Sequence[int], keys: Mapping[int, bytes]) -> dict[int, bytes]:
        """Step 1: take who is in the sum and the keys of the neighbours; return for each of these shares of both
        secrets."""
        self._take(1)
        if len(ring) < self.threshold:
            raise SumError(f"a sum of {len(ring)} clients is refused; {self.threshold} are the fewest")
        known = min(ring) > 0 and self.place in ring and len(set(ring)) == len(ring)
        if not known or around(ring, self.place) != sorted(keys):
            raise SumError("the keys that arrived are not those of the clients that are said to be in the sum")
        self._ring, self._view = tuple(ring), view_of(self.context, ring)
        self._neighbours = {place: Keys.decoded(one) for place, one in keys.items()}
        for place, one in self._neighbours.items():
            content = signed(self.context, place, one.sealing, one.masking)
            self.signer.check(place, one.certificate, content, one.signature)
        holders = [*keys, self.place]
        self._quorum = needed(self.threshold, len(ring))
        each = [shares_of(seed, self._quorum, holders) for seed in (self._seed, self._mask_seed)]
        self._own = each[0][self.place] + each[1][self.place]
        self._sealed = {
            place: self._sealing.agreed(one.sealing, b"seal " + self._view) for place, one in self._neighbours.items()
        }
        return {
            place: sealed(derived(key, b"from %d" % self.place), each[0][place] + each[1][place])
            for place, key in self._sealed.items()
        }

    def mask(self, words: Words, sharers: Collection[int], work: bytes) -> None:
        """Step 2: mask the numbers, in place, with those neighbours who have shared their secrets too. ``work`` is the
        hash of what the client was asked to do for them."""
        self._take(2)
        if not set(sharers) <= self._neighbours.keys():
            raise SumError("clients are said to have shared their secrets whose keys never came")
        self._require(len(set(sharers)) + 1)
        self._work, self._neighbours = work, {place: self._neighbours[place] for place in sorted(sharers)}
        mask(words, self_key(self._seed, self._view), add=True)
        for place, one in self._neighbours.items():
            mask(words, mask_key(self._masking, one.masking, self._view, work), add=self.place < place)

    def confirm(self, survivors: Collection[int]) -> dict[int, bytes]:
        """Step 3: take whose numbers are in the sum, and return for each neighbour among them a proof that the client
        was told of these, of this work and of these clients, as it never is of others."""
        self._take(3)
        holders, left = {*self._neighbours, self.place}, set(survivors)
        self._alive = left & {*self._sealed, self.place}
        if self.place not in left or not left <= set(self._ring) or not self._alive <= holders:
            raise SumError("the clients that are said to be left are others than those that had shared their secrets")
        self._require(len(self._alive))
        self._told = sha256(self._view + self._work + b",".join(b"%d" % place for place in sorted(left))).digest()
        return {
            place: proof(self._sealed[place], self.place, self._told) for place in sorted(self._alive - {self.place})
        }

    def reveal(self, proofs: Mapping[int, bytes], shares: Mapping[int, bytes]) -> bytes:
        """Step 4: return a share of one secret of each neighbour that had shared its own, in their order: of the mask
        of its own where its numbers are in the sum, of those that it had with others where they are not. Never of
        both: whoever had both could take all masks off. First enough neighbours must prove that they were told the
        same, so that no two groups reveal for different sums (Bonawitz et al., 2017, the consistency check)."""
        self._take(4)
        others = self._alive - {self.place}
        same = {p for p in proofs.keys() & others if compare_digest(proofs[p], proof(self._sealed[p], p, self._told))}
        if len(same) + 1 < self._quorum:
            raise SumError(
                f"{len(same) + 1} clients prove that they were told of the same clients, survivors and work; "
                f"{self._quorum} are needed; whoever asks may tell clients different things"
            )
        told = []
        for place in sorted((*self._neighbours, self.place)):
            both = self._own
            if place != self.place:
                both = opened(derived(self._sealed[place], b"from %d" % place), shares[place])
            told.append(both[:SHARE] if place in self._alive else both[SHARE:])
        return b"".join(told)


def signed(context: bytes, place: int, sealing: bytes, masking: bytes) -> bytes:
    """Return what a client signs: its keys, and the one sum that they are for."""
    return b"keys %d " % place + context + sealing + masking
