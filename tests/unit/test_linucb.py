"""LinUCB against the paper's Algorithm 1 in plain Python, and each of its options by its effect."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedbac import Ask, LinUCB, Loss, Moment
from fedbac.core.rng import stream
from fedbac.core.settings import FloatArray
from tests.unit.tiny import clustering_evidence, scripted_rounds

NO_RANDOMNESS = stream(0, "unused")


class PlainLinUCB:
    """Lines 12 to 18 of Algorithm 1, one edge and one arm at a time; ties go to the lowest index."""

    def __init__(self, label: list[int], num_arms: int, tau_norm: int, num_rounds: int) -> None:
        self.k = list(label)
        self.K, self.tau_norm, self.T = num_arms, tau_norm, num_rounds
        self.tau = [0] * len(label)
        self.A = [[np.eye(4) for _ in range(num_arms)] for _ in label]
        self.b = [[np.zeros(4) for _ in range(num_arms)] for _ in label]

    def round(self, t: int, loss: FloatArray, due: bool, sequential: bool) -> None:
        self.tau = [tau + 1 for tau in self.tau]
        if not due:
            return
        seen, chosen = list(self.k), list(self.k)
        for m in range(len(self.k)):
            labels = chosen if sequential else seen
            k, x, reward = self.k[m], *self.observe(m, t, labels, loss)
            self.A[m][k] = self.A[m][k] + np.outer(x, x)
            self.b[m][k] = self.b[m][k] + reward * x
            chosen[m] = self.best_arm(m, x)
        for m, (old, new) in enumerate(zip(self.k, chosen, strict=True)):
            if old != new:
                self.tau[m] = 0
        self.k = chosen

    def observe(self, m: int, t: int, labels: list[int], loss: FloatArray) -> tuple[FloatArray, float]:
        current = labels[m]
        others = [k for k in range(self.K) if k != current]
        rival = min(others, key=lambda k: loss[m, k])
        l_cur, l_alt = loss[m, current], loss[m, rival]
        n_cur, n_alt = labels.count(current), labels.count(rival)
        x = [
            math.log((l_cur + 1e-8) / (l_alt + 1e-8)),
            (n_cur - n_alt) / (n_cur + n_alt),
            min(self.tau[m] / (2 * self.tau_norm), 1),
            t / self.T,
        ]
        return np.array(x), (l_alt - l_cur) / (l_alt + l_cur + 1e-8)

    def best_arm(self, m: int, x: FloatArray) -> int:
        score = []
        for A, b in zip(self.A[m], self.b[m], strict=True):
            inverse = np.linalg.inv(A)
            score.append((inverse @ b) @ x + 0.3 * math.sqrt(x @ inverse @ x))
        return next(k for k in range(self.K) if score[k] >= max(score) - 1e-12)


@pytest.mark.covering
@pytest.mark.parametrize("updates", ["snapshot", "sequential"])
@pytest.mark.parametrize(
    ("period", "tau_norm", "start"), [(20, 20, "round_robin"), (1, 20, "uniform"), (3, 2, "uniform")]
)
@pytest.mark.parametrize("seed", range(3))
def test_whole_runs_follow_algorithm_1(updates: str, period: int, tau_norm: int, start: str, seed: int) -> None:
    """The round loop with LinUCB makes the plain algorithm's moves and keeps its A and b, edge by edge."""
    M = K = 4
    T = 8 * period
    loss_TMK = stream(seed, "losses").uniform(0.2, 2.0, (T, M, K))
    policy = LinUCB(**_options(period=period, tau_norm=tau_norm, start_labels=start, tie="lowest", updates=updates))
    plain = PlainLinUCB([m if start == "round_robin" else 0 for m in range(M)], K, tau_norm, T)
    moves = 0
    for t, (record, state) in enumerate(scripted_rounds(policy, loss_TMK), start=1):
        assert record["assignment"] == plain.k
        plain.round(t, loss_TMK[t - 1], due=t % period == 0, sequential=updates == "sequential")
        assert record["assignment_next"] == state.label_N.tolist() == plain.k
        assert [t - entered for entered in state.clustering.entered_N] == plain.tau
        np.testing.assert_allclose(state.clustering.A_NKFF, plain.A, rtol=1e-12)
        np.testing.assert_allclose(state.clustering.b_NKF, plain.b, rtol=1e-12)
        moves += record["moves"]
    assert moves > M  # the comparison was about something


