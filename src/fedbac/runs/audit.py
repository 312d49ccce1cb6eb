"""An audit of privacy in one run (Steinke, Nasr, Jagielski, 2023): canaries give a lower bound of ε.

A canary is a client that sends, whatever the model, the longest change that is allowed in a direction of its own; or,
by the toss of a coin, nothing. Whoever sees what edges release guesses how each coin fell. Of an ε-private run nobody
guesses right more often than e^ε / (1 + e^ε), so that many right guesses are a proof of a larger ε.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor

from fedbac.config.experiment import Experiment, Runtime
from fedbac.core import trees
from fedbac.core.links import Link
from fedbac.core.parts import Parts
from fedbac.core.queries import Moment
from fedbac.core.requests import Evaluate, Measured, Train, Trained, Trainer
from fedbac.core.rng import stream
from fedbac.core.runtime import sealed
from fedbac.core.settings import BoolArray, FloatArray
from fedbac.engines import Simulator
from fedbac.errors import ConfigError
from fedbac.federation import assemble
from fedbac.local import make_trainer
from fedbac.rounds.cloud import rounds
from fedbac.rounds.messages import Site, TrainOrder, TrainReport
from fedbac.rounds.start import start
from fedbac.runs.configure import Inputs

DOUBT = 0.05
"""How probable a bound is that is too large."""
GUESSED = (1.0, 0.5, 0.25)
"""Of all canaries the shares that are guessed, the surest: the best bound of the three counts, and pays for it."""


class Audited(NamedTuple):
    """What came of an audit."""

    at_least: float
    """ε is no smaller, with the confidence that was asked for."""
    promised: float | None
    right: int
    guesses: int
    canaries: int

    @property
    def broken(self) -> bool:
        """Whether the promise is disproved."""
        return self.promised is not None and self.at_least > self.promised


def audit(
    experiment: Experiment,
    canaries: int | None = None,
    runtime: Runtime = Runtime(),  # noqa: B008 (frozen)
    inputs: Inputs = Inputs(),  # noqa: B008 (frozen)
) -> Audited:
    """Play a run of which some clients are canaries, half of every edge's if no number is given."""
    promise = experiment.promise
    if promise is None or not promise.privacy.bounds_clients:
        raise ConfigError(
            "method.privacy: an audit needs a guarantee for clients; give method.privacy.epsilon or, to see what "
            "no noise would tell, method.privacy.noise_multiplier=0"
        )
    with sealed():
        federation, scheme = assemble(experiment, **vars(inputs)), experiment.method.personalization
        drawn, most = stream(experiment.seed, "canaries"), sum(experiment.task.clients())
        if canaries is not None and not 1 <= canaries <= most:
            raise ConfigError(f"--canaries: {canaries} cannot be among {most} clients; use 1 to {most}")
        chosen = drawn.permutation(most)[: max(1, most // 2) if canaries is None else canaries]
        heads = drawn.random(chosen.size) < 0.5
        flock = Flock(
            experiment, {int(c): bool(sends) for c, sends in zip(chosen, heads, strict=True)}, federation.sites
        )
        trainer = make_trainer(federation.network, scheme, federation.examples, runtime)
        edges = Watched(experiment, federation.sites, Among(trainer, flock), runtime.memory_gib)
        edges.flock = flock
        state = start(experiment, federation.build, federation.sites)
        try:
            for _ in rounds(experiment, federation.sites, edges, state):
                pass
        finally:
            edges.close()
    score_N = np.array([flock.score[int(client)] for client in chosen])
    found = [guessed(score_N, heads, share) for share in GUESSED]
    doubt, delta = DOUBT / len(GUESSED), promise.privacy.delta
    bounds = [least_epsilon(chosen.size, guesses, right, delta, doubt) for right, guesses in found]
    best = int(np.argmax(bounds))
    return Audited(bounds[best], promise.spent(experiment.task.rounds), *found[best], chosen.size)


class Flock:
    """The canaries of a run: what they send, and what is seen of it."""

    def __init__(self, experiment: Experiment, sends: dict[int, bool], sites: Sequence[Site]) -> None:
        promise = experiment.promise
        assert promise is not None
        self.experiment, self.sends, self.clip = experiment, sends, promise.privacy.clip
        self.score = dict.fromkeys(sends, 0.0)
        flocks = [[client for client in site.clients if client in sends] for site in sites]
        self.beside = {client: mine for mine in flocks for client in mine}
        """By canary, all of its site."""
        self._directions: dict[int, Tensor] = {}

    def passing(self, round_: int) -> list[str]:
        """Return the parts that clients send."""
        method = self.experiment.method
        return sorted(Link("client", method.personalization, Moment(round_, self.experiment.task.rounds)).passing["up"])

    def direction(self, client: int, size: int) -> Tensor:
        """Return a canary's own direction, of length one; at right angles to those of its site while there is room."""
        if client not in self._directions:
            mine = self.beside[client]
            drawn_DC = stream(self.experiment.seed, "canary", *mine[:1]).standard_normal((size, len(mine)))
            found_DC = np.linalg.qr(drawn_DC).Q if size >= len(mine) else drawn_DC / np.linalg.norm(drawn_DC, axis=0)
            self._directions |= {one: torch.from_numpy(found_DC[:, i].copy()).float() for i, one in enumerate(mine)}
        return self._directions[client]

    def sung(self, request: Train, found: Trained) -> Trained:
        """Return what clients come back with where canaries are among them."""
        parts = self.passing(request.round)
        start_C = {part: trees.select(request.bank[part], request.row_C[part]) for part in parts}
        rows = {part: trees.rows(params).clone() for part, params in found.parts_C.items() if part in parts}
        for place, client in enumerate(request.clients):
            if client not in self.sends:
                continue
            size = sum(row_CD.shape[1] for row_CD in rows.values())
            change_D, at = self.direction(client, size) * self.clip * self.sends[client], 0
            for part in parts:
                width = rows[part].shape[1]
                own_D = trees.rows(start_C[part])[place].to(rows[part])
                rows[part][place] = own_D + change_D[at : at + width].to(rows[part])
                at += width
        sung: Parts = {part: trees.shaped(row_CD, found.parts_C[part]) for part, row_CD in rows.items()}
        return replace(found, parts_C={**found.parts_C, **sung})

    def look(self, order: TrainOrder, report: TrainReport, clients: Sequence[int]) -> None:
        """See how far what a site releases lies in the direction of each of its canaries."""
        parts = [part for part in self.passing(order.round) if part in report.bank]
        rows = {part: (trees.rows(report.bank[part]), trees.rows(order.bank[part])) for part in parts}
        change = {part: after_RD - before_RD.to(after_RD) for part, (after_RD, before_RD) in rows.items()}
        for place, client in enumerate(clients):
            if client in self.score:
                mine = torch.cat([change[part][int(order.row_N[part][place])] for part in parts]).cpu()
                self.score[client] += float(mine @ self.direction(client, mine.numel()))


class Among:
    """A trainer some of whose clients are canaries."""

    def __init__(self, trainer: Trainer, flock: Flock) -> None:
        self.trainer, self.flock = trainer, flock
        self.path, self.device = trainer.path, trainer.device
        self.examples, self.network = getattr(trainer, "examples", None), getattr(trainer, "network", None)

    def train(self, requests: Sequence[Train]) -> list[Trained]:
        """Train all, and let canaries send what they do."""
        return [self.flock.sung(r, found) for r, found in zip(requests, self.trainer.train(requests), strict=True)]

    def evaluate(self, requests: Sequence[Evaluate]) -> list[Measured]:
        """Measure as ever."""
        return self.trainer.evaluate(requests)

    def close(self) -> None:
        """Release the trainer."""
        self.trainer.close()


class Watched(Simulator):
    """A simulator at which somebody looks."""

    flock: Flock

    def train(self, orders: Sequence[TrainOrder]) -> list[TrainReport]:
        """Have every edge run its order, and see what it releases."""
        reports = super().train(orders)
        for order, report in zip(orders, reports, strict=True):
            self.flock.look(order, report, self.sites[order.site].clients)
        return reports


def guessed(score_N: FloatArray, heads: BoolArray, share: float) -> tuple[int, int]:
    """Return how many guesses are right, and how many there are: who scores above the middle sent, of the surest."""
    away_N = score_N - (score_N.max() + score_N.min()) / 2
    surest = np.argsort(-np.abs(away_N), kind="stable")[: max(1, int(share * score_N.size))]
    return int(((away_N > 0) == heads)[surest].sum()), surest.size


def least_epsilon(canaries: int, guesses: int, right: int, delta: float, doubt: float) -> float:
    """Return the largest ε that so many right guesses disprove, but for a doubt; 0 if they disprove none."""
    low, high = 0.0, 1.0
    if p_value(canaries, guesses, right, low, delta) > doubt:
        return 0.0
    while p_value(canaries, guesses, right, high, delta) <= doubt:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(canaries, guesses, right, middle, delta) <= doubt else (low, middle)
    return low


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return the probability, at most, of so many right guesses about an (ε, δ)-private run: with W of a binomial
    distribution of e^ε / (1 + e^ε), P[W ≥ v] + 2 m δ max_i P[v > W ≥ v − i] / i (Theorem 5.2 of the paper)."""
    chance = 1 / (1 + np.exp(-epsilon))
    by_i = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, chance)) / np.arange(1, right + 1)
    worst = by_i.max(initial=0.0)
    return float(min(1.0, binom.sf(right - 1, guesses, chance) + 2 * canaries * delta * worst))
