"""One secret sum without a network: what comes out, who may vanish, and what an edge can tell from all that it sees."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
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
from fedbac.deploy.pki.kits import Kit, KitSigner
from fedbac.deploy.secret import primitives
from fedbac.deploy.secret.collector import SEALED, Collector, TooFewError
from fedbac.deploy.secret.member import Keys, Member, mask_key, needed, self_key, view_of
from fedbac.deploy.secret.primitives import (
    PRIME,
    SEED,
    Pair,
    SumError,
    mask,
    proof,
    recovered,
    shares_of,
    weights_at_zero,
)
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

    def __init__(self, inputs: dict[int, Words], lost: tuple[Collection[int], ...] = ((),) * 5, threshold: int = 2):
        self.collector = Collector(b"sum", inputs, threshold)
        self.members = {place: Member(b"sum", place, threshold, Anybody()) for place in inputs}
        self.masked: dict[int, Words] = {}
        self.inputs, self.lost = inputs, lost

    def play(self) -> Words:
        one, gone = self.collector, self.lost
        rosters = one.rosters({p: m.keys() for p, m in self.members.items() if p not in gone[0]})
        sealed = {p: self.members[p].shares(one.ring, mine) for p, mine in rosters.items() if p not in gone[1]}
        sharers = one.sharers({p: b"".join(mine[o] for o in sorted(mine)) for p, mine in sealed.items()})
        for place in (p for p in sharers if p not in gone[2]):
            words = copied(self.inputs[place])
            self.members[place].mask(words, sharers[place], b"work")
            self.masked[place] = words
            one.add(place, words)
        left = one.survivors()
        proofs = {p: self.members[p].confirm(left) for p in left if p not in gone[3]}
        reveals = one.reveals({p: b"".join(mine[o] for o in sorted(mine)) for p, mine in proofs.items()})
        self.revealed = {p: self.members[p].reveal(*r) for p, r in reveals.items() if p not in gone[4]}
        return one.opened(self.revealed, lambda: b"work")


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


def few(count: int, message: int, share: float = 0.3) -> tuple[Collection[int], ...]:
    """Return who vanishes: 30 % of the clients at one message."""
    lost = np.random.default_rng(message).choice(np.arange(1, count + 1), int(share * count), replace=False).tolist()
    return tuple(lost if step == message else () for step in range(5))


@pytest.mark.parametrize("message", range(5))
def test_the_sum_is_that_of_those_whose_numbers_came(message: int) -> None:
    """Thirty percent vanish at a message: those who had given their numbers are in the sum, others are not."""
    inputs, lost = drawn(10), few(10, message)
    seen = Seen(inputs, lost)
    there = set(inputs) - {place for gone in lost[:3] for place in gone}
    assert equal(seen.play(), added(inputs, there))


@pytest.mark.parametrize("message", first(1, (2, 0, 1, 3, 4)))
def test_in_a_large_sum_each_masks_with_some_others(message: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret, "NEIGHBOURS", 24)
    inputs, lost = drawn(40, weights=3), (*few(40, message, 0.2),)
    seen = Seen(inputs, lost)
    there = set(inputs) - {place for gone in lost[:3] for place in gone}
    assert equal(seen.play(), added(inputs, there))
    assert {len(mine) for mine in seen.collector.neighbours.values()} == {24}
    pairs = seen.collector.neighbours
    assert all(place in pairs[other] for place, mine in pairs.items() for other in mine)


def test_too_few_open_no_sum() -> None:
    """Two thirds of those who gave keys are needed, and never fewer than the threshold."""
    inputs = drawn(5)
    for message in range(1, 5):
        lost = tuple({1, 2} if step == message else () for step in range(5))
        with pytest.raises(TooFewError, match="3 of 5 clients are left in a secret sum, which needs 4"):
            Seen(inputs, lost).play()
    with pytest.raises(TooFewError, match="4 of 5 clients are left in a secret sum, which needs 5"):
        Seen(inputs, ((), (), (1,), (), ()), threshold=5).play()


def test_each_step_is_taken_once_and_in_order() -> None:
    """So nobody tells both shares of a client's secrets, or masks two inputs alike."""
    inputs = drawn(4)
    seen = Seen(inputs)
    seen.play()
    for one in seen.members.values():
        again: tuple[Callable[[], object], ...] = (
            one.keys,
            partial(one.shares, seen.collector.ring, {}),
            partial(one.mask, inputs[1], (2, 3), b"work"),
            partial(one.confirm, (1, 2, 3)),
            partial(one.reveal, {}, {}),
        )
        for step in again:
            with pytest.raises(SumError, match="of a secret sum was asked for"):
                step()
    fresh = Member(b"sum", 1, 2, Anybody())
    with pytest.raises(SumError):
        fresh.mask(copied(inputs[1]), (2, 3), b"work")