def test_sequential_edges_see_the_moves_before_them() -> None:
    """Both edges start together. The first leaves; only a sequential second edge then sees itself alone."""
    loss_TMK = np.array([[[1.0, 0.5], [1.0, 0.9]]])
    balance = {}
    for updates in ("snapshot", "sequential"):
        policy = LinUCB(**_options(num_clusters=2, period=1, start_labels="uniform", tie="lowest", updates=updates))
        _, state = next(iter(scripted_rounds(policy, loss_TMK)))
        assert state.label_N[0] == 1
        balance[updates] = state.clustering.context_NF[:, 1].tolist()
    assert balance == {"snapshot": [1.0, 1.0], "sequential": [1.0, 0.0]}


@given(st.floats(0.3, 1.4), st.floats(-0.05, 0.05).filter(lambda gap: abs(gap) > 1e-4))
def test_stay_rule_after_one_update(length: float, gap: float) -> None:
    """C.24: with ‖x‖ = s an edge stays iff r ≥ 0.3 (1 − 1/√(1+s²)) (1+s²)/s; else it tries the untouched arm."""
    root = math.sqrt(1 + length**2)
    reward = 0.3 * (1 - 1 / root) * root**2 / length + gap
    assert _stays(length, reward) == (gap > 0)


@pytest.mark.parametrize(("length", "reward", "ratio"), [(0.6, 0.10, 1.21), (1.0, 0.18, 1.43), (1.2, 0.22, 1.56)])
def test_stay_rule_at_the_documented_points(length: float, reward: float, ratio: float) -> None:
    assert (1 + reward) / (1 - reward) == pytest.approx(ratio, abs=0.015)
    assert _stays(length, reward)
    assert not _stays(length, reward - 0.01)


def _stays(length: float, reward: float) -> bool:
    """Whether an edge stays when its context has this length and its reward is this, all other arms untouched."""
    first = -2 * math.atanh(reward)  # C.23
    last = math.sqrt(length**2 - first**2)
    num_rounds = 10**9
    round_ = round(last * num_rounds)
    policy = LinUCB(period=1, tie="random")
    # Two edges in two clusters: the balance is 0. Entered in this very round: the stability is 0.
    state = policy.init(2)._replace(entered_N=np.array([round_, round_]))
    loss = [[1 - reward, 1 + reward], [1.0, 1.0]]
    evidence = clustering_evidence([0, 1], loss, round_=round_, num_rounds=num_rounds)
    state = policy.learn(state, evidence)
    state, (label, _) = policy.act(state, evidence, NO_RANDOMNESS)
    assert np.linalg.norm(state.context_NF[0]) == pytest.approx(length, abs=1e-6)
    return bool(label[0] == 0)


def test_third_feature_counts_rounds_since_the_move() -> None:
    """With period 20 it is 0.5 at the first reassignment; 20 rounds later 0.5 after a move and 1 without one."""
    loss_TMK = np.ones((60, 2, 2))
    loss_TMK[:, 0] = [0.1, 1.9]  # edge 0 is content in cluster 0, edge 1 (in cluster 1, loss 1 everywhere) never
    history = list(scripted_rounds(LinUCB(tie="lowest"), loss_TMK))
    moved = {t: history[t - 1][1].label_N != history[t - 2][1].label_N for t in (20, 40, 60)}
    third = {t: history[t - 1][1].clustering.context_NF[:, 2] for t in (20, 40, 60)}
    np.testing.assert_array_equal(third[20], [0.5, 0.5])
    np.testing.assert_array_equal(moved[20], [False, True])
    np.testing.assert_array_equal(third[40], [1.0, 0.5])


