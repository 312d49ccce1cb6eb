"""Methods that are the same method under another name, and special cases with a known answer."""

import copy
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedbac.clustering import Fixed, LowestLoss
from fedbac.config.columns import SELECTION
from fedbac.config.experiment import Method, Training
from fedbac.core import trees
from fedbac.core.parts import Params
from fedbac.core.rng import stream
from fedbac.core.settings import Settings
from fedbac.data import Dataset, planted_groups
from fedbac.federation import Federation
from fedbac.personalization import Additive, PerCluster, Shared
from fedbac.presets.methods import METHODS
from fedbac.selection import Random
from fedbac.sharing import TowardsMean
from fedbac.topology import Hierarchical
from tests.covering import first
from tests.support import (
    PLAIN_SGD,
    OnlyClusterMoves,
    OnlyGlobalMoves,
    Played,
    deal,
    distance,
    only_edge,
    play,
    prepare,
    without,
)  # fmt: skip

DATA, SHARDS, _ = planted_groups(6, 3, 2, train=12, validation=4, test=15)
UNEVEN = deal(DATA, [[1, 30], [7, 12, 3], [20]], test=[30, 30, 30])
VALIDATED = deal(DATA, [[10, 4], [5], [8, 16]], validation=3, test=[30, 30, 30])
RICH = Training(epochs=2, batch_size=5, learning_rate=0.1, learning_rate_decay=0.9, weight_decay=0.01, clip_norm=0.5)
"""Everything that local training can do, at once."""
HIERFAVG = Method(name="hierfavg")
GROUND_TASK = prepare(HIERFAVG, DATA, SHARDS)[0].task


def one_network(played: Played, part: str = "global", row: int = 0) -> dict[str, Params]:
    """Return one network of the end under a neutral name."""
    return {"network": {name: value[row] for name, value in played.end.parts[part].items()}}


# ---------------------------------------------------------------------------------------------- plain FedAvg


