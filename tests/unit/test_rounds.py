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
    Perceptron,
    PerCluster,
    Random,
    Run,
    Settings,
    Shared,
    Thompson,
    Training,
)
from fedbac.core.policies import NoState
from fedbac.core.queries import Ask, Evidence
from fedbac.core.requests import Average, Averaged, Evaluate, Measured, Result
from fedbac.core.rng import Rng
from fedbac.core.settings import BoolArray
from fedbac.models import builder
from fedbac.rounds.cloud import rounds, start
from fedbac.rounds.edge import EdgeSite, TrainOrder, TrainReport, serve
from tests.unit.tiny import ScriptedEdges, scripted_rounds, tiny_run, tiny_task

FIELDS = {
    "round", "accuracy", "accuracy_per_edge", "accuracy_std", "accuracy_min", "accuracy_max", "accuracy_weighted",
    "accuracy_global", "loss", "overfitting", "assignment", "moves", "active_clusters", "selected", "bytes", "seconds",
}  # fmt: skip


def test_moves_are_told_to_selection_in_the_next_round_only() -> None:
    loss_TMK = np.ones((4, 2, 2))
    loss_TMK[1, 1] = [0.1, 9.0]  # after round 2 edge 1 moves to cluster 0
    history = list(scripted_rounds(LowestLoss(num_clusters=2, period=1), loss_TMK))
    moved = [state.moved_M.tolist() for _, state in history]
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


class Observer(Settings):
    """Selects everybody, asks for everything, and writes down what it learns from."""

    kind: Literal["observer"] = "observer"
    adaptive: ClassVar[bool] = False
    fraction: float = 1.0

    def init(self, num_members: int) -> NoState:
        return NoState()

    def ask(self, state: NoState, round_: int) -> Ask:
        return Ask(accuracy="validation", baseline=True, training_losses=True)

    def act(self, state: NoState, evidence: Evidence, rng: Rng) -> BoolArray:
        assert evidence.accuracy is None  # which only training can tell
        return Random().act(NoState(), evidence, rng)

    def learn(self, state: NoState, evidence: Evidence, mask_N: BoolArray) -> NoState:
        SEEN.append(evidence)
        return state


def test_an_edge_shows_selection_what_it_asked_for_in_every_edge_round() -> None:
    """Baseline before and accuracy after training, means over clients by validation size; a move counts once."""
    method = Method(name="x", selection=Observer(), topology=Hierarchical(edge_rounds=2))
    experiment = Experiment(task=tiny_task(rounds=7), method=method)
    site = EdgeSite(1, (5, 6, 7), np.array([10, 20, 0]), np.array([1, 3, 0]))
    parts = {"global": {"w": torch.zeros(2)}}
    work = serve(TrainOrder(1, 4, parts, NoState(), moved=True), site, experiment)
    SEEN.clear()
    answers: list[Result] = []
    requests = [next(work)]
    for accuracy in ([0.1, 0.5], None, [0.2, 0.6], [0.3, 0.7], None, [0.4, 0.8]):
        if accuracy is None:
            average = {"global": {"w": torch.tensor([3.0, 3.0])}}
            answers.append(Averaged(average, np.array([True, True]), np.array([1.0, 2.0 + len(answers)])))
        else:
            loss = 10 * np.array([accuracy])
            answers.append(Measured(loss, np.array([accuracy]), np.array([1, 3])))
        try:
            requests.append(work.send(answers[-1]))
        except StopIteration as done:
            report: TrainReport = done.value
    assert [type(request) for request in requests] == [Evaluate, Average, Evaluate, Evaluate, Average, Evaluate]
    training = [request for request in requests if isinstance(request, Average)]
    assert [request.size_C.tolist() for request in training] == [[10, 20]] * 2
    measuring = [request for request in requests if isinstance(request, Evaluate)]
    asked = [*(request.clients for request in measuring), *(request.train.clients for request in training)]
    assert asked == [(5, 6)] * 6  # client 7 holds nothing
    assert [(e.round, e.num_rounds, e.moved) for e in SEEN] == [(4, 7, True), (4, 7, False)]
    assert [e.baseline for e in SEEN] == pytest.approx([0.4, 0.6])
    assert [e.accuracy for e in SEEN] == pytest.approx([0.5, 0.7])
    np.testing.assert_array_equal([seen.loss_N for seen in SEEN], [[1.0, 3.0, np.nan], [1.0, 6.0, np.nan]])
    starts = [request.train.start["global"]["w"].tolist() for request in training]
    assert starts == [[0.0, 0.0], [3.0, 3.0]]  # (10·1 + 20·4) / 30
    assert (report.selected, report.failed, report.trained_size) == ((5, 6), (), 30)
    assert report.loss == pytest.approx((7 / 3 + 13 / 3) / 2)
    assert report.validation_loss == pytest.approx(7)  # at the end


class Doubter(Observer):
    """Trusts its second client only."""

    kind: Literal["doubter"] = "doubter"  # type: ignore[assignment]

    def trusted(self, state: NoState) -> BoolArray:
        return np.array([False, True])


