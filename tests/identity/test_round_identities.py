"""Options of the round loop with a known answer: weights at the cloud, empty clusters, points of evaluation."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn

from fedbac.clustering import Fixed, LinUCB, LowestLoss, Merging
from fedbac.clustering.loss import inherited
from fedbac.config.experiment import Evaluation, Method, Training
from fedbac.core import trees
from fedbac.core.parts import Params, Personalization
from fedbac.core.policies import NoState
from fedbac.core.queries import Ask, Evidence, Gram, Loss, Moment, Query, Split
from fedbac.core.requests import Evaluate
from fedbac.data import Shards, planted_groups
from fedbac.engines import Simulator
from fedbac.local import LoopTrainer
from fedbac.models import weights, zero_last_layer
from fedbac.personalization import Additive, PerCluster, Personal, PersonalHead, Shared
from fedbac.rounds.cloud import rounds
from fedbac.rounds.messages import MeasureOrder, TrainOrder, Wanted
from fedbac.rounds.metrics import JUDGED_AT
from fedbac.rounds.start import start
from fedbac.selection import Random
from fedbac.sharing import Apart
from fedbac.topology import Flat
from tests.covering import first
from tests.support import (
    PLAIN_SGD,
    Played,
    Scripted,
    StubTrainer,
    deal,
    distance,
    only_edge,
    play,
    prepare,
    without,
)

DATA, SHARDS, _ = planted_groups(4, 3, 2, train=10, validation=2, test=15)
UNEVEN = deal(DATA, [[1, 3], [6, 2, 4], [8]], test=[20, 20, 20])
POINTS = ("pre_reassign", "post_reassign", "edge_model")


# ----------------------------------------------------------------------------------------- weights at the cloud


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        # Edge averages by hand: client i has weights i; sizes are (1, 3), (6, 2, 4) and 8.
        ("total", (4 * 3 / 4 + 12 * 34 / 12 + 8 * 5) / 24),
        ("selected", (4 * 3 / 4 + 12 * 34 / 12 + 8 * 5) / 24),
        ("uniform", (3 / 4 + 34 / 12 + 5) / 3),
    ],
)
def test_cloud_weights_when_everybody_trains(rule: Literal["total", "selected", "uniform"], expected: float) -> None:
    played = play(Method(name="test", cloud_weight=rule), DATA, UNEVEN, StubTrainer(), num_rounds=1)
    for value in played.end.parts["global"].values():
        torch.testing.assert_close(value, torch.full_like(value, expected))


@pytest.mark.parametrize("rule", ["total", "selected", "uniform"])
def test_cloud_weights_when_one_client_per_edge_trains(rule: Literal["total", "selected", "uniform"]) -> None:
    method = Method(name="test", selection=Random(fraction=0.3), cloud_weight=rule)
    played = play(method, DATA, UNEVEN, StubTrainer(), num_rounds=1)
    size = {0: 1, 1: 3, 2: 6, 3: 2, 4: 4, 5: 8}
    chosen = [clients[0] for clients in played.records[0]["selected"]]
    assert [len(clients) for clients in played.records[0]["selected"]] == [1, 1, 1]
    weight = {"total": [4, 12, 8], "selected": [size[c] for c in chosen], "uniform": [1, 1, 1]}[rule]
    expected = sum(w * c for w, c in zip(weight, chosen, strict=True)) / sum(weight)
    for value in played.end.parts["global"].values():
        torch.testing.assert_close(value, torch.full_like(value, expected))


def test_clients_may_count_alike_at_edges_and_with_them_at_the_cloud() -> None:
    """The mean of the edges' averages 1/2, 9/3 and 5, by 2, 3 and 1 clients, is that of all clients."""
    played = play(Method(name="test", client_weight="uniform"), DATA, UNEVEN, StubTrainer(), num_rounds=1)
    for value in played.end.parts["global"].values():
        torch.testing.assert_close(value, torch.full_like(value, (0 + 1 + 2 + 3 + 4 + 5) / 6))


