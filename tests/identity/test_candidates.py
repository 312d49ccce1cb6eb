"""Edges that measure some clusters instead of all: what is read, what is sent, and that all of them is the same."""

import numpy as np
import pytest

from fedbac import ConfigError, configure
from fedbac.clustering import LinUCB, LowestLoss
from fedbac.clustering.loss import lowest_loss
from fedbac.config.experiment import Method, Training
from fedbac.contracts import check_clustering
from fedbac.core.queries import Evidence, Loss
from fedbac.core.rng import stream
from fedbac.core.state import flatten
from fedbac.data import planted_groups
from fedbac.errors import PolicyError
from fedbac.models import Perceptron
from fedbac.personalization import PerCluster
from tests.covering import first
from tests.support import Played, play
from tests.unit.tiny import clustering_evidence

EDGES, CLIENTS = 6, 2
POLICIES: dict[str, LinUCB | LowestLoss] = {
    "linucb": LinUCB(period=1),
    "lowest_loss": LowestLoss(num_clusters=None, period=1),
}
SHOWN: list[Evidence] = []


def played(policy: LinUCB | LowestLoss, num_rounds: int = 2, num_edges: int = EDGES) -> Played:
    dataset, shards, _ = planted_groups(num_edges, CLIENTS, train=20, validation=0, test=40)
    method = Method(name="test", clustering=policy, personalization=PerCluster(cluster_init="distinct"))
    training = Training(epochs=2, batch_size=10, learning_rate=0.1)
    return play(method, dataset, shards, training=training, network=Perceptron(hidden=()), num_rounds=num_rounds)


def with_candidates(kind: str, candidates: int | None) -> LinUCB | LowestLoss:
    return POLICIES[kind].model_copy(update={"candidates": candidates})


@pytest.mark.covering
@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize("candidates", [EDGES, EDGES + 5])
def test_as_many_candidates_as_clusters_are_all_clusters(kind: str, candidates: int) -> None:
    """To the bit: every network, every number that a policy remembers, every byte."""
    every, some = played(with_candidates(kind, None)), played(with_candidates(kind, candidates))
    ours, theirs = flatten(every.end), flatten(some.end)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value.numpy(), theirs[name].numpy())
    assert [record["bytes"] for record in every.records] == [record["bytes"] for record in some.records]


@pytest.mark.parametrize("kind", first(1, POLICIES))
def test_only_candidates_are_sent_and_paid_for(kind: str) -> None:
    """C of K networks to each edge and each of its clients, and as many answers."""
    (every,), (some,) = (played(with_candidates(kind, count), num_rounds=1).records for count in (None, 3))
    for tier in ("cloud", "client"):
        sent, told = (
            [record["bytes"][tier][way][purpose] for record in (every, some)]
            for way, purpose in (("down", "evaluate"), ("up", "control"))
        )
        assert sent[1] * EDGES == sent[0] * 3 > 0
        answers = (EDGES if tier == "cloud" else EDGES * CLIENTS) * (EDGES - 3) * 2
        assert told[0] - told[1] == answers * 4, "a loss and an accuracy of each network that is not measured"


class Watched(LowestLoss):
    """Writes down what it is shown."""

    def learn(self, state: object, evidence: Evidence) -> object:  # type: ignore[override]
        SHOWN.append(evidence)
        return state


def test_an_edge_measures_its_own_cluster_and_others_drawn_anew() -> None:
    """What it reads of them is what it would have read of all; the rest is missing."""
    SHOWN.clear()
    for candidates in (None, 4):
        played(Watched(num_clusters=None, period=1, threshold=0.0, candidates=candidates), num_rounds=3)
    every, some = (
        [shown[Loss("clusters", candidates=count)] for shown in SHOWN[first : first + 3]]
        for first, count in ((0, None), (3, 4))
    )
    for all_NK, some_NK in zip(every, some, strict=True):
        measured_NK = ~np.isnan(some_NK)
        assert (measured_NK.sum(1) == 4).all()
        assert measured_NK.diagonal().all(), "nobody has moved from its own cluster"
        np.testing.assert_array_equal(some_NK[measured_NK], all_NK[measured_NK])
    drawn = {tuple(np.flatnonzero(~np.isnan(row))) for some_NK in some for row in some_NK}
    assert len(drawn) > 6, "by edge and by round"


def test_what_was_not_measured_is_no_alternative() -> None:
    policy = LinUCB(candidates=3, alternatives="trained", tie="stay")
    query = Loss("clusters", candidates=3)
    loss_NK = np.array([[2.0, np.nan, 1.0, 3.0], [np.nan, 2.0, np.nan, 1.5], [np.nan] * 4])
    used_K = np.array([True, True, True, False])
    evidence = clustering_evidence([0, 1, 2], loss_NK, used_K=used_K, readings={query: loss_NK})
    before = policy.init(4)
    after = policy.learn(before, evidence)
    assert after.b_NKF[0, 0, 0] == pytest.approx(-(1 / 3) * np.log(2)), "against the only trained one it measured"
    assert (after.b_NKF[1:] == 0).all(), "the second had no alternative, the third was not asked"
    _, (label_N, _) = policy.act(after, evidence, stream(0, "unused"))
    assert label_N[2] == 2
    assert lowest_loss(loss_NK, np.array([0, 1, 2]), 0.95).tolist() == [2, 3, 2]


@pytest.mark.full
def test_lowest_loss_finds_planted_groups_with_two_candidates() -> None:
    """One cluster more than groups, labels drawn at random: each look may be the wrong one, but the next may not."""
    policy = LowestLoss(num_clusters=4, period=1, threshold=1.0, start_labels="random", candidates=2)
    found = played(policy, num_rounds=12, num_edges=9)
    group_N, label_N = np.arange(9) % 3, found.end.label_N
    assert len({*zip(group_N.tolist(), label_N.tolist(), strict=True)}) == np.unique(label_N).size == 3
    assert found.accuracy > 0.9


@pytest.mark.parametrize("policy", [LinUCB(candidates=2), LowestLoss(num_clusters=None, candidates=3)])
def test_policies_with_candidates_keep_the_contract(policy: LinUCB | LowestLoss) -> None:
    check_clustering(policy)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["method.clustering.candidates=1"], r"method\.clustering\.candidates.*2"),
        (["method.clustering.candidates=2", "method.clustering.arm_features=per_arm"], r"leave candidates out"),
    ],
)
def test_candidates_that_decide_nothing_are_refused(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configure("fed-bac", "demo", settings=settings)


def test_only_clusters_have_candidates() -> None:
    with pytest.raises(PolicyError, match="only 'clusters' has any"):
        Loss("own", candidates=3)
    with pytest.raises(PolicyError, match="at least 2"):
        Loss("clusters", candidates=1)
