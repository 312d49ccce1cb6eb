"""Fed-BAC in plain loops: the paper's Algorithms 1 and 2 in one file, to be read from top to bottom.

Nothing here is fast: one client trains after the other, one model is evaluated after the other. The library does the
same in batches, and ``tests/test_plain.py`` checks that it arrives at the same weights. Where the paper leaves
something open, the choice is named where it is made.

    t round, from 1         h  global network, Θ_global        n_i  training examples of client i
    m edge server           f  cluster network, Θ_k            L_m^(k)  loss of cluster k's model at edge m
    k cluster               k_m  the cluster of edge m (``edge.label``)

Run it with ``python examples/fedbac_plain.py``.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedbac.data import Dataset, Partition, Shards, load, partition
from fedbac.rng import stream, torch_seed

EPSILON = 1e-8  # ε of Eqs. 8 and 10
NUM_FEATURES = 4


@dataclass(frozen=True)
class Config:
    """The hyperparameters; the defaults are the paper's, except ``batch_size``, which it does not give."""

    num_rounds: int = 200  # T
    seed: int = 0
    participation: float = 0.8  # p
    epochs: int = 5  # E
    batch_size: int = 32
    learning_rate: float = 0.01  # η, multiplied by γ after every round
    learning_rate_decay: float = 0.995  # γ
    momentum: float = 0.9
    clip_norm: float = 1.0
    weight_decay: float = 5e-4
    cluster_l2: float = 1e-3  # λ, for the cluster network on top of the weight decay
    warmup: int = 10  # τ_TS
    period: int = 20  # τ_re: reassignment every so many rounds ...
    stability_rounds: int = 20  # ... and τ_re as it stands in the third feature of Eq. 8
    ucb_alpha: float = 0.3  # α_UCB
    loss_examples: int = 256  # at most so many examples of each client measure L_m^(k)


@dataclass
class Examples:
    """Inputs and their classes."""

    x: Tensor
    y: Tensor


@dataclass
class Client:
    """A client: its data and the posterior Beta(α_i, β_i) that its edge server keeps about it."""

    number: int
    train: Examples
    validation: Examples
    loss_subset: Examples
    """The part of ``train`` on which L_m^(k) is measured, always the same."""
    alpha: float = 1.0
    beta: float = 1.0


@dataclass
class Edge:
    """An edge server, with what it remembers (Algorithm 2) and what the cloud remembers about it (Algorithm 1)."""

    number: int
    clients: list[Client]
    test: Examples
    label: int
    A: NDArray[np.float64]
    """A_k^(m) of every arm k."""
    b: NDArray[np.float64]
    """b_k^(m) of every arm k."""
    entered: int = 0
    """The round after which it entered its cluster; 0 if it has been there from the start."""
    accuracy: float = math.nan
    """a_m of the previous round."""

    @property
    def num_examples(self) -> int:
        """n_m, the training examples of all its clients, selected or not."""
        return sum(len(client.train.y) for client in self.clients)


@dataclass
class Round:
    """What happened in one round."""

    accuracy: float
    """Distributed accuracy: the unweighted mean over edges."""
    selected: list[list[int]]
    """The numbers of the clients that trained, per edge."""
    labels: list[int]
    """The cluster of each edge during the round ..."""
    labels_after: list[int]
    """... and after reassignment."""


@dataclass
class History:
    """All rounds and the final networks."""

    h: nn.Module
    f: list[nn.Module]
    rounds: list[Round] = field(default_factory=list)


def fed_bac(dataset: Dataset, shards: Shards, config: Config, build: Callable[[], nn.Module]) -> History:
    """Run Algorithm 1, the cloud's part, with K_max = M ≥ 2 clusters; ``build`` returns a new network."""
    num_edges = len(shards.clients)
    h = initial_network(build, config.seed, 0)
    f = [initial_network(build, config.seed, 1) for _ in range(num_edges)]  # all cluster networks start equal
    edges = [make_edge(m, dataset, shards, config) for m in range(num_edges)]
    history = History(h, f)
    for edge in edges:
        edge.accuracy = validation_accuracy(edge, h, f[edge.label])  # a_m^(0)

    for t in range(1, config.num_rounds + 1):
        selected: list[list[int]] = []
        edge_h: list[nn.Module] = []
        edge_f: list[nn.Module] = []
        for edge in edges:
            chosen = select_clients(edge, t, config)
            h_m, f_m = edge_round(edge, chosen, h, f[edge.label], t, config)
            selected.append([client.number for client in chosen])
            edge_h.append(h_m)
            edge_f.append(f_m)

        h = average(edge_h, [edge.num_examples for edge in edges])  # Eq. 6
        for k in range(num_edges):  # Eq. 7; a cluster without edges keeps its network
            members = [m for m in range(num_edges) if edges[m].label == k]
            if members:
                f[k] = average([edge_f[m] for m in members], [edges[m].num_examples for m in members])

        labels = [edge.label for edge in edges]
        accuracy = float(np.mean([correct(h, f[edge.label], edge.test) / len(edge.test.y) for edge in edges]))
        if t % config.period == 0:
            for edge, label in zip(edges, reassign(edges, h, f, t, config), strict=True):
                if label != edge.label:
                    edge.label, edge.entered = label, t
        history.rounds.append(Round(accuracy, selected, labels, [edge.label for edge in edges]))
    history.h = h
    return history


