"""Merging clusters: planted groups are found, strangers left alone, mistakes taken back, and then there is peace."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from benchmarks.gaps import gaps
from sklearn.metrics import adjusted_rand_score

from fedbac import Ask, Loss, Merging, Moment
from fedbac.clustering import MergingState
from fedbac.core import bandits
from fedbac.core.queries import Evidence, Models, Query, Split
from fedbac.core.rng import stream
from fedbac.core.settings import FloatArray, IntArray
from tests.unit.tiny import clustering_evidence

UNTRAINED = math.log(10)
SPLITS: tuple[Split, ...] = ("train", "validation")


def evidence(
    label_N: IntArray | list[int],
    loss_NK: FloatArray,
    alone_NS: FloatArray | None = None,
    together_NS: FloatArray | None = None,
    round_: int = 5,
    **changes: Any,
) -> Evidence:
    """Return a look at the clusters in use; by split, what an edge loses with its own network and its cluster's."""
    label, loss = np.asarray(label_N), np.full((len(label_N), len(label_N)), np.inf)
    loss[:, np.unique(label)] = np.asarray(loss_NK, float)[:, np.unique(label)]
    readings: dict[Query, FloatArray] = {}
    measured: dict[Models, FloatArray | None] = {"unaveraged": alone_NS, "own": together_NS}
    for of, given in measured.items():
        for s, split in enumerate(SPLITS):
            if given is not None:
                readings[Loss(of, split)] = given if given.ndim == 1 else given[:, s]
    return clustering_evidence(label, loss, round_=round_, readings=readings, **changes)


class World:
    """Edges are points: each draws its data around the centre of its group, and a network is a point too.

    A cluster's network is the mean of what its members drew; the loss of an edge with a network is a quadratic of the
    distance to the edge's true centre, so that the mean of alike edges is better than any one of them.
    """

    def __init__(self, centre_NF: FloatArray, spread: float, seed: int) -> None:
        self.centre_NF = centre_NF
        self.drawn_NF = centre_NF + stream(seed, "world").normal(0, spread, centre_NF.shape)

    def look(self, label_N: IntArray, round_: int) -> Evidence:
        network_KF = np.full_like(self.drawn_NF, np.nan)
        for k in np.unique(label_N):
            network_KF[k] = self.drawn_NF[label_N == k].mean(0)
        own_NF = (network_KF[label_N] + self.drawn_NF) / 2  # a round of training leads half of the way home
        loss_NK = 0.8 + ((network_KF[None] - self.centre_NF[:, None]) ** 2).sum(-1)
        alone_N = 0.8 + ((own_NF - self.centre_NF) ** 2).sum(-1)
        return evidence(label_N, np.nan_to_num(loss_NK, nan=np.inf), alone_N, round_=round_)

    def play(self, policy: Merging, num_rounds: int = 100) -> tuple[list[IntArray], list[int]]:
        """Return the labels after every look, and the rounds in which there was one; a round has ten steps."""
        state, label = policy.init(len(self.centre_NF)), policy.start(len(self.centre_NF), stream(0, "start"))
        labels, looks = [label], []
        for t in range(1, num_rounds + 1):
            if policy.ask(state, Moment(t, num_rounds, steps=10)) is not None:
                seen = self.look(label, t)
                state = policy.learn(state, seen)
                state, (label, _) = policy.act(state, seen, stream(0, "act", t))
                labels.append(label)
                looks.append(t)
        return labels, looks


@pytest.mark.parametrize("seed", range(5))
def test_planted_groups_are_found_and_then_nobody_moves(seed: int) -> None:
    rng = stream(seed, "centres")
    group = np.arange(12) % 3
    world = World(2 * rng.standard_normal((3, 8))[group], 0.08, seed)
    labels, looks = world.play(Merging())
    assert adjusted_rand_score(group, labels[-1]) == 1
    assert sum(int((a != b).sum()) for a, b in itertools.pairwise(labels)) == 9, "each edge at most once"
    assert looks == [5, 10, 20, 40, 80], "the longer the peace, the rarer the look"


def test_edges_that_begin_together_part_and_then_find_their_groups() -> None:
    group = np.arange(12) % 3
    world = World(2 * stream(0, "centres").standard_normal((3, 8))[group], 0.08, 0)
    labels, looks = world.play(Merging(alone_steps=475))
    assert looks[:3] == [52, 60, 65], "all part as soon as they may, and nobody looks right after"
    assert labels[0].tolist() == [0] * 12
    assert labels[1].tolist() == list(range(12))
    assert adjusted_rand_score(group, labels[-1]) == 1