def test_a_client_refuses_sums_of_too_few_and_of_strangers() -> None:
    def begun(threshold: int = 3) -> tuple[Member, dict[int, bytes]]:
        members = {place: Member(b"sum", place, threshold, Anybody()) for place in range(1, 6)}
        keys = {place: one.keys() for place, one in members.items()}
        return members[1], {place: one for place, one in keys.items() if place != 1}

    ring = (1, 2, 3, 4, 5)
    one, keys = begun()
    with pytest.raises(SumError, match="a sum of 2 clients is refused; 3 are the fewest"):
        one.shares((1, 2), {2: keys[2]})
    for said in ((1, 2, 3), (2, 3, 4, 5), (0, 1, 2, 3, 4), (1, 2, 3, 4, 5, 5)):
        one, keys = begun()
        with pytest.raises(SumError, match="not those of the clients that are said to be in the sum"):
            one.shares(said, keys)
    one, keys = begun()
    sealed = one.shares(ring, keys)
    assert len(sealed) == 4
    with pytest.raises(SumError, match="a sum of 3 clients is refused; 4 are needed"):
        one.mask(Words.zeros(1, 1), (2, 3), b"")
    one, keys = begun()
    one.shares(ring, keys)
    one.mask(Words.zeros(1, 1), (2, 3, 4, 5), b"")
    with pytest.raises(SumError, match="a sum of 2 clients is refused"):
        one.confirm((1, 2))
    one, keys = begun()
    forged = Keys.decoded(keys[2])._replace(masking=Pair(bytes(SEED)).public)
    with pytest.raises(DeployError, match="not signed"):
        one.shares(ring, keys | {2: forged.encoded()})
    one, keys = begun()
    with pytest.raises(SumError, match="cut short"):
        one.shares(ring, keys | {2: keys[2][:-1]})


def test_shares_changed_on_their_way_are_noticed() -> None:
    inputs = drawn(4)
    seen = Seen(inputs)
    take = seen.collector.sharers

    def changed(sealed: Mapping[int, bytes]) -> dict[int, list[int]]:
        return take({place: bytes([said[0] ^ 1]) + said[1:] for place, said in sealed.items()})

    seen.collector.sharers = changed  # type: ignore[method-assign]
    with pytest.raises(SumError, match="changed on their way"):
        seen.play()


# ------------------------------------------------------------------------------------- an edge that deviates

TOLD_OTHERWISE = "prove that they were told of the same clients, survivors and work"


class Deviating:
    """Ten clients whose numbers are masked, and an edge that may go on as it likes. It has some of the clients in its
    hand: these prove whatever helps."""

    def __init__(
        self, friends: Collection[int] = (), first_works: bytes = b"work", first_sees: Collection[int] = range(1, 11)
    ) -> None:
        """The first client may be asked for other work, or see other clients, than the rest."""
        self.ring, self.friends = tuple(range(1, 11)), set(friends)
        self.inputs, self.masked = drawn(10), dict[int, Words]()
        self.members = {place: Member(b"sum", place, 2, Anybody()) for place in self.ring}
        self.keys = {place: one.keys() for place, one in self.members.items()}
        self.rings = dict.fromkeys(self.ring, self.ring) | {1: tuple(first_sees)}
        self.sealed = {place: one.shares(self.rings[place], self.others(place)) for place, one in self.members.items()}
        for place, one in self.members.items():
            self.masked[place] = copied(self.inputs[place])
            one.mask(self.masked[place], self.others(place), first_works if place == 1 else b"work")

    def others(self, place: int) -> dict[int, bytes]:
        return {other: self.keys[other] for other in self.rings[place] if other != place}

    def reveal(self, told: Mapping[int, Collection[int]]) -> tuple[dict[int, bytes], dict[int, str]]:
        """Tell each honest client of survivors; return the shares that they reveal, and why others do not."""
        proofs = {place: self.members[place].confirm(left) for place, left in told.items()}
        revealed, reasons = dict[int, bytes](), dict[int, str]()
        for place in told:
            one = self.members[place]
            friendly = {f: proof(one._sealed[f], f, one._told) for f in self.friends}
            mine = {other: said[place] for other, said in proofs.items() if place in said}
            try:
                sealed = {other: self.sealed[other].get(place, bytes(SEALED)) for other in self.others(place)}
                revealed[place] = one.reveal(mine | friendly, sealed)
            except SumError as error:
                reasons[place] = str(error)
        return revealed, reasons


def test_an_edge_that_shows_no_two_views_opens_the_sum() -> None:
    one = Deviating()
    revealed, reasons = one.reveal(dict.fromkeys(one.ring, one.ring))
    assert (len(revealed), reasons) == (10, {})


@pytest.mark.parametrize(("friends", "groups"), [(0, 1), (3, 1), (4, 2)])
def test_all_who_reveal_shares_were_told_of_the_same_survivors(friends: int, groups: int) -> None:
    """Some are told that everybody is left, others that only they and the edge's friends are. Of ten, seven must prove
    that they were told the same: it takes four friends to have shares of both secrets, as 2t > n + c says."""
    one, honest = Deviating(range(11 - friends, 11)), range(1, 11 - friends)
    few, rest = honest[: 7 - friends], honest[7 - friends :]
    revealed, reasons = one.reveal(dict.fromkeys(few, (*few, *one.friends)) | dict.fromkeys(rest, one.ring))
    assert set(revealed) == set(honest if groups == 2 else few)
    assert set(reasons) == set(honest) - set(revealed)
    assert all(TOLD_OTHERWISE in why for why in reasons.values())


