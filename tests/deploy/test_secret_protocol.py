"""One secret sum without a network: what comes out, who may vanish, and what an edge can tell from all that it sees."""

from collections.abc import Collection, Mapping
from hashlib import sha256
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedbac.core import secret
from fedbac.core.secret import Words
from fedbac.deploy.pki.kits import Kit
from fedbac.deploy.pki.signing import KitSigner
from fedbac.deploy.secret import primitives
from fedbac.deploy.secret.collector import Collector, TooFewError
from fedbac.deploy.secret.member import Keys, Member, mask_key, self_key
from fedbac.deploy.secret.primitives import PRIME, SEED, Pair, SumError, mask, recovered, shares_of, weights_at_zero
from fedbac.errors import DeployError
from tests.covering import first
from tests.deploy.folders import make

WEIGHTS, NUMBERS = 7, 2


class Anybody:
    """Signs by a hash: whoever knows the content can."""

    certificate = b"certificate"

    def sign(self, content: bytes) -> bytes:
        return sha256(content).digest()

    def check(self, place: int, certificate: bytes, content: bytes, signature: bytes) -> None:
        if signature != self.sign(content):
            raise DeployError("not signed")


class Seen:
    """A sum in one process, with everything that its edge sees."""

    def __init__(self, inputs: dict[int, Words], lost: tuple[Collection[int], ...] = ((),) * 4, threshold: int = 2):
        self.collector = Collector(b"sum", inputs, threshold)
        self.members = {place: Member(b"sum", place, threshold, Anybody()) for place in inputs}
        self.masked: dict[int, Words] = {}
        self.inputs, self.lost = inputs, lost

    def play(self) -> Words:
        one, gone = self.collector, self.lost
        rosters = one.rosters({p: m.keys() for p, m in self.members.items() if p not in gone[0]})
        sealed = {p: self.members[p].shares(mine) for p, mine in rosters.items() if p not in gone[1]}
        sharers = one.sharers({p: b"".join(mine[o] for o in sorted(mine)) for p, mine in sealed.items()})
        for place in (p for p in sharers if p not in gone[2]):
            words = copied(self.inputs[place])
            self.members[place].mask(words, sharers[place])
            self.masked[place] = words
            one.add(place, words)
        self.revealed = {p: self.members[p].reveal(*r) for p, r in one.reveals().items() if p not in gone[3]}
        return one.opened(self.revealed)


def copied(words: Words) -> Words:
    return Words(words.network.copy(), words.numbers.copy())


def drawn(count: int, seed: int = 0, weights: int = WEIGHTS) -> dict[int, Words]:
    rng = np.random.default_rng(seed)
    return {
        place: Words(
            rng.integers(0, 2**32, weights, dtype=np.uint32), rng.integers(0, 2**63, NUMBERS).astype(np.uint64)
        )
        for place in range(1, count + 1)
    }


def added(inputs: dict[int, Words], places: Collection[int]) -> Words:
    total = Words.zeros(inputs[1].network.size, NUMBERS)
    for place in places:
        total.add(inputs[place])
    return total


def equal(one: Words, other: Words) -> bool:
    return np.array_equal(one.network, other.network) and np.array_equal(one.numbers, other.numbers)


def few(count: int, message: int) -> tuple[Collection[int], ...]:
    """Return who vanishes: 30 % of the clients at one message."""
    lost = np.random.default_rng(message).choice(np.arange(1, count + 1), int(0.3 * count), replace=False).tolist()
    return tuple(lost if step == message else () for step in range(4))


@pytest.mark.parametrize("message", range(4))
def test_the_sum_is_that_of_those_whose_numbers_came(message: int) -> None:
    """Thirty percent vanish at a message: those who had given their numbers are in the sum, others are not."""
    inputs, lost = drawn(10), few(10, message)
    seen = Seen(inputs, lost)
    there = set(inputs) - {place for gone in lost[:3] for place in gone}
    assert equal(seen.play(), added(inputs, there))


@pytest.mark.parametrize("message", first(1, (2, 0, 1, 3)))
def test_in_a_large_sum_each_masks_with_some_others(message: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret, "NEIGHBOURS", 24)
    inputs, lost = drawn(40, weights=3), (*few(40, message),)
    seen = Seen(inputs, lost)
    there = set(inputs) - {place for gone in lost[:3] for place in gone}
    assert equal(seen.play(), added(inputs, there))
    assert {len(mine) for mine in seen.collector.neighbours.values()} == {24}
    pairs = seen.collector.neighbours
    assert all(place in pairs[other] for place, mine in pairs.items() for other in mine)


