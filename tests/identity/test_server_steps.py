"""FedAvgM, FedAdam and FedYogi against plain loops written from their papers."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedbac.clustering import Fixed
from fedbac.config.experiment import Method, Training
from fedbac.contracts import check_step
from fedbac.core import trees
from fedbac.core.parts import Params, Personalization
from fedbac.core.state import flatten, unflatten
from fedbac.data import planted_groups
from fedbac.errors import PolicyError
from fedbac.personalization import Additive, ControlVariates, PerCluster, Personal
from fedbac.presets import tasks
from fedbac.presets.methods import method
from fedbac.selection import Random
from fedbac.sharing import TowardsMean
from fedbac.steps import Adam, Momentum, Take
from fedbac.topology import Flat, Hierarchical
from tests.support import Played, Scripted, StubTrainer, distance, play

DATA, SHARDS, _ = planted_groups(3, 4, 2, train=11, validation=2, test=12)
SIZES = [4 + client % 5 for client in range(12)]
SHARDS = replace(SHARDS, train=tuple(own[:size] for own, size in zip(SHARDS.train, SIZES, strict=True)))
WHOLE = Training(
    epochs=3, batch_size=100, learning_rate=0.2, learning_rate_decay=1, momentum=0, weight_decay=0, clip_norm=None
)
"""Gradient descent on all examples of a client: nothing is drawn that a plain loop would have to draw too."""

Weights = list[Tensor]
Server = Callable[[Weights, Weights], Weights]
"""Given w and Δ: the next w."""


def trained(network: nn.Module, start: Weights, client: int) -> Weights:
    """Return the weights of a client after local training."""
    x, y = (torch.from_numpy(array[SHARDS.train[client]]) for array in (DATA.x_train, DATA.y_train))
    return descended(network, start, x, y, WHOLE)


def descended(network: nn.Module, start: Weights, x: Tensor, y: Tensor, training: Training) -> Weights:
    """Return weights after gradient descent on some examples."""
    with torch.no_grad():
        for parameter, value in zip(network.parameters(), start, strict=True):
            parameter.copy_(value)
    for _ in range(training.epochs):
        loss = F.cross_entropy(network(x), y)
        gradients = torch.autograd.grad(loss, list(network.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(network.parameters(), gradients, strict=True):
                parameter.sub_(training.learning_rate * gradient)
    return [parameter.detach().clone() for parameter in network.parameters()]


def plain(played: Played, server: Server) -> Iterator[Weights]:
    """Play the same rounds as a plain loop with the same clients."""
    network = played.federation.build(0)
    w = [parameter.detach().clone() for parameter in network.parameters()]
    for record in played.records:
        clients = [client for site in record["selected"] for client in site]
        n = sum(SIZES[client] for client in clients)
        change = [torch.zeros_like(value) for value in w]
        for client in clients:
            for total, mine, start in zip(change, trained(network, w, client), w, strict=True):
                total += SIZES[client] / n * (mine - start)
        w = server(w, change)
        yield w


def fedavgm() -> Server:
    v: Weights = []

    def server(w: Weights, change: Weights) -> Weights:
        v[:] = [0.9 * old + new for old, new in zip(v, change, strict=True)] if v else change
        return [a + b for a, b in zip(w, v, strict=True)]

    return server


def fedopt(kind: Literal["adam", "yogi"], eta: float) -> Server:
    b1, b2, tau = 0.9, 0.99, 1e-3
    m: Weights = []
    v: Weights = []

    def server(w: Weights, change: Weights) -> Weights:
        if not m:
            m[:], v[:] = [torch.zeros_like(x) for x in w], [torch.full_like(x, tau**2) for x in w]
        for i, d in enumerate(change):
            m[i] = b1 * m[i] + (1 - b1) * d
            v[i] = b2 * v[i] + (1 - b2) * d**2 if kind == "adam" else v[i] - (1 - b2) * d**2 * (v[i] - d**2).sign()
        return [x + eta * a / (b.sqrt() + tau) for x, a, b in zip(w, m, v, strict=True)]

    return server


ORACLES: dict[str, Callable[[], Server]] = {
    "fedavgm": fedavgm,
    "fedadam": lambda: fedopt("adam", 0.00316),
    "fedyogi": lambda: fedopt("yogi", 0.00316),
}


@pytest.mark.covering
@pytest.mark.parametrize("fraction", [1.0, 0.4])
@pytest.mark.parametrize("name", ORACLES)
def test_a_server_s_step_is_that_of_its_paper(name: str, fraction: float) -> None:
    row = method(name, tasks.task("demo")).model_copy(update={"selection": Random(fraction=fraction)})
    played = play(row, DATA, SHARDS, training=WHOLE, num_rounds=6)
    assert {len(site) for record in played.records for site in record["selected"]} == {max(1, int(12 * fraction))}
    for state, expected in zip(played.states[1:], plain(played, ORACLES[name]()), strict=True):
        found = state.parts["global"].values()
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine[0], theirs, rtol=0, atol=1e-6)


def test_settings_that_take_the_combination_give_the_rounds_of_the_mean() -> None:
    taken, moved = (
        play(Method(name="x", step=step), DATA, SHARDS, num_rounds=4) for step in (Take(), Momentum(beta=0))
    )
    assert taken.end.steps == {}
    assert distance(taken.end.parts, moved.end.parts) < 1e-6


def test_the_step_is_taken_once_for_all_rounds_of_an_edge() -> None:
    """Clients come back with their number times the edge round: 2·6.5 after two, on which the cloud acts once."""
    row = Method(name="x", topology=Hierarchical(edge_rounds=2), step=Momentum(beta=0.5, learning_rate=0.1))
    played = play(row, DATA, replace(SHARDS, train=(SHARDS.train[0],) * 12), StubTrainer(), num_rounds=2)
    start, first, second = (state.parts["global"]["1.weight"][0] for state in played.states)
    torch.testing.assert_close(first, start + 0.1 * (11.0 - start))
    torch.testing.assert_close(second, first + 0.1 * (0.5 * (11.0 - start) + (11.0 - first)))


def test_who_heard_of_nobody_keeps_its_network_and_its_memory() -> None:
    """The third cluster has no member in the second round; then one comes, and goes on with what it remembers."""
    clustering = Scripted(num_clusters=3, script=((0, 1, 2), (0, 1, 1), (0, 1, 2)))
    row = Method(name="x", clustering=clustering, personalization=PerCluster(), step=Adam())
    played = play(row, DATA, SHARDS, num_rounds=3)
    one, two, three = played.states[1:]
    for state in (one, two, three):
        assert set(state.steps) == {"cluster"}
        assert {name: len(stack["1.weight"]) for name, stack in state.steps["cluster"].items()} == {
            "first": 3,
            "second": 3,
        }

    def row_of(state: Any, k: int) -> dict[str, Params]:
        everything = {"part": state.parts["cluster"], **state.steps["cluster"]}
        return {name: trees.take(stack, k) for name, stack in everything.items()}

    assert distance(row_of(one, 2), row_of(two, 2)) == 0
    assert distance(row_of(one, 1), row_of(two, 1)) > 0
    assert distance(row_of(two, 2), row_of(three, 2)) > 0


def test_memory_is_mixed_as_networks_are() -> None:
    """When clusters go on with a mix of networks, they remember the same mix; the cloud's part is not touched."""
    mix = ((0.25, 0.75, 0.0), (0.0, 1.0, 0.0), (0.0, 0.5, 0.5))
    rows = [
        Method(name="x", clustering=clustering, personalization=Additive(), step=Adam())
        for clustering in (
            Scripted(num_clusters=3, script=((0, 1, 2),)),
            Scripted(num_clusters=3, script=((0, 1, 2), (0, 1, 2)), origin=mix),
        )
    ]
    apart, mixed = (play(row, DATA, SHARDS, training=WHOLE, num_rounds=1).end for row in rows)
    for name, stack in apart.steps["cluster"].items():
        assert distance({"x": trees.mix(stack, np.array(mix))}, {"x": mixed.steps["cluster"][name]}) == 0
    assert distance(apart.steps["global"], mixed.steps["global"]) == 0
    assert distance({"x": trees.mix(apart.parts["cluster"], np.array(mix))}, {"x": mixed.parts["cluster"]}) == 0


