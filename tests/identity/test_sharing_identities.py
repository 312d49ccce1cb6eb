"""Methods whose clusters share, or are found from updates: special cases that are another method (methods.md, D.2)."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from fedbac.clustering import Agglomerative, Fixed, GaussianRewards, KMeans, Merging
from fedbac.config.experiment import Method, Training
from fedbac.core import trees
from fedbac.core.parts import Params, Parts
from fedbac.core.policies import ClusterPolicy, Sharing
from fedbac.data import planted_groups
from fedbac.local import LoopTrainer
from fedbac.personalization import Additive, PerCluster
from fedbac.presets.methods import METHODS
from fedbac.sharing import (
    Apart,
    Blend,
    Distill,
    DistillAdaptive,
    LeaveOneOut,
    MeanThenApart,
    PredictTowardsMean,
    Similar,
)
from tests.covering import first
from tests.support import Played, Scripted, deal, distance, model_of_edge, on_test, play, prepare, question, without

DATA, SHARDS, _ = planted_groups(6, 3, 2, train=12, validation=4, test=15)
UNEVEN = deal(DATA, [[1, 30], [7, 12, 3], [20]], test=[30, 30, 30])
VALIDATED = deal(DATA, [[10, 4], [5], [8, 16]], validation=3, test=[30, 30, 30])
RICH = Training(epochs=2, batch_size=5, learning_rate=0.1, learning_rate_decay=0.9, weight_decay=0.01, clip_norm=0.5)
HIERFAVG = Method(name="hierfavg")
TASK = prepare(HIERFAVG, DATA, SHARDS)[0].task
ISOLATED = METHODS["local"](TASK)
FROM_THE_FIRST = ((1.0, 0.0, 0.0),) * 3


def shared(sharing: Sharing, clustering: ClusterPolicy | None = None, **scheme: Any) -> Method:
    """Return a method of isolated networks that share so; one for each edge by default."""
    return Method(name="test", clustering=clustering or Fixed(), sharing=sharing, personalization=PerCluster(**scheme))


def run(method: Method, num_rounds: int = 3) -> Played:
    return play(method, DATA, VALIDATED, training=RICH, num_rounds=num_rounds)


@cache
def hierfavg(num_rounds: int) -> Played:
    return run(HIERFAVG, num_rounds)


@cache
def isolated() -> Played:
    return run(ISOLATED)


def one(params: Params) -> Parts:
    return {"network": params}


def mean_of_clusters(played: Played, t: int = -1) -> Parts:
    """Return the mean of all clusters' networks after a round, by data."""
    size_N = np.array([site.size for site in played.federation.sites], dtype=np.float64)
    state = played.states[t]
    weight_K = np.bincount(state.label_N, weights=size_N, minlength=state.num_clusters).astype(np.float64)
    return one(trees.weighted_mean(state.parts["cluster"], weight_K))


def the_network(played: Played, t: int = -1) -> Parts:
    return one(trees.take(played.states[t].parts["global"], 0))


def assert_is_hierfavg(method: Method, byte_for_byte: bool = True) -> None:
    """The mean of clusters goes HierFAVG's way, and every edge is judged by it."""
    left, right = run(method, 4), hierfavg(4)
    for t in range(5):
        assert distance(mean_of_clusters(left, t), the_network(right, t)) < 1e-6
    for mine, theirs in zip(left.records, right.records, strict=True):
        assert mine["accuracy_per_edge"] == theirs["accuracy_per_edge"]
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        assert mine["bytes"] == theirs["bytes"] or not byte_for_byte


def assert_same(left: Played, right: Played, *fields: str) -> None:
    assert distance(left.end.parts, right.end.parts) == 0
    assert without(left.records, *fields) == without(right.records, *fields)


# --------------------------------------------------------------------------------------- one network for all


