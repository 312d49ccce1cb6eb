"""The combinations that make test runs."""

from itertools import product

from tests.covering import covering


def test_every_value_is_there() -> None:
    rows = [row for row in product("abcde", "1234", "xyz") if row[:2] != ("e", "4")]
    chosen = covering(rows)
    assert {value for row in chosen for value in rows[row]} == set("abcde1234xyz")
    assert len(chosen) == 5, "and few are"


def test_values_take_turns() -> None:
    """A long axis does not meet the first value of a short one again and again."""
    rows = list(product("abcdef", "123"))
    assert sorted(rows[row][1] for row in covering(rows)) == list("112233")
    assert covering([]) == []