def test_a_change_counts_from_what_clients_were_sent() -> None:
    """Where clusters send a mix of their networks, the step begins there."""
    row = Method(
        name="x",
        clustering=Fixed(num_clusters=3),
        sharing=TowardsMean(share=1.0),
        personalization=PerCluster(cluster_init="distinct"),
        step=Momentum(learning_rate=0.5),
    )
    played = play(row, DATA, SHARDS, StubTrainer(), num_rounds=1)
    sizes = np.array(SIZES).reshape(3, 4)
    start = trees.weighted_mean(played.states[0].parts["cluster"], sizes.sum(1).astype(float))["1.weight"]
    for k, clients in enumerate(np.arange(12).reshape(3, 4)):
        mean = float((sizes[k] * clients).sum() / sizes[k].sum())
        torch.testing.assert_close(played.end.parts["cluster"]["1.weight"][k], start + 0.5 * (mean - start))


class Normed(nn.Sequential):
    """A network with statistics of batches, which no gradient moves."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))


def test_statistics_of_batches_are_taken_as_they_are() -> None:
    rows = [Method(name="x", topology=Flat(), step=step) for step in (Take(), Adam())]
    taken, stepped = (play(row, DATA, SHARDS, num_rounds=1, user=Normed).end for row in rows)
    assert torch.equal(taken.parts["global"]["1.running_var"], stepped.parts["global"]["1.running_var"])
    assert not torch.equal(taken.parts["global"]["1.weight"], stepped.parts["global"]["1.weight"])
    assert "1.running_var" not in stepped.steps["global"]["first"]


class Fading(Take):
    """Goes 1/t of the way in an owner's t-th round, and counts these in a memory of one number for each owner."""

    kind: Any = "fading"
    active: ClassVar[bool] = True
    columns: int = 0

    def init(self, row_KD: Tensor) -> Any:
        return {"count": torch.zeros(len(row_KD), *[1] * self.columns)}

    def step(self, before_KD: Tensor, combined_KD: Tensor, memory: Any, share_K: Tensor) -> Any:
        count = memory["count"] + 1
        return before_KD + (combined_KD - before_KD) / count.reshape(-1, 1), {"count": count}


