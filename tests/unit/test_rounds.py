"""What the round loop tells policies and writes down; averages, failures and scores have their tests elsewhere."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import pytest
import torch

from fedbac import (
    Experiment,
    Fixed,
    Hierarchical,
    LowestLoss,
    Measurement,
    Method,
    OnceOverfitted,
    Perceptron,
    PerCluster,
    Random,
    Run,
    Settings,
    Shared,
    Training,
)
from fedbac.core.parts import Parts
from fedbac.core.policies import NoState
from fedbac.core.queries import Accuracy, Ask, Evidence, Loss, Query, Statistic
from fedbac.core.requests import Average, Averaged, Evaluate, Measured, Result
from fedbac.core.rng import Rng
from fedbac.core.settings import BoolArray
from fedbac.errors import PolicyError
from fedbac.models import builder
from fedbac.rounds.cloud import rounds
from fedbac.rounds.edge import serve
from fedbac.rounds.messages import Site, TrainOrder, TrainReport
from fedbac.rounds.start import start
from tests.unit.tiny import ScriptedEdges, scripted_rounds, tiny_run, tiny_task

FIELDS = {
    "round", "accuracy", "accuracy_per_edge", "accuracy_std", "accuracy_min", "accuracy_max", "accuracy_weighted",
    "accuracy_global", "loss", "notes", "assignment", "moves", "active_clusters", "selected", "bytes", "seconds",
}  # fmt: skip


def test_moves_are_told_to_selection_in_the_next_round_only() -> None:
    loss_TMK = np.ones((4, 2, 2))
    loss_TMK[1, 1] = [0.1, 9.0]  # after round 2 edge 1 moves to cluster 0
    history = list(scripted_rounds(LowestLoss(num_clusters=2, period=1), loss_TMK))
    moved = [state.moved_N.tolist() for _, state in history]
    assert moved == [[False, False], [False, True], [False, False], [False, False]]
    assert [record["moves"] for record, _ in history] == [0, 1, 0, 0]
    assert [record["active_clusters"] for record, _ in history] == [2, 2, 1, 1]
    assert [record["assignment"] for record, _ in history] == [[0, 1], [0, 1], [0, 0], [0, 0]]
    assert [record["assignment_next"] for record, _ in history] == [[0, 1], [0, 0], [0, 0], [0, 0]]


def test_the_edge_hears_of_its_move_in_its_next_order() -> None:
    loss_TMK = np.ones((3, 2, 2))
    loss_TMK[0, 1] = [0.1, 9.0]
    orders: list[tuple[int, int, bool]] = []
    list(scripted_rounds(LowestLoss(num_clusters=2, period=1), loss_TMK, heard=orders))
    assert orders == [(t, m, (t, m) == (2, 1)) for t in (1, 2, 3) for m in (0, 1)]


SEEN: list[Evidence] = []


BEFORE, AFTER, TRAINING = Accuracy("received", "validation"), Accuracy("trained", "validation"), Statistic("loss")
VALIDATION = Loss("trained", "validation")


class Observer(Settings):
    """Selects everybody, asks for everything, and writes down what it learns from."""

    kind: Literal["observer"] = "observer"
    adaptive: ClassVar[bool] = False
    fraction: float = 1.0

    def needs(self) -> frozenset[Query]:
        return frozenset({BEFORE, AFTER, TRAINING})

    def init(self, num_members: int) -> NoState:
        return NoState()

    def ask(self, state: NoState, evidence: Evidence, rng: Rng) -> Ask:
        return Ask(before=(BEFORE,), after=(AFTER, TRAINING))

    def act(self, state: NoState, evidence: Evidence, rng: Rng) -> BoolArray:
        assert set(evidence.readings) == {BEFORE}  # the rest only training can tell
        return Random().act(NoState(), evidence, rng)

    def learn(self, state: NoState, evidence: Evidence, mask_N: BoolArray) -> NoState:
        SEEN.append(evidence)
        return state


ROWS_3 = {"global": np.zeros(3, dtype=np.int64)}


def network(*values: float) -> Parts:
    return {"global": {"w": torch.tensor([values])}}


def averaged(values: tuple[float, ...], weight: int, healthy: list[bool], loss: list[float]) -> Averaged:
    return Averaged(network(*values), {"global": np.array([weight])}, np.array(healthy), np.array(loss))


def test_an_edge_shows_selection_what_it_asked_for_in_every_edge_round() -> None:
    """Accuracy before and after training, means over clients by validation size; a move counts once.

    The model that the second edge round begins with was measured already at the end of the first.
    """
    method = Method(name="x", selection=Observer(), topology=Hierarchical(edge_rounds=2))
    experiment = Experiment(task=tiny_task(rounds=7), method=method)
    site = Site(1, (5, 6, 7), np.array([10, 20, 0]), np.array([1, 3, 0]), num_classes=2)
    order = TrainOrder(1, 4, network(0, 0), ROWS_3, NoState(), moved=True, readings=(VALIDATION,))
    work = serve(order, site, experiment)
    SEEN.clear()
    answers: list[Result] = []
    requests = [next(work)]
    for accuracy in ([0.1, 0.5], None, [0.2, 0.6], None, [0.4, 0.8]):
        if accuracy is None:
            answers.append(averaged((3, 3), 30, [True, True], [1.0, 2.0 + len(answers)]))
        else:
            loss = 10 * np.array([accuracy])
            answers.append(Measured(loss, np.array([accuracy]), np.array([1, 3])))
        try:
            requests.append(work.send(answers[-1]))
        except StopIteration as done:
            report: TrainReport = done.value
    assert [type(request) for request in requests] == [Evaluate, Average, Evaluate, Average, Evaluate]
    training = [request for request in requests if isinstance(request, Average)]
    assert [request.size_C.tolist() for request in training] == [[10, 20]] * 2
    measuring = [request for request in requests if isinstance(request, Evaluate)]
    asked = [*(request.owners for request in measuring), *(request.train.clients for request in training)]
    assert asked == [(5, 6)] * 5  # client 7 holds nothing
    assert [(e.round, e.num_rounds, e.num_classes, e.moved) for e in SEEN] == [(4, 7, 2, True), (4, 7, 2, False)]
    assert [float(e[BEFORE]) for e in SEEN] == pytest.approx([0.4, 0.5])
    assert [float(e[AFTER]) for e in SEEN] == pytest.approx([0.5, 0.7])
    np.testing.assert_array_equal([e[TRAINING] for e in SEEN], [[1.0, 3.0, np.nan], [1.0, 5.0, np.nan]])
    starts = [request.train.bank["global"]["w"].tolist() for request in training]
    assert starts == [[[0.0, 0.0]], [[3.0, 3.0]]]
    assert (report.selected, report.failed, report.weight["global"].tolist()) == ((5, 6), (), [30])
    assert report.loss == pytest.approx((7 / 3 + 11 / 3) / 2)
    assert report.readings == pytest.approx((7,))  # at the end


class Chooser(Random):
    """Takes the client on whose data the received model does worst."""

    kind: Literal["chooser"] = "chooser"  # type: ignore[assignment]
    wish: ClassVar[Loss] = Loss("received", "validation", each=True)

    def needs(self) -> frozenset[Query]:
        return frozenset({self.wish})

    def ask(self, state: NoState, evidence: Evidence, rng: Rng) -> Ask:
        return Ask(before=(self.wish,))

    def act(self, state: NoState, evidence: Evidence, rng: Rng) -> BoolArray:
        SEEN.append(evidence)
        chosen: BoolArray = evidence[self.wish] == np.nanmax(evidence[self.wish])
        return chosen


def test_selection_may_ask_for_each_clients_loss_before_it_acts() -> None:
    experiment = Experiment(task=tiny_task(), method=Method(name="x", selection=Chooser()))
    site = Site(0, (5, 6, 7), np.array([10, 20, 5]), np.array([1, 3, 0]), num_classes=2)
    work = serve(TrainOrder(0, 1, network(0, 0), ROWS_3, NoState(), moved=False), site, experiment)
    asked = next(work)
    assert isinstance(asked, Evaluate)
    assert asked.owners == (5, 6)  # client 7 holds no validation data
    SEEN.clear()
    request = work.send(Measured(np.array([[0.3, 0.9]]), np.zeros((1, 2)), np.array([1, 3])))
    np.testing.assert_array_equal(SEEN[0][Chooser.wish], [0.3, 0.9, np.nan])
    assert isinstance(request, Average)
    assert request.train.clients == (6,)


def test_evidence_that_nobody_asked_for_is_an_error_that_says_so() -> None:
    evidence = Evidence(1, 2, 3, np.array([1]), {BEFORE: np.array(0.5)})
    with pytest.raises(PolicyError, match=r"Accuracy\(of='trained'.*was not asked for.*Accuracy\(of='received'"):
        evidence[AFTER]


class Doubter(Observer):
    """Trusts its second client only."""

    kind: Literal["doubter"] = "doubter"  # type: ignore[assignment]

    def trusted(self, state: NoState) -> BoolArray:
        return np.array([False, True])


@pytest.mark.parametrize(("clients", "expected"), [("all", 6.0), ("trusted", 5.0), ("selected", 8.0)])
def test_what_the_cloud_reads_is_of_the_clients_that_measure(
    clients: Literal["all", "trusted", "selected"], expected: float
) -> None:
    """Validation losses are 8 and 5, of 1 and 2 examples; the second client fails in training."""
    method = Method(name="x", selection=Doubter(), measurement=Measurement(clients=clients))
    experiment = Experiment(task=tiny_task(), method=method)
    site = Site(0, (5, 6), np.array([10, 10]), np.array([1, 2]), num_classes=2)
    rows = {"global": np.zeros(2, dtype=np.int64)}
    measured = Measured(np.array([[8.0, 5.0]]), np.zeros((1, 2)), np.array([1, 2]))
    order = TrainOrder(0, 1, network(0, 0), rows, NoState(), moved=False, readings=(VALIDATION,))
    work = serve(order, site, experiment)
    next(work)
    work.send(measured)
    work.send(averaged((0, 0), 10, [True, False], [2.0, np.nan]))
    with pytest.raises(StopIteration) as done:
        work.send(measured)
    assert done.value.value.readings == pytest.approx((expected,))


class Overfitting(ScriptedEdges):
    """Edges that lose more on validation data than in training, from the first round on."""

    def train(self, orders: Sequence[TrainOrder]) -> list[TrainReport]:
        return [replace(report, loss=1.0, readings=(2.0,)) for report in super().train(orders)]


@pytest.mark.parametrize("num_clusters", [2, 3])
def test_what_clusters_share_is_sent_and_not_kept(num_clusters: int) -> None:
    """Clusters are drawn together by the data of their members; the policy's own number is in the record."""
    method = Method(
        name="x",
        clustering=Fixed(num_clusters=num_clusters),
        personalization=PerCluster(cluster_init="distinct"),
        sharing=OnceOverfitted(share=0.4),
    )
    experiment = Experiment(task=tiny_task(num_edges=3, rounds=4), method=method)
    sites = [Site(m, (m,), np.array([size]), np.array([1]), num_classes=2) for m, size in enumerate((10, 20, 30))]
    edges = Overfitting(np.zeros((4, 3, num_clusters)))
    begin = start(experiment, builder(Perceptron(hidden=()), None, (1,), 2, seed=0), sites)
    records, after = zip(*rounds(experiment, sites, edges, begin), strict=True)
    assert [record["notes"]["overfitting"] for record in records] == pytest.approx([4, 4, 4, 4])
    states = [begin, *after]
    size_K = np.array([10, 20, 30] if num_clusters == 3 else [40, 20], dtype=float)
    for t in range(4):
        share = 0.4 if t > 0 else 0
        kept = states[t].parts["cluster"]["1.weight"]
        mean = torch.as_tensor(size_K / size_K.sum(), dtype=torch.float32) @ kept.flatten(1)
        for order in edges.orders[3 * t : 3 * t + 3]:
            assert order.readings == (VALIDATION,)
            k = int(begin.label_N[order.site])
            expected = (1 - share) * kept[k] + share * mean.reshape(kept[k].shape)
            torch.testing.assert_close(order.bank["cluster"]["1.weight"][0], expected)


