"""Two-level Dirichlet partitioning, over edges and then over clients (section "Data Heterogeneity Model").

Axes: M edges, N clients of all edges, G groups (edges, or the clients of one edge), C classes.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedbac.core.rng import Rng, stream
from fedbac.core.settings import Edges, Examples, FloatArray, IntArray, Settings
from fedbac.data.datasets import Tiers
from fedbac.data.shards import Shards
from fedbac.errors import ConfigError, PartitionError

# The lower bound keeps logarithms finite; below it every class has long gone to a single edge or client.
Concentration = Annotated[float, Field(ge=1e-6, le=1e9)]
Mode = Literal["class_normalized", "per_class"]

MIX = "task.partition.dirichlet"


class Partition(Settings):
    """How the data is spread over edges and clients."""

    mode: Mode = "class_normalized"
    """How proportions are drawn (C.10): q_m ~ Dir(α·1_C) per edge, normalized over edges per class, or per class
    Dir(α·1_M) over edges, which is more uneven. Clients likewise."""
    dirichlet_server: Concentration = 0.5
    """α_server: the smaller, the more the edges differ."""
    dirichlet_client: Concentration = 0.5
    """α_client: the smaller, the more the clients of one edge differ."""
    edge_distributions: Edges | None = None
    """Draw only this many class mixes, of which edge m has number m mod this many; default: one per edge."""
    test_allocation: Literal["largest_remainder", "multinomial"] = "largest_remainder"
    """Whether shares of the test set are rounded or drawn (C.12)."""
    min_client_samples: Examples = 2
    """Fewest training examples of a client, with those for validation (C.11)."""
    min_edge_test: Examples = 50
    """Fewest test examples of an edge (C.11)."""
    max_attempts: Annotated[int, Field(gt=0, le=10_000)] = 100
    """How often to draw again until both minimums hold (C.11)."""
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of each client's training examples kept for validation, rounded down."""
    natural: bool = False
    """Keep the data set's own edges and clients; of these settings only validation_fraction counts.
    """


def partition(
    y_train: IntArray, y_test: IntArray, num_classes: int, clients_per_edge: Sequence[int], config: Partition, seed: int
) -> Shards:
    """Spread the data over edges and clients; every training example goes to exactly one client.

    For each class c, counts over edges are Multinomial(n_c, P_{·|c}), and within edge m counts over its clients
    likewise. The test examples of c follow P_{·|c} over the edges that have training examples of c. Draws that break
    ``min_client_samples`` or ``min_edge_test`` are repeated up to ``max_attempts`` times.
    """
    if not clients_per_edge or min(clients_per_edge) < 1:
        raise ConfigError(f"clients_per_edge={list(clients_per_edge)}: there must be an edge, and each needs a client")
    if (config.edge_distributions or 1) > len(clients_per_edge):
        raise ConfigError(
            f"task.partition.edge_distributions={config.edge_distributions}: there are only {len(clients_per_edge)} "
            "edges; choose at most that many"
        )
    train_C = _tally(y_train, num_classes, "y_train")
    test_C = _tally(y_test, num_classes, "y_test")
    _check_feasible(len(y_train), len(y_test), clients_per_edge, config)
    smallest = []
    for attempt in range(config.max_attempts):
        client_NC, test_MC = _draw(train_C, test_C, clients_per_edge, config, seed, attempt)
        smallest_client, smallest_test = int(client_NC.sum(1).min()), int(test_MC.sum(1).min())
        if smallest_client >= config.min_client_samples and smallest_test >= config.min_edge_test:
            dealt = _shuffle_and_cut(y_train, client_NC, stream(seed, "partition-deal", attempt))
            train, validation = _held_out(dealt, config.validation_fraction, seed, attempt)
            test = _shuffle_and_cut(y_test, test_MC, stream(seed, "partition-deal-test", attempt))
            ends = itertools.accumulate(clients_per_edge)
            clients = tuple(range(end - num, end) for end, num in zip(ends, clients_per_edge, strict=True))
            return Shards(train, validation, tuple(np.sort(shard) for shard in test), clients)
        smallest.append((smallest_client, smallest_test))
    raise PartitionError(_why_not(smallest, config))


