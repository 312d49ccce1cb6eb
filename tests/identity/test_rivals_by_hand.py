"""Methods of others against their papers: one member after another, in plain torch."""

import math
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn import functional as F

from fedbac.config.experiment import Method
from fedbac.personalization import Personal
from fedbac.presets.methods import METHODS
from tests.covering import first
from tests.identity.test_own_steps_by_hand import (
    PLAIN,
    RICH,
    ROUNDS,
    SHARDS,
    Client,
    Model,
    Weights,
    agree,
    federated,
    mean_of,
    played_by,
    weights_of,
)
from tests.support import Played, play, prepare
from tests.trainers.reference import DATA, PATHS, make

TASK_LIKE: Any = type("Task", (), {"dataset": "toy"})
CLIENTS = [[c] for edge in SHARDS.clients for c in edge]
EDGES = [list(edge) for edge in SHARDS.clients]


def preset(name: str, **choices: Any) -> Method:
    """Return a preset with some of its choices changed: a dictionary changes settings of one."""
    plain = METHODS[name](TASK_LIKE).model_dump(mode="json")
    return Method.model_validate(plain | {k: plain[k] | v if isinstance(v, dict) else v for k, v in choices.items()})


def trained(played: Played, round_: int, client: int, start: Weights) -> Weights:
    me = Client(played, PLAIN, round_, client)
    for x, y in me.batches:
        start = me.sgd("w", start, me.gradient(start, x, y))
    return start


def rows(played: Played, part: str, round_: int = -1) -> list[Weights]:
    stack = played.states[round_].parts[part]
    count = len(next(iter(stack.values())))
    return [{name: value[k].cpu().double() for name, value in stack.items()} for k in range(count)]


def apart(found: list[Weights], expected: list[Weights]) -> float:
    return max(float((a[n] - b[n]).abs().max()) for a, b in zip(found, expected, strict=True) for n in a)


def by_data(models: list[Weights], clients: list[int]) -> Weights:
    return mean_of(models, [len(SHARDS.train[c]) for c in clients])


def logits(network: nn.Module, weights: Weights, x: Tensor) -> Tensor:
    found: Tensor = functional_call(network, weights, (x.double(),))
    return found


@pytest.mark.parametrize("unit", first(1, ["edge", "client"]))
def test_every_round_of_ifca_begins_with_the_lowest_loss(unit: Literal["edge", "client"]) -> None:
    """Algorithm 1 of Ghosh et al., with averages of models: the first round too."""
    name, members = ("ifca-edges", EDGES) if unit == "edge" else ("ifca", CLIENTS)
    method = preset(name, clustering={"num_clusters": 3})
    played = play(method, DATA, SHARDS, training=PLAIN, num_rounds=ROUNDS, seed=4)
    networks, seen = rows(played, "cluster", 0), []
    for round_ in range(1, ROUNDS + 1):
        label = []
        for clients in members:
            size = [len(SHARDS.train[c]) for c in clients]
            one = [Client(played, PLAIN, round_, c) for c in clients]
            loss = [[sum(float(me.loss(w, x, y)) * len(y) for x, y in me.first) for me in one] for w in networks]
            label.append(int(np.argmin(np.sum(loss, axis=1) / sum(size))))
        seen.append(label)
        made = {c: trained(played, round_, c, networks[k]) for k, cs in zip(label, members, strict=True) for c in cs}
        for k in set(label):
            mine = [cs for own, cs in zip(label, members, strict=True) if own == k]
            each = [by_data([made[c] for c in cs], cs) for cs in mine]
            networks[k] = mean_of(each, [1] * len(each))
    assert [record["assignment"] for record in played.records] == seen
    assert len({k for label in seen for k in label}) > 1, "else nothing is chosen"
    assert apart(rows(played, "cluster"), networks) < 2e-6


