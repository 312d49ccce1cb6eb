"""FedDrift's clusters: by a plain loop over its rules, and one by one."""

from typing import Any, get_args

import numpy as np
import pytest

from fedbac import Accuracy, Assignment, Drifting, Evidence, Loss
from fedbac.clustering import DriftState
from fedbac.core.queries import Query
from fedbac.core.rng import stream
from fedbac.core.settings import FloatArray, IntArray

RNG = stream(0, "nobody draws")
Names = tuple[int, ...]


def evidence_of(policy: Drifting, label_N: IntArray, loss_NK: FloatArray, size_N: IntArray) -> Evidence:
    """Return what a policy is told: of clusters that nobody is in, that they are as bad as can be."""
    empty_NK = ~np.isin(np.arange(loss_NK.shape[1]), label_N) & ~np.isnan(loss_NK).all(1, keepdims=True)
    accuracy_NK, loss_NK = np.where(empty_NK, 0.0, 1 - loss_NK), np.where(empty_NK, np.inf, loss_NK)
    readings: dict[Query, FloatArray] = {Loss("occupied"): loss_NK, Accuracy("occupied"): accuracy_NK}
    readings = {query: readings[query] for query in policy.needs()}
    return Evidence(round=5, num_rounds=100, num_classes=4, size_N=size_N, label_N=label_N, readings=readings)


def looked(policy: Drifting, state: DriftState, label_N: IntArray, loss_NK: FloatArray, size_N: IntArray) -> Assignment:
    evidence = evidence_of(policy, label_N, loss_NK, size_N)
    return policy.act(policy.learn(state, evidence), evidence, RNG)[1]


def by_the_paper(
    delta: float, before: FloatArray, label: list[int], loss: FloatArray, size: IntArray
) -> tuple[set[frozenset[int]], dict[frozenset[int], dict[int, float]]]:
    """Return the clusters of members, and by cluster the former ones whose networks make its own, with their shares."""
    drifted = [m for m in range(len(label)) if loss[m].min() > before[m] + delta]
    settled = [m for m in range(len(label)) if m not in drifted]
    clusters: dict[Names, list[int]] = {(k,): [m for m in settled if loss[m].argmin() == k] for k in sorted(set(label))}
    clusters = {names: members for names, members in clusters.items() if members}

    def of(names: Names, data: Names) -> float:
        (k,), members = names, clusters[data]
        return float(sum(size[m] * loss[m, k] for m in members) / sum(size[m] for m in members))

    apart = {(a, b): max(of(a, b) - of(b, b), of(b, a) - of(a, a), 0.0) for a in clusters for b in clusters if a != b}
    while apart:
        a, b = min(apart, key=lambda pair: apart[pair])
        if apart[a, b] >= delta:
            break
        others = [c for c in clusters if c not in (a, b)]
        for c in others:
            apart[(*a, *b), c] = apart[c, (*a, *b)] = max(apart[a, c], apart[b, c])
        clusters = {c: clusters[c] for c in others} | {(*a, *b): clusters[a] + clusters[b]}
        apart = {pair: value for pair, value in apart.items() if set(pair) <= set(clusters)}
    mix: dict[frozenset[int], dict[int, float]] = {frozenset([m]): {label[m]: 1.0} for m in drifted}
    for names, members in clusters.items():
        whole = sum(size[m] for m in members)
        share = {k: sum(size[m] for m in members if loss[m].argmin() == k) / whole for k in names}
        mix[frozenset(members)] = share
    return set(mix), mix


@pytest.mark.parametrize("compares", get_args(Drifting.model_fields["compares"].annotation))
@pytest.mark.parametrize("seed", range(12))
def test_it_parts_moves_and_merges_as_the_paper_says(seed: int, compares: Any) -> None:
    rng = np.random.default_rng(seed)
    label_N, size_N = rng.integers(0, 5, 9), rng.integers(1, 9, 9)
    used_K = np.isin(np.arange(9), label_N)
    loss_NK = np.where(used_K, rng.choice([0.3, 0.5, 0.9], (9, 9)) + rng.uniform(0, 0.15, (9, 9)), np.nan)
    before_N = np.nanmin(loss_NK, 1) - rng.choice([0.05, 0.4], 9, p=[0.7, 0.3])
    policy = Drifting(compares=compares, delta=0.25)
    answer = looked(policy, DriftState(before_N, np.zeros(9)), label_N, loss_NK, size_N)
    clusters, mix = by_the_paper(0.25, before_N, label_N.tolist(), np.nan_to_num(loss_NK, nan=np.inf), size_N)
    found = {frozenset(np.flatnonzero(answer.label_N == k).tolist()): k for k in set(answer.label_N.tolist())}
    assert set(found) == clusters
    assert answer.origin_KJ is not None
    for members, k in found.items():
        expected = [mix[members].get(j, 0.0) for j in range(9)]
        np.testing.assert_allclose(answer.origin_KJ[k], expected, atol=1e-12)


def test_nobody_has_drifted_at_the_first_look_and_who_is_away_stays() -> None:
    policy = Drifting(delta=0.0)
    loss_NK = np.array([[0.5, 0.9, 0.9], [0.9, 0.5, 0.9], [np.nan, np.nan, np.nan]])
    answer = looked(policy, policy.init(3), np.arange(3), loss_NK, np.array([1, 1, 0]))
    assert answer.label_N.tolist() == [0, 1, 2]
    nobody = np.full((3, 3), np.nan)
    assert looked(policy, policy.init(3), np.arange(3), nobody, np.zeros(3, int)).label_N.tolist() == [0, 1, 2]


def test_a_rise_is_since_the_last_look_at_which_a_member_was_there() -> None:
    policy, label_N, size_N = Drifting(delta=0.1), np.zeros(2, dtype=np.int64), np.ones(2, dtype=np.int64)
    state = policy.init(2)
    for losses in ([0.5, 0.5], [np.nan, 0.45], [0.55, 0.6]):
        loss_NK = np.column_stack([losses, [np.nan, np.nan]])
        evidence = evidence_of(policy, label_N, loss_NK, size_N)
        state = policy.learn(state, evidence)
    np.testing.assert_allclose(state.rise_N, [0.05, 0.15])
    assert policy.act(state, evidence, RNG)[1].label_N.tolist() == [0, 1]


def test_who_is_never_right_joins_no_empty_cluster() -> None:
    policy, label_N = Drifting(delta=0.0), np.array([1, 2, 2])
    loss_NK = np.array([[1.0, 1.0, 1.0], [1.0, 0.9, 0.5], [1.0, 0.9, 0.5]])
    answer = looked(policy, policy.init(3), label_N, loss_NK, np.ones(3, dtype=np.int64))
    assert answer.label_N.tolist() == [1, 2, 2]
