"""Examples as trainers see them: streams of visits, and the share of a client in the test data of its edge."""

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbac.config.experiment import Training
from fedbac.core.requests import Evaluate
from fedbac.data import Partition, class_counts, partition, toy
from fedbac.local import Examples

DATA = toy(num_classes=5, train=300, test=90)
LOOSE = Partition(min_client_samples=1, min_edge_test=1, dirichlet_client=0.3, dirichlet_server=0.5)


def examples_of(clients: tuple[int, ...], seed: int) -> Examples:
    shards = partition(DATA.y_train, DATA.y_test, 5, clients, LOOSE, seed)
    return Examples(DATA, shards, Training(), None, seed, DATA.normalization())


def assert_same_test_data(whole: Examples, part: Examples, clients: Iterable[int]) -> None:
    asked = Evaluate({}, {}, "test", tuple(clients))
    for mine, theirs in zip(whole.groups(asked), part.groups(asked), strict=True):
        np.testing.assert_array_equal(DATA.x_test[mine], part.dataset.x_test[theirs])
        np.testing.assert_array_equal(DATA.y_test[mine], part.dataset.y_test[theirs])


@settings(max_examples=25)
@given(clients=st.lists(st.integers(1, 4), min_size=1, max_size=4), seed=st.integers(0, 50))
def test_a_clients_test_data_are_the_same_to_all_and_to_its_edge_alone(clients: list[int], seed: int) -> None:
    whole = examples_of(tuple(clients), seed)
    for edge, members in enumerate(whole.shards.clients):
        assert_same_test_data(whole, whole.of_edges((edge,)), members)
        shares = [whole.client_test[client] for client in members]
        np.testing.assert_array_equal(np.sort(np.concatenate(shares)), np.sort(whole.shards.test[edge]))
        trained = class_counts(DATA.y_train, [whole.shards.train[client] for client in members], 5)
        tested = class_counts(DATA.y_test, shares, 5)
        held = trained.sum(0) > 0
        assert not tested[:, held][trained[:, held] == 0].any(), "nobody is judged on a class that only others hold"


def test_a_site_of_several_edges_holds_the_data_of_all_of_them_and_no_others() -> None:
    whole = examples_of((2, 3, 1), 0)
    site = whole.of_edges((0, 2))
    assert_same_test_data(whole, site, (0, 1, 5))
    for split in ("train", "validation"):
        for client, (mine, theirs) in enumerate(
            zip(getattr(whole.shards, split), getattr(site.shards, split), strict=True)
        ):
            expected = DATA.x_train[mine] if client in (0, 1, 5) else DATA.x_train[:0]
            np.testing.assert_array_equal(site.dataset.x_train[theirs], expected)
    for edge, (mine, theirs) in enumerate(zip(whole.shards.test, site.shards.test, strict=True)):
        expected = DATA.y_test[mine] if edge != 1 else DATA.y_test[:0]
        np.testing.assert_array_equal(site.dataset.y_test[theirs], expected)
    held = sum(whole.shards.train[i].size + whole.shards.validation[i].size for i in (0, 1, 5))
    assert len(site.dataset.x_train) == held


def test_a_clients_test_data_are_capped_like_its_other_data() -> None:
    examples = examples_of((2, 2), 0)
    asked = Evaluate({}, {}, "test", (0, 3), max_samples=4)
    for client, group in zip((0, 3), examples.groups(asked), strict=True):
        assert group.size == min(4, examples.client_test[client].size)
        assert np.isin(group, examples.client_test[client]).all()


@pytest.mark.parametrize("client", [0, 3])
def test_more_epochs_go_on_where_fewer_end(client: int) -> None:
    """So a phase sees the same batches whatever phases come before and after it."""
    examples = examples_of((2, 2), 0)
    long = examples.visits(client, 3, 1, 5)
    assert long.shape == (5, examples.shards.train[client].size)
    np.testing.assert_array_equal(long[:2], examples.visits(client, 3, 1, 2))
    assert len({tuple(row) for row in long.tolist()}) == 5
    assert not np.array_equal(long, examples.visits(client, 3, 2, 5))


def test_an_order_without_epochs_visits_nothing() -> None:
    assert examples_of((1,), 0).visits(0, 1, 0, 0).shape[0] == 0
