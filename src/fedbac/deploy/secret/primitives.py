"""What secret sums are made of: shares of secrets, keys that two agree on, masks, and sealed messages."""

import secrets
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedbac.core.secret import Words
from fedbac.errors import DeployError

PRIME = 2**130 - 5
"""Of the field of shares: the smallest usual one above all seeds."""
SEED, SHARE, PUBLIC, TAG, PROOF = 16, 17, 32, 16, 16
"""Bytes of a secret, of a share of it, of a public key, what sealing adds, and of a proof of what one was told."""


class SumError(DeployError):
    """A step of a sum that somebody must not, or cannot, take."""


def shares_of(seed: bytes, threshold: int, places: Collection[int]) -> dict[int, bytes]:
    """Return a share for each place (Shamir, 1979): any ``threshold`` of them tell the seed, fewer tell nothing."""
    polynomial = [int.from_bytes(seed, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    found = {}
    for place in places:
        value = 0
        for coefficient in reversed(polynomial):
            value = (value * place + coefficient) % PRIME
        found[place] = value.to_bytes(SHARE, "big")
    return found


def weights_at_zero(places: Sequence[int]) -> list[int]:
    """Return by what shares at some places are multiplied to add up to the secret (Lagrange)."""
    weights = []
    for one in places:
        above = below = 1
        for other in places:
            if other != one:
                above, below = above * other % PRIME, below * (other - one) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return weights


def recovered(shares: Sequence[bytes], weights: Sequence[int]) -> bytes:
    """Return the seed of as many shares as it takes."""
    value = sum(int.from_bytes(one, "big") * weight for one, weight in zip(shares, weights, strict=True)) % PRIME
    if value >= 1 << 8 * SEED:
        raise SumError("the shares of a client's secret do not fit together")
    return value.to_bytes(SEED, "big")


class Pair:
    """A private key, which follows from a seed, and its public key."""

    def __init__(self, seed: bytes) -> None:
        self._key = X25519PrivateKey.from_private_bytes(derived(seed, b"key"))

    @cached_property
    def public(self) -> bytes:
        """What others are told."""
        return self._key.public_key().public_bytes_raw()

    def agreed(self, public: bytes, about: bytes) -> bytes:
        """Return the key that only the holders of these two pairs have."""
        try:
            return derived(self._key.exchange(X25519PublicKey.from_public_bytes(public)), about)
        except ValueError as error:
            raise SumError("a public key is none") from error


def derived(secret: bytes, about: bytes) -> bytes:
    """Return a key made of a secret for one purpose."""
    return HKDF(SHA256(), 32, salt=None, info=b"fedbac secret sum " + about).derive(secret)


def proof(key: bytes, by: int, told: bytes) -> bytes:
    """Return what convinces the other holder of a key that the client at a place was told the same."""
    return derived(key, b"proof %d " % by + told)[:PROOF]


def mask(words: Words, key: bytes, add: bool) -> None:
    """Add the stream of a key to words, or take it off."""
    cipher = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    for some in words:
        pad = np.frombuffer(cipher.update(bytes(some.nbytes)), dtype=some.dtype)
        (np.add if add else np.subtract)(some, pad, out=some)


def cut(data: bytes, length: int, places: Sequence[int]) -> dict[int, bytes]:
    """Return what is so long for each place, one after another."""
    if len(data) != length * len(places):
        raise SumError(f"{len(data)} bytes are not {length} for each of {len(places)} clients")
    return {place: data[at * length : (at + 1) * length] for at, place in enumerate(places)}


def joined(parts: Iterable[bytes], length: int) -> bytes:
    """Return parts of any size as one, each after its own size in so many bytes."""
    return b"".join(len(one).to_bytes(length, "big") + one for one in parts)


def apart(data: bytes, length: int, count: int) -> list[bytes]:
    """Return so many parts that were joined."""
    parts, at = [], 0
    for _ in range(count):
        end = at + length + int.from_bytes(data[at : at + length], "big")
        parts.append(data[at + length : end])
        at = end
    if at != len(data):
        raise SumError("the keys of clients are cut short, or too long")
    return parts


def sealed(key: bytes, content: bytes) -> bytes:
    """Return what only holders of a key can open, or change; a key is used once."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), content, None)


def opened(key: bytes, content: bytes) -> bytes:
    """Return what was sealed."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), content, None)
    except InvalidTag as error:
        raise SumError("sealed shares were changed on their way") from error
