"""Rows of Table I that are, in a special case, another row or a few lines of plain PyTorch (methods.md, D.2)."""

import copy
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedbac.clustering import CosineSplits, Fixed
from fedbac.config.experiment import Method, Training
from fedbac.core import trees
from fedbac.core.parts import Params, Phase
from fedbac.core.requests import Evaluate
from fedbac.data import planted_groups
from fedbac.local import LoopTrainer
from fedbac.personalization import PerCluster, Personal, PersonalHead, Shared
from fedbac.selection import Random
from fedbac.topology import Flat
from tests.support import PLAIN_SGD, Played, Record, StubTrainer, deal, distance, play, without

DATA, SHARDS, _ = planted_groups(6, 3, 2, train=12, validation=4, test=15)
UNEVEN = deal(DATA, [[1, 30], [7, 12, 3], [20]], test=[30, 30, 30])
RICH = Training(epochs=2, batch_size=5, learning_rate=0.1, learning_rate_decay=0.9, weight_decay=0.01, clip_norm=0.5)
HIERFAVG = Method(name="hierfavg")
FEDAVG = Method(name="fedavg", topology=Flat())


def network(played: Played, part: str, row: int = 0) -> dict[str, Params]:
    """Return one network of the end under a neutral name."""
    return {"network": trees.take(played.end.parts[part], row)}


def trained(record: Record) -> set[int]:
    """Return the clients that trained in a round, wherever they meet."""
    return {client for clients in record["selected"] for client in clients}


# ------------------------------------------------------------------------------------------------- two tiers


@pytest.mark.parametrize("training", [PLAIN_SGD, RICH], ids=["plain", "rich"])
def test_fedavg_is_hierfavg_with_everybody_and_one_edge_round(training: Training) -> None:
    """(n_i / n_m)(n_m / n) = n_i / n; and edges are judged by the same network, whoever averages it."""
    flat, tiers = (play(method, DATA, UNEVEN, training=training) for method in (FEDAVG, HIERFAVG))
    assert distance(flat.end.parts, tiers.end.parts) < 1e-6
    for one, other in zip(flat.records, tiers.records, strict=True):
        assert one["accuracy_per_edge"] == pytest.approx(other["accuracy_per_edge"])
        assert one["accuracy_global"] == pytest.approx(other["accuracy_global"])
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert trained(one) == trained(other)


def test_flat_selection_draws_from_everybody() -> None:
    played = play(FEDAVG.model_copy(update={"selection": Random(fraction=0.5)}), DATA, UNEVEN, num_rounds=20)
    assert {len(record["selected"]) for record in played.records} == {1}
    assert {len(record["selected"][0]) for record in played.records} == {3}
    per_edge = [sum(c in (0, 1) for c in record["selected"][0]) for record in played.records]
    assert set(per_edge) == {0, 1, 2}, "no quota for the clients of an edge"


# --------------------------------------------------------------------------------------------------- FedProx


def test_a_proximal_term_of_zero_is_fedavg() -> None:
    zero = FEDAVG.model_copy(update={"personalization": Shared(proximal=0.0)})
    left, right = (play(method, DATA, UNEVEN, training=RICH) for method in (zero, FEDAVG))
    assert distance(left.end.parts, right.end.parts) == 0
    assert without(left.records) == without(right.records)


def test_a_stronger_proximal_term_keeps_clients_closer() -> None:
    moved = []
    for proximal in (0.0, 0.1, 1.0, 5.0):
        method = FEDAVG.model_copy(update={"personalization": Shared(proximal=proximal)})
        played = play(method, DATA, UNEVEN, training=RICH.model_copy(update={"clip_norm": None}), num_rounds=1)
        before, after = (trees.rows(state.parts["global"])[0] for state in played.states)
        moved.append(float((after - before).norm()))
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] < 0.8 * moved[0]


# ----------------------------------------------------------------------------------------------------- Ditto