def test_a_third_may_help_an_edge_and_three_tenths_vanish() -> None:
    """2t > n + c; and among neighbours c = 15, as one holder more must tell of a client that it is not alone."""
    for count in range(3, 130):
        assert 2 * needed(2, count) > count + count // 3
        assert count - needed(2, count) >= int(0.3 * count)
    assert 2 * needed(2, 1000) > 129 + 15 + 1


def test_clients_that_do_other_work_reveal_nothing_and_their_masks_do_not_cancel() -> None:
    """Whoever asks cannot have the others add zeros to the numbers of one."""
    one = Deviating(first_works=b"learn much")
    revealed, reasons = one.reveal(dict.fromkeys(one.ring, one.ring))
    assert set(reasons) == {1}
    assert TOLD_OTHERWISE in reasons[1]
    collector = Collector(b"sum", one.ring, 2)
    collector.rosters(one.keys)
    collector.sharers({place: b"".join(mine[other] for other in sorted(mine)) for place, mine in one.sealed.items()})
    collector.view = view_of(b"sum", one.ring)  # not an order of the collector's own
    for place, words in one.masked.items():
        collector.add(place, words)
    assert not equal(collector.opened(revealed, lambda: b"work"), added(one.inputs, one.ring))


def test_a_client_that_is_shown_fewer_clients_than_others_are_is_in_no_sum() -> None:
    """What it seals and proves is of no use to those who were shown others."""
    one = Deviating(first_sees=(1, 2, 3))
    revealed, reasons = one.reveal(one.rings)
    assert not revealed
    assert TOLD_OTHERWISE in reasons[1]
    assert all("changed on their way" in reasons[place] for place in one.ring[1:])


def test_without_proofs_nothing_is_revealed() -> None:
    """Nor for those of another sum, or of oneself; nor is the step left out."""
    before = Deviating()
    others = {place: one.confirm(before.ring) for place, one in before.members.items()}
    for kind in range(4):
        one = Deviating()
        own = one.members[1].confirm(one.ring)
        proofs = ({}, own, {place: others[place][1] for place in own}, dict.fromkeys(own, b""))[kind]
        with pytest.raises(SumError, match=TOLD_OTHERWISE):
            one.members[1].reveal(proofs, {})
    with pytest.raises(SumError, match="step 4 of a secret sum was asked for, and 3 was due"):
        Deviating().members[1].reveal({}, {})


def test_a_client_is_asked_once_what_it_tells_of_survivors_and_shares() -> None:
    one = Deviating()
    revealed, _ = one.reveal(dict.fromkeys(one.ring, one.ring))
    assert 1 in revealed
    for again in (lambda: one.members[1].confirm(one.ring[:7]), lambda: one.members[1].reveal({}, {})):
        with pytest.raises(SumError, match="was asked for, and 5 was due"):
            again()


def test_shares_and_keys_of_another_sum_are_refused() -> None:
    one, other = Deviating(), Deviating()
    one.sealed[2] = other.sealed[2]
    _, reasons = one.reveal(dict.fromkeys(one.ring, one.ring))
    assert set(reasons) == set(one.ring) - {2}
    assert all("changed on their way" in why for why in reasons.values())
    later = Member(b"another sum", 1, 2, Anybody())
    later.keys()
    with pytest.raises(DeployError, match="not signed"):
        later.shares(one.ring, one.others(1))


def test_survivors_that_never_shared_their_secrets_are_refused() -> None:
    one = Deviating()
    for left in ((2, 3, 4, 5, 6, 7, 8), (*one.ring, 11)):
        one = Deviating()
        with pytest.raises(SumError, match="others than those that had shared"):
            one.members[1].confirm(left)


def test_sums_that_differ_by_a_client_tell_its_numbers() -> None:
    """A round that is played again without one, or what all others know: no protocol of sums hides that."""
    inputs = drawn(5)
    whole = Seen(inputs).play()
    without = Seen({place: inputs[place] for place in (1, 2, 3, 4)}).play()
    assert equal(minus(whole, without), inputs[5])
    assert equal(minus(whole, added(inputs, (1, 2, 3, 4))), inputs[5])


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
    seen = Seen(inputs, ((), (), (5,), (), ()))
    total = seen.play()

    def shared(client: int, other: int, words: Words) -> None:
        """Take off the mask that a client has with another."""
        key = mask_key(seen.members[client]._masking, seen.collector.keys[other].masking, seen.collector.view, b"work")
        mask(words, key, add=client > other)

    view = {place: copied(words) for place, words in seen.masked.items()}
    for place, words in view.items():
        mask(words, self_key(seen.members[place]._seed, seen.collector.view), add=False)
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
