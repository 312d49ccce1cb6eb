"""Fed-BAC in plain loops: the paper's Algorithms 1 and 2 in one file, to be read from top to bottom.

Nothing here is fast: one client trains after the other, one model is evaluated after the other. The library does the
same work in batches, and ``tests/test_plain.py`` checks that it arrives at the same decisions and weights. What the
paper leaves open is decided as in the library's defaults, with a comment at the place.

    t  round, from 1         h  global network, Θ_global     n_i, n_m  training examples of a client, of an edge
    m  edge server           f  cluster network, Θ_k         L_m^(k)   loss of cluster k's model on the data of edge m
    k  cluster                                               k_m       the cluster of edge m (``edge.label``)

Run it with ``python examples/fedbac_plain.py``.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedbac.data import Dataset, Partition, Shards, load, partition
from fedbac.rng import stream, torch_seed

EPSILON = 1e-8  # ε of Eqs. 7 and 9


@dataclass(frozen=True)
class Config:
    """The hyperparameters, with the paper's values; it does not give the last two."""

    num_rounds: int = 200  # T
    seed: int = 0
    participation: float = 0.8  # p
    epochs: int = 5  # E
    learning_rate: float = 0.01  # η, multiplied by γ after every round
    learning_rate_decay: float = 0.995  # γ
    momentum: float = 0.9
    clip_norm: float = 1.0
    weight_decay: float = 5e-4
    cluster_l2: float = 1e-3  # λ: comes on top of the weight decay, for cluster networks only
    warmup: int = 10  # τ_TS
    period: int = 20  # τ_re, as the rounds between two reassignments ...
    tau_norm: int = 20  # ... and as the scale of the third feature of Eq. 7
    ucb_alpha: float = 0.3  # α_UCB
    batch_size: int = 32
    loss_examples: int = 256  # L_m^(k) is measured on at most so many examples of each client


class Examples(NamedTuple):
    """Inputs and their classes."""

    x: Tensor
    y: Tensor


@dataclass
class Client:
    """A client: its data, and the posterior Beta(α_i, β_i) that its edge server keeps about it."""

    number: int
    train: Examples
    validation: Examples
    loss_subset: Examples  # the part of ``train`` on which L_m^(k) is measured, always the same
    alpha: float = 1.0
    beta: float = 1.0


@dataclass
class Edge:
    """An edge server, and what the cloud remembers about it."""

    number: int
    clients: list[Client]
    test: Examples
    label: int  # k_m
    A: NDArray[np.float64]  # A_k^(m) for every cluster k
    b: NDArray[np.float64]  # b_k^(m) for every cluster k
    entered: int = 0  # the round after which it entered its cluster; 0: there from the start
    accuracy: float = math.nan  # a_m of the previous round

    @property
    def num_examples(self) -> int:
        """n_m, which counts all clients, selected or not."""
        return sum(len(client.train.y) for client in self.clients)


class Round(NamedTuple):
    """What happened in one round; lists have one entry per edge."""

    accuracy: float  # distributed accuracy
    selected: list[list[int]]  # the numbers of the clients that trained
    labels: list[int]  # the clusters during this round ...
    labels_after: list[int]  # ... and after reassignment


class History(NamedTuple):
    """All rounds and the final networks."""

    rounds: list[Round]
    h: nn.Module
    f: list[nn.Module]


def fed_bac(dataset: Dataset, shards: Shards, config: Config, build: Callable[[], nn.Module]) -> History:
    """Run Algorithm 1, the cloud's part, with K_max = M ≥ 2; ``build`` returns a new network."""
    num_edges = num_clusters = len(shards.clients)
    edges = make_edges(dataset, shards, config)
    h = initial_network(build, config.seed, 0)
    f = [initial_network(build, config.seed, 1) for _ in range(num_clusters)]  # all cluster networks start equal
    for edge in edges:
        edge.accuracy = validation_accuracy(edge, h, f[edge.label])  # a_m^(0)

    rounds = []
    for t in range(1, config.num_rounds + 1):
        labels = [edge.label for edge in edges]
        results = [edge_round(edge, h, f[edge.label], t, config) for edge in edges]
        selected = [numbers for numbers, _, _ in results]
        h = average([h_m for _, h_m, _ in results], [edge.num_examples for edge in edges])  # Eq. 5
        for k in range(num_clusters):  # Eq. 6; a cluster without edges keeps its network
            members = [m for m in range(num_edges) if labels[m] == k]
            if members:
                f[k] = average([results[m][2] for m in members], [edges[m].num_examples for m in members])

        accuracy = sum(num_correct(h, f[edge.label], edge.test) / len(edge.test.y) for edge in edges) / num_edges
        if t % config.period == 0:
            reassign(edges, h, f, t, config)
        rounds.append(Round(accuracy, selected, labels, [edge.label for edge in edges]))
    return History(rounds, h, f)


