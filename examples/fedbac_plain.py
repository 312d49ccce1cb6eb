"""Fed-BAC in plain loops: the paper's Algorithms 1 and 2 in one file, to be read from top to bottom.

One client trains after the other, one model is evaluated after the other. The library does the same work in batches;
``tests/test_plain.py`` checks that it arrives at the same decisions and weights. Run this file for a demonstration.

    t  round, from 1         h  global network, Θ_global     n_i, n_m  training examples of a client, of an edge
    m  edge server           f  cluster network, Θ_k         L_m^(k)   loss of cluster k's model on the data of edge m
    k  cluster               k_m  the cluster of edge m      a_m       accuracy of edge m's own average on its data
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Flatten, Linear, Module, ReLU, Sequential
from torch.nn.functional import cross_entropy

from fedbac.core.rng import stream, torch_seed
from fedbac.data import Dataset, Partition, Shards, load, partition

EPSILON = 1e-8  # ε of Eqs. 7 and 9
Examples = tuple[Tensor, Tensor]  # inputs and their classes
History = tuple[list["Round"], Module, list[Module]]  # all rounds, and in the end h and the f of every cluster


@dataclass(frozen=True)
class Config:
    """What one may want to vary; the paper does not give the last two. Its other numbers stand where they are used."""

    num_rounds: int = 200  # T
    seed: int = 0
    participation: float = 0.8  # p
    epochs: int = 5  # E
    warmup: int = 10  # τ_TS
    period: int = 20  # τ_re, as the rounds between two reassignments ...
    tau_norm: int = 20  # ... and as the scale of the third feature of Eq. 7
    batch_size: int = 32
    loss_examples: int = 256  # L_m^(k) is measured on at most so many examples of each client


@dataclass
class Client:
    """A client: its data, and the posterior Beta(α_i, β_i) that its edge server keeps about it."""

    number: int
    train: Examples
    loss_subset: Examples  # the part of ``train`` on which L_m^(k) is measured, always the same
    size: int  # n_i
    alpha: float = 1.0
    beta: float = 1.0


@dataclass
class Edge:
    """An edge server, and what the cloud remembers about it."""

    number: int
    clients: list[Client]
    size: int  # n_m: of all its clients, selected or not
    validation: Examples  # kept apart by its clients, for a_m (the paper takes the test data, which leaks)
    test: Examples
    A: NDArray[np.float64]  # A_k^(m) for every cluster k
    b: NDArray[np.float64]  # b_k^(m) for every cluster k
    label: int  # k_m
    entered: int = 0  # the round after which it entered its cluster; 0: there from the start
    accuracy: float = math.nan  # a_m of the previous round


class Round(NamedTuple):
    """What happened in one round; lists have one entry per edge."""

    accuracy: float  # distributed accuracy
    selected: list[list[int]]  # the numbers of the clients that trained
    labels: list[int]  # the clusters during this round ...
    labels_after: list[int]  # ... and after reassignment


def fed_bac(data: Dataset, shards: Shards, config: Config, build: Callable[[], Module]) -> History:
    """Run Algorithm 1, the cloud's part, with K_max = M ≥ 2 clusters; ``build`` returns a new network."""
    edges = make_edges(data, shards, config)
    sizes, clusters = [edge.size for edge in edges], range(len(edges))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(config.seed, "init", 0))
        h = build()
        torch.manual_seed(torch_seed(config.seed, "init", 1))
        f = [build()] * len(clusters)  # all start equal
    for edge in edges:
        edge.accuracy = accuracy(h, f[edge.label], edge.validation)  # a_m^(0)

    rounds = []
    for t in range(1, config.num_rounds + 1):
        labels = [edge.label for edge in edges]
        results = [edge_round(edge, h, f[edge.label], t, config) for edge in edges]
        selected, edge_h, edge_f = zip(*results, strict=True)
        h = average(edge_h, sizes)  # Eq. 5
        for k in clusters:
            members = [m for m, label in enumerate(labels) if label == k]
            if members:  # Eq. 6; a cluster without edges keeps its network
                f[k] = average([edge_f[m] for m in members], [sizes[m] for m in members])
        mean_accuracy = sum(accuracy(h, f[edge.label], edge.test) for edge in edges) / len(edges)
        if t % config.period == 0:
            reassign(edges, h, f, t, config)
        rounds.append(Round(mean_accuracy, list(selected), labels, [edge.label for edge in edges]))
    return rounds, h, f


