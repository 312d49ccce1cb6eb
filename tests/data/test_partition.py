from itertools import chain
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedbac.core.rng import stream
from fedbac.data import Partition, Shards, class_counts, deal_test, partition
from fedbac.data.partition import Mode, proportions
from fedbac.errors import ConfigError, PartitionError

MODES = get_args(Mode)


def labels(num: int, num_classes: int = 10) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.arange(num) % num_classes


def split(seed: int = 0, clients: tuple[int, ...] = (3, 1, 4), **changes: Any) -> Shards:
    return partition(labels(3000), labels(1000), 10, clients, Partition(**changes), seed)


def everything(*groups: tuple[np.ndarray[Any, Any], ...]) -> list[int]:
    return sorted(np.concatenate(list(chain(*groups))).tolist())


concentrations = st.sampled_from([1e-6, 0.01, 0.1, 0.5, 1.0, 100.0, 1e9])


@settings(max_examples=60)
@given(
    mode=st.sampled_from(MODES),
    allocation=st.sampled_from(["largest_remainder", "multinomial"]),
    server=concentrations,
    client=concentrations,
    fraction=st.sampled_from([0.0, 0.1, 0.5, 0.999, 1 - 2**-53]),
    clients=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    y_train=st.lists(st.integers(0, 4), min_size=40, max_size=300),
    y_test=st.lists(st.integers(0, 5), min_size=10, max_size=200),
    seed=st.integers(0, 2**32),
)
def test_every_example_is_used_once(
    mode: Mode,
    allocation: Any,
    server: float,
    client: float,
    fraction: float,
    clients: list[int],
    y_train: list[int],
    y_test: list[int],
    seed: int,
) -> None:
    config = Partition(
        mode=mode,
        test_allocation=allocation,
        dirichlet_server=server,
        dirichlet_client=client,
        validation_fraction=fraction,
        min_client_samples=1,
        min_edge_test=1,
        max_attempts=20,
    )
    train, test = np.array(y_train), np.array(y_test)
    try:
        shards = partition(train, test, 6, clients, config, seed)
    except PartitionError:
        return  # extreme draws leave someone with nothing; how that is told is tested below
    assert everything(shards.train, shards.validation) == list(range(len(train)))
    assert everything(shards.test) == np.flatnonzero(np.isin(test, train)).tolist()
    assert [len(numbers) for numbers in shards.clients] == clients
    assert list(chain(*shards.clients)) == list(range(sum(clients)))
    for kept, held_out in zip(shards.train, shards.validation, strict=True):
        total = len(kept) + len(held_out)
        assert len(kept) >= 1
        assert len(held_out) == min(int(fraction * total), total - 1)
    held = [np.concatenate([*(shards.train[i] for i in n), *(shards.validation[i] for i in n)]) for n in shards.clients]
    assert not class_counts(test, shards.test, 6)[class_counts(train, held, 6) == 0].any()
    assert all(array.dtype == np.int64 for array in chain(shards.train, shards.validation, shards.test))


@pytest.mark.parametrize("mode", MODES)
def test_the_seed_decides(mode: Mode) -> None:
    def flat(shards: Shards) -> list[list[int]]:
        return [shard.tolist() for shard in (*shards.train, *shards.validation, *shards.test)]

    assert flat(split(1, mode=mode)) == flat(split(1, mode=mode))
    assert flat(split(1, mode=mode)) != flat(split(2, mode=mode))


def test_test_allocation_and_validation_do_not_move_training_data() -> None:
    one, other = split(), split(test_allocation="multinomial", validation_fraction=0.3)
    for client in range(8):
        first = everything((one.train[client], one.validation[client]))
        assert first == everything((other.train[client], other.validation[client]))


def test_examples_are_shuffled_before_they_are_dealt() -> None:
    y = np.zeros(2000, np.int64)
    shards = partition(y, y, 1, [1, 1], Partition(dirichlet_server=100), 0)
    assert 800 < shards.train[0].mean() < 1200
    assert 800 < shards.test[0].mean() < 1200
    assert 800 < np.concatenate(shards.validation).mean() < 1200


@pytest.mark.parametrize("mode", MODES)
def test_test_proportions_follow_training_proportions(mode: Mode) -> None:
    shards = partition(labels(200_000), labels(10_000), 10, [1] * 5, Partition(mode=mode, validation_fraction=0), 3)
    train = class_counts(labels(200_000), shards.train, 10) / 20_000
    test = class_counts(labels(10_000), shards.test, 10) / 1_000
    np.testing.assert_allclose(test, train, atol=0.012)


