"""A wrong answer of a policy is an error that names the policy and what is expected, never a silent wrong number."""

from typing import Any, Literal

import numpy as np
import pytest

from fedbac import (
    Additive,
    Apart,
    Ask,
    Assignment,
    Exchange,
    LinUCB,
    Loss,
    LowestLoss,
    Method,
    PerCluster,
    PolicyError,
    Random,
)
from fedbac.core.answers import (
    checked_ask,
    checked_assignment,
    checked_clusters,
    checked_exchange,
    checked_labels,
    checked_mask,
    checked_start,
    checked_trust,
)
from fedbac.core.parts import Scope
from fedbac.models import Perceptron, builder
from tests.unit.tiny import tiny_run

SIZE_N = np.array([5, 0, 3, 7])
OWNERS: dict[Scope, int] = {"cloud": 1, "cluster": 3, "edge": 4, "client": 7}
build = builder(Perceptron(hidden=()), None, (2,), 2, seed=0)


class Failing(Random):
    """Fails in the verb that a test gives it."""

    kind: Literal["failing"] = "failing"  # type: ignore[assignment]
    verb: str

    def ask(self, state: Any, evidence: Any, rng: Any) -> Ask:
        return Ask(after=(self._fail("ask"),) if self.verb == "ask" else ())

    def act(self, state: Any, evidence: Any, rng: Any) -> Any:
        if self.verb == "looks":
            return evidence[Loss("received")]
        if self.verb == "writes":
            evidence.size_N[0] = 0
        return super().act(state, evidence, rng) if self.verb != "act" else self._fail("act")

    def learn(self, state: Any, evidence: Any, mask_N: Any) -> Any:
        return state if self.verb != "learn" else self._fail("learn")

    def _fail(self, verb: str) -> Any:
        raise KeyError(verb)


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        ("ask", r"ask\(\) failed in round 1, edge 0: KeyError: 'ask' \(test_answers.py, line \d+\)"),
        ("act", r"act\(\) failed in round 1, edge 0: KeyError: 'act' \(test_answers.py, line \d+\)"),
        ("learn", r"learn\(\) failed in round 1, edge 0: KeyError: 'learn'"),
        ("looks", r"act\(\) failed in round 1, edge 0: Loss\(of='received'.*was not asked for.*test_answers.py, line"),
        ("writes", r"act\(\) failed in round 1, edge 0: ValueError: assignment destination is read-only"),
    ],
)
def test_a_policy_that_raises_is_named_with_its_verb_and_line(verb: str, message: str) -> None:
    with pytest.raises(PolicyError, match=f"^method.selection 'failing': {message}"):
        tiny_run(Method(name="mine", selection=Failing(verb=verb)))


def test_labels_that_are_shown_cannot_be_written_to() -> None:
    def act(self: Any, state: Any, evidence: Any, rng: Any) -> Any:
        evidence.labels[:] = 0
        return state, Assignment(evidence.labels)

    writing = type("Writing", (LowestLoss,), {"__module__": __name__, "act": act})
    method = Method(name="mine", clustering=writing(period=1, num_clusters=2), personalization=PerCluster())
    with pytest.raises(PolicyError, match=r"'lowest_loss': act\(\) failed in round 1: ValueError: .*read-only"):
        tiny_run(method)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"init": lambda self, num_members: {}},
            r"init\(\) must return a named tuple of arrays as its state, not a dict",
        ),
        ({"notes": lambda self, state: {"a": "b"}}, r"notes\(\) must return single numbers by name, not \{'a': 'b'\}"),
    ],
)
def test_what_a_run_could_not_save_or_write_is_refused(changes: dict[str, Any], message: str) -> None:
    broken = type("Broken", (Random,), {"__module__": __name__, **changes})
    with pytest.raises(PolicyError, match=f"method.selection 'random': {message}"):
        tiny_run(Method(name="mine", selection=broken()))


@pytest.mark.parametrize("answer", [0, 36, 4.0, True])
def test_an_impossible_number_of_clusters_is_refused(answer: Any) -> None:
    with pytest.raises(PolicyError, match=r"'linucb': clusters\(12\) must return a whole number from 1 to 12, not"):
        checked_clusters(LinUCB(), answer, 12)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([True] * 4, "not a list"),
        (np.array([0, 2]), "not an array of int64; from indices, make one with"),
        (np.array([1.0, 0, 0, 1]), "not an array of float64"),
        (np.ones(3, bool), r"act\(\) returned a mask of shape \(3,\) for 4 clients"),
        (np.ones((4, 1), bool), r"act\(\) returned a mask of shape \(4, 1\) for 4 clients"),
        (np.zeros(4, bool), r"act\(\) selected none of 4 clients; a round needs at least one"),
        (None, "not a NoneType"),
    ],
)
def test_masks(mask: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=rf"method\.selection 'random': .*{message}"):
        checked_mask(Random(), mask, SIZE_N)