def edge_round(edge: Edge, h: Module, f: Module, t: int, config: Config) -> tuple[list[int], Module, Module]:
    """Run Algorithm 2, the edge's part; return who trained, and both networks averaged over them."""
    selected = select_clients(edge, t, config)
    trained = [local_sgd(h, f, client, t, config) for client in selected]
    h_m = average([h_i for h_i, _ in trained], [client.size for client in selected])  # Eq. 1
    f_m = average([f_i for _, f_i in trained], [client.size for client in selected])

    previous, edge.accuracy = edge.accuracy, accuracy(h_m, f_m, edge.validation)
    reward = edge.accuracy - previous
    just_moved = edge.entered > 0 and edge.entered == t - 1
    if not just_moved:  # a change of network says nothing about the clients
        step = min(10 * abs(reward), 2.0)  # Eq. 11
        for client in selected:  # Eq. 12
            client.alpha += step * (reward > 0)
            client.beta += step * (reward <= 0)
    return [client.number for client in selected], h_m, f_m


def select_clients(edge: Edge, t: int, config: Config) -> list[Client]:
    """Select the B = ⌊p·N_m⌋ clients with the largest draws: uniform ones in the warm-up, then from the posteriors."""
    rng = stream(config.seed, "selection", t, 0, edge.number)
    clients, num_clients = edge.clients, len(edge.clients)
    alpha, beta = [client.alpha for client in clients], [client.beta for client in clients]
    draw = rng.random(num_clients) if t <= config.warmup else rng.beta(alpha, beta)
    tie_break = rng.random(num_clients)
    best_first = sorted(range(num_clients), key=lambda i: (-draw[i], tie_break[i]))
    budget = max(1, math.floor(config.participation * num_clients + 1e-9))  # 0.29 · 100 is 28.999... in floats
    return [clients[i] for i in sorted(best_first[:budget])]