def test_class_normalized_proportions_match_the_formula() -> None:
    num_draws, num_groups, num_classes, concentration = 4000, 4, 3, 0.5
    mine = np.stack([proportions(stream(s, "mine"), 4, 3, concentration, "class_normalized") for s in range(num_draws)])
    # The same quantity straight from the definition, with numpy's own Dirichlet.
    q = np.random.default_rng(0).dirichlet([concentration] * num_classes, (num_draws, num_groups))
    theirs = q / q.sum(1, keepdims=True)
    for moment in (1, 2, 3):
        np.testing.assert_allclose((mine**moment).mean(0), np.full((4, 3), (theirs**moment).mean()), atol=0.02)
    # Classes of one edge compete for its probability, which per-class draws do not know.
    pairs = [np.corrcoef(x[:, 0, 0], x[:, 0, 1])[0, 1] for x in (mine, theirs)]
    assert pairs[0] == pytest.approx(pairs[1], abs=0.05)
    assert pairs[0] < -0.1


def test_per_class_proportions_match_the_dirichlet_moments() -> None:
    mine = np.stack([proportions(stream(s, "mine"), 4, 3, 0.5, "per_class") for s in range(4000)])
    np.testing.assert_allclose(mine.mean(0), 1 / 4, atol=0.02)
    np.testing.assert_allclose(mine.var(0), (1 / 4) * (3 / 4) / (4 * 0.5 + 1), atol=0.01)
    assert abs(np.corrcoef(mine[:, 0, 0], mine[:, 0, 1])[0, 1]) < 0.06


@pytest.mark.full
@pytest.mark.parametrize(
    ("mode", "server", "smallest_edge"),
    [("class_normalized", 0.5, 4013), ("class_normalized", 0.1, 2734), ("per_class", 0.5, 2297)],
)
def test_sizes_are_those_of_the_audit(mode: Mode, server: float, smallest_edge: int) -> None:
    """The table of C.10: 50,000 balanced examples, 10 edges with 10 clients each, the median smallest edge."""
    y, sizes = labels(50_000), []
    for seed in range(60):
        config = Partition(mode=mode, dirichlet_server=server, validation_fraction=0)
        shards = partition(y, labels(10_000), 10, [10] * 10, config, seed)
        sizes.append(min(sum(len(shards.train[client]) for client in numbers) for numbers in shards.clients))
    assert np.median(sizes) == pytest.approx(smallest_edge, rel=0.12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("concentration", [1e-6, 0.01, 1e9])
def test_extreme_concentrations_stay_proportions(mode: Mode, concentration: float) -> None:
    for seed in range(50):
        share_GC = proportions(stream(seed, "extreme"), 5, 10, concentration, mode)
        np.testing.assert_allclose(share_GC.sum(0), 1)
        if concentration == 1e9:
            np.testing.assert_allclose(share_GC, 1 / 5, rtol=1e-3)


def test_it_draws_again_until_the_minimums_hold() -> None:
    easy: dict[str, Any] = {"dirichlet_server": 0.3, "dirichlet_client": 0.3, "clients": (5, 5, 5), "min_edge_test": 1}
    smallest = [
        min(len(s) for s in split(seed, min_client_samples=1, validation_fraction=0, **easy).train)
        for seed in range(20)
    ]
    assert min(smallest) < 25, "every first draw is good already: this tests nothing"
    for seed in range(20):
        shards = split(seed, min_client_samples=25, **easy)
        sizes = [len(t) + len(v) for t, v in zip(shards.train, shards.validation, strict=True)]
        assert min(sizes) >= 25


def test_the_error_names_the_minimum_the_worst_and_the_remedy() -> None:
    with pytest.raises(PartitionError) as caught:
        split(clients=(10, 10), dirichlet_client=0.01, min_client_samples=100, max_attempts=7)
    message = str(caught.value)
    assert "min_client_samples=100 failed in 7 of 7 attempts: the smallest client had 0 examples at worst" in message
    assert "raise task.partition.dirichlet_client" in message
    assert "min_edge_test" not in message
    with pytest.raises(
        PartitionError, match=r"min_edge_test=330 failed in 5 of 5 .*raise task\.partition\.dirichlet_server"
    ):
        split(clients=(1, 1, 1), dirichlet_server=0.05, min_edge_test=330, max_attempts=5)


def test_what_can_never_fit_fails_at_once() -> None:
    with pytest.raises(
        PartitionError, match="3000 training examples cannot give 8 clients min_client_samples=400 each"
    ):
        split(min_client_samples=400, max_attempts=10_000)
    with pytest.raises(PartitionError, match="1000 test examples cannot give 3 edges min_edge_test=334 each"):
        split(min_edge_test=334, max_attempts=10_000)


def test_edges_need_clients_and_labels_must_fit() -> None:
    for clients in ((2, 0, 2), ()):
        with pytest.raises(ConfigError, match="clients_per_edge"):
            split(clients=clients)
    with pytest.raises(ConfigError, match="y_test must hold labels from 0 to 9"):
        partition(labels(100), labels(100, 11), 10, [1], Partition(), 0)


@pytest.mark.parametrize(
    "bad",
    [
        {"mode": "other"},
        {"dirichlet_server": 0},
        {"dirichlet_client": float("inf")},
        {"min_client_samples": 0},
        {"min_edge_test": 0},
        {"max_attempts": 0},
        {"validation_fraction": 1},
        {"validation_fraction": -0.1},
        {"alpha": 0.5},
    ],
)
def test_the_configuration_is_checked(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(bad))):
        Partition(**bad)


