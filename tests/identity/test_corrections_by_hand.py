"""SCAFFOLD, MTGC and the clients of FedDyn as their papers write them down: plain loops over flat vectors."""

from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad
from torch.nn import functional as F

from fedbac import ControlVariates, Dynamic, DynamicPull, Flat, GroupCorrections, Hierarchical, Method, Random
from fedbac.config.experiment import Training
from fedbac.core.parts import Params, Personalization
from fedbac.core.settings import FloatArray
from fedbac.errors import ConfigError
from fedbac.federation import Federation
from fedbac.runs.configure import configure
from tests.support import PLAIN_SGD, Played, deal, distance, play, prepare
from tests.trainers.reference import DATA, PATHS, make, naive_batches

UNEQUAL, EQUAL = [[1, 7, 13], [8, 3], [10]], [[7, 7, 7], [7, 7], [7]]
"""Sizes of clients at edges; with equal ones all take as many steps, as MTGC supposes."""
PLAIN = PLAIN_SGD.model_copy(update={"epochs": 2, "batch_size": 5, "learning_rate": 0.2})
RICH = PLAIN.model_copy(
    update={"momentum": 0.8, "weight_decay": 0.02, "clip_norm": 0.7, "learning_rate_decay": 0.9, "learning_rate": 0.05}
)
every_path = pytest.mark.parametrize("path", PATHS)
every_training = pytest.mark.parametrize("training", [PLAIN, RICH], ids=["plain", "rich"])
ROUNDS = 3
Weight = Literal["examples", "uniform"]
every_weight = pytest.mark.parametrize("weight", get_args(Weight))
Gradient = Callable[[Tensor, Tensor, Tensor], Tensor]


def played(path: str, method: Method, sizes: list[list[int]], training: Training = PLAIN, **options: Any) -> Played:
    shards = deal(DATA, sizes)
    _, federation = prepare(method, DATA, shards, training=training, num_rounds=ROUNDS, **options)
    trainer = make(path, federation, method.personalization)
    return play(method, DATA, shards, trainer, training=training, num_rounds=ROUNDS, **options)


def flat(params: Params, row: int = 0) -> Tensor:
    return torch.cat([value[row].reshape(-1).cpu().double() for name, value in params.items() if name != "trained"])


def gradient_of(federation: Federation, training: Training) -> Gradient:
    """Return the clipped gradient of the cross-entropy of a batch, by weights that lie flat."""
    network = federation.network.double()
    like = {name: value.detach() for name, value in network.named_parameters()}

    def loss(x: Tensor, batch: Tensor, labels: Tensor) -> Tensor:
        pieces = torch.split(x, [value.numel() for value in like.values()])
        params = {name: piece.view_as(value) for (name, value), piece in zip(like.items(), pieces, strict=True)}
        return F.cross_entropy(functional_call(network, params, (batch.double(),)), labels)

    def clipped(x: Tensor, batch: Tensor, labels: Tensor) -> Tensor:
        slope: Tensor = grad(loss)(x, batch, labels)
        return slope if training.clip_norm is None else slope * min(1.0, training.clip_norm / (slope.norm() + 1e-6))

    return clipped


class Local:
    """Local SGD of one client with a correction, and how far a gradient of 1 would have gone."""

    def __init__(self, run: Played, round_: int, edge_round: int = 0) -> None:
        self.run, self.at = run, (round_, edge_round)
        self.training = run.experiment.task.training
        self.gradient = gradient_of(run.federation, self.training)
        self.rate = self.training.learning_rate * self.training.learning_rate_decay ** (round_ - 1)

    def __call__(self, x: Tensor, client: int, correction: Callable[[Tensor], Tensor]) -> tuple[Tensor, float]:
        velocity, way, coasting = torch.zeros_like(x), 0.0, 0.0
        for _, batch, labels in naive_batches(self.run.federation, (*self.at, client), self.training.epochs):
            push = self.gradient(x, batch, labels) + correction(x) + self.training.weight_decay * x
            velocity = self.training.momentum * velocity + push
            x = x - self.rate * velocity
            coasting = self.training.momentum * coasting + 1
            way += self.rate * coasting
        return x, way


