"""The combinations that make test runs."""

from itertools import combinations, product

import pytest

from tests.covering import covering


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_every_value_or_every_pair_is_there(strength: int) -> None:
    rows = [row for row in product("abcde", "1234", "xyz") if row[:2] != ("e", "4")]
    chosen = covering(rows, strength)
    found = {values for row in chosen for values in combinations(rows[row], strength)}
    assert found == {values for row in rows for values in combinations(row, strength)}
    assert len(chosen) in ({1: [5], 2: range(19, 26), 3: [len(rows)]}[strength]), "and few are"


def test_values_take_turns() -> None:
    """A long axis does not meet the first value of a short one again and again."""
    rows = list(product("abcdef", "123"))
    assert sorted(rows[row][1] for row in covering(rows)) == list("112233")
    assert covering([]) == []