def test_class_counts() -> None:
    counts = class_counts(np.array([0, 1, 1, 2]), [np.array([0, 1, 2]), np.array([3]), np.array([], np.int64)], 3)
    np.testing.assert_array_equal(counts, [[1, 2, 0], [0, 0, 1], [0, 0, 0]])
    assert class_counts(np.array([0]), [np.array([0])], 4).shape == (1, 4)


def test_edges_that_share_a_distribution_have_the_same_class_mix() -> None:
    """Edge m draws from mix m mod 3: within a group counts differ by chance only, between groups by much more."""
    shards = split(clients=(1,) * 7, edge_distributions=3, validation_fraction=0)
    count_MC = class_counts(labels(3000), shards.train, 10)
    mix_MC = count_MC / count_MC.sum(1, keepdims=True)
    distance = np.abs(mix_MC[:, None] - mix_MC[None]).sum(-1) / 2
    same = (np.arange(7)[:, None] - np.arange(7)[None]) % 3 == 0
    assert distance[same].max() < 0.15
    assert distance[~same].min() > 0.25
    assert everything(shards.train) == list(range(3000))


def test_more_distributions_than_edges_are_refused() -> None:
    with pytest.raises(ConfigError, match="edge_distributions=4: there are only 3 edges"):
        split(edge_distributions=4)


@settings(max_examples=100)
@given(
    y_test=st.lists(st.integers(0, 4), max_size=60),
    train_NC=st.lists(st.lists(st.integers(0, 9), min_size=5, max_size=5), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
)
def test_every_test_example_of_an_edge_goes_to_one_client_by_its_classes(
    y_test: list[int], train_NC: list[list[int]], seed: int
) -> None:
    y, counts = np.array(y_test, dtype=np.int64), np.array(train_NC)
    test = np.flatnonzero(np.arange(y.size) % 3 != 1)  # an edge's, not everybody's
    shares = deal_test(test, y, counts, stream(seed, "client-test", 0))
    assert everything(shares) == test.tolist()
    assert all((np.diff(share) > 0).all() for share in shares)
    dealt_NC = class_counts(y, shares, 5) if y.size else np.zeros((len(shares), 5))
    for c in range(5):
        weight_N = counts[:, c] if counts[:, c].any() else counts.sum(1) if counts.any() else np.ones(len(counts))
        exact_N = dealt_NC[:, c].sum() * weight_N / weight_N.sum()
        assert (np.abs(dealt_NC[:, c] - exact_N) < 1).all()
        assert not dealt_NC[weight_N == 0, c].any()


def test_ties_of_test_examples_go_to_the_lower_client() -> None:
    y = np.zeros(5, dtype=np.int64)
    shares = deal_test(np.arange(5), y, np.array([[3], [3], [3]]), stream(0, "client-test", 0))
    assert [share.size for share in shares] == [2, 2, 1]
    thirds = deal_test(np.arange(5), y, np.array([[1], [3], [6]]), stream(0, "client-test", 0))
    assert [share.size for share in thirds] == [1, 1, 3]


def test_which_test_examples_a_client_gets_is_drawn() -> None:
    y, counts = np.zeros(40, dtype=np.int64), np.array([[1], [1]])
    one, other, again = (deal_test(np.arange(40), y, counts, stream(seed, "client-test", 0))[0] for seed in (0, 1, 0))
    assert not np.array_equal(one, other)
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, np.arange(20))
