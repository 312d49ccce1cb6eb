"""What clusters give each other: nothing, always a little, or once they have overfitted."""

from collections.abc import Sequence

import numpy as np
import pytest

from fedbac import (
    Apart,
    Exchange,
    Loss,
    Moment,
    NoState,
    OnceOverfitted,
    Statistic,
    TowardsMean,
)
from fedbac.core.queries import Evidence
from fedbac.sharing import OverfittingState

VALIDATION, TRAINING = Loss("trained", "validation"), Statistic("loss")
SIZES = (10, 20, 30)


def evidence(
    round_: int,
    num_rounds: int = 100,
    losses: tuple[Sequence[float], Sequence[float]] | None = None,
    label_N: Sequence[int] = (0, 1, 2),
    num_clusters: int = 3,
) -> Evidence:
    """Return what the cloud shows a sharing policy; ``losses`` are those in training and on validation data."""
    training, validation = ((), ()) if losses is None else losses
    return Evidence(
        round=round_,
        num_rounds=num_rounds,
        num_classes=10,
        size_N=np.array(SIZES),
        readings={} if losses is None else {TRAINING: np.array(training), VALIDATION: np.array(validation)},
        label_N=np.array(label_N),
        used_K=np.ones(num_clusters, dtype=bool),
    )


def test_apart_shares_nothing() -> None:
    policy = Apart()
    assert policy.act(NoState(), evidence(1)) == Exchange()
    assert policy.ask(NoState(), Moment(1, 100)) == ()
    assert not policy.active


@pytest.mark.parametrize(("label_N", "weight_K"), [((0, 1, 2), (10, 20, 30)), ((0, 1, 0), (40, 20, 0))])
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_networks_are_drawn_towards_their_mean_by_data(
    label_N: Sequence[int], weight_K: Sequence[int], share: float
) -> None:
    """(1 − ρ) Θ_k + ρ Σ_j w_j Θ_j; a cluster without members is drawn and does not draw. Only what is sent is."""
    mix_KJ, kept, judged_KJ, _ = TowardsMean(share=share).act(NoState(), evidence(1, label_N=label_N))
    assert mix_KJ is not None
    network_K = np.array([1.0, -2.0, 5.0])
    mean = float(np.array(weight_K) @ network_K) / 60
    np.testing.assert_allclose(mix_KJ @ network_K, (1 - share) * network_K + share * mean)
    np.testing.assert_allclose(mix_KJ.sum(1), 1)
    assert not kept
    assert judged_KJ is None


nan, inf = float("nan"), float("inf")
SCRIPT = (
    ((1.0, 1.0, 2.0), (1.1, 1.1, 2.3)),  # T = 90 / 60, V = 102 / 60: 0.2 more, counted in quarters
    ((1.0, 1.0, nan), (inf, 1.4, nan)),  # the first has diverged, the third did not train
    ((0.1, nan, 9.0), (0.22, nan, nan)),  # of the one that says both: 1.2 times what training costs it
    ((1.0, 1.0, 1.0), (nan, nan, nan)),
    ((0.0, 0.0, 0.0), (0.5, 0.5, 0.5)),
    ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0)),
    ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0)),
)
"""Losses of three edges in every round: in training, and on validation data."""


def played(num_rounds: int) -> list[OverfittingState]:
    policy = OnceOverfitted(share=0.4)
    states = [policy.init(3)]
    for t in range(1, num_rounds + 1):
        states.append(policy.learn(states[-1], evidence(t, num_rounds, SCRIPT[t - 1])))
    return states


@pytest.mark.parametrize("num_rounds", [7, 6, 5])
def test_overfitting_is_a_running_mean_that_no_single_round_decides(num_rounds: int) -> None:
    """What nobody reports stays what it was, and a training loss of zero says nothing."""
    found = [float(state.overfitting) for state in played(num_rounds)[1:]]
    last = 0.8 * 0.96 + 0.2 * 1.2
    expected_T = [0.8, 0.8 * 0.8 + 0.2 * 1.6, last, last, last, 0.8 * last, 0.64 * last]
    assert found == pytest.approx(expected_T[:num_rounds])


@pytest.mark.parametrize("num_rounds", [7, 6, 5])
@pytest.mark.parametrize("num_clusters", [2, 3])
def test_clusters_share_once_they_have_overfitted_and_to_the_end(num_rounds: int, num_clusters: int) -> None:
    """The running mean says so in round 3, which is too late in a run of 5 rounds; later it falls, which is no reason
    to stop."""
    policy = OnceOverfitted(share=0.4)
    label_N = (0, 1, 0) if num_clusters == 2 else (0, 1, 2)
    for t, state in enumerate(played(num_rounds)[:-1], start=1):
        seen = evidence(t, num_rounds, label_N=label_N, num_clusters=num_clusters)
        answer = policy.act(state, seen)
        if t <= 3 or num_rounds == 5:
            assert answer == Exchange()
        else:
            expected = TowardsMean(share=0.4).act(NoState(), seen)
            assert expected.mix_KJ is not None
            assert answer.mix_KJ is not None
            np.testing.assert_array_equal(answer.mix_KJ, expected.mix_KJ)


def test_it_asks_for_both_losses_and_shows_what_came_of_them() -> None:
    policy = OnceOverfitted()
    assert set(policy.ask(policy.init(3), Moment(1, 100))) == policy.needs() == {VALIDATION, TRAINING}
    assert np.isnan(policy.notes(policy.init(3))["overfitting"])
    assert policy.notes(played(1)[-1]) == {"overfitting": pytest.approx(0.8), "mean_share": 0}
    assert policy.notes(OverfittingState(np.array(1.2), np.array(True)))["mean_share"] == policy.share