@pytest.mark.parametrize(("clients", "expected"), [("all", 6.0), ("trusted", 5.0), ("selected", 8.0)])
def test_validation_loss_is_of_the_clients_that_measure(
    clients: Literal["all", "trusted", "selected"], expected: float
) -> None:
    """Validation losses are 8 and 5, of 1 and 2 examples; the second client fails in training."""
    method = Method(name="x", selection=Doubter(), measurement=Measurement(clients=clients))
    experiment = Experiment(task=tiny_task(), method=method)
    site = EdgeSite(0, (5, 6), np.array([10, 10]), np.array([1, 2]))
    parts = {"global": {"w": torch.zeros(2)}}
    measured = Measured(np.array([[8.0, 5.0]]), np.zeros((1, 2)), np.array([1, 2]))
    work = serve(TrainOrder(0, 1, parts, NoState(), moved=False), site, experiment)
    next(work)
    work.send(measured)
    work.send(Averaged(parts, np.array([True, False]), np.array([2.0, np.nan])))
    with pytest.raises(StopIteration) as done:
        work.send(measured)
    assert done.value.value.validation_loss == pytest.approx(expected)


class Overfitting(ScriptedEdges):
    """Edges that report these losses: in training, and on validation data."""

    script = (
        ((1.0, 1.0, 2.0), (1.1, 1.1, 2.3)),  # T = 90 / 60, V = 102 / 60: 0.2 more, counted in quarters
        ((1.0, 1.0, np.nan), (np.inf, 1.4, np.nan)),  # the first has diverged, the third did not train
        ((0.1, np.nan, 9.0), (0.22, np.nan, np.nan)),  # of the one that says both: 1.2 times what training costs it
        ((1.0, 1.0, 1.0), (np.nan, np.nan, np.nan)),
        ((0.0, 0.0, 0.0), (0.5, 0.5, 0.5)),
        ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0)),
        ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0)),
    )

    def train(self, orders: Sequence[TrainOrder]) -> list[TrainReport]:
        told = zip(*self.script[orders[0].round - 1], strict=True)
        return [
            replace(report, loss=training, validation_loss=validation)
            for report, (training, validation) in zip(super().train(orders), told, strict=True)
        ]


@pytest.mark.parametrize(("num_clusters", "num_rounds"), [(2, 7), (3, 7), (3, 6), (3, 5)])
def test_clusters_share_when_they_overfit(num_clusters: int, num_rounds: int) -> None:
    """From when the running mean says so, which no single round decides; what nobody reports stays what it was.

    It says so in round 3, which is too late in a run of 5 rounds.
    """
    method = Method(
        name="x",
        clustering=Fixed(num_clusters=num_clusters),
        selection=Thompson(),
        personalization=PerCluster(cluster_init="distinct"),
        sharing=0.4,
        sharing_by="overfitting",
    )
    experiment = Experiment(task=tiny_task(num_edges=3, rounds=num_rounds), method=method)
    sites = [EdgeSite(m, (m,), np.array([size]), np.array([1])) for m, size in enumerate((10, 20, 30))]
    edges = Overfitting(np.zeros((num_rounds, 3, num_clusters)))
    begin = start(experiment, builder(Perceptron(hidden=()), None, (1,), 2, seed=0), sites)
    records, after = zip(*rounds(experiment, sites, edges, begin), strict=True)
    found = [record["overfitting"] for record in records]
    last = 0.8 * 0.96 + 0.2 * 1.2
    expected_T = [0.8, 0.8 * 0.8 + 0.2 * 1.6, last, last, last, 0.8 * last, 0.64 * last]
    assert found == pytest.approx(expected_T[:num_rounds])
    states = [begin, *after]
    size_K = np.array([10, 20, 30] if num_clusters == 3 else [40, 20], dtype=float)
    for t in range(num_rounds):
        share = 0.4 if t >= 3 and num_rounds > 5 else 0
        kept = states[t].parts["cluster"]["1.weight"]
        mean = torch.as_tensor(size_K / size_K.sum(), dtype=torch.float32) @ kept.flatten(1)
        for order in edges.orders[3 * t : 3 * t + 3]:
            k = int(begin.label_M[order.edge])
            expected = (1 - share) * kept[k] + share * mean.reshape(kept[k].shape)
            torch.testing.assert_close(order.parts["cluster"]["1.weight"], expected)


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
        assert np.isfinite(record["overfitting"])
        assert record["accuracy"] == pytest.approx(np.mean(per_edge))
        assert record["accuracy_std"] == pytest.approx(np.std(per_edge))
        assert (record["accuracy_min"], record["accuracy_max"]) == (min(per_edge), max(per_edge))
        assert [len(selected) for selected in record["selected"]] == [4, 4]
        assert set(record["selected"][0]) <= set(range(5))
        assert set(record["selected"][1]) <= set(range(5, 10))


def test_a_method_without_clusters_assigns_everybody_alike() -> None:
    run = tiny_run(Method(name="x", personalization=Shared()))
    assert [record["assignment"] for record in run.records] == [[0, 0], [0, 0]]
    assert [record["overfitting"] for record in run.records] == [None, None]  # nobody asked
    on_test_data = tiny_run("paper-text")
    assert {record["overfitting"] for record in on_test_data.records} == {None}
    assert run.summary["moves"] == 0
    assert run.summary["active_clusters"] == 1


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fed-bac", ["method.clustering.period=1", "method.clustering.num_clusters=2"]),
        ("ifca", ["method.clustering.period=1", "method.clustering.num_clusters=2"]),
        ("fedbac-plus", ["method.clustering.period=1"]),
    ],
)
def test_a_run_that_diverges_goes_on_to_its_end(method: str, settings: list[str]) -> None:
    """Weights so large that losses overflow, though they are finite: such a model is infinitely bad, not an error."""
    wild = Training(epochs=1, batch_size=4, learning_rate=1e4, clip_norm=None)
    run = tiny_run(method, *settings, task=tiny_task(rounds=4, training=wild))
    assert len(run.records) == 4
    assert run.summary["failed_clients"] > 0
