"""What every clustering policy promises the round loop."""

from typing import Any

import numpy as np
import pytest

from fedbac import CLUSTERING
from fedbac.core.policies import ClusterPolicy
from fedbac.core.queries import Ask, Evidence
from fedbac.core.rng import stream
from tests.contracts.variants import frozen, is_state, refuses_change, same, save_and_load, thawed, variants
from tests.unit.tiny import clustering_evidence

POLICIES = variants(CLUSTERING, period=1)
EDGES = 6
every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


def evidence(policy: Any, seed: int, round_: int = 1, **changes: Any) -> Evidence:
    rng = stream(seed, "evidence", round_)
    K = policy.clusters(EDGES)
    label = changes.pop("label_N", rng.integers(K, size=EDGES))
    trained = np.isin(np.arange(K), [*label, *rng.integers(K, size=2)])
    loss = rng.uniform(0.1, 2, (EDGES, K))
    alone = np.where(np.bincount(label)[label] > 1, rng.uniform(0.1, 2, EDGES), np.nan)
    return frozen(  # type: ignore[no-any-return]
        clustering_evidence(label, loss, round_=round_, used_K=trained, alone_N=alone, **changes)
    )


def experienced(policy: Any, seed: int, num_rounds: int = 5) -> tuple[Any, Any]:
    """Return the state and labels after some rounds of learning and acting; nothing may be written to on the way."""
    state, label = policy.init(EDGES), policy.start(EDGES, stream(seed, "start"))
    for t in range(1, num_rounds + 1):
        seen = evidence(policy, seed, t, label_N=label)
        state = policy.learn(frozen(state), seen)
        state, label = policy.act(frozen(state), seen, stream(seed, "act", t))
    return state, label


@every_policy
def test_it_is_a_frozen_policy_of_its_kind(policy: Any) -> None:
    assert CLUSTERING.kinds[policy.kind] is type(policy)
    assert isinstance(policy, ClusterPolicy)
    assert refuses_change(policy)
    assert type(policy).model_validate(policy.model_dump()) == policy


@every_policy
def test_labels_start_in_range_and_from_the_stream_alone(policy: Any) -> None:
    label = policy.start(EDGES, stream(0, "start"))
    assert label.shape == (EDGES,)
    assert label.dtype.kind == "i"
    assert set(label.tolist()) <= set(range(policy.clusters(EDGES)))
    np.testing.assert_array_equal(label, policy.start(EDGES, stream(0, "start")))
    assert 1 <= policy.clusters(EDGES) <= EDGES


@every_policy
@pytest.mark.parametrize("seed", range(4))
def test_the_same_stream_gives_the_same_action(policy: Any, seed: int) -> None:
    state, label = experienced(policy, seed)
    seen = evidence(policy, seed, 6, label_N=label)
    first_state, first = policy.act(state, seen, stream(seed, "act"))
    second_state, second = policy.act(state, seen, stream(seed, "act"))
    np.testing.assert_array_equal(first, second)
    assert same(first_state, second_state)


@every_policy
@pytest.mark.parametrize("seed", range(4))
def test_labels_stay_in_range(policy: Any, seed: int) -> None:
    _, label = experienced(policy, seed)
    assert label.shape == (EDGES,)
    assert label.dtype == np.int64
    assert set(label.tolist()) <= set(range(policy.clusters(EDGES)))


@every_policy
def test_members_whose_turn_it_is_not_keep_label_and_memory(policy: Any) -> None:
    """``act``: members whose turn it is not keep theirs."""
    for seed in range(4):
        state, label = experienced(policy, seed)
        turn = stream(seed, "turn").random(EDGES) < 0.3
        seen = evidence(policy, seed, 6, label_N=label, turn_N=turn)
        after, moved = policy.act(policy.learn(state, seen), seen, stream(seed, "act"))
        np.testing.assert_array_equal(moved[~turn], label[~turn])
        for old, new in zip(state, after, strict=True):
            if len(old) == EDGES:
                np.testing.assert_array_equal(new[~turn], old[~turn])


@every_policy
def test_states_are_named_tuples_of_arrays_and_survive_a_checkpoint(policy: Any) -> None:
    state, label = experienced(policy, 0)
    assert is_state(policy.init(EDGES))
    assert is_state(state)
    loaded = save_and_load(clustering=(policy, thawed(state)))
    assert same(loaded, state)
    seen = evidence(policy, 0, 6, label_N=label)
    expected = policy.act(policy.learn(state, seen), seen, stream(0, "act"))
    resumed = policy.act(policy.learn(loaded, seen), seen, stream(0, "act"))
    np.testing.assert_array_equal(resumed[1], expected[1])
    assert same(resumed[0], expected[0])


@every_policy
def test_it_is_adaptive_exactly_if_it_learns(policy: Any) -> None:
    start, (state, _) = policy.init(EDGES), experienced(policy, 0)
    assert policy.adaptive == (not same(start, state))


@every_policy
def test_it_asks_when_due_and_says_for_what(policy: Any) -> None:
    ask = policy.ask(policy.init(EDGES), 1)  # every policy with a period has period 1 here
    assert ask is None or isinstance(ask, Ask)
    assert (ask is not None) == ("period" in type(policy).model_fields)
    if ask is not None:
        assert ask.losses
        assert ask.accuracy is None  # which only an edge can measure


@pytest.mark.parametrize("policy", variants(CLUSTERING, period=7).values())
def test_nothing_is_due_between_periods(policy: Any) -> None:
    due = [t for t in range(1, 30) if policy.ask(policy.init(EDGES), t) is not None]
    assert due == ([7, 14, 21, 28] if "period" in type(policy).model_fields else [])