def test_fed_cam_in_turns_trains_the_cluster_s_network_first() -> None:
    """Each fits what the other leaves: f_k beside h as received, then h beside f_k as the client has trained it."""
    edges = {
        "topology": {"kind": "hierarchical"},
        "unit": "edge",
        "clustering": "fixed",
        "selection": {"fraction": 1.0},
    }
    method = preset("fed-cam-alternate", **edges)
    played = play(method, DATA, SHARDS, training=PLAIN, num_rounds=ROUNDS)
    network = played.federation.network.double()
    (shared,), own = rows(played, "global", 0), rows(played, "cluster", 0)
    for round_ in range(1, ROUNDS + 1):
        made: dict[int, tuple[Weights, Weights]] = {}
        for k, clients in enumerate(EDGES):
            for c in clients:
                me, h, f = Client(played, PLAIN, round_, c), shared, own[k]
                for x, y in me.batches:
                    beside = logits(network, h, x)
                    slope = grad(lambda f, x=x, y=y, z=beside: F.cross_entropy(logits(network, f, x) + z, y))(f)
                    f = {n: f[n] - me.rate * (slope[n] + 0.001 * f[n]) for n in f}
                for x, y in me.batches:
                    beside = logits(network, f, x)
                    slope = grad(lambda h, x=x, y=y, z=beside: F.cross_entropy(logits(network, h, x) + z, y))(h)
                    h = {n: h[n] - me.rate * slope[n] for n in h}
                made[c] = h, f
        own = [by_data([made[c][1] for c in clients], clients) for clients in EDGES]
        shared = by_data([h for h, _ in made.values()], list(made))
    assert apart(rows(played, "cluster"), own) < 2e-6
    assert apart(rows(played, "global"), [shared]) < 2e-6


@pytest.mark.covering
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("owner", ["client", "edge"])
@pytest.mark.parametrize("momentum", [None, 0.0])
def test_the_pull_of_ditto_is_added_to_the_clipped_gradient(path: str, owner: str, momentum: float | None) -> None:
    """Algorithm 1 of Li et al., where w is trained as the task says: v ← v − η(∇F(v) + λ(v − w^t))."""
    scheme = Personal.model_validate({"owner": owner, "strength": 2.0, "momentum": momentum})
    played = played_by(path, scheme, RICH)

    def learn(round_: int, client: int, got: Model) -> Model:
        w, v = got["global"], got["personal"]
        me = Client(played, RICH, round_, client)
        coast, velocity = RICH.momentum if momentum is None else momentum, {n: torch.zeros_like(v[n]) for n in v}
        for x, y in me.batches:
            w, slope = me.sgd("w", w, me.gradient(w, x, y)), me.clipped(me.gradient(v, x, y))
            for n in v:
                push = slope[n] + 2.0 * (v[n] - got["global"][n]) + RICH.weight_decay * v[n]
                velocity[n] = coast * velocity[n] + push
            v = {n: v[n] - me.rate * velocity[n] for n in v}
        return {"global": w, "personal": v}

    start = {"global": weights_of(played), "personal": weights_of(played)}
    agree(played, federated(start, {"global": "cloud", "personal": owner}, learn))


ALPHA = 0.04


def shares(cosine_J: list[float], size_J: list[int]) -> list[float]:
    """The quadratic program of one member: min α‖w‖² + ⟨d − 2αp, w⟩ over shares w, where d are negative cosines."""
    p = [size / sum(size_J) for size in size_J]
    w = list(p)
    for _ in range(200):  # the exact minimum along each line on which two shares change and the sum does not
        for i in range(len(w)):
            for j in range(i):
                slope_i, slope_j = (2 * ALPHA * (w[n] - p[n]) - cosine_J[n] for n in (i, j))
                step = min(max((slope_j - slope_i) / (4 * ALPHA), -w[i]), w[j])
                w[i], w[j] = w[i] + step, w[j] - step
    return w


