"""Tiers between edges and the cloud: against a plain recursion, and against the same rounds without them."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch

from fedbac.aggregation import Median
from fedbac.clocks import Buffered
from fedbac.clustering import Fixed, LowestLoss
from fedbac.config.columns import Links
from fedbac.config.experiment import Method, Training
from fedbac.config.tiers import InnerTier
from fedbac.core.codecs import EightBits, TopK
from fedbac.core.links import INNER, Ledger
from fedbac.core.queries import Evidence
from fedbac.core.settings import BoolArray, IntArray
from fedbac.core.state import State, flatten, unflatten
from fedbac.core.world import World
from fedbac.data import planted_groups
from fedbac.engines import Simulator
from fedbac.local import LoopTrainer
from fedbac.personalization import Additive, HeadsTogether, PerCluster, Personal, PersonalHead, TwoHeads
from fedbac.rounds.cloud import rounds
from fedbac.rounds.start import start
from fedbac.selection import PowerOfChoice, Random, Thompson
from fedbac.sharing import OnceOverfitted, TowardsMean
from fedbac.steps import Momentum
from fedbac.topology import Flat, Hierarchical
from tests.covering import first
from tests.identity.test_server_steps import Weights, descended
from tests.support import Played, Scripted, StubTrainer, deal, distance, play, prepare, without

DATA, EVEN, _ = planted_groups(6, 3, 2, train=10, validation=2, test=15)
SHARDS = deal(DATA, [[4, 6], [5, 3], [7], [6, 2, 4], [5, 5], [8]], validation=2, test=[15] * 6)
WHOLE = Training(
    epochs=2, batch_size=100, learning_rate=0.1, learning_rate_decay=1, momentum=0, weight_decay=0, clip_norm=None
)
"""Gradient descent on all examples of a client: nothing is drawn that a plain loop would have to draw too."""
CLUSTERS: dict[str, Any] = {"clustering": Fixed(num_clusters=2), "personalization": Additive()}
METHODS: dict[str, dict[str, Any]] = {
    "hierfavg": {},
    "some-clients": {"selection": Random(fraction=0.5), "cloud_weight": "selected"},
    "clusters": CLUSTERS,
    "moving": {
        "clustering": LowestLoss(num_clusters=3, period=1, threshold=1.0, start_labels="random"),
        "personalization": PerCluster(cluster_init="distinct"),
    },
    "clients": {
        "unit": "client",
        "clustering": LowestLoss(num_clusters=2, period=1, threshold=1.0, start_labels="random"),
        "personalization": PerCluster(cluster_init="distinct"),
    },
    "sharing": {**CLUSTERS, "sharing": TowardsMean(share=0.3)},
    "own-parts": {"personalization": PersonalHead(owner="edge"), "selection": Thompson(fraction=0.5)},
    "regional": {"personalization": PersonalHead(owner="region", order="head_first")},
    "step": {"step": Momentum(), "aggregation": Median()},
}


def method(name: str = "hierfavg", /, **changes: Any) -> Method:
    return Method(name="test", **METHODS[name] | changes)


# --------------------------------------------------------------------------------------------- without the tier


@cache
def plain_run(name: str, num_rounds: int = 4) -> Played:
    """Return a run without tiers."""
    return play(method(name), DATA, SHARDS, num_rounds=num_rounds)


@pytest.mark.covering
@pytest.mark.parametrize("tiers", first(2, [(3,), ((1, 5),), (6, 2), (4, 2), ((2, 4), 2)]), ids=str)
@pytest.mark.parametrize("name", first(4, [name for name in METHODS if name not in ("step", "regional")]))
def test_weighted_means_in_the_middle_change_nothing(name: str, tiers: tuple[Any, ...]) -> None:
    plain, tree = plain_run(name), play(method(name), DATA, SHARDS, tiers=tiers, num_rounds=4)
    for one, other in zip(plain.states, tree.states, strict=True):
        assert distance(one.parts, other.parts) < 1e-5
        assert np.array_equal(one.label_N, other.label_N)
    for before, after in zip(plain.records, tree.records, strict=True):
        assert before["selected"] == after["selected"]
        assert before["bytes"]["client"] == after["bytes"]["client"]
        assert before["bytes"]["cloud"]["down"] == after["bytes"]["region"]["down"]
        assert before["bytes"]["cloud"]["up"] == after["bytes"]["region"]["up"]


@pytest.mark.covering
@pytest.mark.parametrize("tiers", [(6,), (6, 6)], ids=str)
@pytest.mark.parametrize("name", first(4, [name for name in METHODS if name != "regional"]))
def test_a_tier_with_one_child_each_keeps_every_bit(name: str, tiers: tuple[Any, ...]) -> None:
    plain, tree = plain_run(name, 3), play(method(name), DATA, SHARDS, tiers=tiers)
    assert distance(plain.end.parts, tree.end.parts) == 0
    assert without(plain.records, "bytes") == without(tree.records, "bytes")
    for record in tree.records:
        sent = record["bytes"]
        for tier in list(sent)[2:]:
            assert all(sent[tier][way]["train"] == sent["region"][way]["train"] for way in ("down", "up"))


def test_one_node_is_a_cloud_of_its_own() -> None:
    """With two rounds of a single region, the cloud hears only of every second."""
    tree = play(method(region=InnerTier(rounds=2)), DATA, SHARDS, tiers=(1,), training=WHOLE, num_rounds=2)
    plain = play(method(), DATA, SHARDS, training=WHOLE, num_rounds=4)
    assert distance(tree.states[1].parts, plain.states[2].parts) < 1e-6
    assert distance(tree.end.parts, plain.end.parts) < 1e-6
    assert tree.records[0]["bytes"]["client"] == _added(plain.records[0], plain.records[1], "client")
    assert tree.records[0]["bytes"]["cloud"]["up"]["train"] * 6 == plain.records[0]["bytes"]["cloud"]["up"]["train"]


def _added(first: Mapping[str, Any], second: Mapping[str, Any], tier: str) -> Any:
    total = Ledger()
    for record in (first, second):
        for way, by in record["bytes"][tier].items():
            for purpose, number in by.items():
                total.add(tier, way, purpose, number)  # type: ignore[arg-type]
    return total.nested([tier])[tier]  # type: ignore[list-item]


def test_where_all_clients_meet_at_the_cloud_there_are_no_tiers() -> None:
    plain, tree = (play(method(topology=Flat()), DATA, SHARDS, tiers=own) for own in ((), (3, 2)))
    assert without(plain.records) == without(tree.records)


# ------------------------------------------------------------------------------------------ a plain recursion


class Recursion:
    """What every node does, as a recursion over nested lists of clients. Regions step with momentum."""

    def __init__(self, played: Played, rounds_: tuple[int, ...], beta: float) -> None:
        self.network, self.rounds, self.beta = played.federation.build(0), rounds_, beta
        self.velocity: dict[tuple[int, ...], Weights] = {}

    def node(self, children: Any, w: Weights, height: int, path: tuple[int, ...] = ()) -> tuple[Weights, int]:
        """Return what a node makes of w in its rounds, and the examples behind it; an edge has height 0."""
        for _ in range(self.rounds[height]):
            came = [
                self.node(child, w, height - 1, (*path, i)) if height else self.client(child, w)
                for i, child in enumerate(children)
            ]
            n = sum(size for _, size in came)
            change = [torch.zeros_like(value) for value in w]
            for after, size in came:
                change = [c + size / n * (a - b) for c, a, b in zip(change, after, w, strict=True)]
            if height == 1:
                old = self.velocity.get(path, [torch.zeros_like(value) for value in w])
                change = self.velocity[path] = [self.beta * a + b for a, b in zip(old, change, strict=True)]
            w = [a + b for a, b in zip(w, change, strict=True)]
        return w, n

    def client(self, client: int, w: Weights) -> tuple[Weights, int]:
        x, y = (torch.from_numpy(array[SHARDS.train[client]]) for array in (DATA.x_train, DATA.y_train))
        return descended(self.network, w, x, y, WHOLE), len(x)


EDGES = [list(clients) for clients in SHARDS.clients]
REGIONS = [EDGES[:2], EDGES[2:3], EDGES[3:]]
COUNTRIES = [REGIONS[:1], REGIONS[1:]]


@pytest.mark.covering
@pytest.mark.parametrize("edge_rounds", [1, 2])
@pytest.mark.parametrize(
    ("tiers", "tree", "rounds_"),
    [(((2, 1, 3),), REGIONS, (2,)), (((2, 1, 3), (1, 2)), COUNTRIES, (2, 3))],
    ids=["three-levels", "four-levels"],
)
def test_every_level_is_that_of_a_plain_recursion(
    tiers: tuple[Any, ...], tree: Any, rounds_: tuple[int, ...], edge_rounds: int
) -> None:
    inner = [InnerTier(rounds=rounds_[0], step=Momentum(beta=0.5)), *(InnerTier(rounds=r) for r in rounds_[1:])]
    row = method(topology=Hierarchical(edge_rounds=edge_rounds), **dict(zip(INNER, inner, strict=False)))
    played = play(row, DATA, SHARDS, training=WHOLE, tiers=tiers, num_rounds=2)
    oracle = Recursion(played, (edge_rounds, *rounds_, 1), 0.5)
    w: Weights = [parameter.detach().clone() for parameter in played.federation.build(0).parameters()]
    for state in played.states[1:]:
        w, _ = oracle.node(tree, w, len(tiers) + 1)
        for mine, theirs in zip(state.parts["global"].values(), w, strict=True):
            torch.testing.assert_close(mine[0], theirs, rtol=0, atol=1e-6)


def test_a_region_combines_its_edges_by_its_own_rule() -> None:
    """Client i trains to weights i; the median of three edges, and the mean of one edge alone."""
    row = method(region=InnerTier(aggregation=Median()))
    played = play(row, DATA, SHARDS, StubTrainer(), tiers=((3, 1, 2),), num_rounds=1)
    edge = [np.average(own, weights=[len(SHARDS.train[client]) for client in own]) for own in EDGES]
    size = [sum(len(SHARDS.train[client]) for client in own) for own in EDGES]
    region = [np.median(edge[:3]), edge[3], np.mean(edge[4:])]
    expected = np.average(region, weights=[sum(size[:3]), size[3], sum(size[4:])])
    for value in played.end.parts["global"].values():
        torch.testing.assert_close(value, torch.full_like(value, float(expected)))


# ----------------------------------------------------------------------------------------------------- selection


def test_nodes_select_among_their_children() -> None:
    """A third of three edges, half of two regions: of each, one trains, and the cloud averages what began with it."""
    region, country = InnerTier(selection=Random(fraction=0.34)), InnerTier(selection=Random(fraction=0.5))
    row = method(region=region, country=country)
    played = play(row, DATA, SHARDS, StubTrainer(), tiers=((3, 1, 2), (2, 1)), num_rounds=8)
    trained = [{m for m, own in enumerate(record["selected"]) if own} for record in played.records]
    assert all(len(some) == 2 and len(some & {0, 1, 2, 3}) == 1 for some in trained)
    assert len(set(map(frozenset, trained))) >= 4
    size = [sum(len(SHARDS.train[client]) for client in own) for own in EDGES]
    of_country = [sum(size[:4]), sum(size[4:])]  # all its examples, whoever trained
    edge = [np.average(own, weights=[len(SHARDS.train[client]) for client in own]) for own in EDGES]
    for state, (left, right) in zip(played.states[1:], map(sorted, trained), strict=True):
        expected = np.average([edge[left], edge[right]], weights=of_country)
        for value in state.parts["global"].values():
            torch.testing.assert_close(value, torch.full_like(value, float(expected)))


def test_a_node_learns_with_what_losses_its_children_train() -> None:
    """Whoever was not tried has an infinite loss; then the child with the largest goes on."""
    row = method(region=InnerTier(rounds=3, selection=PowerOfChoice(fraction=0.34, d_factor=3, variant="last")))
    played = play(row, DATA, SHARDS, tiers=((3, 3),), num_rounds=3)
    assert [all(record["selected"]) for record in played.records] == [True, False, False]
    losses = [node.selection.loss_N for node in played.states[1].nodes[0]]
    chosen = [[m for m, own in enumerate(record["selected"]) if own] for record in played.records]
    assert all(np.isfinite(loss_N).all() for loss_N in losses)
    assert {0 + int(np.argmax(losses[0])), 3 + int(np.argmax(losses[1]))} <= set(chosen[1])


def test_the_cloud_asks_those_who_train_in_the_last_round_of_a_region() -> None:
    """Of six edges three train in each of two rounds; who trains in the first alone has no answer for the cloud."""
    row = method("clusters", region=InnerTier(rounds=2, selection=Random(fraction=0.5)), sharing=OnceOverfitted())
    played = play(row, DATA, SHARDS, tiers=(1,), num_rounds=4)
    assert any(sum(map(bool, record["selected"])) > 3 for record in played.records)
    assert np.isfinite(played.end.sharing.overfitting).all()


class Told(NamedTuple):
    moved: IntArray


class Noticing(Random):
    """Counts how often its edge was told that it had moved."""

    kind: Literal["noticing"] = "noticing"  # type: ignore[assignment]

    def init(self, num_members: int) -> Any:
        return Told(np.zeros(1, dtype=np.int64))

    def learn(self, state: Any, evidence: Evidence, mask_N: BoolArray) -> Any:
        return Told(state.moved + evidence.moved)


def test_an_edge_that_was_not_selected_is_told_of_its_move_later() -> None:
    script = ((0, 0, 0, 0, 0, 0), (1, 1, 1, 1, 1, 1))
    row = method("moving", region=InnerTier(selection=Random(fraction=0.5)), selection=Noticing())
    row = row.model_copy(update={"clustering": Scripted(num_clusters=2, script=script)})
    played = play(row, DATA, SHARDS, tiers=(3,), num_rounds=8)
    assert 0 < sum(bool(own) for own in played.records[1]["selected"]) < 6
    assert [memory.moved.tolist() for memory in played.end.selection_M] == [[1]] * 6


# ----------------------------------------------------------------------------------------------------- ownership


def test_a_region_owns_what_only_its_edges_average() -> None:
    """Client i trains to weights i: the head is its region's mean, the body everybody's."""
    row = method(personalization=PersonalHead(owner="region"))
    played = play(row, DATA, SHARDS, StubTrainer(), tiers=((3, 1, 2), (1, 2)), num_rounds=1)
    size = [len(own) for own in SHARDS.train]
    region = [[client for edge in edges for client in edge] for edges in (EDGES[:3], EDGES[3:4], EDGES[4:])]
    for value in played.end.parts["head"].values():
        for r, own in enumerate(region):
            expected = np.average(own, weights=[size[client] for client in own])
            torch.testing.assert_close(value[r], torch.full_like(value[r], float(expected)))
    for value in played.end.parts["body"].values():
        torch.testing.assert_close(value, torch.full_like(value, float(np.average(range(11), weights=size))))
    sent = {tier: ways["up"]["train"] for tier, ways in played.records[0]["bytes"].items()}
    body, head = (4 * sum(value[0].numel() for value in played.end.parts[part].values()) for part in ("body", "head"))
    assert sent == {"client": 11 * (body + head), "region": 6 * (body + head), "country": 3 * body, "cloud": 2 * body}


@cache
def owned(scheme: Any, owner: str) -> Played:
    """Return a run in which each edge is a region and a country."""
    return play(method("some-clients", personalization=scheme(owner=owner)), DATA, SHARDS, tiers=(6, 6))


@pytest.mark.covering
@pytest.mark.parametrize("owner", ["region", "country"])
@pytest.mark.parametrize("scheme", [PersonalHead, Personal, TwoHeads, HeadsTogether])
def test_where_each_edge_is_a_node_what_nodes_own_is_what_edges_own(scheme: Any, owner: str) -> None:
    """Also after several rounds, some clients, and phases of their own."""
    edges, nodes = owned(scheme, "edge"), owned(scheme, owner)
    assert distance(edges.end.parts, nodes.end.parts) == 0
    assert without(edges.records, "bytes") == without(nodes.records, "bytes")


def test_countries_own_what_a_federation_of_their_edges_would_learn() -> None:
    """A whole network of each country is what its edges learn alone; those of another are of no account to it."""
    row = method(personalization=Personal(owner="country", strength=0.0, unseen="init"), country=InnerTier(rounds=2))
    played = play(row, DATA, SHARDS, training=WHOLE, tiers=((2, 1, 3), (2, 1)), num_rounds=2)
    oracle = Recursion(played, (1, 1, 4), 0.0)
    w: Weights = [value[0] for value in played.states[0].parts["personal"].values()]
    for country, tree in enumerate((REGIONS[:2], REGIONS[2:])):
        expected, _ = oracle.node(tree, w, 2)
        for mine, theirs in zip(played.end.parts["personal"].values(), expected, strict=True):
            torch.testing.assert_close(mine[country], theirs, rtol=0, atol=1e-6)


# --------------------------------------------------------------------------------------------------------- bytes


def test_bytes_are_counted_tier_by_tier() -> None:
    """Six edges of two clusters below three regions below two countries; regions work twice before anybody hears."""
    row = method("clusters", region=InnerTier(rounds=2))
    row = row.model_copy(update={"clustering": Scripted(num_clusters=2, script=((0, 0, 1, 1, 0, 1),))})
    played = play(row, DATA, SHARDS, tiers=((2, 1, 3), (1, 2)), num_rounds=1)
    network = 4 * sum(value[0].numel() for value in played.end.parts["global"].values())
    sent = {tier: {way: by["train"] for way, by in ways.items()} for tier, ways in played.records[0]["bytes"].items()}
    both = {  # the global network for each child, and those of the clusters among its edges
        "client": 2 * 11 * (1 + 1),
        "region": 2 * 6 * (1 + 1),
        "country": (1 + 1) + (1 + 1) + (1 + 2),
        "cloud": (1 + 1) + (1 + 2),
    }
    assert sent == {tier: {"down": count * network, "up": count * network} for tier, count in both.items()}


def test_models_to_be_measured_pass_every_tier_once() -> None:
    plain, tree = (play(method("moving"), DATA, SHARDS, tiers=own, num_rounds=2) for own in ((), (3, 2)))
    for before, after in zip(plain.records, tree.records, strict=True):
        once = before["bytes"]["cloud"]["down"]["evaluate"]
        sent = {tier: ways["down"]["evaluate"] for tier, ways in after["bytes"].items() if tier != "client"}
        assert sent == {"region": once, "country": once / 2, "cloud": once / 3}


# ------------------------------------------------------------------------------------ links, time, and going on


@pytest.mark.parametrize("link", first(1, ["region", "country", "cloud"]))
def test_links_of_tiers_pass_changes(link: str) -> None:
    """A codec that leaves nothing out changes nothing; one that does is caught up with, and costs less."""
    plain, whole, short = (
        play(method("clusters", links=links), DATA, SHARDS, tiers=(3, 2), num_rounds=4)
        for links in (
            Links(),
            Links(**{f"{link}_up": TopK(keep=1.0), f"{link}_down": TopK(keep=1.0)}),
            Links(**{f"{link}_up": EightBits(), f"{link}_down": EightBits()}),
        )
    )
    assert 0 <= distance(plain.end.parts, whole.end.parts) < 1e-5
    assert 1e-5 < distance(plain.end.parts, short.end.parts) < 0.05
    for way in ("up", "down"):
        costs = [played.records[-1]["bytes"][link][way]["train"] for played in (plain, whole, short)]
        assert costs[0] == costs[1] > 2 * costs[2]


def test_a_round_takes_as_long_as_its_slowest_region() -> None:
    world = World(speed_spread=1.0, megabits_cloud=0.01)
    plain, tree = (
        play(method(**inner), DATA, SHARDS, tiers=own, world=world, num_rounds=1)
        for own, inner in (((), {}), ((3,), {"region": InnerTier(rounds=2)}))
    )
    network = 4 * sum(value.numel() for value in plain.end.parts["global"].values())
    passing, numbers = 8 * 2 * network / 1e4, 8 * 2 * 4 / 1e4
    expected = 2 * plain.records[0]["simulated_seconds"] + passing + 3 * numbers  # of a region, and of its two edges
    assert tree.records[0]["simulated_seconds"] == pytest.approx(expected)


@pytest.mark.parametrize("tiers", first(1, [(1,), (1, 1)]), ids=str)
def test_what_comes_late_to_an_edge_counts_in_a_later_round_of_its_region(tiers: tuple[int, ...]) -> None:
    """Two rounds of the one region, or of the country above it, are two of the cloud: links take no time here."""
    world = World(speed_spread=1.5, examples_per_second=10.0, megabits_cloud=1e6)
    late = Buffered(share=0.5)
    options: dict[str, Any] = {"training": WHOLE, "world": world}
    inner: dict[str, Any] = {INNER[len(tiers) - 1]: InnerTier(rounds=2)}
    tree = play(method(clock=late, **inner), DATA, SHARDS, tiers=tiers, num_rounds=3, **options)
    plain = play(method(clock=late), DATA, SHARDS, num_rounds=6, **options)
    ages = [sorted(one["ages"] + other["ages"]) for one, other in pairwise(plain.records)][::2]
    assert [sorted(record["ages"]) for record in tree.records] == ages
    assert max(map(max, ages)) > 1
    for t, state in enumerate(tree.states):
        assert distance(state.parts, plain.states[2 * t].parts) < 1e-6
        for mine, theirs in zip(state.waiting_M, plain.states[2 * t].waiting_M, strict=True):
            assert np.array_equal(mine.child_W, theirs.child_W)
            np.testing.assert_allclose(mine.due_W, theirs.due_W, atol=1e-4)


LATE = Buffered(share=0.4)
SLOW = World(speed_spread=1.5, examples_per_second=10.0, megabits_cloud=1e6)
"""Links between tiers take no time worth mentioning."""


def arrivals(record: Mapping[str, Any], who: str) -> list[int]:
    return sorted(record[f"{who}_ages"])


@pytest.mark.covering
@pytest.mark.parametrize(
    ("tiers", "late", "who"),
    [((1,), "region", "edge"), ((1, 1), "region", "edge"), ((6, 1), "country", "region")],
    ids=str,
)
@pytest.mark.parametrize("name", ["hierfavg", "clusters", "moving"])
def test_a_node_need_not_wait_for_its_slowest_child(name: str, tiers: tuple[int, ...], late: str, who: str) -> None:
    """Two rounds of the one node are two of a cloud that does not wait."""
    options: dict[str, Any] = {"training": WHOLE, "world": SLOW}
    changes = {"clustering": Scripted(num_clusters=2, script=((0, 1, 0, 1, 0, 1),))} if name == "moving" else {}
    inner: dict[str, Any] = {late: InnerTier(rounds=2, clock=LATE)}
    tree = play(method(name, **changes, **inner), DATA, SHARDS, tiers=tiers, num_rounds=3, **options)
    plain = play(method(name, **changes, cloud_clock=LATE), DATA, SHARDS, num_rounds=6, **options)
    ages = [sorted(one["edge_ages"] + other["edge_ages"]) for one, other in pairwise(plain.records)][::2]
    assert [arrivals(record, who) for record in tree.records] == ages
    assert max(map(max, ages)) > 1
    many = "edges" if who == "edge" else "regions"
    assert tree.records[-1][f"{many}_under_way"] == plain.records[-1]["edges_under_way"] > 0
    for t, state in enumerate(tree.states):
        (mine,) = state.sent[INNER.index(late)]
        ((theirs,),) = plain.states[2 * t].sent
        assert distance(state.parts, plain.states[2 * t].parts) < 1e-6
        assert np.array_equal(mine.child_W, theirs.child_W)
        np.testing.assert_allclose(mine.due_W, theirs.due_W, atol=1e-4)
    seconds = [sum(record["simulated_seconds"] for record in played.records) for played in (tree, plain)]
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-4)


@pytest.mark.parametrize("name", first(2, ["hierfavg", "clusters", "own-parts", "some-clients"]))
def test_a_cloud_above_regions_need_not_wait_either(name: str) -> None:
    plain, tree = (
        play(method(name, cloud_clock=LATE), DATA, SHARDS, tiers=own, num_rounds=6, world=SLOW) for own in ((), (6,))
    )
    assert distance(plain.end.parts, tree.end.parts) == 0
    assert any(max(arrivals(record, "region")) > 1 for record in tree.records)
    for one, other in zip(plain.records, tree.records, strict=True):
        assert one["edge_ages"] == other["region_ages"]
        assert one["loss"] == pytest.approx(other["loss"])
        assert one["accuracy"] == other["accuracy"]


@pytest.mark.parametrize("name", first(3, ["hierfavg", "clusters", "sharing", "own-parts", "regional", "step"]))
def test_buffers_for_all_give_the_bits_of_rounds_that_wait(name: str) -> None:
    full: dict[str, Any] = {"clock": Buffered(share=1.0)}
    some = InnerTier(rounds=2, selection=Random(fraction=0.7))
    waiting, buffers = (
        play(method(name, **changes), DATA, SHARDS, tiers=(3, 2), num_rounds=3, world=SLOW)
        for changes in (
            {"region": some, "country": InnerTier()},
            {
                "region": some.model_copy(update=full),
                "country": InnerTier(**full),
                "cloud_clock": full["clock"],
                "clock": full["clock"],
            },
        )
    )
    assert distance(waiting.end.parts, buffers.end.parts) == 0
    for one, other in zip(waiting.records, buffers.records, strict=True):
        assert other["edges_under_way"] == other["regions_under_way"] == other["countries_under_way"] == 0
        assert without([one]) == without([{key: value for key, value in other.items() if key in one}])


def test_an_average_that_is_late_counts_for_the_cluster_that_its_edge_has_joined() -> None:
    """One edge trains ten times as long as the other; meanwhile both join the second cluster."""
    shards = deal(DATA, [[20], [2]], test=[15] * 2)
    row = method("moving", region=InnerTier(clock=Buffered(share=0.5, exponent=0)))
    row = row.model_copy(update={"clustering": Scripted(num_clusters=2, script=((0, 0), (1, 1)))})
    world = World(examples_per_second=1.0, megabits_cloud=1e6, megabits_up=1e6, megabits_down=1e6)
    played = play(row, DATA, shards, tiers=(1,), num_rounds=12, world=world, training=WHOLE)
    came = next(t for t, record in enumerate(played.records) if max(record["edge_ages"]) > 0)
    before, after = played.states[came], played.states[came + 1]
    sent = before.sent[0][0].of(before.sent[0][0].child_W == 0).rows["cluster"]
    assert sent.owner_R.tolist() == [0]
    for name, value in before.parts["cluster"].items():
        assert torch.equal(after.parts["cluster"][name][0], value[0])
        torch.testing.assert_close(after.parts["cluster"][name][1], value[1] + sent.change_R[name][0])


LATEST = PowerOfChoice(fraction=0.5, variant="last")
GOING_ON: dict[str, dict[str, Any]] = {
    "hierfavg": {"clock": Buffered(share=0.5), "region": InnerTier(rounds=2, selection=Random(fraction=0.5))},
    "some-clients": {
        "clock": LATE,
        "region": InnerTier(rounds=2, clock=LATE, selection=PowerOfChoice(fraction=0.7, variant="last")),
        "country": InnerTier(clock=Buffered(share=0.5)),
        "cloud_clock": Buffered(share=0.5),
    },
    "sharing": {"region": InnerTier(clock=LATE, step=Momentum()), "links": Links(region_up=TopK(keep=0.2))},
    "clusters": {
        "region": InnerTier(rounds=2, step=Momentum()),
        "links": Links(region_up=TopK(keep=0.2), country_down=EightBits(), cloud_up=EightBits()),
    },
    "moving": {"country": InnerTier(rounds=2, aggregation=Median()), "links": Links(region_down=TopK(keep=0.2))},
    "regional": {
        "region": InnerTier(rounds=2, selection=LATEST, step=Momentum()),
        "country": InnerTier(rounds=2, selection=Random(fraction=0.5)),
    },
    "own-parts": {
        "region": InnerTier(selection=LATEST, step=Momentum()),
        "country": InnerTier(step=Momentum(beta=0.5)),
    },
}


@pytest.mark.parametrize("name", first(3, GOING_ON))
def test_a_run_goes_on_from_every_round(name: str) -> None:
    """From each with the next one, record and state, bit by bit: and so to the end."""
    row = method(name, **GOING_ON[name])
    world = SLOW if row.clock.holds or row.region.clock.holds else None
    whole = play(row, DATA, SHARDS, tiers=(3, 2), num_rounds=4, world=world)
    for after in range(4):
        experiment, federation = prepare(row, DATA, SHARDS, tiers=(3, 2), num_rounds=4, world=world)
        template = start(experiment, federation.build, federation.sites)
        state: State = unflatten(template, flatten(whole.states[after]))
        assert state.misfit(template) is None
        edges = Simulator(
            experiment, federation.sites, LoopTrainer(federation.network, row.personalization, federation.examples)
        )
        record, reached = next(rounds(experiment, federation.sites, edges, replace(state, round=after)))
        expected = flatten(whole.states[after + 1])
        assert flatten(reached).keys() == expected.keys()
        for place, value in flatten(reached).items():
            np.testing.assert_array_equal(value.numpy(), expected[place].numpy(), place)
        assert without([record]) == without([whole.records[after]])