def parting(policy: Merging, trained_N: list[float], averaged_N: list[float]) -> Evidence:
    """Return what three edges in one cluster see when they may part."""
    readings: dict[Query, FloatArray] = {
        Loss("unaveraged", "validation"): np.array(trained_N),
        Loss("own", "validation"): np.array(averaged_N),
    }
    assert policy.ask(policy.init(3), Moment(2, 4, steps=10)) == Ask(after=tuple(readings))
    sizes = np.array([3, 1, 2])
    return Evidence(round=2, num_rounds=4, num_classes=10, size_N=sizes, readings=readings, label_N=np.zeros(3, int))


@pytest.mark.parametrize(
    ("trained", "averaged"),
    [
        ([0.9, 2.0, 1.0], [1.0, 2.2, 1.0]),
        ([1.0, 9.0, math.nan], [1.1, math.nan, math.nan]),
        ([math.inf] * 3, [math.inf] * 3),
    ],
    ids=["better alone by data", "known of one edge", "all diverged"],
)
def test_at_the_parting_everybody_takes_the_network_of_all_along(trained: list[float], averaged: list[float]) -> None:
    policy = Merging(alone_steps=20)
    state, seen = policy.init(3), parting(policy, trained, averaged)
    state, (label_N, origin_KJ) = policy.act(policy.learn(state, seen), seen, stream(0, "act"))
    assert label_N.tolist() == [0, 1, 2]
    assert origin_KJ is not None
    np.testing.assert_array_equal(origin_KJ, [[1, 0, 0]] * 3)
    assert policy.shown(policy.init(3), seen)["gaps"]["gap"] == [[0]]
    assert policy.ask(state, Moment(3, 20, steps=1)) is None, "at first, all would look alike"


def test_edges_stay_together_while_being_averaged_serves_them_better() -> None:
    """By data: the smallest edge would be much better off alone, and that is not enough."""
    policy = Merging(alone_steps=20, period=3)
    seen = parting(policy, [1.0, 0.5, 1.0], [0.8, 1.0, 1.0])
    state, (label_N, origin_KJ) = policy.act(policy.init(3), seen, stream(0, "act"))
    assert label_N.tolist() == [0, 0, 0]
    assert origin_KJ is None
    asked = [t for t in range(1, 13) if policy.ask(state, Moment(t, 12, steps=4)) is not None]
    assert asked == [7, 10], "and are asked again"


@pytest.mark.parametrize(("steps", "parting_round"), [(10, 50), (20, 75), (1, 10), (0.5, 10), (1000, 99)])
def test_edges_are_alone_for_so_many_steps_but_a_tenth_of_the_rounds(steps: float, parting_round: int) -> None:
    policy = Merging(alone_steps=500)
    asked = [t for t in range(1, 101) if policy.ask(policy.init(3), Moment(t, 100, steps)) is not None]
    assert asked[0] == parting_round


@pytest.mark.parametrize("seed", range(5))
def test_edges_that_differ_are_left_alone(seed: int) -> None:
    world = World(stream(seed, "centres").standard_normal((10, 8)), 0.08, seed)
    labels, _ = world.play(Merging())
    np.testing.assert_array_equal(labels[-1], np.arange(10))


def test_a_chain_of_neighbours_does_not_end_in_one_cluster() -> None:
    """Edges on a line: each fits its neighbours, the ends do not fit each other."""
    world = World(np.linspace(0, 2, 9)[:, None], 0.0, 0)
    labels, _ = world.play(Merging())
    assert labels[-1][0] != labels[-1][-1]
    assert len(np.unique(labels[-1])) < 9


def test_networks_that_fit_as_well_on_one_side_only_stay_apart() -> None:
    """The second edge is fine with the network of the first, but not the other way round."""
    policy = Merging()
    seen = evidence([0, 1], np.array([[0.8, 1.6], [0.8, 0.8]]))
    _, (label, _) = policy.act(policy.init(2), seen, stream(0, "act"))
    assert label.tolist() == [0, 1]


def test_a_network_that_has_diverged_fits_nobody() -> None:
    policy = Merging()
    seen = evidence([0, 1, 2], np.array([[0.8, 0.8, np.inf], [0.8, 0.8, np.inf], [0.8, 0.8, np.inf]]))
    _, (label, _) = policy.act(policy.learn(policy.init(3), seen), seen, stream(0, "act"))
    assert label.tolist() == [0, 0, 2]


