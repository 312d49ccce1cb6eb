"""Liars: who they are, what they say, that no number depends on how they are played, and what keeps them in check."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedbac
from fedbac.aggregation import Krum, Mean, Median, MinimumDiameter, NearestNeighbours, OneVoice, TrimmedMean
from fedbac.clustering import Merging
from fedbac.clustering.bandit import fit_reward
from fedbac.config.experiment import Experiment, Measurement, Method, Task, Training
from fedbac.contracts import check
from fedbac.core.aggregation import bounded
from fedbac.core.liars import Attack, Liars, Lies, mirrored
from fedbac.core.policies import Aggregation
from fedbac.core.requests import Measured
from fedbac.core.rng import stream
from fedbac.core.world import World
from fedbac.data import planted_groups
from fedbac.deploy.roles.enrolment import check_deployable
from fedbac.errors import ConfigError
from fedbac.local import VmapTrainer
from fedbac.models import Perceptron
from fedbac.personalization import Additive, PerCluster
from fedbac.rounds import measure
from tests.covering import first
from tests.support import Played, play, prepare
from tests.unit.tiny import tiny_data, tiny_run, tiny_task

DATA, SHARDS, _ = planted_groups(3, 6, 1, train=20, validation=2, test=30)
HARMFUL: list[Attack] = ["sign_flip", "gaussian", "alie", "ipm", "min_max", "mimic", "backdoor"]


def lied_to(attack: Attack, rule: Aggregation | None = None, rounds: int = 3, **who: Any) -> Played:
    method = Method(name="x", personalization=Additive(), aggregation=rule or Mean())
    who = who or {"clients": 0.34}
    return play(method, DATA, SHARDS, num_rounds=rounds, world=World(liars=Liars(attack=attack, **who)))


@cache
def honest() -> Played:
    return play(Method(name="x", personalization=Additive()), DATA, SHARDS, world=World())


def weights(played: Played) -> torch.Tensor:
    return torch.cat([value.flatten() for params in played.end.parts.values() for value in params.values()])


# ------------------------------------------------------------------------------------------------------ who


def test_a_share_is_of_every_edge_and_belongs_to_the_seed() -> None:
    liars, clients, edge_N = Liars(clients=0.3), tuple(range(20)), np.repeat([0, 1], 10)
    lying_N, by_N = liars.among(0, clients, edge_N, 2)
    assert [int(lying_N[edge_N == edge].sum()) for edge in (0, 1)] == [3, 3]
    assert (by_N == -1).all()
    alone_N, _ = liars.among(0, clients[10:], edge_N[10:], 2)
    np.testing.assert_array_equal(alone_N, lying_N[10:])  # an edge on its own, as in an actor, draws the same
    assert not np.array_equal(liars.among(1, clients, edge_N, 2)[0], lying_N)


def test_an_edge_that_lies_has_all_its_clients_lie_for_it() -> None:
    lying_N, by_N = Liars(edges=(1,), clients=(0,)).among(0, tuple(range(6)), np.repeat([0, 1, 2], 2), 3)
    assert lying_N.tolist() == [True, False, True, True, False, False]
    assert by_N.tolist() == [-1, -1, 1, 1, -1, -1]


@pytest.mark.parametrize(
    ("liars", "said"),
    [
        ({"attack": "alie"}, "nobody lies; name clients or edges"),
        ({"clients": [18]}, "task.world.liars.clients: there is no 18; they are numbered from 0 to 17"),
        ({"edges": [3]}, "task.world.liars.edges: there is no 3"),
        ({"attack": "examples", "clients": 0.1, "strength": 1e30}, "cannot be claimed; use 1 to 1,000,000,000"),
        ({"attack": "label_flip", "clients": 0.1, "from_round": 2}, "set from_round to 1"),
        ({"attack": "gaussian", "clients": 0.1, "jitter": 1.0}, "jitter is for clients who would all say the same"),
        ({"edges": [0], "jitter": 1.0}, "jitter is for clients"),
    ],
)
def test_liars_that_cannot_be_are_named(liars: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Experiment(
            task=Task(num_edges=3, clients_per_edge=6, world=World(liars=Liars(**liars))), method=Method(name="x")
        )


def test_a_federation_has_no_liars_on_purpose() -> None:
    experiment = fedbac.configure("hierfavg", "demo", settings=["task.world.liars={clients: 0.3}"])
    with pytest.raises(ConfigError, match=r"task\.world\.liars: .* set it to null"):
        check_deployable(experiment)


# ----------------------------------------------------------------------------------------------------- what


@pytest.mark.parametrize("attack", first(3, HARMFUL))
def test_clients_lie_from_their_round_on_and_in_what_they_send_alone(attack: Attack) -> None:
    late = lied_to(attack, clients=0.34, from_round=3)
    assert late.records[1]["accuracy_per_edge"] == honest().records[1]["accuracy_per_edge"]
    assert not torch.equal(weights(late), weights(honest()))


def test_an_edge_reports_what_it_makes_of_its_clients() -> None:
    """IPM of strength 1 by all edges: the cloud goes as far as it would have, the other way."""
    before, honest, lied = (
        play(Method(name="x"), DATA, SHARDS, num_rounds=1, world=world)
        for world in (None, None, World(liars=Liars(attack="ipm", edges=1.0, strength=1.0)))
    )
    sizes = {size for site in honest.federation.sites for size in site.size_N.tolist()}
    assert len(sizes) == 1, "else what clients hold counts too"
    for name, start in before.states[0].parts["global"].items():
        there, back = (played.end.parts["global"][name] - start for played in (honest, lied))
        torch.testing.assert_close(back, -there, atol=1e-6, rtol=1e-4)


def test_labels_are_flipped_where_liars_train_and_nowhere_else() -> None:
    world = World(liars=Liars(attack="label_flip", clients=(4,)))
    _, federation = prepare(Method(name="x"), DATA, SHARDS, world=world)
    mine, last = np.concatenate([SHARDS.train[4], SHARDS.validation[4]]), DATA.num_classes - 1
    np.testing.assert_array_equal(federation.dataset.y_train[mine], last - DATA.y_train[mine])
    others = np.setdiff1d(np.arange(len(DATA.y_train)), mine)
    np.testing.assert_array_equal(federation.dataset.y_train[others], DATA.y_train[others])
    np.testing.assert_array_equal(federation.dataset.y_test, DATA.y_test)


def test_who_claims_a_million_examples_is_the_mean_but_not_the_median() -> None:
    world = World(liars=Liars(attack="examples", clients=(0,)))
    _, federation = prepare(Method(name="x"), DATA, SHARDS, world=world)
    assert federation.sites[0].size_N.tolist() == [1_000_000, 20, 20, 20, 20, 20]
    honest, lied = (
        play(Method(name="x", aggregation=Median(), cloud_weight="uniform"), DATA, SHARDS, world=one)
        for one in (World(), world)
    )
    assert torch.equal(weights(honest), weights(lied))


@pytest.mark.parametrize("attack", first(1, ["sign_flip", "ipm", "alie", "min_max", "mimic"]))
def test_liars_who_differ_on_purpose_all_have_a_voice(attack: Attack) -> None:
    """And what they say is the lie on average, its noise in proportion to how honest clients differ."""
    learned = torch.randn(40, 500, generator=torch.Generator().manual_seed(0)) * torch.linspace(0.1, 2, 500)
    voices, told = {}, {}
    for jitter in (0.0, 1.0):
        lies = Lies(
            Liars(attack=attack, clients=0.3, jitter=jitter),
            np.arange(40) < 12,
            np.full(40, -1),
            frozenset({"global"}),
            lambda place: stream(0, "lies", place),
            10,
        )
        told[jitter] = lies.told({"global": {"w": learned}}, {"global": {"w": torch.zeros(40, 500)}})["global"]["w"]
        voices[jitter] = len(OneVoice(count="never").mix(told[jitter])[0])
        assert torch.equal(told[jitter][12:], learned[12:])
    assert voices == {0.0: 27 if attack == "mimic" else 28, 1.0: 40}
    added = (told[1.0] - told[0.0])[:12]
    deviation = added.std(0) / learned[12:].std(0)
    assert 0.9 < float(deviation.mean()) < 1.1
    assert float(deviation[:250].mean()) == pytest.approx(float(deviation[250:].mean()), abs=0.1)


# ---------------------------------------------------------------------------------------------------- bits


@pytest.mark.parametrize("attack", first(1, ["min_max", "gaussian"]))
def test_lies_are_the_same_however_many_clients_train_at_once_and_on_every_trainer(attack: Attack) -> None:
    world, method = World(liars=Liars(attack=attack, clients=0.34)), Method(name="x", personalization=Additive())
    _, federation = prepare(method, DATA, SHARDS, world=world)
    whole = play(method, DATA, SHARDS, world=world)
    narrow = play(method, DATA, SHARDS, world=world, memory_gib=1e-6)
    assert torch.equal(weights(whole), weights(narrow))
    trainer = VmapTrainer(federation.network, method.personalization, federation.examples, torch.device("cpu"))
    torch.testing.assert_close(weights(play(method, DATA, SHARDS, trainer, world=world)), weights(whole))


def test_a_run_with_liars_and_a_bounded_cluster_is_resumed_with_the_same_bits(tmp_path: Path) -> None:
    settings = (
        "task.world.liars={attack: gaussian, clients: 0.4, from_round: 2}",
        "method.aggregation={kind: median, before: bucketing}",
    )
    task = tiny_task(rounds=4)
    whole = tiny_run("hierfavg", *settings, task=task)
    with fedbac.play(
        "hierfavg", task, settings=settings, dataset=tiny_data(), out=tmp_path, device="cpu", workers=1
    ) as playing:
        assert [next(playing)["round"] for _ in range(2)] == [1, 2]
    resumed = fedbac.resume(tmp_path, dataset=tiny_data())
    for one, other in zip(whole.records, resumed.records, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    assert whole.records[-1]["notes"]["bounded_only"] == 1, "two edges: nobody can tell who lies"


# --------------------------------------------------------------------------------------------------- rules


@pytest.mark.parametrize("attack", first(1, ["sign_flip", "gaussian", "ipm", "backdoor"]))
def test_a_rule_keeps_what_the_mean_loses(attack: Attack) -> None:
    strong: dict[str, Any] = {"clients": 0.34, "strength": 5.0}
    rule = TrimmedMean(faulty=0.34, before=NearestNeighbours(faulty=0.34))
    mean, robust = (lied_to(attack, one, rounds=8, **strong).accuracy for one in (None, rule))
    assert robust > mean + 0.05


@pytest.mark.parametrize(
    ("rule", "clients", "said"),
    [
        (Krum(faulty=3), 6, r"'krum' cannot combine 6 clients of an edge: faulty=3 of 6 is no minority; use at most 2"),
        (TrimmedMean(faulty=0.4, before=NearestNeighbours(faulty=4)), 8, "faulty=4 of 8 is no minority"),
        (MinimumDiameter(faulty=0.3), 40, r"it tries all subsets, here [\d,]+, and at most 20,000; use krum"),
    ],
)
def test_too_few_or_too_many_children_are_refused(rule: Aggregation, clients: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Experiment(task=Task(num_edges=9, clients_per_edge=clients), method=Method(name="x", aggregation=rule))


@pytest.mark.parametrize("before", ["nnm", "bucketing", "one_voice"])
@pytest.mark.parametrize("kind", [kind for kind in fedbac.AGGREGATION if kind != "mean"])
def test_a_rule_keeps_its_promises_behind_a_mixing(kind: str, before: str) -> None:
    check(fedbac.AGGREGATION.kinds[kind].model_validate({"before": before}))


def test_of_two_edges_none_goes_further_than_clusters_ever_did() -> None:
    rows = ([3.0, 4], [0, 0.5], [60, 80], [6, 8])
    sent, reports = {"w": torch.zeros(3, 2)}, [{"w": torch.tensor([row])} for row in rows]
    owner_R, longest_K = np.array([0, 0, 1, 2]), np.array([1.0, 0.0, 100.0])
    found = bounded(reports, np.ones(4), owner_R, sent, np.array([1.0, 2.0, 100.0]))["w"]
    torch.testing.assert_close(found, torch.tensor([[1.2, 1.6], [0, 0.5], [60, 80], [6, 8]]))
    unknown = bounded(reports, np.ones(4), owner_R, sent, np.zeros(3))["w"]
    assert torch.equal(unknown, torch.tensor(rows)), "nothing is known before the first round"
    silent = bounded(reports, np.array([1.0, 0, 1, 1]), owner_R, sent, longest_K)["w"]
    assert torch.equal(silent[0], reports[0]["w"][0]), "one alone is taken as it is"


# -------------------------------------------------------------------------------------------------- losses


def test_losses_are_mirrored() -> None:
    loss_VG, accuracy_VG = mirrored(np.array([[1.0], [2.0], [4.0]]), np.array([[0.9], [0.5], [0.0]]), 10.0)
    assert loss_VG.tolist() == [[40.0], [30.0], [10.0]]
    np.testing.assert_allclose(accuracy_VG, [[0.1], [0.5], [1.0]])
    worst = mirrored(np.array([[1.0], [np.inf]]), np.ones((2, 1)), 10.0)[0]
    assert worst.tolist() == [[1.0], [np.inf]], "nobody believes in a network that has diverged"


@pytest.mark.parametrize("average", ["mean", "median"])
def test_one_client_of_six_turns_the_reward_of_linucb_unless_the_median_speaks(average: Any) -> None:
    """The cluster's network fits all six clients, the other does not; so the reward of Eq. 9 is positive."""
    world = World(liars=Liars(attack="losses", clients=(2,), strength=10.0))
    method = Method(name="x", measurement=Measurement(average=average))
    experiment, federation = prepare(method, DATA, SHARDS, world=world)
    site, loss_VG = federation.sites[0], np.array([[0.5], [1.5]]) * np.linspace(0.9, 1.1, 6)
    found = measure.GroupMeasurement(site.clients, site.size_N.astype(float), Measured(loss_VG, loss_VG, site.size_N))
    honest, heard = (
        fit_reward(*one.together().loss_VG[:, 0]) for one in (found, measure.told(found, experiment, site, 1))
    )
    assert honest == pytest.approx(0.5)
    assert heard == pytest.approx(honest, abs=0.01) if average == "median" else heard < 0


