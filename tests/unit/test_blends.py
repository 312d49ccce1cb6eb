"""What clusters send of their own and of others' networks (B.6, B.7, and a graph of those alike)."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from fedbac import Accuracy, Blend, Exchange, Gram, LeaveOneOut, MeanThenApart, Moment, NoState, Similar
from fedbac.core.queries import Evidence, Query, Slope
from fedbac.core.rng import stream
from fedbac.core.settings import FloatArray
from fedbac.sharing import BlendState, SimilarState
from fedbac.sharing.blends import onto_simplex

SIZES = (10, 20, 30)
NETWORKS = np.array([1.0, -2.0, 5.0])
MEAN = (10 * 1 - 20 * 2 + 30 * 5) / 60
nan = float("nan")


def evidence(
    readings: Mapping[Query, FloatArray] | None = None,
    label_N: Sequence[int] = (0, 1, 2),
    num_clusters: int = 3,
    round_: int = 5,
    num_rounds: int = 20,
) -> Evidence:
    label = np.array(label_N)
    return Evidence(
        round=round_,
        num_rounds=num_rounds,
        num_classes=10,
        size_N=np.array(SIZES),
        readings=readings or {},
        label_N=label,
        used_K=np.isin(np.arange(num_clusters), label),
    )


def sent(exchange: Exchange, network_K: FloatArray = NETWORKS) -> FloatArray:
    assert exchange.mix_KJ is not None
    np.testing.assert_allclose(exchange.mix_KJ.sum(1), 1)
    mixed_K: FloatArray = exchange.mix_KJ @ network_K
    return mixed_K


# ------------------------------------------------------------------------------------------- mean, then apart


@pytest.mark.parametrize(("alone_rounds", "last"), [(0, 21), (4, 17), (20, 1), (25, 0)])
def test_clusters_are_one_until_the_last_rounds(alone_rounds: int, last: int) -> None:
    """Of 20 rounds the last 4 are alone: round 17 is the first of them, and begins with the mean. What is sent in round
    21 would be, is what the last one is judged by."""
    policy = MeanThenApart(alone_rounds=alone_rounds)
    for t in range(1, 22):
        exchange = policy.act(NoState(), evidence(round_=t))
        if t <= last:
            np.testing.assert_allclose(sent(exchange), MEAN)
            assert exchange.kept
            assert exchange.judged_KJ is exchange.mix_KJ
        else:
            assert exchange == Exchange()


# --------------------------------------------------------------------------------------------- leave one out


OWN, OTHERS = Accuracy("own", "validation"), Accuracy("others", "validation")


def learned(own: Sequence[float], others: Sequence[float], before: Sequence[float] = (1, 1, 1)) -> BlendState:
    readings: dict[Query, FloatArray] = {OWN: np.array(own), OTHERS: np.array(others)}
    return LeaveOneOut().learn(BlendState(np.array(before, dtype=np.float64)), evidence(readings))


def test_a_blend_goes_by_accuracy_and_keeps_its_own_where_both_are_zero() -> None:
    state = learned((0.6, 0.0, nan), (0.2, 0.0, 0.5), before=(0.1, 0.2, 0.3))
    np.testing.assert_allclose(state.own_N, [0.75, 1.0, 0.3])
    assert LeaveOneOut().ask(state, Moment(1, 9)) == (OWN, OTHERS)


def test_edges_send_what_they_trust_of_their_own_and_the_rest_of_the_others() -> None:
    exchange = LeaveOneOut().act(BlendState(np.array([0.75, 1.0, 0.3])), evidence())
    others = [(20 * -2 + 30 * 5) / 50, (10 * 1 + 30 * 5) / 40, (10 * 1 + 20 * -2) / 30]
    np.testing.assert_allclose(sent(exchange), [0.75 + 0.25 * others[0], -2.0, 0.3 * 5 + 0.7 * others[2]])
    assert exchange.kept
    assert exchange.judged_KJ is exchange.mix_KJ


def test_blends_by_data_are_the_mean_and_a_number_is_the_same_for_all() -> None:
    for policy, expected in (
        (LeaveOneOut(blend="by_data"), [MEAN] * 3),
        (LeaveOneOut(blend=1.0), NETWORKS),
        (LeaveOneOut(blend=0.0), [2.2, 4.0, -1.0]),
    ):
        np.testing.assert_allclose(sent(policy.act(policy.init(3), evidence())), expected, atol=1e-12)
        assert policy.needs() == frozenset()
        assert policy.ask(policy.init(3), Moment(1, 9)) == ()
        np.testing.assert_array_equal(policy.learn(policy.init(3), evidence()).own_N, 1)


def test_clusters_take_the_mean_of_their_members_and_the_empty_keep_their_own() -> None:
    state = BlendState(np.array([0.0, 0.2, 1.0]))
    exchange = LeaveOneOut().act(state, evidence(label_N=(0, 1, 0)))
    own = 30 / 40
    np.testing.assert_allclose(sent(exchange), [own * 1 + (1 - own) * -2, 0.2 * -2 + 0.8 * 1, 5.0])
    alone = LeaveOneOut(blend=0.0).act(state, evidence(label_N=(1, 1, 1)))
    np.testing.assert_array_equal(sent(alone), NETWORKS)


# ------------------------------------------------------------------------------------------ blends that learn


def moved(slope_NK: FloatArray, gram_NN: FloatArray, before: Sequence[float], label_N: Sequence[int]) -> FloatArray:
    seen = evidence({Slope(): slope_NK, Gram(): gram_NN}, label_N=label_N)
    return Blend(rate=0.5).learn(BlendState(np.array(before, dtype=np.float64)), seen).own_N


def test_a_blend_moves_towards_the_cluster_if_its_updates_do() -> None:
    """In one dimension: v − w = 1 − 2, −2 − 2, 5 − 2; the updates are 2, −8, nothing."""
    update_N = np.array([2.0, -8.0, nan])
    found_N = moved(np.outer(update_N, NETWORKS), np.outer(update_N, update_N), (0.4, 0.3, 0.2), (0, 1, 2))
    np.testing.assert_allclose(found_N, [0.4 - 0.5 * 1 / 2, 0.3 + 0.5 * 4 / 8, 0.2])


def test_no_step_is_longer_than_the_rate_and_shares_stay_shares() -> None:
    update_N = np.array([0.1, -0.1, 0.0])
    found_N = moved(np.outer(update_N, NETWORKS), np.outer(update_N, update_N), (0.4, 0.3, 0.2), (0, 1, 2))
    np.testing.assert_allclose(found_N, [0.0, 0.8, 0.2])


def test_members_of_a_cluster_move_together_by_their_mean_update() -> None:
    """Of cluster 0 with 10 and 30 examples: mean update 0.25·2 + 0.75·6 = 5 and α = 0.25·0.4 + 0.75·0.8 before; with
    two thirds of the data at 1 and one third at −2 the mean of networks is 0."""
    update_N = np.array([2.0, 1.0, 6.0])
    found_N = moved(np.outer(update_N, NETWORKS), np.outer(update_N, update_N), (0.4, 0.3, 0.8), (0, 1, 0))
    np.testing.assert_allclose(found_N, [0.7 + 0.5 / 5, 0.0, 0.7 + 0.5 / 5])


def test_blends_are_sent_and_judged_but_not_kept() -> None:
    exchange = Blend().act(BlendState(np.array([0.0, 1.0, 0.5])), evidence())
    np.testing.assert_allclose(sent(exchange), [MEAN, -2.0, 0.5 * 5 + 0.5 * MEAN])
    assert not exchange.kept
    assert exchange.judged_KJ is exchange.mix_KJ
    still = Blend(start=0.3, rate=0)
    assert still.needs() == frozenset()
    np.testing.assert_array_equal(still.learn(still.init(3), evidence()).own_N, 0.3)


# ---------------------------------------------------------------------------------------------------- similar


@pytest.mark.parametrize("seed", range(4))
def test_the_projection_is_the_nearest_point_of_the_simplex(seed: int) -> None:
    point_J = stream(seed, "points").normal(size=5)
    found_J = onto_simplex(point_J)
    assert found_J.min() >= 0
    assert found_J.sum() == pytest.approx(1)
    # No corner of the simplex, and so no point of it, lies on the near side of the plane through what was found.
    assert ((np.eye(5) - found_J) @ (point_J - found_J)).max() < 1e-12
    np.testing.assert_allclose(onto_simplex(found_J), found_J)


def test_updates_of_those_who_trained_are_compared_and_the_others_remembered() -> None:
    update_NF = np.array([[1.0, 0.0], [nan, nan], [1.0, 1.0]])
    before_NN = np.array([[1.0, 0.9, -0.3], [0.9, 1.0, 0.7], [-0.3, 0.7, 1.0]])
    seen = evidence({Gram(): update_NF @ update_NF.T})
    after_NN = Similar().learn(SimilarState(before_NN), seen).cosine_NN
    root = np.sqrt(0.5)
    np.testing.assert_allclose(after_NN, [[1.0, 0.9, root], [0.9, 1.0, 0.7], [root, 0.7, 1.0]])


def test_mixes_go_by_data_and_by_likeness() -> None:
    """Of equal data, (1/3, 1/3, 1/3) + λ/2·(1, 0.9, −1) is projected: with λ = 0.2 nobody falls out."""
    cosine_NN = np.array([[1.0, 0.9, -1.0], [0.9, 1.0, -1.0], [-1.0, -1.0, 1.0]])
    seen = evidence()
    equal = Evidence(5, 20, 10, np.full(3, 7), label_N=seen.label_N, used_K=seen.used_K)
    mix_KJ = Similar(strength=0.2).act(SimilarState(cosine_NN), equal).mix_KJ
    assert mix_KJ is not None
    np.testing.assert_allclose(mix_KJ[0], 1 / 3 + 0.1 * (np.array([1.0, 0.9, -1.0]) - 0.3))
    strong_KJ = Similar(strength=4).act(SimilarState(cosine_NN), equal).mix_KJ
    assert strong_KJ is not None
    np.testing.assert_allclose(strong_KJ, [[0.6, 0.4, 0.0], [0.4, 0.6, 0.0], [0.0, 0.0, 1.0]])
    np.testing.assert_allclose(sent(Similar(strength=0).act(SimilarState(cosine_NN), seen)), MEAN)


def test_empty_clusters_are_in_no_mix() -> None:
    policy = Similar(strength=0.1)
    exchange = policy.act(policy.init(3), evidence(label_N=(0, 2, 0), num_clusters=4))
    assert exchange.mix_KJ is not None
    np.testing.assert_array_equal(exchange.mix_KJ[[0, 2]][:, [1, 3]], 0)
    np.testing.assert_array_equal(exchange.mix_KJ[[1, 3]], np.eye(4)[[1, 3]])
    assert exchange.kept
    assert exchange.judged_KJ is exchange.mix_KJ