def test_cluster_parts_are_averaged_within_the_cluster_and_global_parts_over_all() -> None:
    clustering = Scripted(num_clusters=3, script=((2, 0, 2),))
    method = Method(name="test", clustering=clustering, personalization=Additive(cluster_init="distinct"))
    played = play(method, DATA, UNEVEN, StubTrainer(), num_rounds=1)
    for name, value in played.end.parts["global"].items():
        torch.testing.assert_close(value, torch.full_like(value, (3 + 34 + 40) / 24))
        cluster, before = played.end.parts["cluster"][name], played.states[0].parts["cluster"][name]
        torch.testing.assert_close(cluster[0], torch.full_like(cluster[0], 34 / 12))
        torch.testing.assert_close(cluster[2], torch.full_like(cluster[2], (3 + 40) / 12))
        assert torch.equal(cluster[1], before[1])


# ---------------------------------------------------------------------------------------------- empty clusters


def enter_empty(rule: Literal["keep", "clone"], personalization: Personalization) -> Played:
    """Edges 0 and 2 leave cluster 0 for the empty clusters 2 and 3; edge 1 joins edge 3 in cluster 1."""
    before, after = np.array([0, 0, 0, 1]), np.array([2, 1, 3, 1])
    origin_KJ = inherited(rule, before, after, 4)
    origin = None if origin_KJ is None else tuple(map(tuple, origin_KJ.tolist()))
    clustering = Scripted(num_clusters=4, script=(tuple(before.tolist()), tuple(after.tolist())), origin=origin)
    return play(Method(name="test", clustering=clustering, personalization=personalization), DATA, SHARDS, num_rounds=1)


def row(params: Params, index: int) -> dict[str, Params]:
    return {"network": {name: value[index] for name, value in params.items()}}


@pytest.mark.parametrize("scheme", [PerCluster(cluster_init="distinct"), Additive(cluster_init="distinct")])
def test_what_an_edge_finds_in_an_empty_cluster(scheme: Personalization) -> None:
    kept, cloned = enter_empty("keep", scheme), enter_empty("clone", scheme)
    for played in (kept, cloned):
        record = played.records[0]
        assert record["assignment"] == [0, 0, 0, 1]
        assert record["assignment_next"] == [2, 1, 3, 1]
        assert (record["moves"], record["entered_empty"], record["active_clusters"]) == (3, 2, 2)
        for k in (0, 1):  # left, and joined while it had a member: untouched by the rule
            assert distance(row(played.end.parts["cluster"], k), row(kept.end.parts["cluster"], k)) == 0
    start = kept.states[0].parts["cluster"]
    for k in (2, 3):
        assert distance(row(kept.end.parts["cluster"], k), row(start, k)) == 0
        assert distance(row(cloned.end.parts["cluster"], k), row(kept.end.parts["cluster"], 0)) == 0
    if "global" in scheme.parts:
        assert distance({"g": cloned.end.parts["global"]}, {"g": kept.end.parts["global"]}) == 0


@pytest.mark.parametrize("policy", [LowestLoss(num_clusters=4, period=1, threshold=1.0), LinUCB(period=1)])
def test_policies_clone_into_the_empty_clusters_that_are_entered(policy: LowestLoss | LinUCB) -> None:
    """Whatever is entered while empty holds what its first new member came with; nothing else changes hands."""
    start: dict[str, Any] = {"start_labels": "uniform", "empty_cluster": "clone"}
    method = Method(
        name="test",
        clustering=policy.model_copy(update=start),
        personalization=PerCluster(cluster_init="distinct"),
    )
    played = play(method, DATA, SHARDS, num_rounds=1)
    assert played.records[0]["entered_empty"] > 0
    for k in range(1, 4):
        entered = k in played.records[0]["assignment_next"]
        source, at = (played.end, 0) if entered else (played.states[0], k)
        assert distance(row(played.end.parts["cluster"], k), row(source.parts["cluster"], at)) == 0


def test_zero_last_layer_of_a_network_with_buffers() -> None:
    network = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))
    network.load_state_dict(zero_last_layer(weights(network)), strict=False)
    assert not network.eval()(torch.from_numpy(DATA.x_test[:5])).any()


# ------------------------------------------------------------------------------------------ points of evaluation


def at_points(method: Method, shards: Shards = SHARDS, training: Training = PLAIN_SGD) -> dict[str, Played]:
    return {
        point: play(method, DATA, shards, training=training, evaluation=Evaluation(point=point)) for point in POINTS
    }