def test_tau_norm_is_apart_from_the_period() -> None:
    loss_TMK = np.tile([[0.1, 1.9], [1.9, 0.1]], (50, 1, 1))  # both edges content: nobody moves
    third = [s.clustering.context_NF[0, 2] for _, s in scripted_rounds(LinUCB(period=1, tau_norm=20), loss_TMK)]
    np.testing.assert_allclose(third, [min(t / 40, 1) for t in range(1, 51)])
    third = [s.clustering.context_NF[0, 2] for _, s in scripted_rounds(LinUCB(period=10, tau_norm=5), loss_TMK)]
    np.testing.assert_allclose(third[9::10], 1.0)


def test_fourth_feature_is_the_share_of_rounds_done() -> None:
    contexts = [s.clustering.context_NF[0] for _, s in scripted_rounds(LinUCB(period=5), np.ones((20, 2, 2)))]
    assert [contexts[t - 1][3] for t in (5, 10, 15, 20)] == [0.25, 0.5, 0.75, 1.0]


def test_due_every_period() -> None:
    policy = LinUCB(period=20)
    state = policy.init(3)
    assert [t for t in range(1, 101) if policy.ask(state, Moment(t, 100))] == [20, 40, 60, 80, 100]
    assert policy.ask(state, Moment(20, 100)) == Ask(after=(Loss("clusters"),))
    assert policy.needs() == {Loss("clusters")}


def test_learning_touches_the_current_arm_only() -> None:
    policy = LinUCB()
    before = policy.init(3)
    after = policy.learn(before, clustering_evidence([2, 0, 1], np.arange(1.0, 10).reshape(3, 3)))
    for m, current in enumerate([2, 0, 1]):
        for k in range(3):
            assert np.array_equal(after.A_NKFF[m, k], np.eye(4)) == (k != current)
            assert np.array_equal(after.b_NKF[m, k], np.zeros(4)) == (k != current)


def test_in_turns_every_edge_learns_right_before_it_acts() -> None:
    """Nothing is learned ahead; edge by edge it is what a policy of one edge does on the labels that it finds."""
    evidence = clustering_evidence([2, 2, 2], np.arange(1.0, 10).reshape(3, 3))
    policy, single = LinUCB(updates="sequential", tie="lowest"), LinUCB(num_clusters=3, tie="lowest")
    for learned, before in zip(policy.learn(policy.init(3), evidence), policy.init(3), strict=True):
        np.testing.assert_array_equal(learned, before)
    state, (label, _) = policy.act(policy.learn(policy.init(3), evidence), evidence, NO_RANDOMNESS)
    found = np.array([2, 2, 2])
    for m in range(3):
        seen = replace(evidence, label_N=found)
        expected, (chosen, _) = single.act(single.learn(single.init(3), seen), seen, NO_RANDOMNESS)
        for got, one in zip(state, expected, strict=True):
            np.testing.assert_array_equal(got[m], one[m])
        found = np.where(np.arange(3) == m, chosen, found)
    np.testing.assert_array_equal(label, found)


def test_an_empty_cluster_is_found_as_it_was_left_or_as_a_copy_of_ones_own() -> None:
    """C.17: edge 0 leaves cluster 0 for the empty cluster 2; with ``clone`` it takes its network along."""
    evidence = clustering_evidence([0, 1], [[9.0, 9.0, 0.1], [9.0, 0.1, 9.0]])
    for rule, origin in (("keep", None), ("clone", [[1, 0, 0], [0, 1, 0], [1, 0, 0]])):
        policy = LinUCB(**_options(num_clusters=3, ucb_alpha=0.0, tie="stay", empty_cluster=rule))
        state = policy.init(2)
        state.b_NKF[0, 2] = [10.0, 0, 0, 0]  # known to be good for edge 0
        _, answer = policy.act(state, evidence, NO_RANDOMNESS)
        assert answer.label_N.tolist() == [2, 1]
        assert (None if answer.origin_KJ is None else answer.origin_KJ.tolist()) == origin