def merged_then(gain: float, num: int = 4) -> tuple[MergingState, IntArray]:
    """Merge everybody on equal losses, and then find that each edge's own network has ``gain`` more or less loss."""
    policy = Merging()
    equal = evidence(np.arange(num), np.full((num, num), 0.8))
    state, (label, _) = policy.act(policy.learn(policy.init(num), equal), equal, stream(0, "act"))
    assert label.tolist() == [0] * num
    later = evidence(label, np.full((num, num), 0.8), 0.8 + gain + np.linspace(0, 0.03, num), round_=10)
    state, (label, _) = policy.act(policy.learn(state, later), later, stream(0, "act"))
    return state, label


def test_a_merger_that_helps_stays() -> None:
    _, label = merged_then(+0.05)
    assert label.tolist() == [0, 0, 0, 0]


def test_the_worst_served_edge_leaves_and_does_not_come_straight_back() -> None:
    policy = Merging()
    state, label = merged_then(-0.3)
    assert label.tolist() == [1, 0, 0, 0], "edge 0 had most to gain on its own; cluster 1 was the first empty one"
    assert policy.ask(state, Moment(15, 100)) is not None, "after a move there is soon another look"
    equal = evidence(label, np.full((4, 4), 0.8), np.full(4, 0.8), round_=15)
    _, (after, _) = policy.act(policy.learn(state, equal), equal, stream(0, "act"))
    assert after[0] not in after[1:], "though the losses look as they did when it joined"


@pytest.mark.parametrize(
    ("alone_NS", "leaves"),
    [
        ([[0.3, 0.3], [0.8, 0.8]], True),
        ([[0.3, 0.8], [0.8, 0.8]], False),  # its own network is better only on the data that it was trained on
        ([[0.8, 0.3], [0.8, 0.8]], False),  # or only on the few that were held out
        ([[0.3, np.inf], [0.8, 0.8]], False),  # or it has diverged
    ],
)
def test_an_edge_leaves_only_if_all_its_data_speak_for_it(alone_NS: list[list[float]], leaves: bool) -> None:
    policy = Merging()
    state, label = merged_then(0.0, num=2)
    later = evidence(label, np.full((2, 2), 0.8), np.array(alone_NS), np.full((2, 2), 0.8), round_=10)
    _, (after, _) = policy.act(policy.learn(state, later), later, stream(0, "act"))
    assert (after[0] != after[1]) == leaves


def test_a_gain_is_counted_in_what_the_edge_has_learned_or_has_still_to_learn() -> None:
    """Of its cluster's network on the data by which clusters are compared, whichever data the gain is measured on."""
    state, label = merged_then(0.0, num=2)
    for loss, unit in ((0.8, 0.8), (2.0, UNTRAINED - 2.0)):
        alone_NS, together_NS = np.array([[3.1, 3.2], [3.2, 3.1]]), np.full((2, 2), 3.0)
        later = evidence(label, np.full((2, 2), loss), alone_NS, together_NS, round_=10)
        after = Merging().learn(state._replace(gain_N=np.zeros(2)), later)
        np.testing.assert_allclose(after.gain_N, 0.3 * 0.2 / unit)


def test_no_edge_leaves_by_a_single_measurement_unless_it_is_very_bad() -> None:
    policy = Merging()
    state, label = merged_then(-0.1)
    assert label.tolist() == [0, 0, 0, 0]
    again = evidence(label, np.full((4, 4), 0.8), np.full(4, 0.7), round_=20)
    _, (after, _) = policy.act(policy.learn(state, again), again, stream(0, "act"))
    assert after.tolist() == [1, 0, 0, 0]


def test_nobody_moves_after_the_last_round() -> None:
    policy = Merging(period=1)
    asked = [policy.ask(policy.init(4), Moment(round_, 100)) is not None for round_ in (99, 100)]
    assert asked == [True, False]


def test_blame_is_forgotten() -> None:
    policy = Merging()
    state, label = merged_then(-0.3)
    state = state._replace(A_FF=np.eye(2), b_F=np.zeros(2))
    for t in range(15, 200, 5):
        equal = evidence(label, np.full((4, 4), 0.8), np.full(4, 0.9), round_=t)
        state, (label, _) = policy.act(policy.learn(state, equal), equal, stream(0, "act"))
    assert len(np.unique(label)) == 1