def test_where_accuracy_is_measured_never_changes_what_is_learned() -> None:
    clustering = LowestLoss(num_clusters=3, period=1, threshold=1.0, start_labels="random")
    played = at_points(Method(name="test", clustering=clustering, personalization=Additive(cluster_init="distinct")))
    scores = [field for field in played["pre_reassign"].records[0] if field.startswith("accuracy")]
    assert len(scores) == 7
    scores += JUDGED_AT
    for point in POINTS[1:]:
        assert distance(played[point].end.parts, played["pre_reassign"].end.parts) == 0
        assert without(played[point].records, *scores) == without(played["pre_reassign"].records, *scores)


def told(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: record[key] for key in ("accuracy", "accuracy_per_edge")}


@pytest.mark.parametrize(
    "scheme", first(2, [Additive(), PersonalHead(owner="client"), PerCluster(), PersonalHead(owner="edge")]), ids=str
)
def test_a_run_tells_both_moments_whichever_it_is_judged_by(scheme: Any) -> None:
    clusters = any(part.scope == "cluster" for part in scheme.parts.values())
    clustering = Fixed(num_clusters=2 if clusters else 1)
    played = at_points(Method(name="test", clustering=clustering, personalization=scheme))
    before, moved, after = (played[point].records for point in POINTS)
    for t in range(len(before)):
        assert before[t]["after_training"] == moved[t]["after_training"] == told(after[t])
        assert after[t]["before_training"] == told(before[t])
        assert not {"before_training"} & before[t].keys() | {"after_training"} & after[t].keys()


def test_the_other_moment_is_measured_in_the_last_rounds_only() -> None:
    played = play(Method(name="test"), DATA, SHARDS, evaluation=Evaluation(last_rounds=2), num_rounds=4)
    assert ["after_training" in record for record in played.records] == [False, False, True, True]


def test_what_nobody_keeps_is_not_told() -> None:
    """Where all clients meet at the cloud, what they trained is there only as its average; unless it is their own."""
    shared, own = (
        play(Method(name="test", topology=Flat(), personalization=scheme), DATA, SHARDS, num_rounds=1).records[0]
        for scheme in (Shared(), Personal(owner="client"))
    )
    assert shared["after_training"] is None
    assert own["after_training"] == told(own)


def test_before_and_after_assignment_differ_only_in_rounds_with_moves() -> None:
    clustering = Scripted(num_clusters=4, script=((0, 1, 2, 3), (0, 1, 2, 3), (1, 0, 3, 2)))
    played = at_points(Method(name="test", clustering=clustering, personalization=PerCluster(cluster_init="distinct")))
    pre, post = (played[point].records for point in ("pre_reassign", "post_reassign"))
    assert [record["moves"] for record in pre] == [0, 4, 0]
    assert [one["accuracy_per_edge"] == other["accuracy_per_edge"] for one, other in zip(pre, post, strict=True)] == [
        True,
        False,
        True,
    ]


@pytest.mark.full
def test_an_edges_own_model_is_the_clouds_only_if_the_edge_is_alone() -> None:
    singletons = at_points(Method(name="test", clustering=Fixed(), personalization=PerCluster()))
    one_edge = at_points(Method(name="test"), shards=only_edge(SHARDS, 2))
    for played in (singletons, one_edge):
        for point in POINTS[1:]:
            for record, other in zip(played[point].records, played["pre_reassign"].records, strict=True):
                assert record["accuracy_per_edge"] == pytest.approx(other["accuracy_per_edge"])
                assert record["accuracy_global"] == pytest.approx(other["accuracy_global"])
    shared = at_points(Method(name="test"), training=PLAIN_SGD.model_copy(update={"epochs": 10}))
    assert shared["edge_model"].accuracy > shared["pre_reassign"].accuracy + 0.2, "half of the edges call classes else"