@pytest.mark.parametrize("columns", [0, 1])
def test_a_memory_may_be_one_number_for_each_owner(columns: int) -> None:
    check_step(Fading(columns=columns))
    clustering = Scripted(num_clusters=3, script=((0, 1, 2), (0, 1, 1), (0, 1, 1)))
    row = Method(name="x", clustering=clustering, personalization=PerCluster(), step=Fading(columns=columns))
    played = play(row, DATA, SHARDS, StubTrainer(), num_rounds=3)
    assert played.end.steps["cluster"]["count"][""].flatten().tolist() == [3, 3, 1]
    one, two = (state.parts["cluster"]["1.weight"][0] for state in played.states[1:3])
    mean = float((np.array(SIZES[:4]) * np.arange(4)).sum() / sum(SIZES[:4]))
    torch.testing.assert_close(two, one + (mean - one) / 2)
    saved = unflatten(played.states[0], flatten(played.end))
    assert distance(saved.steps["cluster"], played.end.steps["cluster"]) == 0


def test_a_step_that_remembers_no_weights_leaves_statistics_of_batches_alone() -> None:
    rows = [Method(name="x", topology=Flat(), step=step) for step in (Take(), Fading())]
    taken, stepped = (play(row, DATA, SHARDS, num_rounds=2, user=Normed) for row in rows)
    sent, after = (state.parts["global"] for state in stepped.states[1:])  # at first it goes all the way
    plain = taken.end.parts["global"]
    torch.testing.assert_close(after["1.running_var"], plain["1.running_var"])
    torch.testing.assert_close(after["0.weight"], (sent["0.weight"] + plain["0.weight"]) / 2)


@pytest.mark.parametrize("scheme", [Personal(), ControlVariates()], ids=lambda scheme: scheme.kind)
def test_what_clients_own_and_what_a_scheme_works_out_is_taken_as_it_is(scheme: Personalization) -> None:
    taken, stepped = (
        play(Method(name="x", personalization=scheme, step=step), DATA, SHARDS, num_rounds=1).end
        for step in (Take(), Momentum(learning_rate=0.1))
    )
    assert set(stepped.steps) == {"global"}
    for part in taken.parts:
        same = distance({"x": taken.parts[part]}, {"x": stepped.parts[part]}) == 0
        assert same == (part != "global")


class Broken(Momentum):
    """Answers wrongly."""

    kind: Any = "broken"
    answer: str

    def step(self, before_KD: Tensor, combined_KD: Tensor, memory: Any, share_K: Tensor) -> Any:
        return {
            "rows alone": combined_KD,
            "one row": (combined_KD[0], memory),
            "no memory": (combined_KD, {}),
            "no number": (before_KD * float("nan"), memory),
        }[self.answer]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("rows alone", "rows and a memory"),
        ("one row", "a tensor of shape"),
        ("no memory", "its memory: velocity"),
        ("no number", "finite numbers of finite ones, but its rows had others in round 1, part 'global'"),
    ],
)
def test_a_step_that_answers_wrongly_is_named(answer: str, said: str) -> None:
    with pytest.raises(PolicyError, match=f"method.step 'broken': step.. must return .*{said}"):
        play(Method(name="x", step=Broken(answer=answer)), DATA, SHARDS, num_rounds=1)