SHARE_ALL = {
    "fedavg-ft, never alone": shared(MeanThenApart(alone_rounds=0)),
    "phe-fl by data": shared(LeaveOneOut(blend="by_data")),
    "chpfl-edges with α = 0": shared(Blend(start=0, rate=0)),
    "chpfl-edges with α = 0 after its grouping": shared(Blend(start=0, rate=0), KMeans(num_clusters=2)),
    "pfedgraph-edges without its graph": shared(Similar(strength=0)),
    "cflhkd with ρ = 1 in every round": shared(Distill(share=0, mean_share=1, mean_period=1), taught=True),
    "cflhkd with ρ = 1 in every round after its grouping": shared(
        Distill(share=0, mean_share=1, mean_period=1), Agglomerative(warmup=2, num_clusters=2), taught=True
    ),
}


@pytest.mark.parametrize("method", SHARE_ALL.values(), ids=SHARE_ALL)
def test_clusters_that_share_all_are_hierfavg(method: Method) -> None:
    assert_is_hierfavg(method)


ONE_CLUSTER = {
    "fl-hc-edges with a threshold that nothing reaches": Agglomerative(warmup=1, period=1, threshold=1e9),
    "fedgwc that never splits": GaussianRewards(separation=0, epsilon=1e9, patience=1),
}


@pytest.mark.parametrize("clustering", ONE_CLUSTER.values(), ids=ONE_CLUSTER)
def test_clusterings_that_never_part_are_hierfavg(clustering: ClusterPolicy) -> None:
    left, right = run(shared(Apart(), clustering), 4), hierfavg(4)
    assert distance(one(trees.take(left.end.parts["cluster"], 0)), the_network(right)) == 0
    assert without(left.records, "decided") == without(right.records, "decided")


# -------------------------------------------------------------------------------------------- isolated edges


SHARE_NOTHING = {
    "phe-fl with α = 1": shared(LeaveOneOut(blend=1.0)),
    "chpfl-edges with α = 1": shared(Blend(start=1, rate=0)),
    "fed-csad with λ_max = 0": shared(DistillAdaptive(max_share=0), taught=True),
    "cflhkd with λ = 0 and ρ = 0": shared(Distill(share=0, mean_share=0), taught=True),
    "fedavg-ft, always alone": shared(MeanThenApart(alone_rounds=4)),
}


@pytest.mark.parametrize("method", SHARE_NOTHING.values(), ids=SHARE_NOTHING)
def test_clusters_that_share_nothing_are_isolated_edges(method: Method) -> None:
    assert_same(run(method), isolated())


def parted_after(num_rounds: int) -> Method:
    """Return one network for all that every edge goes on with alone."""
    script = ((0, 0, 0),) * num_rounds + ((0, 1, 2),)
    return shared(Apart(), Scripted(num_clusters=3, script=script, origin=FROM_THE_FIRST))


def test_fl_hc_with_a_threshold_of_zero_leaves_every_edge_alone_from_the_joint_network() -> None:
    left, right = run(shared(Apart(), Agglomerative(warmup=2, threshold=0)), 5), run(parted_after(2), 5)
    for edge in range(3):
        assert distance(model_of_edge(left, edge), model_of_edge(right, edge)) == 0
    assert [r["moves"] for r in left.records] == [0, 2, 0, 0, 0], "groups are made once"
    assert [r["accuracy_per_edge"] for r in left.records] == [r["accuracy_per_edge"] for r in right.records]


@pytest.mark.parametrize("alone_rounds", first(1, [1, 2, 4]))
def test_fine_tuning_is_hierfavg_and_then_every_edge_alone(alone_rounds: int) -> None:
    """Bytes too: an edge gets one network in every round, whoever else has it."""
    tuned, right = run(shared(MeanThenApart(alone_rounds=alone_rounds)), 5), run(parted_after(5 - alone_rounds), 5)
    plain = hierfavg(5)
    assert [r["bytes"] for r in tuned.records] == [r["bytes"] for r in plain.records]
    for t in range(5 - alone_rounds):
        assert distance(mean_of_clusters(tuned, t + 1), the_network(plain, t + 1)) < 1e-6
        assert tuned.records[t]["accuracy_per_edge"] == plain.records[t]["accuracy_per_edge"]
    for edge in range(3):
        assert distance(model_of_edge(tuned, edge), model_of_edge(right, edge)) < 1e-6
    assert tuned.records[-1]["accuracy_per_edge"] == right.records[-1]["accuracy_per_edge"]