def test_mergers_that_did_harm_make_it_careful_with_others_of_the_same_gap() -> None:
    policy = Merging()
    harm, _ = merged_then(-0.3)
    fresh = policy.init(4)._replace(A_FF=harm.A_FF, b_F=harm.b_F)
    equal = evidence([0, 1, 2, 3], np.full((4, 4), 0.8))
    _, (careful, _) = policy.act(fresh, equal, stream(0, "act"))
    _, (bold, _) = policy.act(policy.init(4), equal, stream(0, "act"))
    assert len(np.unique(bold)) == 1
    assert len(np.unique(careful)) == 4


def test_mergers_that_helped_do_not_make_it_reckless() -> None:
    """A gap beyond the tolerance is never merged, however well others went."""
    policy = Merging()
    good, _ = merged_then(+0.5)
    fresh = policy.init(2)._replace(A_FF=good.A_FF, b_F=good.b_F)
    seen = evidence([0, 1], np.array([[0.8, 1.2], [1.2, 0.8]]))
    _, (label, _) = policy.act(fresh, seen, stream(0, "act"))
    assert label.tolist() == [0, 1]


def test_the_same_difference_matters_more_before_anything_is_learned() -> None:
    """λ = min(L_0 − L, L): a tenth of a nat separates networks that know nothing, and networks that know it all."""
    policy = Merging()
    for loss, expected in ((UNTRAINED - 0.1, 2), (1.1, 1), (0.1, 2)):
        seen = evidence([0, 1], np.full((2, 2), loss) + 0.1 * (1 - np.eye(2)))
        _, (label, _) = policy.act(policy.init(2), seen, stream(0, "act"))
        assert len(np.unique(label)) == expected


def test_what_an_untrained_network_loses_is_that_of_the_number_of_classes() -> None:
    """Of 100 classes, ln 100 = 4.6: a loss of 2.2 is half of the way, and not nearly nothing as of 10."""
    policy = Merging()
    for num_classes, expected in ((100, 1), (10, 2)):
        seen = evidence([0, 1], np.full((2, 2), 2.2) + 0.1 * (1 - np.eye(2)), num_classes=num_classes)
        _, (label, _) = policy.act(policy.init(2), seen, stream(0, "act"))
        assert len(np.unique(label)) == expected
    given = evidence([0, 1], np.full((2, 2), 2.2) + 0.1 * (1 - np.eye(2)))
    _, (label, _) = Merging(untrained_loss=4.6).act(policy.init(2), given, stream(0, "act"))
    assert len(np.unique(label)) == 1, "what the user gives counts, whatever the data"


def test_it_asks_for_the_clusters_in_use_and_for_both_networks_of_an_edge() -> None:
    asked = (Loss("occupied"), Loss("unaveraged", "test"), Loss("own", "test"))
    policy = Merging(reward_splits=("test",))
    assert policy.ask(policy.init(2), Moment(5, 100)) == Ask(after=asked)
    assert policy.needs() == set(asked)
    assert policy.ask(policy.init(2), Moment(4, 100)) is None