def test_scores_are_those_of_the_models_at_that_point() -> None:
    clustering = Scripted(num_clusters=4, script=((0, 1, 2, 3), (1, 0, 0, 2)))
    scheme = PerCluster(cluster_init="distinct")
    played = at_points(Method(name="test", clustering=clustering, personalization=scheme))
    for point, labels in (("pre_reassign", [0, 1, 2, 3]), ("post_reassign", [1, 0, 0, 2])):
        state, federation = played[point].states[1], played[point].federation
        trainer = LoopTrainer(federation.network, scheme, federation.examples)
        rows = {"cluster": np.array(labels)}
        answers = trainer.evaluate([Evaluate(state.parts, rows, "test", (edge,), level="edge") for edge in range(4)])
        record = played[point].records[0]
        assert record["accuracy_per_edge"] == [answers[edge].accuracy_VG[edge, 0] for edge in range(4)]
        everywhere = [sum(answer.accuracy_VG[v, 0] for answer in answers) / 4 for v in range(4)]
        assert record["accuracy_global"] == pytest.approx(sum(everywhere) / 4), "all edges hold 15 test examples"


@pytest.mark.parametrize("point", POINTS)
def test_accuracy_on_all_test_data_is_measured_only_when_it_is_due(point: str) -> None:
    clustering = Scripted(num_clusters=4, script=((0, 1, 2, 3), (1, 0, 0, 2)))
    method = Method(name="test", clustering=clustering, personalization=Additive(cluster_init="distinct"))
    always, sometimes = (
        play(method, DATA, SHARDS, training=PLAIN_SGD, evaluation=Evaluation(point=point, global_every=every)).records
        for every in (1, 2)
    )
    assert [record["accuracy_global"] is None for record in sometimes] == [True, False, False], "due, and the last"
    assert without(sometimes[1:]) == without(always[1:])
    assert without(sometimes, "accuracy_global") == without(always, "accuracy_global")


# ------------------------------------------------------------------------------------------ clusters that merge


def test_a_cluster_continues_from_the_mix_that_the_policy_says() -> None:
    """Edges of 4, 12 and 8 examples: the first two merge; the third goes off alone with a copy of what it had."""
    mix = ((1.0, 0.0, 0.0), (4 / 16, 12 / 16, 0.0), (0.0, 1.0, 0.0))
    clustering = Scripted(num_clusters=3, script=((0, 1, 1), (1, 1, 2)), origin=mix)
    method = Method(name="test", clustering=clustering, personalization=Additive(cluster_init="distinct"))
    played = play(method, DATA, UNEVEN, StubTrainer(), num_rounds=1)
    first, second = 3 / 4, (34 + 40) / 20
    for value in played.end.parts["cluster"].values():
        torch.testing.assert_close(value[0], torch.full_like(value[0], first))
        torch.testing.assert_close(value[1], torch.full_like(value[1], (4 * first + 12 * second) / 16))
        torch.testing.assert_close(value[2], torch.full_like(value[2], second))


def test_whoever_is_given_another_network_has_moved() -> None:
    """An edge that stays in a cluster which another one joins is told so too: its clients are not to blame."""
    mix = ((1.0, 0.0, 0.0), (0.25, 0.75, 0.0), (0.0, 0.0, 1.0))
    labels, after = (0, 1, 2), (1, 1, 2)
    for origin, moved in ((mix, [True, True, False]), (None, [True, False, False])):
        clustering = Scripted(num_clusters=3, script=(labels, after), origin=origin)
        played = play(
            Method(name="test", clustering=clustering, personalization=PerCluster()), DATA, UNEVEN, num_rounds=2
        )
        assert [state.moved_N.tolist() for state in played.states] == [[False] * 3, moved, [False] * 3]
        assert [record["moves"] for record in played.records] == [1, 0], "labels that changed"


SPLITS: tuple[Split, ...] = ("train", "validation")
OCCUPIED = Loss("occupied")


class Onlooker(Scripted):
    """Labels from a list; asks for what merging asks for, and writes down what it is shown."""

    kind: Literal["onlooker"] = "onlooker"  # type: ignore[assignment]

    def needs(self) -> frozenset[Query]:
        return Merging(reward_splits=SPLITS).needs() | {Gram()}

    def ask(self, state: NoState, moment: Moment) -> Ask | None:
        return Ask(after=tuple(self.needs())) if moment.round < len(self.script) else None

    def learn(self, state: NoState, evidence: Evidence) -> NoState:
        SHOWN.append(evidence)
        return state


SHOWN: list[Evidence] = []