def edge_round(
    edge: Edge, h: nn.Module, f: nn.Module, t: int, config: Config
) -> tuple[list[int], nn.Module, nn.Module]:
    """Run Algorithm 2, the edge's part; return who trained and both networks averaged over them."""
    selected = select_clients(edge, t, config)
    trained = [local_sgd(h, f, client, t, config) for client in selected]
    sizes = [len(client.train.y) for client in selected]
    h_m = average([h_i for h_i, _ in trained], sizes)  # Eq. 1
    f_m = average([f_i for _, f_i in trained], sizes)

    accuracy = validation_accuracy(edge, h_m, f_m)
    reward = accuracy - edge.accuracy
    edge.accuracy = accuracy
    just_moved = edge.entered > 0 and edge.entered == t - 1
    if not just_moved:  # the accuracy of another cluster's network would say little about the clients
        step = min(10 * abs(reward), 2.0)  # Eq. 11
        for client in selected:  # Eq. 12
            if reward > 0:
                client.alpha += step
            else:
                client.beta += step
    return [client.number for client in selected], h_m, f_m


def select_clients(edge: Edge, t: int, config: Config) -> list[Client]:
    """Select the B = ⌊p·N_m⌋ clients with the largest draws, by Thompson Sampling after the warm-up."""
    rng = stream(config.seed, "selection", t, 0, edge.number)
    num_clients = len(edge.clients)
    if t <= config.warmup:
        draw = rng.random(num_clients)
    else:
        draw = rng.beta([client.alpha for client in edge.clients], [client.beta for client in edge.clients])
    tie_break = rng.random(num_clients)
    budget = max(1, math.floor(config.participation * num_clients + 1e-9))  # 0.29 · 100 is 28.999... in floats
    best_first = sorted(range(num_clients), key=lambda i: (-draw[i], tie_break[i]))
    return [edge.clients[i] for i in sorted(best_first[:budget])]


def local_sgd(h: nn.Module, f: nn.Module, client: Client, t: int, config: Config) -> tuple[nn.Module, nn.Module]:
    """Train copies of both networks jointly on the client's data for E epochs."""
    h, f = copy.deepcopy(h), copy.deepcopy(f)
    groups = [
        {"params": [*h.parameters()], "weight_decay": config.weight_decay},
        {"params": [*f.parameters()], "weight_decay": config.weight_decay + config.cluster_l2},
    ]
    learning_rate = config.learning_rate * config.learning_rate_decay ** (t - 1)
    optimizer = torch.optim.SGD(groups, learning_rate, config.momentum)  # momentum starts at zero in every round
    rng = stream(config.seed, "batches", t, 0, client.number)
    x, y = client.train
    for _ in range(config.epochs):
        for batch in torch.from_numpy(rng.permutation(len(y))).split(config.batch_size):
            optimizer.zero_grad()
            cross_entropy(predict(h, f, x[batch]), y[batch]).backward()
            nn.utils.clip_grad_norm_([*h.parameters(), *f.parameters()], config.clip_norm)  # one norm over both
            optimizer.step()
    return h, f


def reassign(edges: list[Edge], h: nn.Module, f: list[nn.Module], t: int, config: Config) -> None:
    """Let each edge's LinUCB learn and choose the edge's cluster (Algorithm 1, lines 12-18)."""
    rng = stream(config.seed, "clustering", t)
    clusters = range(len(f))
    size = [sum(edge.label == k for edge in edges) for k in clusters]  # before any edge moves
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

        score = []  # Eq. 8
        for k in clusters:
            inverse = np.linalg.inv(edge.A[k])
            score.append(inverse @ edge.b[k] @ x + config.ucb_alpha * math.sqrt(x @ inverse @ x))
        best = [k for k in clusters if score[k] >= max(score) - 1e-12]  # clusters not yet tried have equal scores
        label = int(rng.choice(best))
        if label != now:
            edge.label, edge.entered = label, t


