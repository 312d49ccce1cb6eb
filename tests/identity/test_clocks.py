"""Rounds that do not wait for all, against a plain simulation of events, and against rounds that do."""

import heapq
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedbac import Asynchronous, Buffered, Deadline, Mean, Median, Method, Random, Thompson
from fedbac.clustering import Fixed
from fedbac.config.columns import Links
from fedbac.core.codecs import TopK
from fedbac.core.queries import Evidence
from fedbac.core.settings import BoolArray
from fedbac.core.state import State, flatten, unflatten
from fedbac.core.world import World
from fedbac.engines.simulator import Simulator
from fedbac.errors import ConfigError
from fedbac.local import LoopTrainer
from fedbac.personalization import Additive, Personal
from fedbac.rounds.cloud import rounds
from fedbac.rounds.start import start
from fedbac.selection.bandit import ThompsonState
from fedbac.topology import Flat, Hierarchical
from tests.covering import first
from tests.identity.test_server_steps import DATA, SHARDS, SIZES, WHOLE, Weights, trained
from tests.support import Played, distance, play, prepare

SLOW = World(speed_spread=1.5, examples_per_second=10.0)
"""Devices of which the fastest takes a hundredth of the time of the slowest."""


def fedbuff(played: Played, size: int, exponent: float) -> Iterator[tuple[Weights, float]]:
    """Algorithm 1 of FedBuff with a heap of arrivals on an absolute clock, for clients that start as the run says."""
    site, experiment = played.federation.sites[0], played.experiment
    profile = SLOW.profile(experiment.seed, site.clients)
    bytes_ = 4 * sum(v.numel() for v in played.federation.build(0).parameters())
    seconds = profile.seconds(WHOLE.epochs * site.size_N.astype(np.float64), bytes_, bytes_)
    w = [parameter.detach().clone() for parameter in played.federation.build(0).parameters()]
    arrivals: list[tuple[float, int, int, Weights]] = []
    now = 0.0
    for version, record in enumerate(played.records):
        for client in record["selected"][0]:
            change = [a - b for a, b in zip(trained(played.federation.build(0), w, client), w, strict=True)]
            heapq.heappush(arrivals, (now + float(seconds[client]), client, version, change))
        buffer = [heapq.heappop(arrivals) for _ in range(size)]
        now = buffer[-1][0]
        counted = {client: int(experiment.method.counted(np.array(SIZES[client]))) for _, client, _, _ in buffer}
        for _, client, began, change in buffer:
            share = counted[client] / sum(counted.values()) * (1 + version - began) ** -exponent
            w = [a + share * b for a, b in zip(w, change, strict=True)]
        yield w, now


@pytest.mark.parametrize(
    ("clock", "fraction", "size", "weight"),
    [
        pytest.param(Buffered(share=0.5), 1.0, 6, "examples", marks=pytest.mark.full),
        (Buffered(share=0.5), 1.0, 6, "uniform"),
        (Buffered(share=0.25, exponent=1.0), 0.7, 2, "examples"),
        (Asynchronous(), 0.5, 1, "examples"),
    ],
    ids=["half", "half-alike", "quarter-of-some", "each"],
)
def test_it_is_fedbuff(clock: Any, fraction: float, size: int, weight: Any) -> None:
    row = Method(name="x", topology=Flat(), selection=Random(fraction=fraction), clock=clock, client_weight=weight)
    played = play(row, DATA, SHARDS, training=WHOLE, num_rounds=10, world=SLOW)
    assert any(max(record["ages"]) > 1 for record in played.records)
    passed = np.cumsum([record["simulated_seconds"] for record in played.records])
    under_way = 0
    oracle = fedbuff(played, size, clock.exponent)
    for state, record, seconds, (expected, now) in zip(played.states[1:], played.records, passed, oracle, strict=True):
        under_way += len(record["selected"][0]) - len(record["ages"])
        assert under_way == record["under_way"] == len(state.waiting_M[0]) <= 12 * fraction
        assert seconds == pytest.approx(now)
        for mine, theirs in zip(state.parts["global"].values(), expected, strict=True):
            torch.testing.assert_close(mine[0], theirs, rtol=0, atol=1e-6)


