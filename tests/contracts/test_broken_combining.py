"""Each promise of an aggregation or a step can be broken, and is then named with what was tried."""

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from fedbac import Median, Momentum, Take
from fedbac.contracts import check_aggregation, check_step
from tests.contracts.test_broken_policies import changed, told

CALLS = iter(range(10_000))


def in_place(rule: Any, change_CD: Tensor, weight_C: Tensor) -> Tensor:
    change_CD -= change_CD.mean(0)
    return change_CD[0]


RULES: dict[str, tuple[dict[str, Any], str]] = {
    "the first child": ({"combine": lambda s, x, w: x[0]}, "must not depend on the order of children; it did with 7"),
    "all children": (
        {"combine": lambda s, x, w: x},
        "one change, a tensor of shape (11,), not a tensor of shape (2, 11), with 2 child",
    ),
    "a sum": ({"combine": lambda s, x, w: x.sum(0)}, "what 2 children changed if all of them changed the same"),
    "squares": ({"combine": lambda s, x, w: (x**2 * x).mean(0) / x.square().mean(0)}, "one sends only 1e+30"),
    "chance": ({"combine": lambda s, x, w: x.mean(0) + next(CALLS)}, "combine() answered differently to the same"),
    "in place": ({"combine": in_place}, "combine() wrote to change_CD in place"),
    "an error": ({"combine": lambda s, x, w: x[5]}, "combine() raised IndexError"),
    "another sum": (
        {"needs": "sum", "__annotations__": {"needs": ClassVar[str]}},
        "needs is 'sum', so combine() must be the weighted mean, which is what tiers compute, with 2 children",
    ),
    "a need of its own": (
        {"needs": "gram", "__annotations__": {"needs": ClassVar[str]}},
        "needs must be 'sum' or 'all', not 'gram'",
    ),
}
STEPS: dict[str, tuple[dict[str, Any], str]] = {
    "others": ({"step": lambda s, b, c, m, p: (c.mean(0).expand_as(c) + 0, m)}, "every owner by itself; it did not in"),
    "another memory": ({"step": lambda s, b, c, m, p: (c, {"x": c})}, "must return its memory: velocity, not x, in"),
    "a number": ({"init": lambda s, r: {"velocity": 0.0}}, "init() must return velocity as a tensor of shape (3, 11)"),
    "no memory": ({"init": lambda s, r: None}, "init() must return tensors by name, not a NoneType"),
    "a tensor": ({"init": lambda s, r: (r, r)}, "init() must return tensors by name, not a tuple"),
    "not finite": (
        {"step": lambda s, b, c, m, p: (c / 0, m)},
        "finite numbers of finite ones, but its rows had others in round 1 of 3 owners with 11 weights",
    ),
    "a quotient": (
        {"step": lambda s, b, c, m, p: (b + (c - b) / (c - b).abs(), m)},
        "but its rows had others in round 1 of 3 owners with 11 weights that did not change; does it divide by 0",
    ),
    "a memory of another shape": (
        {"step": lambda s, b, c, m, p: (c, {"velocity": m["velocity"][:, 0]})},
        "step() must return velocity as a tensor of shape (3, 11), not a tensor of shape (3,)",
    ),
    "in place": ({"step": lambda s, b, c, m, p: (c.add_(1), m)}, "step() wrote to combined_KD in place"),
    "chance": ({"step": lambda s, b, c, m, p: (c + next(CALLS), m)}, "step() answered differently to the same tensors"),
}


@pytest.mark.parametrize("how", RULES)
def test_aggregation(how: str) -> None:
    members, message = RULES[how]
    assert message in told(check_aggregation, changed(Median, **members))


@pytest.mark.parametrize("how", STEPS)
def test_step(how: str) -> None:
    members, message = STEPS[how]
    assert message in told(check_step, changed(Momentum, **members))


def test_who_says_that_it_only_takes_must_only_take() -> None:
    assert "must remember nothing" in told(check_step, changed(Take, init=lambda s, r: {"x": torch.zeros_like(r)}))
    moved = changed(Take, step=lambda s, b, c, m, p: (b, m))
    assert "step() answered differently from the combination, though active is False" in told(check_step, moved)