def fedavg(federation: Federation, start: nn.Module, clients: Sequence[int], num_rounds: int) -> nn.Module:
    """Return the network after flat federated averaging, written as in a textbook."""
    training, shards = federation.examples.training, federation.shards
    x, y = torch.from_numpy(federation.dataset.x_train), torch.from_numpy(federation.dataset.y_train)
    network = copy.deepcopy(start)
    total = sum(shards.train[client].size for client in clients)
    for round_ in range(1, num_rounds + 1):
        average = {name: torch.zeros_like(value) for name, value in network.state_dict().items()}
        for client in clients:
            local = copy.deepcopy(network)
            optimizer = torch.optim.SGD(
                local.parameters(),
                lr=training.learning_rate * training.learning_rate_decay ** (round_ - 1),
                momentum=training.momentum,
                weight_decay=training.weight_decay,
            )
            mine = shards.train[client]
            order = stream(federation.examples.seed, "batches", round_, 0, client)
            for _ in range(training.epochs):
                for batch in torch.split(torch.from_numpy(mine[order.permutation(mine.size)]), training.batch_size):
                    optimizer.zero_grad()
                    F.cross_entropy(local(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
                    if training.clip_norm is not None:
                        nn.utils.clip_grad_norm_(local.parameters(), training.clip_norm)
                    optimizer.step()
            for name, value in local.state_dict().items():
                average[name] += mine.size / total * value
        network.load_state_dict(average)
    return network


@pytest.mark.parametrize("training", [PLAIN_SGD, RICH], ids=["plain", "rich"])
def test_hierfavg_with_everybody_and_one_edge_round_is_flat_fedavg(training: Training) -> None:
    played = play(HIERFAVG, DATA, UNEVEN, training=training)
    flat = fedavg(played.federation, played.federation.build(0), range(6), 3)
    assert distance(one_network(played), {"network": flat.state_dict()}) < 1e-6
    assert distance(one_network(played), {"network": played.federation.build(0).state_dict()}) > 1e-2


def test_hierfavg_does_not_depend_on_which_edge_a_client_is_attached_to() -> None:
    other = deal(DATA, [[1, 30, 7], [12], [3, 20]], test=[30, 30, 30])
    one, two = (play(HIERFAVG, DATA, shards, training=RICH) for shards in (UNEVEN, other))
    assert distance(one.end.parts, two.end.parts) < 1e-6
    assert [r["accuracy_weighted"] for r in one.records] == pytest.approx([r["accuracy_weighted"] for r in two.records])


def test_two_edge_rounds_are_not_fedavg_but_one_edge_alone_cannot_tell() -> None:
    """With κ2 = 2 an edge averages twice before the cloud does."""
    twice = Method(name="test", topology=Hierarchical(edge_rounds=2))
    assert distance(play(HIERFAVG, DATA, UNEVEN).end.parts, play(twice, DATA, UNEVEN).end.parts) > 1e-3
    alone = play(twice, DATA, only_edge(UNEVEN, 2), num_rounds=1)
    network, x, y = alone.federation.build(0), torch.from_numpy(DATA.x_train), torch.from_numpy(DATA.y_train)
    for edge_round in (0, 1):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        mine = UNEVEN.train[5]
        order = stream(0, "batches", 1, edge_round, 5)
        for batch in torch.split(torch.from_numpy(mine[order.permutation(mine.size)]), 8):
            optimizer.zero_grad()
            F.cross_entropy(network(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    assert distance(one_network(alone), {"network": network.state_dict()}) < 1e-6


# ----------------------------------------------------------------------------------- one step, pooled data


def descend(network: nn.Module, dataset: Dataset, rows: Sequence[int], steps: int, rate: float) -> nn.Module:
    """Return the network after full-batch gradient steps on these examples."""
    x, y = torch.from_numpy(dataset.x_train[rows]), torch.from_numpy(dataset.y_train[rows])
    network = copy.deepcopy(network)
    for _ in range(steps):
        network.zero_grad()
        F.cross_entropy(network(x), y).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for parameter in network.parameters():
                assert parameter.grad is not None
                parameter.sub_(rate * parameter.grad)
    return network


FULL_BATCH = PLAIN_SGD.model_copy(update={"batch_size": 1000})


def test_one_full_batch_step_of_everybody_is_one_central_step_on_pooled_data() -> None:
    played = play(HIERFAVG, DATA, UNEVEN, training=FULL_BATCH)
    pooled = np.concatenate(UNEVEN.train).tolist()
    central = descend(played.federation.build(0), DATA, pooled, steps=3, rate=0.1)
    assert distance(one_network(played), {"network": central.state_dict()}) < 1e-6


@pytest.mark.parametrize("edge_rounds", [1, 3])
def test_edges_with_the_same_data_descend_together_however_often_they_average(edge_rounds: int) -> None:
    """B.3: κ1 = 1, full batch, identical edges: centralized gradient descent for any κ2."""
    pair = [np.arange(5), np.arange(5, 12)]
    shards = deal(DATA, [[5, 7], [5, 7]], test=[30, 30])
    shards = type(shards)((*pair, *pair), shards.validation, shards.test, shards.clients)
    method = Method(name="test", topology=Hierarchical(edge_rounds=edge_rounds))
    played = play(method, DATA, shards, training=FULL_BATCH, num_rounds=2)
    central = descend(played.federation.build(0), DATA, range(12), steps=2 * edge_rounds, rate=0.1)
    assert distance(one_network(played), {"network": central.state_dict()}) < 1e-6


def test_clients_with_the_same_data_and_a_single_batch_are_one_client() -> None:
    same = tuple(np.arange(10) for _ in range(4))
    many = deal(DATA, [[10, 10], [10, 10]], test=[30, 30])
    many = type(many)(same, many.validation, many.test, many.clients)
    training = RICH.model_copy(update={"batch_size": 10})
    single = deal(DATA, [[10]], test=[30])
    one, four = (play(HIERFAVG, DATA, shards, training=training) for shards in (single, many))
    assert distance(one.end.parts, four.end.parts) < 1e-6


# ------------------------------------------------------------------------------- rows of the table of D.2


def test_ifca_with_one_cluster_is_hierfavg() -> None:
    method = Method(name="ifca-edges", clustering=LowestLoss(num_clusters=1, period=1), personalization=PerCluster())
    clustered, plain = (play(m, DATA, UNEVEN, training=RICH) for m in (method, HIERFAVG))
    assert distance(one_network(clustered, "cluster"), one_network(plain)) == 0
    assert without(clustered.records) == without(plain.records), "bytes too: with one cluster nothing is measured"


@pytest.mark.parametrize("fraction", first(1, [0.5, 1.0]))
def test_additive_with_a_residual_frozen_at_zero_is_hierfavg(fraction: float) -> None:
    selection = Random(fraction=fraction)
    frozen = Method(name="f=0", clustering=Fixed(), selection=selection, personalization=OnlyGlobalMoves())
    plain = Method(name="plain", selection=selection)
    left, right = (play(method, DATA, SHARDS, training=RICH) for method in (frozen, plain))
    assert distance(one_network(left), one_network(right)) < 1e-6
    assert not any(bool(value.any()) for value in left.end.parts["cluster"].values())
    clusters = ("bytes", "assignment", "assignment_next", "active_clusters")
    for one, other in zip(without(left.records, *clusters), without(right.records, *clusters), strict=True):
        assert one.pop("loss") == pytest.approx(other.pop("loss"), rel=1e-5)
        assert one == other


@pytest.mark.parametrize(
    ("threshold", "period"),
    [(1.0, 1), *(pytest.param(*other, marks=pytest.mark.full) for other in [(0.9, 1), (1.0, 2)])],
)
def test_additive_with_a_global_network_frozen_at_zero_is_ifca(threshold: float, period: int) -> None:
    clustering = LowestLoss(num_clusters=3, period=period, threshold=threshold, start_labels="random")
    frozen = OnlyClusterMoves(cluster_init="distinct")
    isolated = PerCluster(cluster_init="distinct")
    left, right = (
        play(Method(name="test", clustering=clustering, personalization=s), DATA, SHARDS, training=RICH, num_rounds=4)
        for s in (frozen, isolated)
    )
    assert [r["assignment"] for r in left.records] == [r["assignment"] for r in right.records]
    assert sum(r["moves"] for r in left.records) > 0, "otherwise nothing was tested"
    assert distance({"cluster": left.end.parts["cluster"]}, right.end.parts) < 1e-6
    assert [r["accuracy_per_edge"] for r in left.records] == [r["accuracy_per_edge"] for r in right.records]


def test_additive_with_one_cluster_is_fedavg_of_the_two_networks_together() -> None:
    """B.11 (3), with λ = 0: one norm and average do not care which of the two networks a weight belongs to."""

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.h = nn.Sequential(nn.Flatten(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))
            self.f = copy.deepcopy(self.h)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.h(x) + self.f(x)
            return logits

    additive = Method(name="two", clustering=Fixed(num_clusters=1), personalization=Additive(l2_cluster=0))
    training = RICH.model_copy(update={"clip_scope": "joint"})
    left = play(additive, DATA, UNEVEN, training=training)
    names = {"h": "global", "f": "cluster"}
    begin = {f"{half}.{n}": v for half, part in names.items() for n, v in left.states[0].parts[part].items()}
    right = play(HIERFAVG, DATA, UNEVEN, training=training, user=Sum, parts={"global": begin})
    end = {f"{half}.{n}": v for half, part in names.items() for n, v in left.end.parts[part].items()}
    assert distance({"global": end}, right.end.parts) < 1e-6


@pytest.mark.full
def test_fed_cam_is_fed_bac_with_the_lowest_loss_rule_and_the_same_selection() -> None:
    rule = LowestLoss(period=2, threshold=1.0)
    cam = METHODS["fed-cam-edges"](GROUND_TASK).model_copy(update={"clustering": rule, "personalization": Additive()})
    bac = METHODS["fed-bac"](GROUND_TASK).model_copy(update={"clustering": rule, "selection": cam.selection})
    left, right = (play(method, DATA, SHARDS, training=RICH, num_rounds=5) for method in (cam, bac))
    assert without(left.records) == without(right.records)
    assert distance(left.end.parts, right.end.parts) == 0
    assert sum(record["moves"] for record in left.records) > 0
    # Thompson sampling draws what random selection draws until its warm-up ends.
    thompson = METHODS["fed-bac"](GROUND_TASK).model_copy(update={"clustering": rule})
    warm = play(thompson, DATA, SHARDS, training=RICH, num_rounds=5)
    ignored = ("bytes", "beliefs")
    assert without(left.records, *ignored) == without(warm.records, *ignored)
    assert distance(left.end.parts, warm.end.parts) == 0


def test_one_cluster_per_edge_that_never_changes_is_isolated_edges() -> None:
    isolated = Method(name="isolated", clustering=Fixed(), personalization=PerCluster())
    together = play(isolated, DATA, UNEVEN, training=RICH)
    for edge in range(3):
        alone = play(HIERFAVG, DATA, only_edge(UNEVEN, edge), training=RICH)
        assert distance(one_network(together, "cluster", edge), one_network(alone)) < 1e-6
        assert [r["accuracy_per_edge"][edge] for r in together.records] == [r["accuracy"] for r in alone.records]
    rows = [one_network(together, "cluster", edge) for edge in range(3)]
    assert min(distance(rows[0], rows[1]), distance(rows[0], rows[2]), distance(rows[1], rows[2])) > 1e-2


@pytest.mark.parametrize(
    ("num_clusters", "sizes"), [(3, [31.0, 22.0, 20.0]), pytest.param(2, [51.0, 22.0], marks=pytest.mark.full)]
)
def test_clusters_that_share_everything_are_hierfavg_before_its_average(num_clusters: int, sizes: list[float]) -> None:
    """With sharing 1 every edge trains from the mean of all, so that the mean goes the way of HierFAVG's network."""
    fixed = Fixed(num_clusters=num_clusters)
    sharing = Method(name="sharing", clustering=fixed, personalization=PerCluster(), sharing=TowardsMean(share=1))
    apart, plain = (play(method, DATA, UNEVEN, training=RICH, num_rounds=4) for method in (sharing, HIERFAVG))
    mean = trees.weighted_mean(apart.end.parts["cluster"], np.array(sizes))
    assert distance({"network": mean}, one_network(plain)) < 1e-6
    assert distance(one_network(apart, "cluster", 0), one_network(apart, "cluster", 1)) > 1e-2
    half = play(
        sharing.model_copy(update={"sharing": TowardsMean(share=0.5)}), DATA, UNEVEN, training=RICH, num_rounds=4
    )
    rows = [one_network(half, "cluster", edge) for edge in (0, 1)]
    assert distance(*rows) > distance(one_network(apart, "cluster", 0), one_network(apart, "cluster", 1))


@cache
def selecting(selection: Any, personalization: Any) -> Played:
    clustering = Fixed(num_clusters=1 if personalization == Shared() else 2)
    method = Method(name="test", clustering=clustering, selection=selection, personalization=personalization)
    return play(method, DATA, VALIDATED, num_rounds=4)


@pytest.mark.covering
@pytest.mark.parametrize("cls", SELECTION.builtin, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("personalization", first(1, [Shared(), Additive()]), ids=lambda scheme: scheme.kind)
def test_every_selection_policy_at_fraction_one_selects_everybody(
    cls: type[Settings], personalization: Settings
) -> None:
    full = selecting(Random(), personalization)
    short: dict[str, dict[str, Any]] = {
        "warmup": {"warmup": 1},
        "shared": {"shared": {"warmup": 1}},
    }  # two rounds with what was learned
    settings = [setting for field, setting in short.items() if field in cls.model_fields]
    policy = selecting(cls.model_validate({"fraction": 1.0, **(settings[0] if settings else {})}), personalization)
    everybody = [list(clients) for clients in VALIDATED.clients]
    assert all(record["selected"] == everybody for record in policy.records)
    assert distance(policy.end.parts, full.end.parts) == 0
    ignored = ("bytes", "beliefs")
    assert without(policy.records, *ignored) == without(full.records, *ignored)


@pytest.mark.full
def test_a_threshold_of_zero_never_moves() -> None:
    fixed, zero = Fixed(num_clusters=3), LowestLoss(num_clusters=3, period=1, threshold=0)
    left, right = (
        play(Method(name="test", clustering=c, personalization=PerCluster()), DATA, SHARDS, training=RICH)
        for c in (fixed, zero)
    )
    assert without(left.records, "bytes", "decided") == without(right.records, "bytes", "decided")
    assert distance(left.end.parts, right.end.parts) == 0
    assert right.records[0]["bytes"]["client"]["down"]["evaluate"] > 0, "it looked, though it may not move"
    free = LowestLoss(num_clusters=3, period=1, threshold=1)
    moving = play(Method(name="test", clustering=free, personalization=PerCluster()), DATA, SHARDS, training=RICH)
    assert sum(record["moves"] for record in moving.records) > 0


@pytest.mark.full
def test_fed_bac_before_its_first_assignment_is_frozen_singletons() -> None:
    bac, frozen = METHODS["fed-bac"](GROUND_TASK), METHODS["singletons"](GROUND_TASK)
    late, early = (
        bac.model_copy(update={"clustering": bac.clustering.model_copy(update={"period": period})})  # type: ignore[attr-defined]
        for period in (20, 6)
    )
    left, right = (play(method, DATA, VALIDATED, num_rounds=13) for method in (late, frozen))
    assert without(left.records) == without(right.records)
    assert distance(left.end.parts, right.end.parts) == 0
    assert without(play(early, DATA, VALIDATED, num_rounds=13).records) != without(left.records)


# --------------------------------------------------------------------------------------------------- seeds


@pytest.mark.parametrize("preset", first(1, ["fed-bac", "fed-cam-edges"]))
def test_the_same_seed_gives_the_same_run_and_another_seed_another(preset: str) -> None:
    method = METHODS[preset](GROUND_TASK)
    runs = [play(method, DATA, SHARDS, training=RICH, seed=seed) for seed in (0, 0, 1)]
    assert without(runs[0].records) == without(runs[1].records)
    assert distance(runs[0].end.parts, runs[1].end.parts) == 0
    assert distance(runs[0].states[0].parts, runs[2].states[0].parts) > 1e-2, "other initial networks"
    assert [r["selected"] for r in runs[0].records] != [r["selected"] for r in runs[2].records]
    assert without(runs[0].records) != without(runs[2].records)
