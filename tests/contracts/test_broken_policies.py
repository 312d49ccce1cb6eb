"""Each promise of a policy can be broken, and is then named with the policy and the verb."""

import itertools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import pytest
from pydantic import BaseModel, PrivateAttr, field_serializer

from fedbac import (
    Accuracy,
    Apart,
    Ask,
    Assignment,
    Exchange,
    Fixed,
    Gram,
    Loss,
    LowestLoss,
    NoState,
    Random,
    Statistic,
    Thompson,
    TowardsMean,
)
from fedbac.contracts import check_clustering, check_selection, check_sharing
from fedbac.core.settings import FloatArray


def told(check: Callable[[Any], None], policy: Any) -> str:
    """Return what a check says of a policy that breaks its promise."""
    with pytest.raises(AssertionError) as caught:
        check(policy)
    return str(caught.value)


def changed(cls: type, **members: Any) -> Any:
    """Return a policy that differs from one of ours in these verbs or fields."""
    return type(cls.__name__, (cls,), {"__module__": __name__, "__doc__": "Broken.", **members})()


class Count(NamedTuple):
    rounds: FloatArray


class More(NamedTuple):
    rounds: FloatArray
    extra: FloatArray


CALLS = itertools.count()
CLUSTERS = Loss("clusters")
LOSS = Statistic("loss")


def everybody(self: Any, state: Any, evidence: Any, rng: Any) -> Any:
    return np.ones(evidence.size_N.size, dtype=bool)


def counted(self: Any, state: Any, evidence: Any, *mask: Any) -> Count:
    return Count(state.rounds + 1)


def counted_in_place(self: Any, state: Any, evidence: Any, *mask: Any) -> Count:
    state.rounds[...] += 1
    return Count(state.rounds)


def nothing_yet(self: Any, num_members: int) -> Count:
    return Count(np.zeros(1))


COUNTING: dict[str, Any] = {"init": nothing_yet, "learn": counted, "__annotations__": {"adaptive": ClassVar[bool]}}
SELECTION: dict[str, tuple[dict[str, Any], str]] = {
    "indices": ({"act": lambda s, m, e, r: np.array([0, 1])}, r"act() must return a mask, an array of bool"),
    "a list": ({"act": lambda s, m, e, r: [True] * e.size_N.size}, "act() must return a mask, an array of bool"),
    "the wrong length": ({"act": lambda s, m, e, r: np.ones(3, bool)}, "act() returned a mask of shape (3,)"),
    "nobody": ({"act": lambda s, m, e, r: np.zeros(e.size_N.size, bool)}, "act() selected none of 10 clients"),
    "too many": ({"act": everybody}, "at fraction 0.01; expected 1"),
    "no chance alone": (
        {"sampling": 0.5, "act": lambda s, m, e, r: e.size_N > 49, "__annotations__": {"sampling": ClassVar[float]}},
        "act() selected others where clients hold more, but sampling=0.5 says that chance alone selects",
    ),
    "clients without data": (
        {"act": lambda s, m, e, r: np.arange(e.size_N.size) >= e.size_N.size - max(1, int(s.fraction * 10 + 1e-9))},
        "act() selected clients without training data",
    ),
    "chance of its own": (
        {"act": lambda s, m, e, r: np.arange(10) == next(CALLS) % 10},
        "act() answered differently to the same state, evidence and stream",
    ),
    "evidence written in place": (
        {"act": lambda s, m, e, r: (e.size_N.sort(), np.ones(10, bool))[1]},
        "act() wrote to its evidence in place",
    ),
    "state written in place": (COUNTING | {"learn": counted_in_place}, "learn() wrote to state/rounds in place"),
    "learning that is not said": (COUNTING | {"adaptive": False}, "adaptive is False, but many rounds changed"),
    "nothing learned": (
        {"adaptive": True, "__annotations__": {"adaptive": ClassVar[bool]}},
        "did not change its state",
    ),
    "no state": ({"learn": lambda s, m, e, k: None}, "learn() must return a named tuple of arrays"),
    "a plain number in its state": (
        {"init": lambda s, n: Count(cast(Any, 0.0))},
        "field rounds of its state, not a float",
    ),
    "texts in its state": ({"init": lambda s, n: Count(np.array(["a"]))}, "field rounds of its state, not an array of"),
    "a field that is added": (
        {"init": nothing_yet, "learn": lambda s, m, e, k: More(m.rounds, m.rounds)},
        "learn() must return the type of state that init() does, Count",
    ),
    "an ask that was not declared": (
        {"ask": lambda s, m, e, r: Ask(after=(Statistic("loss"),))},
        "ask() wants Statistic(name='loss'), which needs() does not declare",
    ),
    "a look at what was not asked for": (
        {"learn": lambda s, m, e, k: Count(e[Statistic("loss")])},
        "learn() looked at what it did not ask for: Statistic(name='loss') was not asked for",
    ),
    "what a site has not got": ({"needs": lambda s: frozenset({Gram()})}, "needs() names Gram(since='round'), which"),
    "a list of needs": ({"needs": lambda s: [Statistic("loss")]}, "needs() must return a frozenset of queries"),
    "the future": (
        {
            "needs": lambda s: frozenset({Accuracy("trained", "train")}),
            "ask": lambda s, m, e, r: Ask(before=(Accuracy("trained", "train"),)),
        },
        "before it acts, when it cannot be measured",
    ),
    "the past": (
        {
            "needs": lambda s: frozenset({Loss("received", "train")}),
            "ask": lambda s, m, e, r: Ask(after=(Loss("received", "train"),)),
        },
        "after it acts, when it cannot be measured",
    ),
    "a tuple as an ask": ({"ask": lambda s, m, e, r: ()}, "ask() must return an Ask, not a tuple"),
    "a query without its tuple": (
        {"ask": lambda s, m, e, r: Ask(after=cast(Any, LOSS))},
        "after as a tuple of queries",
    ),
    "trust by indices": ({"trusted": lambda s, m: np.array([1])}, "trusted() must return a mask, an array of bool"),
    "a note for each client": ({"notes": lambda s, m: {"a": np.ones(3)}}, "notes() must return single numbers by name"),
    "an error of its own": ({"act": lambda s, m, e, r: 1 / 0}, "act() raised ZeroDivisionError: division by zero"),
    "an argument too few": (
        {"learn": lambda s, m, e: m},
        "does not take what it is given: learn(state, evidence, mask",
    ),
}