def test_too_few_open_no_sum() -> None:
    """A majority of those who gave keys is needed, and never fewer than the threshold."""
    inputs = drawn(5)
    for message in range(1, 4):
        lost = tuple({1, 2, 3} if step == message else () for step in range(4))
        with pytest.raises(TooFewError, match="2 of 5 clients are left"):
            Seen(inputs, lost).play()
    with pytest.raises(TooFewError, match="4 of 5 clients are left in a secret sum, which needs 5"):
        Seen(inputs, ((), (), (1,), ()), threshold=5).play()


def test_each_step_is_taken_once_and_in_order() -> None:
    """So nobody tells both shares of a client's secrets, or masks two inputs alike."""
    inputs = drawn(4)
    seen = Seen(inputs)
    seen.play()
    for one in seen.members.values():
        for again in (one.keys, lambda one=one: one.mask(inputs[1], (2, 3)), lambda one=one: one.reveal((1, 2, 3), {})):
            with pytest.raises(SumError, match="of a secret sum was asked for"):
                again()
    fresh = Member(b"sum", 1, 2, Anybody())
    with pytest.raises(SumError):
        fresh.mask(copied(inputs[1]), (2, 3))


def test_a_client_refuses_sums_of_too_few_and_of_strangers() -> None:
    def begun(threshold: int = 3) -> tuple[Member, dict[int, bytes]]:
        members = {place: Member(b"sum", place, threshold, Anybody()) for place in range(1, 6)}
        keys = {place: one.keys() for place, one in members.items()}
        return members[1], {place: one for place, one in keys.items() if place != 1}

    one, keys = begun()
    with pytest.raises(SumError, match="a sum of 2 clients is refused; 3 are the fewest"):
        one.shares({2: keys[2]})
    one, keys = begun()
    sealed = one.shares(keys)
    assert len(sealed) == 4
    with pytest.raises(SumError, match="a sum of 2 clients is refused; 3 are needed"):
        one.mask(Words.zeros(1, 1), (2,))
    one, keys = begun()
    one.shares(keys)
    one.mask(Words.zeros(1, 1), (2, 3, 4, 5))
    with pytest.raises(SumError, match="a sum of 2 clients is refused"):
        one.reveal((1, 2), {})
    one, keys = begun()
    forged = Keys.decoded(keys[2])._replace(masking=Pair(bytes(SEED)).public)
    with pytest.raises(DeployError, match="not signed"):
        one.shares(keys | {2: forged.encoded()})
    one, keys = begun()
    with pytest.raises(SumError, match="cut short"):
        one.shares(keys | {2: keys[2][:-1]})


def test_shares_changed_on_their_way_are_noticed() -> None:
    inputs = drawn(4)
    seen = Seen(inputs)
    take = seen.collector.sharers

    def changed(sealed: Mapping[int, bytes]) -> dict[int, list[int]]:
        return take({place: bytes([said[0] ^ 1]) + said[1:] for place, said in sealed.items()})

    seen.collector.sharers = changed  # type: ignore[method-assign]
    with pytest.raises(SumError, match="changed on their way"):
        seen.play()


# ------------------------------------------------------------------------------------------------------- shares


@given(st.binary(min_size=SEED, max_size=SEED), st.integers(2, 9), st.integers(0, 4), st.randoms())
def test_any_threshold_of_shares_tells_the_secret(seed: bytes, threshold: int, more: int, chance: object) -> None:
    shares = shares_of(seed, threshold, range(1, threshold + more + 1))
    some = chance.sample(sorted(shares), threshold)  # type: ignore[attr-defined]
    assert recovered([shares[place] for place in some], weights_at_zero(some)) == seed


def test_fewer_shares_fit_every_secret() -> None:
    """For any other secret there is a polynomial through the same shares: they tell nothing of it."""
    seed, other = bytes(range(SEED)), bytes(SEED)
    shares = shares_of(seed, 3, range(1, 6))
    for two in combinations(shares, 2):
        known = {0: int.from_bytes(other, "big")} | {place: int.from_bytes(shares[place], "big") for place in two}
        third = next(place for place in shares if place not in two)
        value = 0  # by Lagrange at the place of a third share
        for one in known:
            term = known[one]
            for place in known:
                if place != one:
                    term = term * (third - place) * pow(one - place, -1, PRIME) % PRIME
            value = (value + term) % PRIME
        made = [shares[place] for place in two] + [value.to_bytes(primitives.SHARE, "big")]
        assert recovered(made, weights_at_zero([*two, third])) == other