def test_a_mask_passes_as_it_is() -> None:
    mask = np.array([True, False, False, True])
    assert checked_mask(Random(), mask, SIZE_N) is mask


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ([0, 1, 2, 0], "must return an array of 4 whole numbers, not list"),
        (np.array([0, 1, 2]), r"must return an array of 4 whole numbers, not int64\[3\]"),
        (np.array([0.0, 1, 2, 0]), r"must return an array of 4 whole numbers, not float64\[4\]"),
        (np.array([True, False, True, False]), r".*not bool\[4\]"),
        (np.array([0, 1, 2, 3]), "returned labels from 0 to 3, but clusters are numbered from 0 to 2"),
        (np.array([0, -1, 2, 0]), "returned labels from -1 to 2"),
    ],
)
def test_labels(label: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=rf"method\.clustering 'linucb': start\(\) {message}"):
        checked_labels(LinUCB(), "start()", label, 4, 3)
    with pytest.raises(PolicyError, match=rf"method\.clustering 'linucb': act\(\) {message}"):
        checked_assignment(LinUCB(), Assignment(label), 4, 3)


def test_an_assignment_is_one() -> None:
    answer = Assignment(np.array([0, 1, 2, 0]), np.eye(3))
    assert checked_assignment(LinUCB(), answer, 4, 3) is answer
    with pytest.raises(PolicyError, match=r"'linucb': act\(\) must return a state and an Assignment\(label_N\)"):
        checked_assignment(LinUCB(), answer.label_N, 4, 3)


MIXES = [
    (np.eye(2), r"must have the shape \(3, 3\), not \(2, 2\)"),
    (np.eye(3).tolist(), r"must have the shape \(3, 3\), not list"),
    (np.diag([1.0, 0.5, 1.0]), r"must hold shares of at least 0 that sum to 1, but it is \[0.0, 0.5, 0.0\]"),
    (np.array([[1.0, 0, 0], [2, -1, 0], [0, 0, 1]]), "must hold shares of at least 0 that sum to 1"),
    (np.array([[1.0, 0, 0], [np.nan, 1, 0], [0, 0, 1]]), "must hold shares of at least 0 that sum to 1"),
]


@pytest.mark.parametrize(("mix", "message"), MIXES)
def test_mixes(mix: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=rf"method\.clustering 'linucb': .*origin_KJ {message}"):
        checked_assignment(LinUCB(), Assignment(np.zeros(4, int), mix), 4, 3)
    with pytest.raises(PolicyError, match=rf"method\.sharing 'apart': .*mix_KJ {message}"):
        checked_exchange(Apart(), Exchange(mix), 3, 4)


def test_an_exchange_is_one() -> None:
    answer = Exchange(np.full((3, 3), 1 / 3))
    assert checked_exchange(Apart(), answer, 3, 4) is answer
    with pytest.raises(PolicyError, match=r"'apart': act\(\) must return an Exchange, not a ndarray"):
        checked_exchange(Apart(), answer.mix_KJ, 3, 4)


def test_a_start_has_every_part_and_a_row_for_each_owner() -> None:
    parts = Additive().init(build, OWNERS)
    assert checked_start(Additive(), parts, OWNERS) is parts
    who = r"method\.personalization 'additive': init\(\) must return"
    with pytest.raises(PolicyError, match=rf"{who} the parts global, cluster, not global$"):
        checked_start(Additive(), {"global": parts["global"]}, OWNERS)
    with pytest.raises(PolicyError, match=rf"{who} the parts global, cluster, not list$"):
        checked_start(Additive(), [parts], OWNERS)
    with pytest.raises(
        PolicyError,
        match=rf"{who} 1.weight of part 'cluster' .* each owner \(cluster\), of whom there are 2, not a tensor of",
    ):
        checked_start(Additive(), parts, OWNERS | {"cluster": 2})


class Wordy(Random):
    """Forgets that queries come in tuples, or that needs are a set."""

    kind: Literal["wordy"] = "wordy"  # type: ignore[assignment]


def test_asks_are_tuples_of_declared_queries() -> None:
    wish = Loss("trained")
    for answer, needs, message in (
        (Ask(after=wish), frozenset({wish}), r"ask\(\) must give after as a tuple of queries"),  # type: ignore[arg-type]
        (Ask(after=(wish,)), [wish], r"needs\(\) must return a frozenset"),
        (Ask(after=(wish,)), frozenset(), r"needs\(\) does not declare"),
        (Ask(before=(wish,)), frozenset({wish}), "before it acts, when it cannot be measured"),
    ):
        policy = type("Asking", (Wordy,), {"needs": lambda self, needs=needs: needs})()
        with pytest.raises(PolicyError, match=rf"method\.selection 'wordy': .*{message}"):
            checked_ask("selection", policy, answer, before={"received"}, after={"trained"})


def test_trust_is_a_mask() -> None:
    for answer in (np.array([0, 2]), [True, False, True], np.array([True])):
        with pytest.raises(PolicyError, match=r"method\.selection 'wordy': trusted\(\) "):
            checked_trust(Wordy(), "trusted()", answer, 3)
    assert not checked_trust(Wordy(), "trusted()", np.zeros(3, dtype=bool), 3).any()