def test_trained_clusters_are_those_that_ever_had_a_member() -> None:
    loss_TMK = np.ones((3, 3, 3))
    loss_TMK[0, 0] = [9.0, 9.0, 0.1]  # edge 0 visits cluster 2 and comes back
    loss_TMK[1, 0] = [0.1, 9.0, 9.0]
    policy = LowestLoss(num_clusters=3, period=1, start_labels="uniform")
    history = list(scripted_rounds(policy, loss_TMK))
    assert [state.used_K.tolist() for _, state in history] == [[True, False, True]] * 3
    assert [record["entered_empty"] for record, _ in history] == [1, 0, 0]


@pytest.fixture(scope="module")
def fed_bac() -> Run:
    return tiny_run("fed-bac", "method.clustering.period=1")


def test_a_record_has_the_documented_fields(fed_bac: Run) -> None:
    for t, record in enumerate(fed_bac.records, start=1):
        assert set(record) >= FIELDS
        assert record["round"] == t
        per_edge = record["accuracy_per_edge"]
        assert len(per_edge) == len(record["assignment"]) == len(record["selected"]) == 2
        assert record["notes"] == {}  # no policy of this method has any
        assert record["accuracy"] == pytest.approx(np.mean(per_edge))
        assert record["accuracy_std"] == pytest.approx(np.std(per_edge))
        assert (record["accuracy_min"], record["accuracy_max"]) == (min(per_edge), max(per_edge))
        assert [len(selected) for selected in record["selected"]] == [4, 4]
        assert set(record["selected"][0]) <= set(range(5))
        assert set(record["selected"][1]) <= set(range(5, 10))


def test_a_method_without_clusters_assigns_everybody_alike() -> None:
    run = tiny_run(Method(name="x", personalization=Shared()))
    assert [record["assignment"] for record in run.records] == [[0, 0], [0, 0]]
    assert run.summary["moves"] == 0
    assert run.summary["active_clusters"] == 1


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fed-bac", ["method.clustering.period=1", "method.clustering.num_clusters=2"]),
        ("ifca-edges", ["method.clustering.period=1", "method.clustering.num_clusters=2"]),
        ("fedbac-plus", ["method.clustering.period=1"]),
    ],
)
def test_a_run_that_diverges_goes_on_to_its_end(method: str, settings: list[str]) -> None:
    """Weights so large that losses overflow, though they are finite: such a model is infinitely bad, not an error."""
    wild = Training(epochs=1, batch_size=4, learning_rate=1e4, clip_norm=None)
    run = tiny_run(method, *settings, task=tiny_task(rounds=4, training=wild))
    assert len(run.records) == 4
    assert run.summary["failed_clients"] > 0