def test_tie_rules() -> None:
    """Before anything is learned all arms tie."""
    evidence = clustering_evidence([3, 1], np.ones((2, 5)))
    for rule, expected in (("lowest", [0, 0]), ("stay", [3, 1])):
        policy = LinUCB(**_options(num_clusters=5, tie=rule))
        assert policy.act(policy.init(2), evidence, NO_RANDOMNESS)[1].label_N.tolist() == expected
    policy, rng = LinUCB(num_clusters=5), stream(0, "ties")
    picked = [policy.act(policy.init(2), evidence, rng)[1].label_N for _ in range(1000)]
    assert stats.chisquare(np.bincount(np.concatenate(picked), minlength=5)).pvalue > 0.001


def test_staying_is_only_for_ties() -> None:
    """An arm whose bound is higher than the current one's wins under every rule."""
    for rule in ("random", "lowest", "stay"):
        policy = LinUCB(**_options(num_clusters=3, tie=rule))
        state = policy.init(1)
        state.b_NKF[0, 2] = [0, 0, 0.1, 0]
        _, (label, _) = policy.act(state, clustering_evidence([1], [[1.0, 1.0, 1.0]]), NO_RANDOMNESS)
        assert label.tolist() == [2]


def test_lowest_index_ties_keep_a_uniform_start_in_step() -> None:
    """C.20: from one cluster, lowest-index ties move all edges together for nine events; random ties spread them."""
    M = 10
    loss_TMK = stream(0, "alike").uniform(0.99, 1.01, (10, M, M))
    active: dict[str, list[int]] = {}
    for tie in ("lowest", "random"):
        policy = LinUCB(**_options(period=1, tau_norm=1, start_labels="uniform", tie=tie))
        active[tie] = [int(np.unique(state.label_N).size) for _, state in scripted_rounds(policy, loss_TMK)]
    assert active["lowest"][:9] == [1] * 9
    assert min(active["random"]) >= 3


def test_alternatives_may_be_limited_to_trained_clusters() -> None:
    """Cluster 2 fits best but never had a member: only with ``all`` is it the alternative of the first feature."""
    evidence = clustering_evidence([0], [[1.0, 0.8, 0.1, 0.9]], used_K=np.array([True, True, False, True]))
    for rule, rival in (("all", 0.1), ("trained", 0.8)):
        policy = LinUCB(**_options(num_clusters=4, alternatives=rule))
        state, _ = policy.act(policy.init(1), evidence, NO_RANDOMNESS)
        assert state.context_NF[0, 0] == pytest.approx(-math.log(rival), abs=1e-6)
        learned = policy.learn(policy.init(1), evidence)
        x = learned.A_NKFF[0, 0]
        assert x[0, 0] - 1 == pytest.approx(math.log(rival) ** 2, abs=1e-6)


def test_without_a_trained_alternative_nothing_is_learned() -> None:
    """C.18: if the filtered set is empty the update is skipped."""
    policy = LinUCB(num_clusters=3, alternatives="trained")
    evidence = clustering_evidence([0, 0], np.ones((2, 3)), used_K=np.array([True, False, False]))
    after = policy.learn(policy.init(2), evidence)
    np.testing.assert_array_equal(after.A_NKFF, policy.init(2).A_NKFF)