def local_sgd(h: Module, f: Module, client: Client, t: int, config: Config) -> tuple[Module, Module]:
    """Train copies of both networks jointly on the client's data for E epochs."""
    h, f = copy.deepcopy(h), copy.deepcopy(f)
    h_group = {"params": [*h.parameters()], "weight_decay": 5e-4}
    f_group = {"params": [*f.parameters()], "weight_decay": 5e-4 + 1e-3}  # λ = 1e-3 comes on top
    optimizer = torch.optim.SGD([h_group, f_group], lr=0.01 * 0.995 ** (t - 1), momentum=0.9)  # new in every round
    rng = stream(config.seed, "batches", t, 0, client.number)
    x, y = client.train
    for _ in range(config.epochs):
        for batch in torch.split(torch.from_numpy(rng.permutation(client.size)), config.batch_size):
            optimizer.zero_grad()
            cross_entropy(predict(h, f, x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
            for network in (h, f):  # each by itself
                torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()  # adds the weight decay to the clipped gradient
    return h, f


def reassign(edges: list[Edge], h: Module, f: list[Module], t: int, config: Config) -> None:
    """Let each edge's LinUCB learn and choose the edge's cluster (Algorithm 1, lines 12-18)."""
    rng = stream(config.seed, "clustering", t)
    clusters = range(len(f))
    size = [sum(edge.label == k for edge in edges) for k in clusters]  # |C_k| before any edge moves
    for edge in edges:
        L = [edge_loss(edge, h, f[k]) for k in clusters]
        now = edge.label
        other = min((k for k in clusters if k != now), key=lambda k: L[k])  # the best alternative, empty or not
        fit = math.log((L[now] + EPSILON) / (L[other] + EPSILON))
        balance = (size[now] - size[other]) / (size[now] + size[other])
        stability = min((t - edge.entered) / (2 * config.tau_norm), 1)
        x = np.array([fit, balance, stability, t / config.num_rounds])  # Eq. 7
        reward = (L[other] - L[now]) / (L[other] + L[now] + EPSILON)  # Eq. 9
        edge.A[now] += np.outer(x, x)  # Eq. 10
        edge.b[now] += reward * x
        inverse = np.linalg.inv(edge.A)  # of every A_k; next, Eq. 8 with α_UCB = 0.3
        score = [inverse[k] @ edge.b[k] @ x + 0.3 * math.sqrt(x @ inverse[k] @ x) for k in clusters]
        best = [k for k in clusters if score[k] >= max(score) - 1e-12]  # clusters not yet tried have equal scores
        label = int(rng.choice(best))
        if label != now:
            edge.label, edge.entered = label, t


def predict(h: Module, f: Module, x: Tensor) -> Tensor:
    """Return the logits of the additive model (Eq. 2)."""
    logits: Tensor = h(x) + f(x)
    return logits


def accuracy(h: Module, f: Module, examples: Examples) -> float:
    """Return the share of examples that the additive model classifies correctly."""
    x, y = examples
    with torch.no_grad():
        return int((predict(h, f, x).argmax(1) == y).sum()) / len(y)


def edge_loss(edge: Edge, h: Module, f: Module) -> float:
    """Return F_m(h, f) = Σ n_i/n_m F_i(h, f), over all clients of the edge."""
    with torch.no_grad():
        F = [cross_entropy(predict(h, f, x), y).item() for x, y in (client.loss_subset for client in edge.clients)]
    return sum(client.size / edge.size * F_i for client, F_i in zip(edge.clients, F, strict=True))


def average(networks: Sequence[Module], sizes: Sequence[int]) -> Module:
    """Return a network whose weights are the average of the networks' weights, in proportion to the sizes."""
    result = copy.deepcopy(networks[0])
    with torch.no_grad():
        for mean, *values in zip(result.parameters(), *(network.parameters() for network in networks), strict=True):
            mean.copy_(sum(size / sum(sizes) * value for size, value in zip(sizes, values, strict=True)))
    return result


def make_edges(data: Dataset, shards: Shards, config: Config) -> list[Edge]:
    """Hand out the data; edge m starts in cluster m."""
    x_train, y_train, x_test, y_test = map(torch.from_numpy, (data.x_train, data.y_train, data.x_test, data.y_test))
    if (statistics := data.normalization()) is not None:
        mean, std = (torch.from_numpy(values)[:, None, None] for values in statistics)
        x_train, x_test = (x_train / 255 - mean) / std, (x_test / 255 - mean) / std
    K = len(shards.clients)
    edges = []
    for m, numbers in enumerate(shards.clients):
        clients = []
        for i in numbers:
            held = subset = shards.train[i]
            if len(held) > config.loss_examples:
                subset = stream(config.seed, "loss-subset", i).choice(held, config.loss_examples, replace=False)
            clients.append(Client(i, (x_train[held], y_train[held]), (x_train[subset], y_train[subset]), len(held)))
        kept, tested = np.concatenate([shards.validation[i] for i in numbers]), shards.test[m]
        validation, test = (x_train[kept], y_train[kept]), (x_test[tested], y_test[tested])
        n_m = sum(client.size for client in clients)
        edges.append(Edge(m, clients, n_m, validation, test, np.tile(np.eye(4), (K, 1, 1)), np.zeros((K, 4)), label=m))
    return edges


def main() -> None:
    """Run a small federation on the embedded part of Fashion-MNIST."""
    torch.set_num_threads(1)  # a step is too small to share out
    data = load("fashion-mnist-mini")
    shards = partition(data.y_train, data.y_test, 10, [5] * 6, Partition(dirichlet_server=1.0), seed=0)
    config = Config(num_rounds=12, epochs=1, warmup=4, period=1)
    rounds, _, _ = fed_bac(data, shards, config, lambda: Sequential(Flatten(), Linear(784, 32), ReLU(), Linear(32, 10)))
    for t, done in enumerate(rounds, 1):
        print(f"round {t:2}  accuracy {done.accuracy:.3f}  clusters {done.labels}  trained {done.selected}")


if __name__ == "__main__":
    main()