def by_nature(tiers: Tiers, validation_fraction: float, seed: int) -> Shards:
    """Leave all examples with the clients and edges that have them by nature."""
    shards = [np.flatnonzero(tiers.client_train == client) for client in range(tiers.edge.size)]
    train, validation = _held_out(shards, validation_fraction, seed, 0)
    test = tuple(np.flatnonzero(tiers.edge_test == edge) for edge in range(len(tiers.clients_per_edge)))
    clients = tuple(np.flatnonzero(tiers.edge == edge).tolist() for edge in range(len(test)))
    return Shards(train, validation, test, clients)


def class_counts(y: IntArray, groups: Sequence[IntArray], num_classes: int) -> IntArray:
    """Return how many examples of each class each group of indices holds, ``[groups, classes]``."""
    return np.array([np.bincount(y[group], minlength=num_classes) for group in groups], np.int64)


def validation_count(fraction: float, num_examples: int) -> int:
    """Return how many of a client's training examples are kept apart: the fraction rounded down, never the last one."""
    return min(math.floor(fraction * num_examples), max(num_examples - 1, 0))


def deal_test(test: IntArray, y_test: IntArray, train_NC: IntArray, rng: Rng) -> tuple[IntArray, ...]:
    """Split an edge's test examples over its clients, every one to one, so that each is judged on its classes.

    Of every class clients get a share in proportion to their training examples of it, rounded by the largest remainder;
    a class that none of them trains on is spread in proportion to all their examples. Which examples, is drawn.
    """
    size_N = train_NC.sum(1)
    shares: list[list[IntArray]] = [[] for _ in size_N]
    for c in range(train_NC.shape[1]):
        members = rng.permutation(test[y_test[test] == c])
        weight_N = next((w for w in (train_NC[:, c], size_N) if w.any()), np.ones_like(size_N))
        # In whole numbers: shares that are not quite equal for their rounding would decide ties.
        count_N, rest_N = np.divmod(members.size * weight_N, weight_N.sum())
        count_N[np.argsort(-rest_N, kind="stable")[: members.size - count_N.sum()]] += 1
        for share, piece in zip(shares, np.split(members, np.cumsum(count_N)[:-1]), strict=True):
            share.append(piece)
    return tuple(np.sort(np.concatenate(share)) for share in shares)


def proportions(rng: Rng, num_groups: int, num_classes: int, concentration: float, mode: Mode) -> FloatArray:
    """Draw P_{g|c}, the share of class c that group g gets, ``[groups, classes]``, each column of sum 1.
    Class-normalized: q_g ~ Dir(α·1_C), then P_{g|c} = q_{g,c} / Σ_g' q_{g',c}. Per class: P_{·|c} ~ Dir(α·1_G)."""
    # A Dirichlet vector is a normalized Gamma(α) vector. Both steps are taken on logarithms, with
    # Gamma(α) = Gamma(α + 1)·U^(1/α), because for small α most shares are too small for a float and a class that is
    # small at every edge would give 0 / 0.
    shape = (num_groups, num_classes)
    gamma_GC = np.log(rng.standard_gamma(concentration + 1, shape)) - rng.standard_exponential(shape) / concentration
    if mode == "class_normalized":
        gamma_GC -= gamma_GC.max(1, keepdims=True)
        gamma_GC -= np.log(np.exp(gamma_GC).sum(1, keepdims=True))
    share_GC: FloatArray = np.exp(gamma_GC - gamma_GC.max(0))
    share_GC /= share_GC.sum(0)
    return share_GC


def _draw(
    train_C: IntArray, test_C: IntArray, clients_per_edge: Sequence[int], config: Partition, seed: int, attempt: int
) -> tuple[IntArray, IntArray]:
    """Draw how many training examples of each class every client gets and how many test examples every edge."""
    rng = stream(seed, "partition", attempt)
    num_classes = len(train_C)
    share_MC = _edge_shares(rng, len(clients_per_edge), num_classes, config)
    edge_MC = rng.multinomial(train_C, share_MC.T).T
    client_NC = []
    for edge_C, num_clients in zip(edge_MC, clients_per_edge, strict=True):
        share_NC = proportions(rng, num_clients, num_classes, config.dirichlet_client, config.mode)
        client_NC.append(rng.multinomial(edge_C, share_NC.T).T)
    test_rng = stream(seed, "partition-test", attempt)  # its own stream: how tests are dealt never moves training data
    test_MC = np.zeros_like(edge_MC)
    for c in np.flatnonzero(train_C):
        share_M = np.where(edge_MC[:, c] > 0, share_MC[:, c], 0)
        share_M /= share_M.sum()
        if config.test_allocation == "multinomial":
            test_MC[:, c] = test_rng.multinomial(test_C[c], share_M)
        else:
            test_MC[:, c] = _largest_remainder(int(test_C[c]), share_M)
    return np.concatenate(client_NC), test_MC