def always(shift: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda _: shift


def held_back(start: Tensor, h: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda now: 0.3 * (now - start) - h


def close(found: Params, expected: Tensor, row: int = 0) -> None:
    torch.testing.assert_close(flat(found, row), expected, rtol=1e-6, atol=1e-6)


def counted(run: Played, weight: Weight) -> FloatArray:
    """Return n_i, or 1 for everybody, as in the papers."""
    sizes = [rows.size if weight == "examples" else 1 for rows in run.federation.shards.train]
    return np.array(sizes, dtype=np.float64)


@pytest.mark.covering
@every_path
@every_training
@every_weight
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_scaffold(path: str, training: Training, weight: Weight, fraction: float) -> None:
    """Algorithm 1 with option II: y ← y − η(g + c − c_i); c_i⁺ = c_i − c + (x − y)/(Kη); c ← c + |S|/N · mean Δc_i."""
    some = Random(fraction=fraction)
    method = Method(name="m", topology=Flat(), client_weight=weight, selection=some, personalization=ControlVariates())
    run = played(path, method, UNEQUAL, training)
    size_N = counted(run, weight)
    x = flat(run.states[0].parts["global"])
    c, own = torch.zeros_like(x), [torch.zeros_like(x) for _ in size_N]
    for t, (record, state) in enumerate(zip(run.records, run.states[1:], strict=True), 1):
        chosen, total = record["selected"][0], torch.zeros_like(x)
        assert len(chosen) == round(fraction * size_N.size)
        share = size_N / size_N[chosen].sum()
        moved = torch.zeros_like(x)
        for i in chosen:
            shift = c - own[i]
            y, way = Local(run, t)(x, i, always(shift))
            new = own[i] - c + (x - y) / way
            total += share[i] * y
            moved += size_N[i] / size_N.sum() * (new - own[i])
            own[i] = new
        x, c = total, c + moved
        close(state.parts["global"], x)
        close(state.parts["control"], c)
        for i, expected in enumerate(own):
            close(state.parts["own"], expected, i)
    mean = sum(size_N[i] / size_N.sum() * own[i] for i in range(size_N.size))
    torch.testing.assert_close(c, torch.as_tensor(mean), rtol=1e-6, atol=1e-9)


@pytest.mark.covering
@every_path
@every_training
@pytest.mark.parametrize("edge_rounds", [1, 2, 3])
def test_mtgc(path: str, training: Training, edge_rounds: int) -> None:
    """z_i ← z_i + (x_i − x̄_j)/(Hγ) after every edge average, y_j ← y_j + (x̄_j − x̄)/(HEγ) after every round."""
    topology = Hierarchical(edge_rounds=edge_rounds)
    run = played(path, Method(name="m", topology=topology, personalization=GroupCorrections()), EQUAL, training)
    groups = [list(clients) for clients in run.federation.shards.clients]
    x = flat(run.states[0].parts["global"])
    y = [torch.zeros_like(x) for _ in groups]
    for t, state in enumerate(run.states[1:], 1):
        z = {i: torch.zeros_like(x) for group in groups for i in group}
        ends, way = [], 0.0
        for j, group in enumerate(groups):
            mean = x
            for e in range(edge_rounds):
                trained = {}
                for i in group:
                    shift = z[i] + y[j]
                    trained[i], way = Local(run, t, e)(mean, i, always(shift))
                mean = torch.stack(list(trained.values())).mean(0)
                for i in group:
                    z[i] = z[i] + (trained[i] - mean) / way
            ends.append(mean)
        weights = [len(group) / len(z) for group in groups]
        x = sum((weight * end for weight, end in zip(weights, ends, strict=True)), torch.zeros_like(x))
        y = [one + (end - x) / (edge_rounds * way) for one, end in zip(y, ends, strict=True)]
        close(state.parts["global"], x)
        for j, expected in enumerate(y):
            found = flat(state.parts["rest"], j) + flat(state.parts["sum"])
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.covering
@every_path
@every_weight
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_feddyn(path: str, weight: Weight, fraction: float) -> None:
    """Acar and others, Algorithm 1: θ_i by ∇F_i − h_i + α(θ − θ^t), h_i ← h_i − α(θ_i − θ^t); at the server
    h ← h − α Σ_i (n_i/n)(θ_i − θ^t) over those that trained, and θ ← their mean − h/α."""
    run = played(
        path,
        Method(
            name="m",
            topology=Flat(),
            client_weight=weight,
            selection=Random(fraction=fraction),
            personalization=DynamicPull(alpha=0.3),
            step=Dynamic(alpha=0.3),
        ),
        UNEQUAL,
    )
    size_N = counted(run, weight)
    x = flat(run.states[0].parts["global"])
    own, drift = [torch.zeros_like(x) for _ in size_N], torch.zeros_like(x)
    for t, (record, state) in enumerate(zip(run.records, run.states[1:], strict=True), 1):
        (chosen,) = record["selected"]
        moved, mean = torch.zeros_like(x), torch.zeros_like(x)
        for i in chosen:
            y, _ = Local(run, t)(x, i, held_back(x, own[i]))
            own[i] = own[i] - 0.3 * (y - x)
            moved += size_N[i] / size_N.sum() * (y - x)
            mean += size_N[i] / size_N[chosen].sum() * y
        drift = drift - 0.3 * moved
        x = mean - drift / 0.3
        close(state.parts["global"], x)
        for i, expected in enumerate(own):
            close(state.parts["own"], expected, i)


def test_both_sides_of_feddyn_must_have_the_same_alpha() -> None:
    with pytest.raises(ConfigError, match="same alpha"):
        configure("feddyn", settings={"method.step.alpha": 0.1})


# ------------------------------------------------------------------------------------------------- what follows


def corrected(scheme: Personalization, sizes: list[list[int]], **options: Any) -> Played:
    return played("loop", Method(name="m", personalization=scheme, **options), sizes, RICH)


def test_edges_of_one_client_and_one_average_make_mtgc_scaffold() -> None:
    alone = [[size] for edge in UNEQUAL for size in edge]
    mtgc, scaffold = corrected(GroupCorrections(), alone), corrected(ControlVariates(), alone, topology=Flat())
    for one, other in zip(mtgc.states, scaffold.states, strict=True):
        assert distance({"": one.parts["global"]}, {"": other.parts["global"]}) < 1e-6


def test_scaffold_sends_twice_what_fedavg_does() -> None:
    plain, twice = (
        played("loop", Method(name="m", topology=Flat(), **options), UNEQUAL).records
        for options in ({}, {"personalization": ControlVariates()})
    )
    for one, other in zip(plain, twice, strict=True):
        for direction in ("up", "down"):
            sent = one["bytes"]["client"][direction]
            assert other["bytes"]["client"][direction] == sent | {"train": 2 * sent["train"]}


@pytest.mark.parametrize("scheme", [ControlVariates(), GroupCorrections()])
def test_who_is_alone_needs_no_correction(scheme: Personalization) -> None:
    plain, alone = (
        played("loop", Method(name="m", **options), [[13]], RICH) for options in ({}, {"personalization": scheme})
    )
    assert distance({"": plain.end.parts["global"]}, {"": alone.end.parts["global"]}) < 1e-6


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_corrections_of_edges_cancel_out_whatever_steps_clients_take(fraction: float) -> None:
    """Σ_j n_j y_j = 0, over the edges that took part."""
    topology = Hierarchical(edge_rounds=2)
    run = corrected(GroupCorrections(), UNEQUAL, topology=topology, selection=Random(fraction=fraction))
    size_M = [sum(sizes) for sizes in UNEQUAL]
    for state in run.states[1:]:
        y = torch.stack([flat(state.parts["rest"], j) + flat(state.parts["sum"]) for j in range(len(size_M))])
        assert y.abs().max() > 1e-3
        mean = (torch.tensor(size_M).double()[:, None] * y).sum(0) / sum(size_M)
        assert mean.abs().max() < 1e-6