def test_decision_time_pairs_the_reward_with_the_context_of_the_choice() -> None:
    """C.23, canonical LinUCB: the context stored at the decision meets the reward observed a period later."""
    policy = LinUCB(num_clusters=2, context_time="decision", tie="stay", period=10)
    first = clustering_evidence([0, 1], [[0.5, 1.5], [1.0, 1.0]], round_=10)
    state = policy.learn(policy.init(2), first)
    np.testing.assert_array_equal(state.A_NKFF, policy.init(2).A_NKFF)  # no decision yet to be rewarded
    state, (label, _) = policy.act(state, first, NO_RANDOMNESS)
    x = state.context_NF[0].copy()
    np.testing.assert_allclose(x, [math.log(0.5 / 1.5), 0.0, 0.25, 0.1], atol=1e-6)
    later = clustering_evidence(label, [[0.2, 0.8], [1.0, 1.0]], round_=20)
    state = policy.learn(state, later)
    np.testing.assert_allclose(state.A_NKFF[0, 0], np.eye(4) + np.outer(x, x), atol=1e-12)
    np.testing.assert_allclose(state.b_NKF[0, 0], 0.6 * x, atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_per_arm_contexts_look_at_every_arm_as_if_it_were_the_current_one(seed: int) -> None:
    rng = stream(seed, "per-arm")
    M, K, t = 6, 4, 60
    policy = LinUCB(num_clusters=K, arm_features="per_arm", tie="lowest")
    label, loss = rng.integers(K, size=M), rng.uniform(0.2, 2, (M, K))
    x_past = rng.normal(size=(M, K, 4))
    state = policy.init(M)._replace(
        A_NKFF=np.eye(4) + x_past[..., :, None] * x_past[..., None, :],
        b_NKF=rng.normal(size=(M, K, 4)),
        entered_N=rng.integers(0, t, size=M),
    )
    evidence = clustering_evidence(label, loss, round_=t)
    after, (chosen, _) = policy.act(state, evidence, NO_RANDOMNESS)
    learned = policy.learn(state, evidence)
    sizes = [int((label == k).sum()) for k in range(K)]
    for m in range(M):
        contexts, scores = [], []
        for k in range(K):
            rival = min((j for j in range(K) if j != k), key=lambda j: loss[m, j])
            members = sizes[k] + sizes[rival]
            x = np.array(
                [
                    math.log((loss[m, k] + 1e-8) / (loss[m, rival] + 1e-8)),
                    (sizes[k] - sizes[rival]) / members if members else 0.0,
                    min((t - state.entered_N[m]) / 40, 1) if k == label[m] else 0.0,
                    t / 100,
                ]
            )
            inverse = np.linalg.inv(state.A_NKFF[m, k])
            contexts.append(x)
            scores.append(inverse @ state.b_NKF[m, k] @ x + 0.3 * math.sqrt(x @ inverse @ x))
        assert chosen[m] == int(np.argmax(scores))
        np.testing.assert_allclose(after.context_NF[m], contexts[chosen[m]], atol=1e-12)
        gained = learned.A_NKFF[m, label[m]] - state.A_NKFF[m, label[m]]
        np.testing.assert_allclose(gained, np.outer(contexts[label[m]], contexts[label[m]]), atol=1e-12)


def test_discount_reaches_the_statistics() -> None:
    evidence = clustering_evidence([0, 1], [[1.0, 2.0], [2.0, 1.0]])
    forgetful, keeping = LinUCB(discount=0.5), LinUCB()
    twice = {}
    for policy in (forgetful, keeping):
        state = policy.init(2)
        for _ in range(2):
            state = policy.learn(state, evidence)
        twice[policy.discount] = state.A_NKFF[0, 0] - np.eye(4)
    np.testing.assert_allclose(twice[0.5], 0.75 * twice[1.0], atol=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 5.0])
def test_exploration_weight(alpha: float) -> None:
    """A good arm, well known, against an unknown one: without exploration it is kept, with much it is left."""
    policy = LinUCB(num_clusters=2, ucb_alpha=alpha)
    state, evidence = policy.init(1), clustering_evidence([0], [[0.5, 1.5]])
    for _ in range(10):
        state = policy.learn(state, evidence)
    assert policy.act(state, evidence, NO_RANDOMNESS)[1].label_N.tolist() == [0 if alpha == 0 else 1]


@pytest.mark.parametrize(
    "loss",
    [[[np.inf, 1.0, 2.0]], [[1.0, np.inf, np.inf]], [[np.inf, np.inf, np.inf]]],
    ids=["current", "others", "all"],
)
def test_an_infinite_loss_is_survived(loss: list[list[float]]) -> None:
    """The cloud reports a diverged model as infinitely bad: the bandit must stay finite and go on choosing."""
    policy = LinUCB(num_clusters=3)
    state = policy.init(1)
    evidence = clustering_evidence([0], loss)
    for _ in range(3):
        state = policy.learn(state, evidence)
        state, (label, _) = policy.act(state, evidence, stream(0, "inf"))
        assert 0 <= label[0] < 3
    assert all(np.isfinite(array).all() for array in state)


def _options(**options: Any) -> dict[str, Any]:
    """Let mypy accept literals that come from a parametrization."""
    return options