def fedbuff_of_edges(played: Played, size: int, exponent: float) -> Iterator[tuple[Weights, float]]:
    """The same at the cloud: edges of all their clients come and go, each as slow as its slowest client."""
    experiment, sites = played.experiment, played.federation.sites
    w = [parameter.detach().clone() for parameter in played.federation.build(0).parameters()]
    bytes_ = 4 * sum(v.numel() for v in w)
    arrivals: list[tuple[float, int, int, Weights]] = []
    now, free = 0.0, set(range(len(sites)))
    for version in range(experiment.task.rounds):
        for m in sorted(free):
            own = sites[m].clients
            seconds = SLOW.profile(experiment.seed, own).seconds(
                WHOLE.epochs * sites[m].size_N.astype(np.float64), bytes_, bytes_
            )
            n, change = sum(SIZES[client] for client in own), [torch.zeros_like(v) for v in w]
            for client in own:
                after = trained(played.federation.build(0), w, client)
                change = [c + SIZES[client] / n * (a - b) for c, a, b in zip(change, after, w, strict=True)]
            heapq.heappush(arrivals, (now + float(seconds.max()), m, version, change))
        sent = len(free)
        buffer = [heapq.heappop(arrivals) for _ in range(size)]
        free = {m for _, m, _, _ in buffer}
        # Models pass the link of the cloud: down to those who began, up from those who are back.
        now = buffer[-1][0] + 8 * bytes_ * (sent + size) / len(sites) / (1e6 * SLOW.megabits_cloud)
        n = sum(sites[m].size for m in free)
        for _, m, began, change in buffer:
            share = sites[m].size / n * (1 + version - began) ** -exponent
            w = [a + share * b for a, b in zip(w, change, strict=True)]
        yield w, now


def test_edges_come_late_to_the_cloud_as_clients_to_an_edge() -> None:
    row = Method(name="x", cloud_clock=Buffered(share=0.4))
    played = play(row, DATA, SHARDS, training=WHOLE, num_rounds=12, world=SLOW)
    assert any(max(record["edge_ages"]) > 1 for record in played.records)
    passed = np.cumsum([record["simulated_seconds"] for record in played.records])
    for state, seconds, (expected, now) in zip(
        played.states[1:], passed, fedbuff_of_edges(played, 1, 0.5), strict=True
    ):
        assert seconds == pytest.approx(now)
        for mine, theirs in zip(state.parts["global"].values(), expected, strict=True):
            torch.testing.assert_close(mine[0], theirs, rtol=0, atol=1e-6)


METHODS: dict[str, dict[str, Any]] = {
    "additive": {"personalization": Additive(), "clustering": Fixed(num_clusters=2)},
    "personal": {"personalization": Personal()},
    "median": {"aggregation": Median()},
    "thompson": {"selection": Thompson(fraction=0.5)},
    "edge-rounds": {"topology": Hierarchical(edge_rounds=2)},
}


@pytest.mark.parametrize("name", first(2, METHODS))
def test_a_buffer_for_all_gives_the_bits_of_synchronous_rounds(name: str) -> None:
    row = Method(name="x", **METHODS[name])
    full: dict[str, Any] = {"clock": Buffered(share=1.0), "cloud_clock": Buffered(share=1.0)}
    waited = play(row, DATA, SHARDS, num_rounds=4, world=SLOW)
    buffered = play(row.model_copy(update=full), DATA, SHARDS, num_rounds=4, world=SLOW)
    assert distance(waited.end.parts, buffered.end.parts) == 0
    for one, other in zip(waited.records, buffered.records, strict=True):
        assert other["ages"] == [0] * len(other["ages"])
        assert other["under_way"] == other["edges_under_way"] == 0
        extra = {"edges_back", "ages", "edge_ages", "under_way", "edges_under_way", "seconds"}
        assert {k: v for k, v in one.items() if k not in extra} == {k: v for k, v in other.items() if k not in extra}


def reloaded(state: State, template: State) -> State:
    """Return a state as a checkpoint gives it back."""
    loaded: State = replace(unflatten(template, flatten(state)), round=state.round)
    assert loaded.misfit(template) is None
    return loaded


@pytest.mark.parametrize("name", first(2, METHODS))
def test_a_run_goes_on_from_every_round_with_the_same_bits(name: str) -> None:
    row = Method(name="x", clock=Buffered(share=0.4), cloud_clock=Buffered(share=0.4), **METHODS[name])
    played = play(row, DATA, SHARDS, num_rounds=5, world=SLOW)
    assert any(len(waiting) for waiting in played.end.waiting_M)
    assert len(played.end.sent[0][0]) > 0
    template = start(played.experiment, played.federation.build, played.federation.sites)
    trainer = LoopTrainer(played.federation.network, row.personalization, played.federation.examples)
    edges = Simulator(played.experiment, played.federation.sites, trainer)
    for before, after, expected in zip(played.states[1:-1], played.states[2:], played.records[1:], strict=True):
        begun = reloaded(before, template)
        record, state = next(rounds(played.experiment, played.federation.sites, edges, begun))
        assert flatten(state).keys() == flatten(after).keys()
        for key, value in flatten(after).items():
            np.testing.assert_array_equal(value.numpy(), flatten(state)[key].numpy(), key)
        assert record["accuracy"] == expected["accuracy"]