def _edge_shares(rng: Rng, num_edges: int, num_classes: int, config: Partition) -> FloatArray:
    """Draw P_{m|c} over edges: one draw per edge, or fewer draws that several edges share in equal parts."""
    num_draws = config.edge_distributions or num_edges
    share_DC = proportions(rng, num_draws, num_classes, config.dirichlet_server, config.mode)
    draw_M = np.arange(num_edges) % num_draws
    return share_DC[draw_M] / np.bincount(draw_M)[draw_M, None]


def _largest_remainder(total: int, share_M: FloatArray) -> IntArray:
    """Round ``total * share_M`` to whole numbers of the same sum; what is left goes to the largest remainders."""
    exact_M = total * share_M
    count_M = np.floor(exact_M).astype(np.int64)
    order = np.argsort(count_M - exact_M, kind="stable")
    count_M[order[: total - count_M.sum()]] += 1
    return count_M


def _held_out(
    shards: Sequence[IntArray], validation_fraction: float, seed: int, attempt: int
) -> tuple[tuple[IntArray, ...], tuple[IntArray, ...]]:
    """Return what every client trains on, and what it keeps apart."""
    train, validation = [], []
    for client, shard in enumerate(shards):
        num_validation = validation_count(validation_fraction, len(shard))
        shuffled = stream(seed, "partition-validation", attempt, client).permutation(shard)
        validation.append(np.sort(shuffled[:num_validation]))
        train.append(np.sort(shuffled[num_validation:]))
    return tuple(train), tuple(validation)


def _shuffle_and_cut(y: IntArray, count_GC: IntArray, rng: Rng) -> list[IntArray]:
    pieces: list[list[IntArray]] = [[] for _ in count_GC]
    for c, count_G in enumerate(count_GC.T):
        members = rng.permutation(np.flatnonzero(y == c))
        # The piece after the last cut is left over: test examples of a class that no edge trains on.
        for piece, part in zip(pieces, np.split(members, np.cumsum(count_G)), strict=False):
            piece.append(part)
    return [np.concatenate(piece) for piece in pieces]


def _tally(y: IntArray, num_classes: int, field: str) -> IntArray:
    if len(y) == 0 or y.min() < 0 or y.max() >= num_classes:
        raise ConfigError(f"{field} must hold labels from 0 to {num_classes - 1} (num_classes={num_classes})")
    return np.bincount(y, minlength=num_classes)


def _check_feasible(num_train: int, num_test: int, clients_per_edge: Sequence[int], config: Partition) -> None:
    num_clients, num_edges = sum(clients_per_edge), len(clients_per_edge)
    if num_clients * config.min_client_samples > num_train:
        raise PartitionError(
            f"{num_train} training examples cannot give {num_clients} clients min_client_samples="
            f"{config.min_client_samples} each; use fewer clients (task.clients_per_edge), or set "
            f"task.partition.min_client_samples to {max(1, num_train // num_clients // 2)}"
        )
    if num_edges * config.min_edge_test > num_test:
        raise PartitionError(
            f"{num_test} test examples cannot give {num_edges} edges min_edge_test={config.min_edge_test} each; set "
            f"task.partition.min_edge_test to {max(1, num_test // num_edges // 2)}, or use fewer edges (task.num_edges)"
        )


def _why_not(smallest: Sequence[tuple[int, int]], config: Partition) -> str:
    clients, tests = zip(*smallest, strict=True)
    reasons = []
    for field, minimum, values, what, fix in (
        ("min_client_samples", config.min_client_samples, clients, "client", f"{MIX}_client or {MIX}_server"),
        ("min_edge_test", config.min_edge_test, tests, "edge's test set", f"{MIX}_server"),
    ):
        num_failed = sum(value < minimum for value in values)
        if num_failed:
            reasons.append(
                f"{field}={minimum} failed in {num_failed} of {len(values)} attempts: the smallest {what} had "
                f"{min(values)} examples at worst and {max(values)} at best; lower task.partition.{field} or raise "
                + fix
            )
    more = "Fewer clients or a higher task.partition.max_attempts also help."
    return f"no partition meets the minimum sizes. {'. '.join(reasons)}. {more}"