def test_a_cluster_that_is_entered_goes_on_with_the_mean_of_what_its_members_bring() -> None:
    """Weighted by their data: edges 0 and 1 hold 100 and 300 examples; nobody enters the cluster of edge 2."""
    policy = Merging()
    seen = evidence([0, 1, 2], np.array([[0.8, 0.8, 2.0], [0.8, 0.8, 2.0], [2.0, 2.0, 0.8]]))
    seen = replace(seen, size_N=np.array([100, 300, 50]))
    _, (label, origin) = policy.act(policy.init(3), seen, stream(0, "act"))
    assert label.tolist() == [0, 0, 2]
    assert origin is not None
    np.testing.assert_allclose(origin, [[0.25, 0.75, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    apart = evidence([0, 1], np.array([[0.8, 2.0], [2.0, 0.8]]))
    assert policy.act(policy.init(2), apart, stream(0, "act"))[1].origin_KJ is None


def test_an_edge_that_leaves_takes_the_network_of_its_cluster_along() -> None:
    policy, num = Merging(), 4
    equal = evidence(np.arange(num), np.full((num, num), 0.8))
    state, (label, _) = policy.act(policy.learn(policy.init(num), equal), equal, stream(0, "act"))
    later = evidence(label, np.full((num, num), 0.8), np.array([0.3, 0.8, 0.8, 0.8]), round_=10)
    _, (after, origin) = policy.act(policy.learn(state, later), later, stream(0, "act"))
    assert after.tolist() == [1, 0, 0, 0]
    assert origin is not None
    np.testing.assert_array_equal(origin, [[1, 0, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])


def test_each_merger_counts_by_itself_also_at_the_same_gap() -> None:
    """Two pairs merge at gap 0 in one look: the regression then learns from two observations, not from their mean."""
    policy = Merging()
    apart = np.where(np.arange(4)[:, None] // 2 == np.arange(4) // 2, 0.8, 2.0)
    seen = evidence(np.arange(4), apart)
    state, (label, _) = policy.act(policy.learn(policy.init(4), seen), seen, stream(0, "act"))
    assert label.tolist() == [0, 0, 2, 2]
    np.testing.assert_array_equal(state.gap_N, 0)
    assert state.merger_N.tolist() == [0, 0, 1, 1]
    later = evidence(label, apart, np.array([0.9, 0.9, 0.7, 0.7]), np.full(4, 0.8), round_=10)
    learned = policy.learn(state, later)
    A, b, prior = np.eye(2), np.zeros(2), 0.25 * 0.25
    for gain in (+0.1 / 0.8, -0.1 / 0.8):
        A, b = bandits.ridge_update(A, b, np.array([1.0, 0.0]), gain - prior, policy.discount)
    np.testing.assert_allclose(learned.A_FF, A)
    np.testing.assert_allclose(learned.b_F, b)


def test_a_cluster_that_merges_again_is_one_merger_with_a_number_of_its_own() -> None:
    policy = Merging()
    apart = np.where(np.arange(4)[:, None] // 2 == np.arange(4) // 2, 0.8, 2.0)
    seen = evidence(np.arange(4), apart)
    state, (label, _) = policy.act(policy.learn(policy.init(4), seen), seen, stream(0, "act"))
    equal = evidence(label, np.full((4, 4), 0.8), np.full(4, 0.9), round_=10)
    state, (label, _) = policy.act(policy.learn(state, equal), equal, stream(0, "act"))
    assert label.tolist() == [0] * 4
    assert state.merger_N.tolist() == [2] * 4
    hurt = evidence(label, np.full((4, 4), 0.8), np.array([0.1, 0.8, 0.8, 0.8]), round_=15)
    state, (label, _) = policy.act(policy.learn(state, hurt), hurt, stream(0, "act"))
    assert label.tolist() == [1, 0, 0, 0]
    assert state.merger_N.tolist() == [-1, 2, 2, 2], "who is on its own has merged with nobody"


def test_gaps_for_the_record_are_those_it_merges_by() -> None:
    """Edges 0 and 1 lose 0.1 with each other's network, in units of 1, and 0.9 with that of edge 2."""
    loss = np.array([[1.0, 1.1, 1.9], [1.1, 1.0, 1.9], [1.9, 1.9, 1.0]])
    policy, seen = Merging(), evidence([0, 1, 2], loss)
    state = policy.init(3)
    shown = policy.shown(state, seen)["gaps"]
    assert shown["clusters"] == [0, 1, 2]
    assert shown["gap"] == [[0, 0.1, 0.9], [0.1, 0, 0.9], [0.9, 0.9, 0]]
    assert shown["limit"] == pytest.approx(0.25 - 0.01 / 0.25)
    _, (label_N, _) = policy.act(state, seen, stream(0, "act"))
    assert label_N.tolist() == [0, 0, 2]


def test_the_limit_of_gaps_falls_with_what_was_learned() -> None:
    policy = Merging()
    A_FF, b_F = bandits.ridge_update(np.eye(2), np.zeros(2), np.array([1.0, 0.1]), -0.05, 0.7)
    state = policy.init(3)._replace(A_FF=A_FF, b_F=b_F)
    limit = policy._limit(state)
    assert limit < 0.21
    assert policy._expected(state, np.array(limit)) == pytest.approx(policy.move_cost)


def test_the_gaps_of_the_benchmark_are_those_by_which_clusters_merge() -> None:
    loss_MM = np.array([[0.4, 0.9, 2.0], [0.7, 0.5, 1.9], [1.5, 2.2, 1.2]])
    policy = Merging()
    seen = evidence([0, 1, 2], loss_MM)
    found = policy.shown(policy.init(3), seen)["gaps"]["gap"]
    np.testing.assert_allclose(gaps(loss_MM, seen.num_classes)["λ"], found, atol=5e-5)
