"""What every selection policy promises an edge."""

from typing import Any, NamedTuple

import numpy as np
import pytest

from fedbac import SELECTION, Random
from fedbac.core.bandits import budget
from fedbac.core.policies import SelectionPolicy
from fedbac.core.queries import Ask, Evidence
from fedbac.core.rng import stream
from fedbac.core.settings import FloatArray
from tests.contracts.variants import frozen, is_state, refuses_change, same, save_and_load, thawed, variants
from tests.unit.tiny import selection_evidence

POLICIES = variants(SELECTION, fraction=0.4)
CLIENTS = 10
every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


def evidence(policy: Any, state: Any, seed: int, round_: int, size_N: Any = None) -> Evidence:
    """Return made-up evidence with exactly what the policy asked for."""
    rng = stream(seed, "evidence", round_)
    ask = policy.ask(state, round_)
    return frozen(  # type: ignore[no-any-return]
        selection_evidence(
            rng.integers(1, 50, size=CLIENTS) if size_N is None else size_N,
            round_,
            moved=bool(rng.random() < 0.2),
            baseline=float(rng.random()) if ask.baseline else None,
            accuracy=float(rng.random()) if ask.accuracy else None,
            loss_N=rng.uniform(0.1, 2, CLIENTS) if ask.training_losses else None,
        )
    )


def experienced(policy: Any, seed: int, num_rounds: int = 15) -> Any:
    """Return the state after some rounds, beyond any warm-up; nothing may be written to on the way."""
    state = policy.init(CLIENTS)
    for t in range(1, num_rounds + 1):
        seen = evidence(policy, state, seed, t)
        mask = policy.act(frozen(state), seen, stream(seed, "act", t))
        mask.flags.writeable = False
        state = policy.learn(frozen(state), seen, mask)
    return state


@every_policy
def test_it_is_a_frozen_policy_of_its_kind(policy: Any) -> None:
    assert SELECTION.kinds[policy.kind] is type(policy)
    assert isinstance(policy, SelectionPolicy)
    assert refuses_change(policy)
    assert type(policy).model_validate(policy.model_dump()) == policy


@every_policy
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("round_", [1, 16])
def test_the_same_stream_gives_the_same_action(policy: Any, seed: int, round_: int) -> None:
    state = experienced(policy, seed)
    seen = evidence(policy, state, seed, round_)
    first = policy.act(state, seen, stream(seed, "act"))
    np.testing.assert_array_equal(first, policy.act(state, seen, stream(seed, "act")))
    others = [policy.act(state, seen, stream(seed, "other", i)) for i in range(20)]
    assert any(not np.array_equal(first, other) for other in others)  # and the stream does matter


@every_policy
@pytest.mark.parametrize("fraction", [0.01, 0.29, 0.4, 0.8, 1.0])
@pytest.mark.parametrize("round_", [1, 16])
def test_the_promised_number_is_selected(policy: Any, fraction: float, round_: int) -> None:
    policy = policy.model_copy(update={"fraction": fraction})
    for seed in range(5):
        state = experienced(policy, seed)
        mask = policy.act(state, evidence(policy, state, seed, round_), stream(seed, "act"))
        assert mask.shape == (CLIENTS,)
        assert mask.dtype == bool
        assert mask.sum() == budget(fraction, CLIENTS) == max(1, int(round(fraction * CLIENTS, 6)))


@every_policy
@pytest.mark.parametrize("round_", [1, 16])
def test_clients_without_data_are_passed_over(policy: Any, round_: int) -> None:
    """A client without examples cannot train; the others make up the number as far as there are enough."""
    state = experienced(policy, 0)
    for holders in (1, 3, 4, 7):
        size_N = np.array([5] * holders + [0] * (CLIENTS - holders))
        mask = policy.act(state, evidence(policy, state, 0, round_, size_N), stream(0, "act"))
        assert mask.sum() == min(4, holders)
        assert not mask[size_N == 0].any()


@every_policy
def test_full_participation_is_the_same_for_all(policy: Any) -> None:
    """D.2: at p = 1 every policy selects everybody."""
    policy = policy.model_copy(update={"fraction": 1.0})
    state = experienced(policy, 0)
    assert policy.act(state, evidence(policy, state, 0, 16), stream(0, "act")).all()


@every_policy
def test_states_are_named_tuples_of_arrays_and_survive_a_checkpoint(policy: Any) -> None:
    for state in (policy.init(CLIENTS), experienced(policy, 0)):
        assert is_state(state)
        loaded = save_and_load(selection=(policy, thawed(state)))
        assert same(loaded, state)
        assert policy.ask(loaded, 16) == policy.ask(state, 16)
        seen = evidence(policy, state, 0, 16)
        mask = policy.act(state, seen, stream(0, "act"))
        np.testing.assert_array_equal(policy.act(loaded, seen, stream(0, "act")), mask)
        assert same(policy.learn(loaded, seen, mask), policy.learn(state, seen, mask))


@every_policy
def test_it_is_adaptive_exactly_if_it_learns(policy: Any) -> None:
    assert policy.adaptive == (not same(policy.init(CLIENTS), experienced(policy, 0)))


@every_policy
def test_it_asks_for_what_an_edge_can_measure(policy: Any) -> None:
    for round_ in (1, 16):
        ask = policy.ask(policy.init(CLIENTS), round_)
        assert isinstance(ask, Ask)
        assert not ask.losses  # of other clusters' models, which an edge has not got
        assert ask.accuracy is not None or not ask.baseline  # a baseline is measured on the same split


class Memory(NamedTuple):
    left: FloatArray
    right: FloatArray


NUMBERS = np.arange(3.0)


@pytest.mark.parametrize(
    "state",
    [Memory(np.array(3.0), np.zeros(2)), Memory(NUMBERS, NUMBERS), Memory(np.zeros(2), np.zeros((2, 0)))],
    ids=["a number", "one array twice", "an empty array"],
)
def test_any_named_tuple_of_arrays_survives_a_checkpoint(state: Memory) -> None:
    """Nobody writes to a state, so a policy of the user's may hold a single number, or one array in two places."""

    class Remembering(Random):
        def init(self, num_members: int) -> Memory:  # type: ignore[override]
            return Memory(state.left.copy(), state.right.copy())

    assert same(save_and_load(selection=(Remembering(), state)), state)
