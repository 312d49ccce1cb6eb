"""Random streams: an address is all that decides what is drawn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbac.core.rng import stream, torch_seed

purposes = st.sampled_from(["batches", "selection", "clustering", "init", "dropout", "partition"])
addresses = st.tuples(st.integers(0, 2**32), purposes, st.lists(st.integers(0, 2000), max_size=4))
Address = tuple[int, str, list[int]]


def draw(address: Address, num: int = 4) -> list[float]:
    seed, purpose, place = address
    return [float(value) for value in stream(seed, purpose, *place).random(num)]


@given(addresses)
def test_the_same_address_draws_the_same(address: Address) -> None:
    assert draw(address) == draw(address)
    seed, purpose, place = address
    assert torch_seed(seed, purpose, *place) == torch_seed(seed, purpose, *place)
    assert 0 <= torch_seed(seed, purpose, *place) < 2**63


@given(st.data())
def test_addresses_of_one_length_that_differ_draw_differently(data: st.DataObject) -> None:
    length = data.draw(st.integers(0, 4))
    one_length = st.tuples(
        st.integers(0, 2**31), purposes, st.lists(st.integers(0, 2000), min_size=length, max_size=length)
    )
    left, right = data.draw(one_length), data.draw(one_length)
    if left != right:
        assert draw(left) != draw(right)
        assert torch_seed(left[0], left[1], *left[2]) != torch_seed(right[0], right[1], *right[2])


def test_purposes_do_not_share_streams() -> None:
    """Also purposes of the same length or the same letters, at the same address."""
    names = ["batches", "dropout", "augment", "planted", "partition", "selection", "clustering", "init", "tini"]
    drawn = {tuple(draw((0, name, [1, 2]))) for name in names}
    assert len(drawn) == len(names)
    assert len({torch_seed(0, name, 1, 2) for name in names}) == len(names)


def test_neighbouring_addresses_share_no_draws() -> None:
    drawn = [
        value
        for seed in range(3)
        for purpose in ("batches", "selection")
        for round_ in range(8)
        for member in range(8)
        for value in draw((seed, purpose, [round_, member]), 3)
    ]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("place", [[], [0], [0, 0], [5], [5, 0]])
def test_a_longer_address_is_another_address(place: list[int]) -> None:
    """Round 5 as a whole and member 0 of round 5 are two places, though one address begins like the other."""
    assert draw((0, "selection", place)) != draw((0, "selection", [*place, 0]))


@given(addresses, addresses, st.integers(1, 50))
def test_drawing_from_one_stream_does_not_move_another(left: Address, right: Address, num: int) -> None:
    expected = draw(right)
    first, second = stream(left[0], left[1], *left[2]), stream(right[0], right[1], *right[2])
    first.random(num)
    got = [float(second.random()) for _ in range(2)]
    first.standard_normal(num)
    got += [float(second.random()) for _ in range(2)]
    assert got == expected


def test_no_global_generator_is_touched() -> None:
    before = np.random.get_state()[1].tolist()  # type: ignore[index]
    stream(0, "batches", 1, 2).random(100)
    torch_seed(0, "dropout", 1)
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]