@cache
def merged(world: World | None, **defences: Any) -> Played:
    data, shards, _ = planted_groups(train=20, validation=defences.pop("validation", 0), test=40)
    measurement = Measurement(average=defences.pop("average", "mean"))
    clustering = Merging(period=2, reward_splits=("train",), **defences)
    method = Method(name="x", clustering=clustering, personalization=PerCluster(), measurement=measurement)
    training = Training(epochs=2, batch_size=10, learning_rate=0.1)
    return play(method, data, shards, training=training, network=Perceptron(hidden=()), num_rounds=4, world=world)


def mixed(played: Played) -> int:
    """Return how many honest edges share a cluster with one of another group; edges 0, 3 and 6 are one, and so on."""
    label_N, group_N = played.end.label_N, np.arange(9) % 3
    return sum(bool((group_N[label_N == label_N[m]] != group_N[m]).any()) for m in range(1, 9))


def test_a_client_of_each_edge_that_lies_about_losses_merges_all_unless_the_median_speaks() -> None:
    world = World(liars=Liars(attack="losses", clients=0.25))
    assert mixed(merged(world)) > 0
    defended, usual = merged(world, average="median"), merged(None)
    assert mixed(defended) == mixed(usual) == 0
    assert defended.accuracy > usual.accuracy - 0.02


def test_an_edge_that_lies_about_losses_draws_in_nobody_where_the_larger_gap_counts() -> None:
    world = World(liars=Liars(attack="losses", edges=(0,)))
    assert mixed(merged(world)) > 0
    assert mixed(merged(world, sides="larger")) == 0
    assert mixed(merged(None, sides="larger")) == mixed(merged(None)) == 0


def test_an_edge_that_lies_about_losses_keeps_nobody_together_where_the_median_edge_says_when_to_part() -> None:
    def clusters(world: World | None, sides: str) -> int:
        return len(set(merged(world, alone_steps=12, validation=8, sides=sides).end.label_N.tolist()))

    world = World(liars=Liars(attack="losses", edges=(0,), strength=1000.0))
    assert clusters(world, "mean") == 1
    assert min(clusters(world, "larger"), clusters(None, "larger"), clusters(None, "mean")) > 1