def test_the_field_is_one() -> None:
    """Fermat's little theorem, for some bases: of a composite number it would fail."""
    assert PRIME > 1 << 8 * SEED
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37))


# ------------------------------------------------------------------------------------- what an edge can tell


def test_masked_numbers_look_drawn_by_lot_whatever_they_hide() -> None:
    """The edge's view of one client is uniform, for an input of zeros as for one of ones: a chi-squared test of bytes,
    and one of bits that the numbers have in common."""
    inputs = drawn(3, weights=200_000)
    for value in (0, 1):
        inputs[1] = Words(np.full(200_000, value, dtype=np.uint32), np.full(NUMBERS, value, dtype=np.uint64))
        seen = Seen(inputs)
        seen.play()
        view = seen.masked[1].network.view(np.uint8)
        assert stats.chisquare(np.bincount(view, minlength=256)).pvalue > 1e-6
        assert stats.binomtest(int((seen.masked[1].network & 1).sum()), 200_000).pvalue > 1e-6


def minus(one: Words, other: Words) -> Words:
    return Words(one.network - other.network, one.numbers - other.numbers)


def test_all_that_an_edge_sees_fits_other_inputs_of_the_same_sum() -> None:
    """The edge takes off all masks that it learns, and somebody tells it the inputs and masks of all clients but two.
    Whatever the input of the first had been, if the second's makes up for it in the sum, there is a mask of the two
    that explains every number that the edge has; and a mask is as likely as any other."""
    inputs = drawn(5)
    seen = Seen(inputs, ((), (), (5,), ()))
    total = seen.play()

    def shared(client: int, other: int, words: Words) -> None:
        """Take off the mask that a client has with another."""
        key = mask_key(seen.members[client]._masking, seen.collector.keys[other].masking, b"sum")
        mask(words, key, add=client > other)

    view = {place: copied(words) for place, words in seen.masked.items()}
    for place, words in view.items():
        mask(words, self_key(seen.members[place]._seed, b"sum"), add=False)
        shared(place, 5, words)
    assert equal(added(view, view), total)
    for friend in (3, 4):
        shared(1, friend, view[1])
        shared(2, friend, view[2])
    pad = minus(view[1], inputs[1])
    hidden = Words.zeros(WEIGHTS, NUMBERS)
    shared(2, 1, hidden)
    assert equal(hidden, pad)  # nothing but this mask hides the two
    assert equal(minus(inputs[2], pad), view[2])
    for other in (Words.zeros(WEIGHTS, NUMBERS), drawn(1, seed=7)[1]):
        shift = minus(other, inputs[1])
        another = minus(inputs[2], shift)
        explained = minus(pad, shift)
        assert equal(minus(view[1], explained), other)
        assert equal(minus(another, explained), view[2])
        both = copied(other)
        both.add(another)
        assert equal(both, added(inputs, (1, 2)))


def test_two_sums_of_the_same_inputs_share_no_byte_that_is_secret() -> None:
    """Secrets are fresh in every sum: a round that is played again reuses no mask."""
    one, other = Seen(drawn(4)), Seen(drawn(4))
    assert equal(one.play(), other.play())
    for place in one.inputs:
        assert not (one.masked[place].network == other.masked[place].network).any()
        assert one.collector.keys[place].masking != other.collector.keys[place].masking


# ----------------------------------------------------------------------------------------------- who is who


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("kits")
    return make(folder / "ours", 1, 2).path / "kits", make(folder / "theirs", 1, 2).path / "kits"


def test_an_edge_cannot_put_its_own_keys_in_the_place_of_a_clients(kits: tuple[Path, Path]) -> None:
    ours, theirs = kits
    names = ("edge-0-client-0", "edge-1-client-0", "edge-1-client-1")
    one = KitSigner(Kit.load(ours / names[0]), names)
    other = KitSigner(Kit.load(ours / names[1]), names)
    edge = KitSigner(Kit.load(ours / "edge-1"), names)
    stranger = KitSigner(Kit.load(theirs / names[1]), names)
    one.check(2, other.certificate, b"keys", other.sign(b"keys"))
    for place, signer, content, why in (
        (2, other, b"others", "did not sign the keys"),
        (3, other, b"keys", "it is that of 'edge-1-client-0'"),
        (2, edge, b"keys", "it is that of 'edge-1'"),
        (2, stranger, b"keys", "did not sign it"),
        (4, other, b"keys", "there is no client 3"),
    ):
        with pytest.raises(DeployError, match=why):
            one.check(place, signer.certificate, content, signer.sign(b"keys"))
    with pytest.raises(DeployError):
        one.check(2, b"no certificate", b"keys", other.sign(b"keys"))