@pytest.mark.parametrize("path", first(1, ["loop", "vmap"]))
def test_members_of_pfedgraph_mix_by_cosines_since_the_start_and_keep_near_their_mix(path: str) -> None:
    """Algorithm 1 of Ye et al.: train on L(θ) − λ·cos(θ, mix), infer the graph, and start from the new mix."""
    method = preset("pfedgraph-edges", personalization={"strength": 3.0}, sharing={"strength": 1 / ALPHA})
    options: dict[str, Any] = {"training": RICH, "num_rounds": ROUNDS}
    _, federation = prepare(method, DATA, SHARDS, **options)
    played = play(method, DATA, SHARDS, make(path, federation, method.personalization), **options)
    first = rows(played, "cluster", 0)[0]
    size = [sum(len(SHARDS.train[c]) for c in clients) for clients in EDGES]
    networks = mixes = [first] * len(EDGES)
    for round_ in range(1, ROUNDS + 1):
        networks = []
        for mix, clients in zip(mixes, EDGES, strict=True):
            made = []
            for c in clients:
                me, theta, toward = Client(played, RICH, round_, c), mix, flat(mix)
                for x, y in me.batches:
                    slope = me.gradient(theta, x, y)
                    turn = grad(lambda w, u=toward: -3.0 * F.cosine_similarity(flat(w), u, dim=0))(theta)
                    theta = me.sgd("w", theta, {n: g + turn[n] for n, g in slope.items()})
                made.append(theta)
            networks.append(by_data(made, clients))
        moved = [flat(network) - flat(first) for network in networks]
        graph = [shares([float(F.cosine_similarity(a, b, dim=0)) for b in moved], size) for a in moved]
        mixes = [{n: sum(s * w[n] for s, w in zip(row, networks, strict=True)) for n in first} for row in graph]  # type: ignore[misc]
    assert apart(rows(played, "cluster"), networks) < 5e-6
    assert np.abs(np.array(graph) - np.array(size) / sum(size)).max() > 0.05, "else it is the mean by data"


def flat(weights: Weights) -> Tensor:
    return torch.cat([value.flatten() for value in weights.values()])


def test_fedgwc_weighs_pairs_of_clients_that_reported_together() -> None:
    """W_ij ← (1 − a)W_ij + a·r_i/Σ_l r_l for all who reported, with a their share of all clients."""
    played = play(preset("fedgwc"), DATA, SHARDS, training=PLAIN, num_rounds=ROUNDS)
    count = len(CLIENTS)
    weight = [[1 / count**2] * count for _ in range(count)]
    for round_, record in enumerate(played.records, start=1):
        (reported,) = record["selected"]
        trace: dict[int, list[float]] = {}
        for c in reported:
            me = Client(played, PLAIN, round_, c)
            now, size = rows(played, "cluster", round_ - 1)[0], len(SHARDS.train[c])
            losses = []
            for x, y in me.batches:
                losses.append(float(me.loss(now, x, y)) * len(y) / size)
                now = me.sgd("w", now, me.gradient(now, x, y))
            each = len(me.first)
            trace[c] = [sum(losses[e * each : (e + 1) * each]) for e in range(PLAIN.epochs)]
        total, reward = sum(len(SHARDS.train[c]) for c in reported), dict.fromkeys(reported, 0.0)
        for e in range(PLAIN.epochs):
            mean = sum(len(SHARDS.train[c]) / total * trace[c][e] for c in reported)
            variance = sum(len(SHARDS.train[c]) / total * (trace[c][e] - mean) ** 2 for c in reported)
            for c in reported:
                reward[c] += math.exp(-((trace[c][e] - mean) ** 2) / (2 * variance)) / PLAIN.epochs
        share = len(reported) / count
        for i in reported:
            for j in reported:
                weight[i][j] += share * (reward[i] / sum(reward.values()) - weight[i][j])
    found = played.end.clustering.weight_NN
    np.testing.assert_allclose(found, weight, atol=1e-6)
    assert np.ptp(found, axis=1).max() > 0.01, "rows are not constant, as they are where everybody reports"