@pytest.mark.parametrize(("members", "message"), SELECTION.values(), ids=SELECTION)
def test_selection(members: dict[str, Any], message: str) -> None:
    said = told(check_selection, changed(Random, **members))
    assert said.startswith("method.selection 'random': ")
    assert message in said


def keeping(**changes: Any) -> Callable[..., Any]:
    """Return an act of a clustering policy that keeps its state and answers with these labels and origins."""

    def act(self: Any, state: Any, evidence: Any, rng: Any) -> Any:
        return state, Assignment(**({"label_N": evidence.labels} | changes))

    return act


CLUSTERING: dict[str, tuple[dict[str, Any], str]] = {
    "labels alone": ({"act": lambda s, m, e, r: (m, e.labels)}, "must return a state and an Assignment"),
    "no state": ({"act": lambda s, m, e, r: Assignment(e.labels)}, "act() must return a state and an Assignment"),
    "labels out of range": ({"act": keeping(label_N=np.full(6, 5))}, "act() returned labels from 5 to 5"),
    "labels below zero": ({"act": keeping(label_N=np.full(6, -1))}, "act() returned labels from -1 to -1"),
    "too few labels": ({"act": keeping(label_N=np.zeros(5, int))}, "act() must return an array of 6 whole numbers"),
    "labels that are no whole numbers": ({"act": keeping(label_N=np.zeros(6))}, "not float64[6]"),
    "rows that do not sum to one": ({"act": keeping(origin_KJ=np.ones((5, 5)))}, "row 0 of origin_KJ must hold shares"),
    "a row for each member": ({"act": keeping(origin_KJ=np.eye(6))}, "origin_KJ must have the shape (5, 5)"),
    "a start out of range": ({"start": lambda s, n, r: np.full(n, 9)}, "start() returned labels from 9 to 9"),
    "a start by chance of its own": ({"start": lambda s, n, r: np.full(n, next(CALLS) % 5)}, "start() answered"),
    "more clusters than members": (
        {"clusters": lambda s, n: n + 1},
        "clusters(6) must return a whole number from 1 to 6",
    ),
    "an ask that was not declared": (
        {"ask": lambda s, m, t: Ask(after=(CLUSTERS, Gram()))},
        "ask() wants Gram(since='round'), which needs() does not declare",
    ),
    "a tuple as an ask": ({"ask": lambda s, m, t: (CLUSTERS,)}, "ask() must return an Ask, not a tuple"),
    "what the cloud has not got": (
        {"needs": lambda s: frozenset({Loss("received")})},
        "needs() names Loss(of='received', ",
    ),
    "state written in place": (COUNTING | {"learn": counted_in_place}, "learn() wrote to state/rounds in place"),
    "learning that is not said": (COUNTING | {"adaptive": False}, "adaptive is False, but many rounds changed"),
    "chance of its own": (
        {"act": lambda s, m, e, r: (m, Assignment(np.full(6, next(CALLS) % 5)))},
        "act() answered differently to the same state",
    ),
    "notes without names": ({"notes": lambda s, m: ["x"]}, "notes() must return single numbers"),
    "a text as a note": ({"notes": lambda s, m: {"a": "b"}}, "notes() must return single numbers"),
    "an array for the record": ({"shown": lambda s, m, e: {"a": np.ones(2)}}, "shown() must return plain data by name"),
    "a record without names": ({"shown": lambda s, m, e: [1.0]}, "shown() must return plain data by name"),
    "a number of clusters that is not whole": (
        {"clusters": lambda s, n: 4.0},
        "clusters(6) must return a whole number",
    ),
    "what cannot be known yet": (
        {"needs": lambda s: frozenset({Gram()}), "ask": lambda s, m, t: Ask(before=(Gram(),))},
        "ask() wants Gram(since='round') before it acts, when it cannot be measured",
    ),
}


