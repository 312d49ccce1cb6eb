"""Members that predict with a blend of their cluster's network and the mean of all."""

from collections.abc import Sequence

import numpy as np
import pytest

from fedbac import Loss, Moment, PolicyError, PredictTowardsMean
from fedbac.core.queries import Evidence, Query
from fedbac.sharing import LeaningState

SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
NETWORKS = np.array([1.0, -2.0, 5.0, 7.0])
nan, inf = float("nan"), float("inf")


def evidence(losses: Sequence[Sequence[float]] | None = None, label_N: Sequence[int] = (0, 1, 2)) -> Evidence:
    """Return what three members say of four clusters; of the blends, a row of losses for each member."""
    queries: list[Query] = [
        Loss("own", "validation"),
        *(Loss("mean", "validation", share=share) for share in SHARES[1:]),
    ]
    readings = {} if losses is None else dict(zip(queries, np.array(losses).T, strict=True))
    return Evidence(
        round=10,
        num_rounds=100,
        num_classes=10,
        size_N=np.array([10, 20, 30]),
        readings=readings,
        label_N=np.array(label_N),
        used_K=np.ones(4, dtype=bool),
    )


def state(*share_N: float, apart: bool = True) -> LeaningState:
    return LeaningState(np.array(share_N), np.array(apart))


@pytest.mark.parametrize(
    ("round_", "apart", "asks"), [(9, True, False), (10, True, True), (10, False, False), (95, True, True)]
)
def test_members_try_blends_every_period_and_after_the_last_round_if_there_is_more_than_one_cluster(
    round_: int, apart: bool, asks: bool
) -> None:
    policy = PredictTowardsMean()
    asked = policy.ask(state(0, 0, 0, apart=apart), Moment(round_, 95))
    assert frozenset(asked) == (policy.needs() if asks else frozenset())


def test_each_member_keeps_the_share_of_the_least_loss() -> None:
    losses = [
        [0.9, 0.8, 0.7, 0.6, 0.7, 0.8],
        [0.5, 0.5, 0.6, inf, inf, inf],  # equally good: as little of the mean as possible
        [inf, 0.9, 0.8, 0.8, 0.7, 0.6],
    ]
    after = PredictTowardsMean().learn(state(0.5, 0.5, 0.5), evidence(losses))
    np.testing.assert_array_equal(after.share_N, [0.3, 0.0, 0.5])


def test_a_member_that_does_not_measure_keeps_its_share_and_one_without_any_finite_loss_its_own_network() -> None:
    losses = [[nan] * 6, [inf] * 6, [0.9, 0.8, 0.7, 0.8, 0.9, 0.9]]
    after = PredictTowardsMean().learn(state(0.4, 0.4, 0.4), evidence(losses))
    np.testing.assert_array_equal(after.share_N, [0.4, 0.0, 0.2])
    np.testing.assert_array_equal(PredictTowardsMean().learn(after, evidence()).share_N, [0.4, 0.0, 0.2])


@pytest.mark.parametrize(("label_N", "apart"), [((2, 2, 2), False), ((0, 2, 2), True)])
def test_it_remembers_whether_there_is_anything_to_blend(label_N: Sequence[int], apart: bool) -> None:
    assert PredictTowardsMean().learn(state(0, 0, 0, apart=not apart), evidence(label_N=label_N)).apart == apart


def test_what_members_predict_with_is_blended_and_nothing_is_sent() -> None:
    exchange = PredictTowardsMean().act(state(0.3, 0.0, 0.5), evidence())
    mean = (10 * 1 + 20 * -2 + 30 * 5) / 60
    assert exchange.mix_KJ is None
    assert exchange.judged_KJ is not None
    expected = [0.7 * 1 + 0.3 * mean, -2, 0.5 * 5 + 0.5 * mean, 7]  # nobody is in the last
    np.testing.assert_allclose(exchange.judged_KJ @ NETWORKS, expected)


def test_a_cluster_takes_the_mean_share_of_its_members_by_data() -> None:
    exchange = PredictTowardsMean().act(state(0.3, 0.0, 0.5), evidence(label_N=(1, 0, 1)))
    mean, share = (40 * -2 + 20 * 1) / 60, (10 * 0.3 + 30 * 0.5) / 40
    assert exchange.judged_KJ is not None
    np.testing.assert_allclose(exchange.judged_KJ @ NETWORKS, [1, (1 - share) * -2 + share * mean, 5, 7])


@pytest.mark.parametrize(("of", "share"), [("own", 0.5), ("others", 0.5), ("mean", 0.0), ("mean", 1.5), ("mean", nan)])
def test_only_the_mean_has_a_share(of: str, share: float) -> None:
    with pytest.raises(PolicyError, match="only 'mean' has one, above 0 and up to 1"):
        Loss(of, share=share)  # type: ignore[arg-type]