class Listener(Apart):
    """Shares nothing; writes down what it is told of updates."""

    kind: Literal["listener"] = "listener"  # type: ignore[assignment]

    def needs(self) -> frozenset[Query]:
        return frozenset({Gram()})

    def ask(self, state: NoState, moment: Moment) -> tuple[Query, ...]:
        return (Gram(),)

    def learn(self, state: NoState, evidence: Evidence) -> NoState:
        SHOWN.append(evidence)
        return state


def test_sharing_hears_of_updates_too() -> None:
    """The same inner products that a clustering policy is shown, at the end of the same round."""
    clustering = Onlooker(num_clusters=3, script=((2, 0, 2), (2, 0, 2)))
    method = Method(name="test", clustering=clustering, sharing=Listener(), personalization=Additive())
    held_out = deal(DATA, [[1, 3], [6, 2, 4], [8]], validation=3, test=[20, 20, 20])
    SHOWN.clear()
    play(method, DATA, held_out, num_rounds=1)
    to_sharing, to_clustering = SHOWN
    assert (to_sharing[Gram()].diagonal() > 0).all()
    np.testing.assert_array_equal(to_sharing[Gram()], to_clustering[Gram()])


def test_what_the_cloud_shows_a_clustering_policy() -> None:
    """Losses of clusters in use, of each member with its own network beside the new global one, and the updates."""
    labels = (2, 0, 2)
    clustering = Onlooker(num_clusters=3, script=(labels, labels))
    scheme = Additive(cluster_init="distinct")
    method = Method(name="test", clustering=clustering, personalization=scheme)
    held_out = deal(DATA, [[1, 3], [6, 2, 4], [8]], validation=3, test=[20, 20, 20])
    experiment, federation = prepare(method, DATA, held_out, num_rounds=1)
    trainer = LoopTrainer(federation.network, scheme, federation.examples)
    edges = Simulator(experiment, federation.sites, trainer)
    SHOWN.clear()
    before = start(experiment, federation.build, federation.sites)
    [(record, after)] = list(rounds(experiment, federation.sites, edges, before))
    (shown,) = SHOWN
    assert np.isinf(shown[OCCUPIED][:, 1]).all()
    orders = [
        TrainOrder(
            m,
            1,
            {"global": before.parts["global"], "cluster": trees.select(before.parts["cluster"], np.array([labels[m]]))},
            {part: np.zeros(len(site.clients), dtype=np.int64) for part in scheme.parts},
            before.selection_M[m],
            moved=False,
        )
        for m, site in enumerate(federation.sites)
    ]
    updates = []
    for m, report in enumerate(edges.train(orders)):
        bank = {
            "global": after.parts["global"],
            "cluster": trees.join(
                [report.bank["cluster"], trees.select(after.parts["cluster"], np.array([labels[m]]))]
            ),
        }
        both = {"global": np.zeros(2, dtype=np.int64), "cluster": np.arange(2)}
        wanted = tuple(Wanted(both, split) for split in SPLITS)
        (measured,) = edges.measure([MeasureOrder(m, bank, wanted, selection=NoState())])
        for split, reading in zip(SPLITS, measured.readings, strict=True):
            unaveraged, own = reading.loss_VG[:, 0]
            assert shown[Loss("unaveraged", split)][m] == pytest.approx(unaveraged)
            assert shown[Loss("own", split)][m] == pytest.approx(own)
        assert shown[OCCUPIED][m, labels[m]] == pytest.approx(shown[Loss("own", "train")][m])
        updates.append(trees.rows(report.bank["cluster"])[0] - trees.rows(orders[m].bank["cluster"])[0])
    np.testing.assert_allclose(shown[Gram()], torch.stack(updates) @ torch.stack(updates).T, rtol=1e-4)
    size = sum(value[0].numel() for value in after.parts["global"].values())
    # To each of three edges the global network and those of two clusters. What an edge trained itself is there; its
    # clients need it too: three of them belong to edges that share a cluster.
    assert record["bytes"]["cloud"]["down"]["evaluate"] == 3 * (1 + 2) * 4 * size
    assert record["bytes"]["client"]["down"]["evaluate"] == (6 * (1 + 2) + 3) * 4 * size