def test_a_rule_sees_late_updates_too() -> None:
    """The median of equal clients is where each of them is, however late it comes."""
    rules = [Method(name="x", clock=Buffered(share=0.4, exponent=0), aggregation=rule) for rule in (Mean(), Median())]
    same = replace(SHARDS, train=(SHARDS.train[0],) * 12)
    mean, median = (play(row, DATA, same, training=WHOLE, num_rounds=1, world=SLOW).end for row in rules)
    assert distance(mean.parts, median.parts) < 1e-6


def test_what_is_a_client_s_own_comes_with_its_update() -> None:
    """Until then its row is as it was; then it is as the client left it, whatever its age."""
    row = Method(name="x", clock=Buffered(share=0.4), personalization=Personal(unseen="init"))
    played = play(row, DATA, SHARDS, num_rounds=3, world=SLOW)
    first = played.states[1]
    for m, site in enumerate(played.federation.sites):
        for client, change in zip(first.waiting_M[m].child_W, range(len(first.waiting_M[m])), strict=True):
            number = site.clients[client]
            for name, stack in first.parts["personal"].items():
                assert torch.equal(stack[number], played.states[0].parts["personal"][name][number])
                assert first.waiting_M[m].change_W["personal"][name][change].abs().max() > 0


def test_a_deadline_belongs_to_the_method() -> None:
    rows = [Method(name="x", clock=Deadline(seconds=2.0, over_selection=1.5)), Method(name="x")]
    worlds = [SLOW, SLOW.model_copy(update={"deadline": 2.0, "over_selection": 1.5})]
    mine, theirs = (play(row, DATA, SHARDS, num_rounds=3, world=world) for row, world in zip(rows, worlds, strict=True))
    assert distance(mine.end.parts, theirs.end.parts) == 0
    assert [r["late"] for r in mine.records] == [r["late"] for r in theirs.records]
    assert any(record["late"] for record in mine.records)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "needs to know how long clients take; set task.world"),
        ({"aggregation": Mean(secret=True)}, "method.aggregation.secret makes a sum of those who began it"),
        ({"cloud_clock": Deadline()}, "method.cloud_clock 'deadline' is for edges"),
        ({"cloud_clock": Buffered(), "unit": "client"}, "does not go with method.unit=client"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], sentence: str) -> None:
    world = SLOW if changes else None
    with pytest.raises(ValueError, match=sentence):
        prepare(Method(name="x", **({"clock": Buffered()} | changes)), DATA, SHARDS, world=world)


def test_nobody_is_lost() -> None:
    """All that start either count, or are under way, or dropped out."""
    world = SLOW.model_copy(update={"dropout": 0.3})
    row = Method(name="x", clock=Buffered(share=0.3), selection=Random(fraction=0.8))
    played = play(row, DATA, SHARDS, num_rounds=8, world=world)
    started = sum(len(site) for record in played.records for site in record["selected"])
    counted = sum(len(record["ages"]) for record in played.records)
    dropped = sum(len(record["dropped"]) for record in played.records)
    assert dropped > 0
    assert started == counted + dropped + sum(map(len, played.end.waiting_M))


def test_an_edge_at_which_nobody_can_start_keeps_what_clients_left_out() -> None:
    """Its clients are away or under way, and their link compresses."""
    row = Method(name="x", clock=Asynchronous(), links=Links(client_up=TopK(keep=0.2)))
    world = SLOW.model_copy(update={"availability": 0.3})
    played = play(row, DATA, SHARDS, num_rounds=6, world=world)
    idle = [(t, m) for t, record in enumerate(played.records) for m, own in enumerate(record["selected"]) if not own]
    assert idle
    for t, m in idle:
        before, after = (played.states[at].links_M[m]["client_up"] for at in (t, t + 1))
        assert distance(before, after) == 0


def test_an_error_names_the_field() -> None:
    with pytest.raises((ValueError, ConfigError), match="share"):
        Buffered(share=0.0)


def test_who_counts_less_in_the_average_earns_less_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []
    learn = Thompson.learn

    def watched(self: Thompson, state: ThompsonState, evidence: Evidence, mask_N: BoolArray) -> ThompsonState:
        after = learn(self, state, evidence, mask_N)
        share_N = np.ones(mask_N.size) if evidence.share_N is None else evidence.share_N
        gained_N = (after.alpha_N + after.beta_N) - (state.alpha_N + state.beta_N)
        np.testing.assert_allclose(gained_N, gained_N.max() * mask_N * share_N / max((mask_N * share_N).max(), 1e-9))
        shares.extend(share_N[mask_N].tolist())
        return after

    monkeypatch.setattr(Thompson, "learn", watched)
    row = Method(name="x", clock=Buffered(share=0.4, exponent=1.0), selection=Thompson(fraction=1.0))
    records = play(row, DATA, SHARDS, num_rounds=6, world=SLOW).records
    ages = [age for record in records for age in record["ages"]]
    assert sorted(shares) == pytest.approx(sorted((1.0 + age) ** -1.0 for age in ages))
    assert any(share < 1 for share in shares)
