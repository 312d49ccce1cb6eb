"""Each promise of a scheme with hooks can be broken, and is then named; in a run by a sentence, too."""

from typing import Any

import numpy as np
import pytest
import torch

from fedbac import AdaptiveStart, ControlVariates, Interpolated, Method, Phase, Pull, Start
from fedbac.contracts import check_personalization
from fedbac.core.answers import checked_outcome, checked_start_of_clients
from fedbac.core.parts import LocalRun, Params, Parts
from fedbac.errors import PolicyError
from tests.contracts.test_broken_schemes import changed, told
from tests.covering import first
from tests.unit.tiny import tiny_run


def each(params: Params, change: Any) -> Params:
    return {name: change(value) for name, value in params.items()}


def before(change: Any, **scales: Any) -> dict[str, Any]:
    """Return a start with the networks of owners changed, and scales by the names of phases."""
    by_phase = {int(name.removeprefix("phase")): scale for name, scale in scales.items()}
    return {"before": lambda s, received, run: Start({"personal": each(received["personal"], change)}, by_phase)}


def shift(part: str, change: Any) -> dict[str, Any]:
    return {"before": lambda s, received, run: Start(shift={part: change(received[part])})}


def after(change: Any) -> dict[str, Any]:
    return {"after": lambda s, received, started, trained, run: change(trained)}


def zeroed(value: torch.Tensor) -> torch.Tensor:
    return value.zero_()


MIXED = "made something else of"
HOOKS: dict[str, tuple[dict[str, Any], str]] = {
    "no start": ({"before": lambda s, received, run: (received, {})}, "before() must return a Start, not a tuple"),
    "an unknown part": (
        {"before": lambda s, r, run: Start({"head": r["global"]})},
        "before() returns head, but its parts",
    ),
    "fewer weights": (
        {"before": lambda s, r, run: Start({"personal": {"1.weight": r["personal"]["1.weight"]}})},
        "before() must return the weights 1.weight, 1.bias",
    ),
    "another shape": (
        before(lambda value: value[:1]),
        "before() must return 1.weight of part 'personal' as a tensor of",
    ),
    "written in place": (before(zeroed), "before() wrote to received/personal/"),
    "an unknown phase": (before(torch.clone, phase2=np.ones(7)), "scales the rate of phase 2, but there are 1"),
    "one scale for all": (before(torch.clone, phase0=np.ones(1)), "must scale the rate of phase 0 by 7 numbers"),
    "a scale below zero": (before(torch.clone, phase0=-np.ones(7)), "must scale the rate of phase 0 by 7 numbers"),
    "a start that is not finite": (before(lambda value: value / 0), "before() must return finite numbers"),
    "a shift of numbers": (shift("mix", dict), "shifts 'mix', but the parts of its networks are personal"),
    "a shift of other weights": (
        shift("personal", lambda params: {"w": params["1.weight"]}),
        "must shift weights of part 'personal' (1.weight, 1.bias",
    ),
    "a shift for all": (
        shift("personal", lambda params: {"1.bias": params["1.bias"][0]}),
        "must shift 1.bias of part 'personal' as a tensor of shape (7, 6)",
    ),
    "a shift that is not finite": (
        shift("personal", lambda params: {"1.bias": params["1.bias"] / 0}),
        "before() must return finite numbers of finite ones, but part 'personal' has others in rows [0, 1",
    ),
    "no parts": (after(lambda trained: None), "after() must return parts by name, not a NoneType"),
    "trained in place": (
        after(lambda t: {"personal": each(t["personal"], zeroed)}),
        "after() wrote to trained/personal/",
    ),
    "an outcome of another shape": (
        after(lambda t: {"mix": each(t["mix"], lambda value: value[:2])}),
        "after() must return 7.weight of part 'mix' as a tensor of shape (7, 3, 4), not a tensor of shape (2, 3, 4)",
    ),
    "an outcome in numpy": (
        after(lambda t: {"mix": each(t["mix"], lambda value: value.numpy())}),
        "after() must return 7.weight of part 'mix' as a tensor of shape (7, 3, 4), not a numpy array of shape",
    ),
    "a start that mixes clients": (
        before(lambda value: value - value.mean(0)),
        f"before() {MIXED} 1.weight of part 'personal' for client 1 alone than beside the others; a stack may hold any",
    ),
    "a shift that mixes clients": (
        shift("personal", lambda params: each(params, lambda value: value.sum(0).expand_as(value))),
        f"before() {MIXED} 1.weight of part 'personal'",
    ),
    "rates that mix clients": (
        {"before": lambda s, r, run: Start({}, {0: run.count_CK.sum(1) / run.count_CK.sum()})},
        f"before() {MIXED} 0 of part 'rate_scale'",
    ),
    "an outcome that mixes clients": (
        after(lambda t: {"mix": each(t["mix"], lambda value: value.flip(0))}),
        f"after() {MIXED} 7.weight of part 'mix'",
    ),
    "an end that is not finite": (
        after(lambda t: {"mix": each(t["mix"], lambda value: value / 0)}),
        "after() must return finite numbers of finite ones, but part 'mix' has others in rows [0, 1, 2, 3, 4, 5, 6] of "
        "7, tried with 7 clients, of which client 4 has no examples, and so a travel of 0",
    ),
    "a prediction by what does not predict": (
        {"blended": lambda s, parts: {"global": parts["global"]}, **before(torch.clone)},
        "blended() must return some of the parts that predict: personal",
    ),
    "a prediction of fewer rows": (
        {"blended": lambda s, parts: {"personal": each(parts["personal"], lambda v: v[:1])}, **before(torch.clone)},
        "blended() must return part 'personal' as it is kept",
    ),
    "numbers that a phase moves": (
        {"phases": lambda s: (Phase(("personal",)), Phase(("mix",)))},
        "phase 1 of phases() moves 'mix', which belongs to no network",
    ),
}