@pytest.mark.parametrize("alone_rounds", first(1, [1, 2]))
def test_merging_that_begins_together_and_never_merges_is_fine_tuning(alone_rounds: int) -> None:
    """Bits too, up to the parting and after it; nothing is measured before. Edges here are strangers."""
    steps = RICH.epochs * (2 + 1 + 1 + 2 + 4) / 5  # batches of five
    policy = Merging(alone_steps=int(alone_rounds * steps), tolerance=0, period=1)
    left, right = run(shared(Apart(), policy), 5), run(parted_after(5 - alone_rounds), 5)
    for edge in range(3):
        assert distance(model_of_edge(left, edge), model_of_edge(right, edge)) == 0
    assert [r["accuracy_per_edge"] for r in left.records] == [r["accuracy_per_edge"] for r in right.records]
    assert [r["assignment_next"] for r in left.records] == [r["assignment_next"] for r in right.records]
    before = slice(0, 4 - alone_rounds)
    assert [r["bytes"] for r in left.records[before]] == [r["bytes"] for r in hierfavg(5).records[before]]


def test_two_networks_of_the_only_cluster_are_additive_ones() -> None:
    """Whoever owns them, all edges average both."""
    only = Fixed(num_clusters=1)
    left = run(Method(name="test", clustering=only, personalization=PerCluster(networks=2)))
    right = run(Method(name="test", clustering=only, personalization=Additive(l2_cluster=0)))
    for mine, theirs in (("cluster", "global"), ("second", "cluster")):
        assert distance(one(left.end.parts[mine]), one(right.end.parts[theirs])) == 0
    assert without(left.records) == without(right.records)


def test_cflhkd_without_teachers_and_mean_is_clustered_learning_with_the_same_assignment() -> None:
    clustering = Agglomerative(metric="cosine", threshold=0.5, warmup=2, period=2)
    taught = Method(
        name="cflhkd",
        clustering=clustering,
        sharing=Distill(share=0, mean_share=0),
        personalization=PerCluster(taught=True),
    )
    plain = Method(name="clustered", clustering=clustering, personalization=PerCluster())
    left, right = (play(method, DATA, SHARDS, training=RICH, num_rounds=5) for method in (taught, plain))
    assert_same(left, right)
    assert left.records[-1]["active_clusters"] > 1, "otherwise nothing was tested"


# --------------------------------------------------------------------------------- what teachers and blends do


def spread(played: Played) -> float:
    """Return the mean distance between the networks of clusters."""
    flat = trees.rows(played.end.parts["cluster"])
    return float(np.mean([float((flat[a] - flat[b]).norm()) for a, b in ((0, 1), (0, 2), (1, 2))]))


@pytest.mark.full
def test_clusters_that_teach_each_other_stay_closer() -> None:
    policies = [Distill(share=share, ramp_rounds=0, mean_share=0, temperature=1) for share in (0, 0.3, 0.8)]
    found = [spread(run(shared(policy, taught=True), 5)) for policy in policies]
    assert found[0] > found[1] > found[2]


@pytest.mark.parametrize("teacher", ["mean", "others"])
def test_teachers_are_measured_as_the_mean_of_all_or_of_all_others(teacher: Any) -> None:
    played = run(shared(DistillAdaptive(teacher=teacher), taught=True))
    parts, clients = played.end.parts["cluster"], VALIDATED.clients
    trainer = LoopTrainer(played.federation.network, PerCluster(), played.federation.examples)
    size_K = np.array([site.size for site in played.federation.sites], dtype=np.float64)

    def accuracy(network: Params, edge: int) -> float:
        (found,) = trainer.evaluate([question([{"cluster": network}], "validation", clients[edge])])
        return float(found.accuracy_VG[0].mean())  # every client holds out three examples

    for edge in range(3):
        weight_K = np.where(np.arange(3) == edge, 0 if teacher == "others" else size_K, size_K)
        ahead = accuracy(trees.weighted_mean(parts, weight_K), edge) - accuracy(trees.take(parts, edge), edge)
        assert played.end.sharing.ahead_N[edge] == pytest.approx(ahead, abs=1e-6)