def predict(h: nn.Module, f: nn.Module, x: Tensor) -> Tensor:
    """Return the logits of the additive model (Eq. 2)."""
    logits: Tensor = h(x) + f(x)
    return logits


def average(networks: Sequence[nn.Module], sizes: Sequence[int]) -> nn.Module:
    """Return the network whose weights are the average, weighted by size."""
    result = copy.deepcopy(networks[0])
    with torch.no_grad():
        for mean, *values in zip(result.parameters(), *(network.parameters() for network in networks), strict=True):
            mean.copy_(sum(value * (size / sum(sizes)) for value, size in zip(values, sizes, strict=True)))
    return result


def num_correct(h: nn.Module, f: nn.Module, examples: Examples) -> int:
    """Return how many examples are classified correctly."""
    with torch.no_grad():
        return int((predict(h, f, examples.x).argmax(1) == examples.y).sum())


def validation_accuracy(edge: Edge, h: nn.Module, f: nn.Module) -> float:
    """Return a_m, on examples that the edge's clients keep apart; on test data the reported metric would leak."""
    correct = sum(num_correct(h, f, client.validation) for client in edge.clients)
    return correct / sum(len(client.validation.y) for client in edge.clients)


def edge_loss(edge: Edge, h: nn.Module, f: nn.Module) -> float:
    """Return L_m = F_m(h, f) = Σ n_i/n_m F_i(h, f) over all clients of the edge."""
    loss = 0.0
    with torch.no_grad():
        for client in edge.clients:
            x, y = client.loss_subset
            loss += len(client.train.y) / edge.num_examples * cross_entropy(predict(h, f, x), y).item()
    return loss


def initial_network(build: Callable[[], nn.Module], seed: int, index: int) -> nn.Module:
    """Return a network with torch's default initial weights, the same for the same seed and index."""
    with torch.random.fork_rng():
        torch.manual_seed(torch_seed(seed, "init", index))
        return build()


def make_edges(dataset: Dataset, shards: Shards, config: Config) -> list[Edge]:
    """Hand out the data; edge m starts in cluster m."""
    x_train, x_test = torch.from_numpy(dataset.x_train), torch.from_numpy(dataset.x_test)
    y_train, y_test = torch.from_numpy(dataset.y_train), torch.from_numpy(dataset.y_test)
    if (statistics := dataset.normalization()) is not None:
        mean, std = (torch.from_numpy(values)[:, None, None] for values in statistics)
        x_train, x_test = (x_train / 255 - mean) / std, (x_test / 255 - mean) / std

    edges = []
    for m, numbers in enumerate(shards.clients):
        clients = []
        for i in numbers:
            train, validation = shards.train[i], shards.validation[i]
            subset = train
            if len(train) > config.loss_examples:
                rng = stream(config.seed, "loss-subset", i)
                subset = np.sort(rng.choice(train, config.loss_examples, replace=False))
            held = [Examples(x_train[indices], y_train[indices]) for indices in (train, validation, subset)]
            clients.append(Client(i, *held))
        num_clusters = len(shards.clients)
        test = Examples(x_test[shards.test[m]], y_test[shards.test[m]])
        edges.append(Edge(m, clients, test, m, np.stack([np.eye(4)] * num_clusters), np.zeros((num_clusters, 4))))
    return edges


def lenet5() -> nn.Module:
    """Return LeNet-5 for grey images of 28×28."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16 * 4 * 4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def main() -> None:
    """Run a small federation on the embedded part of Fashion-MNIST."""
    dataset = load("fashion-mnist-mini")
    shards = partition(dataset.y_train, dataset.y_test, 10, [5] * 4, Partition(dirichlet_server=0.1), seed=0)
    config = Config(num_rounds=12, epochs=2, warmup=4, period=2)
    for t, done in enumerate(fed_bac(dataset, shards, config, lenet5).rounds, 1):
        print(f"round {t:2}  accuracy {done.accuracy:.3f}  clusters {done.labels}  trained {done.selected}")


if __name__ == "__main__":
    main()