@pytest.mark.parametrize("broken", first(12, HOOKS))
def test_hooks(broken: str) -> None:
    members, message = HOOKS[broken]
    said = told(check_personalization, changed(AdaptiveStart, **members))
    assert said.startswith("method.personalization 'adaptive_start': ")
    assert message in said


def step(change: Any) -> dict[str, Any]:
    """Return a step that changes the networks of owners."""
    return {"step": lambda s, now, received, local: {"personal": each(now["personal"], change)}}


TRIED = "step(), tried as 2 steps of 7 clients on 4 examples each,"
STEPS: dict[str, tuple[dict[str, Any], str]] = {
    "no parts": ({"step": lambda s, now, received, local: None}, "step() must return parts by name, not a NoneType"),
    "an unknown part": (
        {"step": lambda s, now, received, local: {"head": now["global"]}},
        "step() returns head, but its parts are global, personal, alpha",
    ),
    "another shape": (step(lambda value: value[:1]), "step() must return 1.weight of part 'personal' as a tensor of"),
    "written in place": (step(zeroed), f"{TRIED} wrote to now/personal/"),
    "an error": (step(lambda value: value.no_such_verb()), f"{TRIED} raised AttributeError: 'Tensor' object has no"),
    "not finite": (step(lambda value: value / 0), f"{TRIED} must return finite numbers of finite ones, but"),
    "a look at others": (
        step(lambda value: value + value.mean(0)),
        f"{TRIED} made something else of 1.weight of part 'personal' for client 1 alone",
    ),
    "what keeps still": (
        {"phases": lambda s: (Phase(("global",), ("global",)),)},
        "step() changes personal, which the phase of phases() does not move",
    ),
    "two phases": (
        {"phases": lambda s: (Phase(("global",), ("global",)), Phase(("personal",)))},
        "it has step(), so phases() must return one Phase, without pulls and not taught",
    ),
    "a pull": (
        {"phases": lambda s: (Phase(("personal",), pull={"personal": Pull(1.0)}),)},
        "it has step(), so phases() must return one Phase, without pulls and not taught",
    ),
}


@pytest.mark.parametrize(("members", "message"), STEPS.values(), ids=STEPS)
def test_own_steps(members: dict[str, Any], message: str) -> None:
    said = told(check_personalization, changed(Interpolated, **members))
    assert said.startswith("method.personalization 'interpolated': ")
    assert message in said


def test_what_returns_as_another_part_is_that_part() -> None:
    def apart(self: Any, received: Parts, started: Parts, trained: Parts, run: LocalRun) -> Parts:
        return {"global": each(trained["personal"], lambda value: value + 1)}

    said = told(check_personalization, changed(AdaptiveStart, after=apart))
    assert said.endswith("after() must return the same as parts 'global' and 'personal'")


class Dividing(ControlVariates):
    """Divides by how far clients travel, also where that is not at all."""

    kind: Any = "dividing"

    def after(self, received_C: Parts, started_C: Parts, trained_C: Parts, run: LocalRun) -> Parts:
        return {"own": each(received_C["own"], lambda value: value / (run.round - 2))}


def test_numbers_that_a_hook_makes_in_a_run_are_not_blamed_on_training() -> None:
    with pytest.raises(
        PolicyError, match=r"'dividing': after\(\) must return finite numbers of finite ones, but part 'o"
    ):
        tiny_run(Method(name="x", personalization=Dividing()))


def test_what_clients_that_diverged_come_back_with_may_be_anything() -> None:
    received = {"own": {"w": torch.tensor([[1.0], [float("inf")]])}}
    assert checked_outcome(ControlVariates(), received, received) == received


def test_in_a_run_a_wrong_hook_is_a_sentence() -> None:
    received = {"global": {"w": torch.zeros(3, 2)}, "personal": {"w": torch.zeros(3, 2)}}
    with pytest.raises(PolicyError, match=r"before\(\) must return w of part 'personal' as a tensor of shape \(3, 2\)"):
        checked_start_of_clients(AdaptiveStart(), Start({"personal": {"w": torch.zeros(3)}}), received)
    with pytest.raises(PolicyError, match=r"after\(\) must return the weights w as part 'global'"):
        checked_outcome(AdaptiveStart(), {"global": {}}, received)