@pytest.mark.full
def test_blends_move_towards_edges_that_have_nothing_in_common() -> None:
    """B.6 and B.7: every edge has labels of its own, so its own network serves it better than any mean."""
    data, shards, _ = planted_groups(3, 2, 3, train=40, validation=10, test=20)
    own = {}
    for sharing in (Blend(), LeaveOneOut()):
        method = shared(sharing)
        played = play(method, data, shards, training=RICH.model_copy(update={"weight_decay": 0}), num_rounds=5)
        own[sharing.kind] = played.end.sharing.own_N
    assert (own["leave_one_out"] > 0.5).all()
    assert (own["blend"] > 0.6).all(), "they begin at 0.5"


# ------------------------------------------------------------------------------ blends that only predict


def test_blends_that_only_predict_are_trained_as_isolated_edges() -> None:
    left, right = run(shared(PredictTowardsMean(period=1))), isolated()
    assert distance(left.end.parts, right.end.parts) == 0
    assert [r["loss"] for r in left.records] == [r["loss"] for r in right.records]


def test_edges_predict_with_the_blend_that_loses_least_on_their_validation_data() -> None:
    """A plain loop over edges and shares finds the same shares, and the accuracies of the record."""
    played = run(shared(PredictTowardsMean(period=1)))
    parts, share_N = played.end.parts["cluster"], played.end.sharing.share_N
    trainer = LoopTrainer(played.federation.network, PerCluster(), played.federation.examples)
    mean = mean_of_clusters(played)["network"]
    for edge in range(3):
        own = trees.take(parts, edge)
        blends = [
            {"cluster": {name: (1 - share / 10) * own[name] + share / 10 * mean[name] for name in own}}
            for share in range(6)
        ]
        (found,) = trainer.evaluate([question(blends, "validation", VALIDATED.clients[edge])])
        best = int(found.loss_VG.mean(1).argmin())  # every client holds out three examples
        assert share_N[edge] == best / 10
        (tested,) = trainer.evaluate([on_test(blends, edge)])
        assert played.records[-1]["accuracy_per_edge"][edge] == tested.accuracy_VG[best, 0]
    assert len(set(share_N)) > 1, "otherwise little was tested"


@pytest.mark.full
@pytest.mark.parametrize(("num_groups", "lean"), [(1, True), (3, False)])
def test_edges_that_overfit_lean_on_the_mean_if_they_are_alike_and_not_if_they_have_nothing_in_common(
    num_groups: int, lean: bool
) -> None:
    data, shards, _ = planted_groups(3, 2, num_groups, train=40, validation=30, test=20)
    steady = Training(
        epochs=2, batch_size=5, learning_rate=0.1, learning_rate_decay=1.0, weight_decay=0, clip_norm=None
    )
    played = play(shared(PredictTowardsMean(period=20)), data, shards, training=steady, num_rounds=20)
    share_N = played.end.sharing.share_N
    assert share_N.min() >= 0.3 if lean else share_N.max() <= 0.1


PRESETS = ["fl-hc-edges", "fedgwc", "chpfl-edges", "phe-fl", "pfedgraph-edges", "fedavg-ft", "cflhkd-edges", "fed-csad"]


@pytest.mark.parametrize("preset", first(4, PRESETS))
def test_presets_are_neither_hierfavg_nor_isolated_edges_once_in_a_hurry(preset: str) -> None:
    method = METHODS[preset](TASK)
    changes: dict[str, Any] = {}
    if isinstance(method.clustering, Agglomerative):
        changes["clustering"] = method.clustering.model_copy(
            update={"warmup": 1, "period": None, "threshold": None, "num_clusters": 2}
        )
    if isinstance(method.clustering, GaussianRewards):
        changes["clustering"] = method.clustering.model_copy(update={"epsilon": 9.0, "patience": 1})
    if isinstance(method.sharing, MeanThenApart):
        changes["sharing"] = MeanThenApart(alone_rounds=2)
    if isinstance(method.clustering, KMeans):
        changes["clustering"] = KMeans(num_clusters=2)
    played = run(method.model_copy(update=changes))
    for plain in (hierfavg(3), isolated()):
        assert [r["loss"] for r in played.records] != pytest.approx([r["loss"] for r in plain.records], rel=1e-6)
