"""Devices and links: who comes home, when, and what a round costs then."""

import numpy as np
import pytest

from fedbac.config.experiment import Method
from fedbac.core.rng import stream
from fedbac.core.world import EQUAL, World, extended, on_time
from fedbac.data import planted_groups
from fedbac.engines import Simulator
from fedbac.rounds.cloud import rounds
from fedbac.rounds.metrics import total_bytes
from fedbac.rounds.start import start
from fedbac.selection import Random
from fedbac.topology import Flat, Hierarchical
from tests.support import PLAIN_SGD, StubTrainer, play, prepare

DATA, SHARDS, _ = planted_groups(3, 10, 2, train=10, validation=2, test=15)
ALL = np.arange(10)
SECONDS = np.arange(1.0, 11.0)


def rng() -> np.random.Generator:
    return stream(0, "participants", 1)


def test_a_profile_belongs_to_a_client_and_a_seed() -> None:
    world = World()
    whole, half = world.profile(3, tuple(range(10))), world.profile(3, tuple(range(5)))
    np.testing.assert_array_equal(whole.speed_N[:5], half.speed_N)
    assert not np.array_equal(whole.speed_N, world.profile(4, tuple(range(10))).speed_N)
    equal = EQUAL.profile(3, tuple(range(10)))
    assert np.unique(equal.speed_N).size == np.unique(equal.up_N).size == 1


def test_seconds_are_receiving_training_and_sending() -> None:
    profile = World(
        speed_spread=0, bandwidth_spread=0, examples_per_second=100, megabits_down=8, megabits_up=4
    ).profile(0, (0,))
    # 1 MB down at 1 MB/s, 50 examples at 100 a second, 1 MB up at half a MB/s
    np.testing.assert_allclose(profile.seconds(np.array([50.0]), 1e6, 1e6), [1 + 0.5 + 2])


def test_nobody_is_missing_without_a_world() -> None:
    participants = on_time(EQUAL, ALL, 10, SECONDS, rng())
    np.testing.assert_array_equal(participants.present, ALL)
    assert participants.dropped.size == participants.late.size == 0
    assert participants.seconds == 10.0


def test_the_share_that_drops_out_is_exact_and_changes_with_the_round() -> None:
    world = World(dropout=0.3)
    found = [on_time(world, ALL, 10, SECONDS, stream(0, "participants", t)) for t in range(20)]
    assert {participants.dropped.size for participants in found} == {3}
    assert len({tuple(participants.dropped) for participants in found}) > 5
    assert on_time(world, ALL[:1], 1, SECONDS, rng()).present.size == 1, "somebody always stays"


def test_who_is_late_does_not_count_and_the_edge_waits_for_the_deadline() -> None:
    participants = on_time(World(deadline=6.5), ALL, 10, SECONDS, rng())
    np.testing.assert_array_equal(participants.present, ALL[:6])
    np.testing.assert_array_equal(participants.late, ALL[6:])
    assert participants.seconds == 6.5
    assert on_time(World(deadline=0.5), ALL, 10, SECONDS, rng()).present.tolist() == [0], "the fastest counts"


def test_of_too_many_the_first_count() -> None:
    mask_N = np.arange(10) >= 6
    world = World(over_selection=2.0)
    more_N = extended(world, mask_N, np.ones(10, dtype=bool), rng())
    assert more_N.sum() == 8
    assert more_N[6:].all()
    participants = on_time(world, np.flatnonzero(more_N), 4, SECONDS, rng())
    np.testing.assert_array_equal(participants.present, np.flatnonzero(more_N)[:4])
    assert participants.seconds == SECONDS[participants.present].max()


def test_dropout_costs_downloads_and_leaves_the_average_to_the_others() -> None:
    method = Method(name="test")
    experiment, federation = prepare(method, DATA, SHARDS, num_rounds=2)
    task = experiment.task.model_copy(update={"world": World(dropout=0.3)})
    experiment = experiment.model_copy(update={"task": task})
    edges = Simulator(experiment, federation.sites, StubTrainer())
    state = start(experiment, federation.build, federation.sites)
    record, after = next(rounds(experiment, federation.sites, edges, state))
    whole = play(method, DATA, SHARDS, StubTrainer(), num_rounds=1).records[0]
    assert len(record["dropped"]) == 9
    assert record["bytes"]["client"]["down"] == whole["bytes"]["client"]["down"]
    assert record["bytes"]["client"]["up"]["train"] * 10 == whole["bytes"]["client"]["up"]["train"] * 7
    assert record["simulated_seconds"] > 0
    assert whole["simulated_seconds"] is None
    stayed = [i for i in range(30) if i not in record["dropped"]]
    for value in after.parts["global"].values():  # StubTrainer: client i comes back with weights i; sizes are equal
        np.testing.assert_allclose(value.numpy(), np.mean(stayed), rtol=1e-5)


@pytest.mark.parametrize("topology", [Hierarchical(), Flat()], ids=lambda topology: topology.kind)
def test_a_round_also_takes_what_the_links_to_the_cloud_take(topology: Hierarchical | Flat) -> None:
    """Each edge has a link of its own; where there are no edges, nothing passes one."""
    slow, fast = 0.01, 0.04
    seconds = {}
    for megabits in (slow, fast):
        world = World(megabits_cloud=megabits)
        experiment, federation = prepare(Method(name="test", topology=topology), DATA, SHARDS, num_rounds=1)
        experiment = experiment.model_copy(update={"task": experiment.task.model_copy(update={"world": world})})
        edges = Simulator(experiment, federation.sites, StubTrainer())
        state = start(experiment, federation.build, federation.sites)
        record, _ = next(rounds(experiment, federation.sites, edges, state))
        seconds[megabits] = record["simulated_seconds"]
    megabits_each = 8e-6 * total_bytes(record["bytes"]["cloud"]) / len(SHARDS.clients)
    assert (megabits_each > 0) == (topology.tiers == 3)
    assert seconds[slow] - seconds[fast] == pytest.approx(megabits_each / slow - megabits_each / fast, abs=1e-9)


def test_who_is_away_is_not_selected() -> None:
    world = World(availability=0.4)
    size_N = np.full(10, 5)
    for t in range(30):
        there_N = world.available(0, tuple(range(10)), size_N, t, 0, 0)
        assert there_N.any()
    method = Method(name="test", selection=Random(fraction=1.0))
    experiment, federation = prepare(method, DATA, SHARDS, training=PLAIN_SGD, num_rounds=1)
    experiment = experiment.model_copy(update={"task": experiment.task.model_copy(update={"world": world})})
    edges = Simulator(experiment, federation.sites, StubTrainer())
    record, _ = next(rounds(experiment, federation.sites, edges, start(experiment, federation.build, federation.sites)))
    assert 3 <= sum(map(len, record["selected"])) < 30


@pytest.mark.parametrize(
    "change", [{"dropout": 1.0}, {"deadline": 0.0}, {"availability": 0.0}, {"over_selection": 0.5}]
)
def test_bad_worlds_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        World(**change)