def select_clients(edge: Edge, t: int, config: Config) -> list[Client]:
    """Draw p̃_i ~ Beta(α_i, β_i), or at random during warm-up, and take the B = ⌊p·N_m⌋ largest (Alg. 2, lines 1-5)."""
    rng = stream(config.seed, "selection", t, 0, edge.number)
    num_clients = len(edge.clients)
    if t <= config.warmup:
        draw = rng.random(num_clients)
    else:
        draw = rng.beta([client.alpha for client in edge.clients], [client.beta for client in edge.clients])
    tie_break = rng.random(num_clients)
    budget = max(1, math.floor(config.participation * num_clients + 1e-9))  # 1e-9: 0.29 · 100 is 28.999...
    largest_first = sorted(range(num_clients), key=lambda i: (-draw[i], tie_break[i]))
    return [edge.clients[i] for i in sorted(largest_first[:budget])]


def edge_round(
    edge: Edge, selected: list[Client], h: nn.Module, f: nn.Module, t: int, config: Config
) -> tuple[nn.Module, nn.Module]:
    """Run the rest of Algorithm 2: train, average (Eq. 1), and reward the selected clients (Eqs. 11 and 12)."""
    trained = [local_sgd(h, f, client, t, config) for client in selected]
    sizes = [len(client.train.y) for client in selected]
    h_m = average([h_i for h_i, _ in trained], sizes)
    f_m = average([f_i for _, f_i in trained], sizes)

    accuracy = validation_accuracy(edge, h_m, f_m)
    reward = accuracy - edge.accuracy
    edge.accuracy = accuracy
    just_moved = edge.entered > 0 and edge.entered == t - 1
    if not just_moved:  # otherwise the clients would be blamed for the new cluster
        for client in selected:
            step = min(10 * abs(reward), 2.0)
            if reward > 0:
                client.alpha += step
            else:
                client.beta += step
    return h_m, f_m


def local_sgd(h: nn.Module, f: nn.Module, client: Client, t: int, config: Config) -> tuple[nn.Module, nn.Module]:
    """Train copies of both networks together on the client's data for E epochs."""
    h, f = copy.deepcopy(h).train(), copy.deepcopy(f).train()
    optimizer = torch.optim.SGD(  # a new one every round, so momentum starts at zero
        [
            {"params": list(h.parameters()), "weight_decay": config.weight_decay},
            {"params": list(f.parameters()), "weight_decay": config.weight_decay + config.cluster_l2},
        ],
        lr=config.learning_rate * config.learning_rate_decay ** (t - 1),
        momentum=config.momentum,
    )
    rng = stream(config.seed, "batches", t, 0, client.number)
    for _ in range(config.epochs):
        for batch in torch.from_numpy(rng.permutation(len(client.train.y))).split(config.batch_size):
            loss = nn.functional.cross_entropy(predict(h, f, client.train.x[batch]), client.train.y[batch])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_([*h.parameters(), *f.parameters()], config.clip_norm)  # one norm for both
            optimizer.step()
    return h, f


def reassign(edges: list[Edge], h: nn.Module, f: list[nn.Module], t: int, config: Config) -> list[int]:
    """Let LinUCB choose every edge's cluster (Alg. 1, lines 12-18); all decide on the sizes before any move."""
    rng = stream(config.seed, "clustering", t)
    size = [sum(edge.label == k for edge in edges) for k in range(len(f))]
    labels = []
    for edge in edges:
        L = [edge_loss(edge, h, f_k) for f_k in f]
        current = edge.label
        best_other = min((k for k in range(len(f)) if k != current), key=lambda k: L[k])
        x = np.array(  # Eq. 8
            [
                math.log((L[current] + EPSILON) / (L[best_other] + EPSILON)),
                (size[current] - size[best_other]) / (size[current] + size[best_other]),
                min((t - edge.entered) / (2 * config.stability_rounds), 1),
                t / config.num_rounds,
            ]
        )
        reward = (L[best_other] - L[current]) / (L[best_other] + L[current] + EPSILON)  # Eq. 10
        edge.A[current] += np.outer(x, x)  # Eq. 11's predecessor: the update of the current arm
        edge.b[current] += reward * x
        score = []  # Eq. 9
        for A_k, b_k in zip(edge.A, edge.b, strict=True):
            theta = np.linalg.solve(A_k, b_k)
            score.append(theta @ x + config.ucb_alpha * math.sqrt(x @ np.linalg.solve(A_k, x)))
        best = [k for k in range(len(f)) if score[k] >= max(score) - 1e-12]  # untouched arms tie exactly
        labels.append(int(rng.choice(best)))
    return labels