@pytest.mark.parametrize(("members", "message"), CLUSTERING.values(), ids=CLUSTERING)
def test_clustering(members: dict[str, Any], message: str) -> None:
    said = told(check_clustering, changed(LowestLoss, **members))
    assert said.startswith("method.clustering 'lowest_loss': ")
    assert message in said


def test_labels_of_the_cloud_are_not_written_to() -> None:
    def act(self: Any, state: Any, evidence: Any, rng: Any) -> Any:
        evidence.labels[0] = (evidence.labels[0] + 1) % 5
        return state, Assignment(evidence.labels)

    assert "act() wrote to its evidence in place" in told(check_clustering, changed(LowestLoss, act=act))


SHARING: dict[str, tuple[dict[str, Any], str]] = {
    "a matrix alone": ({"act": lambda s, m, e: np.eye(4)}, "act() must return an Exchange, not a ndarray"),
    "rows that do not sum to one": (
        {"act": lambda s, m, e: Exchange(2 * np.eye(4))},
        "row 0 of mix_KJ must hold shares",
    ),
    "a row for each member": ({"act": lambda s, m, e: Exchange(np.eye(6))}, "mix_KJ must have the shape (4, 4)"),
    "a list as an ask": ({"ask": lambda s, m, t: [Statistic("loss")]}, "ask() must return a tuple of queries"),
    "an ask that was not declared": (
        {"ask": lambda s, m, t: (Statistic("loss"),)},
        "ask() wants Statistic(name='loss'), which needs() does not declare",
    ),
    "what nobody measures for it": (
        {"needs": lambda s: frozenset({Loss("unaveraged")})},
        "it can have Loss and Accuracy of trained, own",
    ),
    "state written in place": (COUNTING | {"learn": counted_in_place}, "learn() wrote to state/rounds in place"),
    "learning that is not said": (COUNTING, "adaptive is False, but many rounds changed"),
    "a look ahead": (
        {"act": lambda s, m, e: Exchange(e[Statistic("loss")])},
        "act() looked at what it did not ask for",
    ),
}


@pytest.mark.parametrize(("members", "message"), SHARING.values(), ids=SHARING)
def test_sharing(members: dict[str, Any], message: str) -> None:
    said = told(check_sharing, changed(TowardsMean, **members))
    assert said.startswith("method.sharing 'towards_mean': ")
    assert message in said


def test_who_says_that_it_never_shares_does_not() -> None:
    policy = changed(Apart, act=lambda s, m, e: Exchange(np.full((4, 4), 0.25)))
    assert "active is False, so act() must exchange nothing" in told(check_sharing, policy)


# ---------------------------------------------------------------------------------------------------------- settings


class Thawed(Random, frozen=False):
    """Whose settings can be changed."""


class Bare(BaseModel):
    """That is no settings at all."""

    kind: str = "bare"


class Unreadable(Random):
    """Whose settings are written as they cannot be read."""

    @field_serializer("fraction")
    def _percent(self, fraction: float) -> str:
        return f"{100 * fraction} %"


class Halving(Random):
    """Whose settings change on the way."""

    @field_serializer("fraction")
    def _half(self, fraction: float) -> float:
        return fraction / 2


class Forgetful(Thompson):
    """That remembers beside its state how often it learned, and so does not go on where it stopped."""

    _learned: int = PrivateAttr(0)

    def learn(self, state: Any, evidence: Any, mask_N: Any) -> Any:
        object.__setattr__(self, "_learned", self._learned + 1)
        return super().learn(state, evidence, mask_N)

    def act(self, state: Any, evidence: Any, rng: Any) -> Any:
        mask = super().act(state, evidence, rng)
        return np.roll(mask, 1) if self._learned > 50 else mask


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Thawed(), "its settings must be frozen"),
        (Bare(), "its class must derive from fedbac.Settings"),
        (Fixed(), "Fixed lacks fraction, which SelectionPolicy asks for"),
        (Unreadable(), "what model_dump() writes cannot be read again"),
        (Halving(), "must be read again as the same settings"),
        (Random.model_construct(**cast(Any, {"kind": "other"})), "kind must be a field with its name as the default"),
        (
            Forgetful(fraction=0.5),
            "after its state was saved and read again; all that it remembers must be in its state",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_settings(policy: Any, message: str) -> None:
    assert message in told(check_selection, policy)


def test_what_is_promised_and_kept_passes() -> None:
    """The broken ones are broken in one thing only: what they are made of is sound."""
    check_selection(changed(Random, **COUNTING | {"adaptive": True}))
    check_selection(changed(Random, init=lambda s, n: NoState()))
    check_clustering(changed(LowestLoss, act=keeping(), notes=lambda s, m: {"x": 1.0}))
    check_sharing(changed(TowardsMean, act=lambda s, m, e: Exchange(np.full((4, 4), 0.25), kept=True)))
