"""Who teaches whom, and how much it counts (B.13, B.19)."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from fedbac import Accuracy, ConfigError, Distill, DistillAdaptive, Exchange, Gram, Loss, Method, Moment, PerCluster
from fedbac.clustering import Fixed
from fedbac.core.policies import Teaching
from fedbac.core.queries import Evidence, Query
from fedbac.core.settings import FloatArray
from fedbac.runs.configure import configure
from fedbac.sharing import DistillAdaptiveState, DistillState
from fedbac.sharing.teachers import trust

nan, inf = float("nan"), float("inf")
SIZES = np.array([10, 20, 30, 40])
OCCUPIED, MEAN = Loss("occupied", "train"), Loss("mean", "train")


def evidence(
    round_: int,
    label_N: Sequence[int] = (0, 1, 2, 3),
    readings: Mapping[Query, FloatArray] | None = None,
    num_clusters: int = 4,
) -> Evidence:
    label = np.array(label_N)
    return Evidence(
        round=round_,
        num_rounds=50,
        num_classes=10,
        size_N=SIZES,
        readings=readings or {},
        label_N=label,
        used_K=np.isin(np.arange(num_clusters), label),
    )


def teaching(exchange: Exchange) -> Teaching:
    assert exchange.teaching is not None
    return exchange.teaching


# ------------------------------------------------------------------------------------------- several teachers


COSINES = np.array([[1.0, 0.9, 0.1, -0.5], [0.9, 1.0, 0.2, 0.3], [0.1, 0.2, 1.0, 0.8], [-0.5, 0.3, 0.8, 1.0]])
KNOWN = DistillState(COSINES, np.zeros((4, 4)), np.zeros(4))


def test_the_mean_and_the_most_similar_clusters_teach() -> None:
    taught = teaching(Distill(neighbours=1, ramp_rounds=0, mean_share=0).act(KNOWN, evidence(5)))
    np.testing.assert_allclose(taught.mix_TJ, np.vstack([SIZES / 100, np.eye(4)]))
    both = np.array([[1, 0, 1, 0, 0], [1, 1, 0, 0, 0], [1, 0, 0, 0, 1], [1, 0, 0, 1, 0]])
    np.testing.assert_allclose(taught.weight_NT, both / 2)
    np.testing.assert_allclose(taught.share_N, 0.3)
    assert taught.temperature == 3


def test_who_teaches_nobody_is_not_sent_and_clusters_without_members_never_teach() -> None:
    """Members 0 and 1 share a cluster; nobody is in 1 and 3."""
    taught = teaching(Distill(neighbours=3, ramp_rounds=0, mean_share=0).act(KNOWN, evidence(5, (0, 0, 2, 2))))
    np.testing.assert_allclose(taught.mix_TJ, np.array([[3, 0, 7, 0], [10, 0, 0, 0], [0, 0, 10, 0]]) / 10)
    np.testing.assert_allclose(taught.weight_NT, np.array([[1, 0, 1], [1, 0, 1], [1, 1, 0], [1, 1, 0]]) / 2)
    alone = teaching(Distill(ramp_rounds=0).act(KNOWN, evidence(5, (2, 2, 2, 2))))
    np.testing.assert_allclose(alone.mix_TJ, [[0, 0, 1, 0]])
    np.testing.assert_allclose(alone.weight_NT, 1)


def test_teachers_count_by_their_loss() -> None:
    weight_NT = trust(np.array([[1.0, 1.0 + np.log(3), inf], [inf, inf, inf], [2000.0, 2000.0, 2000.0]]))
    np.testing.assert_allclose(weight_NT, np.array([[9, 3, 0], [0, 0, 0], [4, 4, 4]]) / 12)


def test_losses_are_learned_and_who_does_not_measure_keeps_what_it_knew() -> None:
    policy = Distill(neighbours=1, ramp_rounds=0, mean_share=0)
    loss_NK = np.array([[0.0, 1.0, inf, inf], [nan] * 4, [2.0, 3.0, inf, inf], [5.0, inf, inf, inf]])
    readings: dict[Query, FloatArray] = {
        Gram(): np.diag([1.0, 1.0, nan, 4.0]),
        OCCUPIED: loss_NK,
        MEAN: np.array([1.0, nan, 3.0, 5.0]),
    }
    label_N = (0, 1, 0, 1)
    before = DistillState(COSINES, np.full((4, 4), 7.0), np.full(4, 8.0))
    state = policy.learn(before, evidence(4, label_N, readings))
    np.testing.assert_array_equal(state.loss_NN[0], [0, 1, 0, 1])
    np.testing.assert_array_equal(state.loss_NN[1], 7)
    np.testing.assert_array_equal(state.mean_N, [1, 8, 3, 5])
    assert state.cosine_NN[0, 1] == 0
    assert state.cosine_NN[0, 2] == COSINES[0, 2]
    taught = teaching(policy.act(state, evidence(5, label_N)))
    # Member 0 and 2 learn from cluster 1, members 1 and 3 from cluster 0.
    share = 1 / (1 + np.exp(-1))
    np.testing.assert_allclose(taught.weight_NT[1], [1 - share, share, 0])
    np.testing.assert_allclose(taught.weight_NT[0], [0.5, 0, 0.5])
    np.testing.assert_allclose(taught.weight_NT[3], [0.5, 0.5, 0])
    assert set(policy.ask(state, Moment(1, 50))) == policy.needs() == {Gram(), OCCUPIED, MEAN}


def test_one_without_a_teacher_that_has_not_diverged_is_not_taught() -> None:
    lost = KNOWN._replace(loss_NN=np.full((4, 4), inf), mean_N=np.array([inf, 0, 0, 0]))
    taught = teaching(Distill(ramp_rounds=0).act(lost, evidence(5)))
    np.testing.assert_array_equal(taught.share_N, [0, 0.3, 0.3, 0.3])
    np.testing.assert_array_equal(taught.weight_NT[:, 0], [0, 1, 1, 1])


def test_the_share_of_teachers_rises_from_zero() -> None:
    policy = Distill(share=0.4, ramp_rounds=4)
    assert policy.act(KNOWN, evidence(1)).teaching is None
    shares = [teaching(policy.act(KNOWN, evidence(t))).share_N[0] for t in (2, 3, 4, 5, 6)]
    np.testing.assert_allclose(shares, [0.1, 0.2, 0.3, 0.4, 0.4])


def test_networks_are_drawn_to_their_mean_after_every_so_many_rounds() -> None:
    policy = Distill(share=0, mean_share=0.25, mean_period=3)
    drawn = {t: policy.act(KNOWN, evidence(t)) for t in range(1, 9)}
    assert [t for t, exchange in drawn.items() if exchange.mix_KJ is not None] == [4, 7]
    mix_KJ = drawn[4].mix_KJ
    assert mix_KJ is not None
    np.testing.assert_allclose(mix_KJ, 0.75 * np.eye(4) + 0.25 * SIZES / 100)
    assert drawn[4].kept
    np.testing.assert_array_equal(drawn[4].judged_KJ, mix_KJ)
    assert drawn[5] == Exchange()
    assert policy.needs() == frozenset()


# ----------------------------------------------------------------------------------------------- one teacher


TEACHER, OWN = Accuracy("mean", "validation"), Accuracy("own", "validation")


def test_a_teacher_counts_the_more_the_better_it_is() -> None:
    policy = DistillAdaptive()
    readings: dict[Query, FloatArray] = {TEACHER: np.array([0.5, 0.9, nan, 0.2]), OWN: np.array([0.5, 0.7, 0.1, 0.9])}
    state = policy.learn(policy.init(4), evidence(3, readings=readings))
    taught = teaching(policy.act(state, evidence(4)))
    sigmoid = 1 / (1 + np.exp(-2))
    np.testing.assert_allclose(taught.share_N, [0.25, 0.5 * sigmoid, 0, 0.5 / (1 + np.exp(7))])
    assert taught.share_N[3] < 0.25, "a teacher that is worse than the student"
    np.testing.assert_allclose(taught.mix_TJ, [SIZES / 100])
    np.testing.assert_array_equal(taught.weight_NT[:, 0], [1, 1, 0, 1])
    assert policy.ask(state, Moment(3, 50)) == (TEACHER, OWN)
    silent: dict[Query, FloatArray] = {TEACHER: np.full(4, nan), OWN: np.ones(4)}
    np.testing.assert_array_equal(policy.learn(state, evidence(4, readings=silent)).ahead_N, state.ahead_N)


def test_before_anything_is_measured_nobody_is_taught() -> None:
    policy = DistillAdaptive()
    assert policy.act(policy.init(4), evidence(2)) == Exchange()
    assert DistillAdaptive(max_share=0).act(DistillAdaptiveState(np.ones(4)), evidence(2)) == Exchange()


def test_all_others_may_be_the_teacher_with_a_share_that_is_given() -> None:
    policy = DistillAdaptive(teacher="others", max_share=1.0, steepness=0)
    assert policy.needs() == frozenset()
    assert policy.act(policy.init(4), evidence(1)) == Exchange(), "all networks are still the same"
    taught = teaching(policy.act(policy.init(4), evidence(2, (0, 3, 0, 3))))
    np.testing.assert_allclose(taught.share_N, 0.5)
    np.testing.assert_allclose(taught.weight_NT @ taught.mix_TJ, np.eye(4)[[3, 0, 3, 0]])
    assert policy.act(policy.init(4), evidence(2, (1, 1, 1, 1))) == Exchange()


@pytest.mark.parametrize("sharing", [Distill(), DistillAdaptive()])
def test_teachers_need_somebody_who_listens(sharing: Distill | DistillAdaptive) -> None:
    method = Method(name="deaf", clustering=Fixed(), sharing=sharing, personalization=PerCluster())
    with pytest.raises(ConfigError, match=r"method\.sharing 'distill.*'per_cluster' has not; .* taught=true"):
        configure(method, "demo")
    configure(method.model_copy(update={"personalization": PerCluster(taught=True)}), "demo")