@pytest.mark.covering
@pytest.mark.parametrize("strength", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("owner", ["client", "edge"])
def test_the_global_network_of_ditto_is_hierfavgs(owner: str, strength: float) -> None:
    scheme = Personal.model_validate({"owner": owner, "strength": strength})
    personal, plain = (
        play(method, DATA, UNEVEN, training=RICH) for method in (Method(name="ditto", personalization=scheme), HIERFAVG)
    )
    assert distance(network(personal, "global"), network(plain, "global")) == 0
    assert distance(network(personal, "personal"), network(personal, "global")) > 1e-3


def test_without_a_pull_the_networks_of_edges_are_those_of_isolated_edges() -> None:
    ditto = Method(name="ditto", personalization=Personal(owner="edge", strength=0))
    isolated = Method(name="isolated", clustering=Fixed(), personalization=PerCluster())
    left, right = (play(method, DATA, UNEVEN, training=RICH) for method in (ditto, isolated))
    for edge in range(3):
        assert distance(network(left, "personal", edge), network(right, "cluster", edge)) == 0
    assert [r["accuracy_per_edge"] for r in left.records] == [r["accuracy_per_edge"] for r in right.records]


def test_without_a_pull_the_networks_of_clients_are_trained_by_each_alone() -> None:
    ditto = Method(name="ditto", personalization=Personal(strength=0))
    played = play(ditto, DATA, UNEVEN, training=RICH)
    each = replace(UNEVEN, clients=tuple(range(c, c + 1) for c in range(6)), test=(np.arange(5),) * 6)
    alone = play(Method(name="isolated", clustering=Fixed(), personalization=PerCluster()), DATA, each, training=RICH)
    for client in range(6):
        assert distance(network(played, "personal", client), network(alone, "cluster", client)) == 0


def test_a_pull_of_one_over_the_rate_starts_a_step_from_the_global_network() -> None:
    """With plain SGD and ηλ = 1 one step gives v = w^t − η∇F(v_old)."""
    training = PLAIN_SGD.model_copy(update={"batch_size": 1000, "learning_rate": 0.1})
    played = play(Method(name="d", personalization=Personal(strength=10)), DATA, UNEVEN, training=training)
    module = copy.deepcopy(played.federation.build(0))
    for client in range(6):
        module.load_state_dict(trees.take(played.states[-2].parts["personal"], client))
        module.zero_grad()
        rows = UNEVEN.train[client]
        x, y = torch.from_numpy(DATA.x_train[rows]), torch.from_numpy(DATA.y_train[rows])
        F.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
        received = trees.take(played.states[-2].parts["global"], 0)
        step = {name: received[name] - 0.1 * p.grad for name, p in module.named_parameters() if p.grad is not None}
        assert distance(network(played, "personal", client), {"network": step}) < 1e-6


def test_a_client_that_never_trained_has_the_network_for_all() -> None:
    """Else it would be judged by an untrained one; afterwards it keeps its own."""
    method = Method(name="d", selection=Random(fraction=0.5), personalization=Personal())
    played = play(method, DATA, UNEVEN, training=RICH)
    seen: set[int] = set()
    for t, record in enumerate(played.records, start=1):
        seen |= trained(record)
        state = played.states[t]
        for client in range(6):
            own, shared = trees.take(state.parts["personal"], client), trees.take(state.parts["global"], 0)
            assert (distance({"v": own}, {"v": shared}) == 0) == (client not in seen)
    assert len(trained(played.records[0])) < 6, "otherwise nothing was tested"


def test_a_client_that_is_not_selected_keeps_its_own_network() -> None:
    method = Method(name="d", selection=Random(fraction=0.5), personalization=Personal(unseen="init"))
    played = play(method, DATA, UNEVEN, training=RICH)
    for t, record in enumerate(played.records):
        chosen = trained(record)
        for client in range(6):
            before, after = (trees.take(played.states[i].parts["personal"], client) for i in (t, t + 1))
            assert (distance({"v": before}, {"v": after}) == 0) == (client not in chosen)


def test_personal_networks_are_judged_on_their_clients_share_of_the_test_data() -> None:
    played = play(Method(name="d", personalization=Personal()), DATA, UNEVEN, training=RICH)
    examples = played.federation.examples
    trainer = LoopTrainer(played.federation.network, Personal(), examples)
    record = played.records[-1]
    for edge, clients in enumerate(UNEVEN.clients):
        right = 0.0
        for client in clients:
            rows = {"personal": np.array([client])}
            (found,) = trainer.evaluate([Evaluate(played.end.parts, rows, "test", (client,))])
            if found.count_G[0]:
                right += float(found.accuracy_VG[0, 0]) * int(found.count_G[0])
        assert record["accuracy_per_edge"][edge] == pytest.approx(right / 30)
    assert record["accuracy_global"] is None


# ---------------------------------------------------------------------------------------------------- FedPer


def test_a_head_that_everybody_shares_is_hierfavg() -> None:
    one_head = Method(name="p", clustering=Fixed(num_clusters=1), personalization=PersonalHead(owner="cluster"))
    left, right = (play(method, DATA, UNEVEN, training=RICH) for method in (one_head, HIERFAVG))
    whole = {**left.end.parts["body"], **left.end.parts["head"]}
    assert distance({"global": whole}, right.end.parts) == 0
    assert without(left.records) == without(right.records)


@pytest.mark.parametrize("owner", ["edge", "client"])
def test_bodies_are_averaged_and_heads_are_not(owner: str) -> None:
    """Client i comes back with every weight i; sizes are (1, 30), (7, 12, 3) and 20."""
    scheme = PersonalHead.model_validate({"owner": owner})
    played = play(Method(name="p", personalization=scheme), DATA, UNEVEN, StubTrainer(), num_rounds=1)
    mean = (30 * 1 + 7 * 2 + 12 * 3 + 3 * 4 + 20 * 5) / 73
    for value in played.end.parts["body"].values():
        torch.testing.assert_close(value, torch.full_like(value, mean))
    expected = [30 / 31, (14 + 36 + 12) / 22, 5.0] if owner == "edge" else [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    for value in played.end.parts["head"].values():
        assert len(value) == len(expected)
        for own, number in zip(value, expected, strict=True):
            torch.testing.assert_close(own, torch.full_like(own, number))


@pytest.mark.full
def test_personal_heads_tell_apart_what_one_network_cannot() -> None:
    """Half of the edges call classes by other names."""
    long = PLAIN_SGD.model_copy(update={"epochs": 10})
    shared, personal = (
        play(method, DATA, SHARDS, training=long, num_rounds=6)
        for method in (HIERFAVG, Method(name="p", personalization=PersonalHead()))
    )
    assert personal.accuracy > shared.accuracy + 0.2


class FrozenHead(PersonalHead):
    """The body is trained under a random head that nobody ever moves."""

    kind: Literal["frozen_head"] = "frozen_head"  # type: ignore[assignment]

    def phases(self) -> tuple[Phase, ...]:
        return (Phase(moves=("body",)),)


def test_what_nobody_moves_keeps_its_bits_and_does_not_travel() -> None:
    """A mean of equal weights would round them, and everybody has them from the start."""
    frozen, moving = (
        play(Method(name="b", personalization=scheme), DATA, UNEVEN, training=RICH)
        for scheme in (FrozenHead(owner="edge"), PersonalHead(owner="edge"))
    )
    assert distance({"h": frozen.end.parts["head"]}, {"h": frozen.states[0].parts["head"]}) == 0
    assert distance({"b": frozen.end.parts["body"]}, {"b": frozen.states[0].parts["body"]}) > 1e-2
    head = 4 * sum(value[0].numel() for value in frozen.end.parts["head"].values())
    one, other = (played.records[0]["bytes"]["client"]["down"]["train"] for played in (frozen, moving))
    assert other - one == 6 * head, "six clients are spared the head"


# ------------------------------------------------------------------------------------------------------- CFL


def test_cfl_that_never_splits_is_hierfavg() -> None:
    clustering = CosineSplits(epsilon_1=0, first_split=1)
    cfl = Method(name="cfl-edges", clustering=clustering, personalization=PerCluster())
    left, right = (play(method, DATA, UNEVEN, training=RICH) for method in (cfl, HIERFAVG))
    assert distance(network(left, "cluster"), network(right, "global")) == 0
    assert without(left.records, "decided") == without(right.records, "decided")


@pytest.mark.full
def test_cfl_finds_planted_groups_and_children_inherit_their_parent() -> None:
    data, shards, groups = planted_groups(6, 3, 2, train=40, validation=2, test=15)
    clustering = CosineSplits(epsilon_1=1.2, epsilon_2=1.2, first_split=6)
    cfl = Method(name="cfl-edges", clustering=clustering, personalization=PerCluster())
    played = play(cfl, data, shards, training=PLAIN_SGD.model_copy(update={"epochs": 5}), num_rounds=20)
    labels = np.array(played.records[-1]["assignment"])
    same_group = np.equal.outer(groups, groups)
    assert (np.equal.outer(labels, labels) == same_group).all()
    first = next(t for t, record in enumerate(played.records) if record["moves"])
    entered = played.records[first]["assignment_next"][int(np.flatnonzero(labels != labels[0])[0])]
    state = played.states[first + 1]
    parent, child = (trees.take(state.parts["cluster"], k) for k in (0, entered))
    assert distance({"n": parent}, {"n": child}) == 0
