"""Schemes that take gradients of their own against their papers: one client after another, in float64."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value
from torch.nn import functional as F

from fedbac import Method
from fedbac.config.experiment import Training
from fedbac.data import Augment
from fedbac.personalization import AdaptiveStart, HeadsTogether, Interpolated, MoreauEnvelope
from tests.support import NO_GPU, PLAIN_SGD, Played, deal, play, prepare
from tests.trainers.reference import DATA, PATHS, SIZES, make, naive_batches

Weights = dict[str, Tensor]
Model = dict[str, Weights]
Learn = Callable[[int, int, Model], Model]
"""What a client makes in a round of what it received."""

SHARDS = deal(DATA, SIZES)
ROUNDS = 3
PLAIN = PLAIN_SGD.model_copy(update={"epochs": 2, "batch_size": 5, "learning_rate_decay": 0.9})
RICH = PLAIN.model_copy(update={"momentum": 0.8, "weight_decay": 0.02, "clip_norm": 0.5})
every_owner = pytest.mark.parametrize("owner", ["client", "edge"])
every_training = pytest.mark.parametrize("training", [PLAIN, RICH], ids=["plain", "rich"])
through_torch = pytest.mark.parametrize("path", ["loop", "vmap", pytest.param("vmap-cuda", marks=NO_GPU)])
HEAD = ("3.weight", "3.bias")
SETTLED = 0.001


def played_by(path: str, scheme: Any, training: Training, **options: Any) -> Played:
    method = Method(name="m", personalization=scheme)
    options |= {"training": training, "num_rounds": ROUNDS}
    _, federation = prepare(method, DATA, SHARDS, **options)
    return play(method, DATA, SHARDS, make(path, federation, scheme), **options)


def mean_of(models: list[Weights], sizes: list[int]) -> Weights:
    return {n: sum(s / sum(sizes) * m[n] for m, s in zip(models, sizes, strict=True)) for n in models[0]}  # type: ignore[misc]


def federated(start: Model, scopes: dict[str, str], learn: Learn) -> dict[str, list[Weights]]:
    """Return every owner's part after all rounds."""
    clients = [client for edge in SHARDS.clients for client in edge]
    groups = {"cloud": [clients], "edge": [list(edge) for edge in SHARDS.clients], "client": [[c] for c in clients]}
    state = {part: [start[part]] * len(groups[scope]) for part, scope in scopes.items()}
    for round_ in range(1, ROUNDS + 1):
        at = {part: {c: row for row, group in enumerate(groups[s]) for c in group} for part, s in scopes.items()}
        made = {c: learn(round_, c, {part: state[part][at[part][c]] for part in scopes}) for c in clients}
        for part, scope in scopes.items():
            state[part] = [
                mean_of([made[c][part] for c in group], [len(SHARDS.train[c]) for c in group])
                for group in groups[scope]
            ]
    return state


def agree(played: Played, expected: dict[str, list[Weights]], close: float = 1e-6) -> None:
    for part, rows in expected.items():
        for name, value in played.end.parts[part].items():
            torch.testing.assert_close(
                value.cpu().double(), torch.stack([row[name] for row in rows]), rtol=0, atol=close
            )
            assert not torch.equal(value, played.states[1].parts[part][name]), f"{name} of {part} has not moved"


class Client:
    """The loss of one client's batches, and SGD."""

    def __init__(self, played: Played, training: Training, round_: int, client: int) -> None:
        self.federation, self.network = played.federation, played.federation.network.double()
        self.training, self.rate = training, training.learning_rate * training.learning_rate_decay ** (round_ - 1)
        found = naive_batches(self.federation, (round_, 0, client), training.epochs)
        self.batches = [(x, y) for _, x, y in found]
        self.first = [(x, y) for _, x, y in naive_batches(self.federation, (round_, 0, client), 1)]
        self.velocity: dict[str, Weights] = defaultdict(dict)

    def logits(self, weights: Weights, x: Tensor) -> Tensor:
        found: Tensor = functional_call(self.network, weights, (x.double(),))
        return found

    def loss(self, weights: Weights, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(weights, x), y)

    def clipped(self, gradient: Weights) -> Weights:
        if self.training.clip_norm is None:
            return gradient
        norm = torch.cat([g.flatten() for g in gradient.values()]).norm()
        return {n: g * min(1.0, self.training.clip_norm / (float(norm) + 1e-6)) for n, g in gradient.items()}

    def gradient(self, weights: Weights, x: Tensor, y: Tensor) -> Weights:
        found: Weights = grad(self.loss)(weights, x, y)
        return found

    def sgd(self, of: str, weights: Weights, gradient: Weights) -> Weights:
        for n, g in self.clipped(gradient).items():
            push = g + self.training.weight_decay * weights[n]
            self.velocity[of][n] = self.training.momentum * self.velocity[of].get(n, 0.0) + push
        return {n: value - self.rate * self.velocity[of][n] for n, value in weights.items()}


def weights_of(played: Played, part: str = "global") -> Weights:
    return {name: value[0].cpu().double() for name, value in played.states[0].parts[part].items()}


@pytest.mark.covering
@through_torch
@every_owner
@every_training
def test_blends_learn_as_in_algorithm_1_of_apfl(
    path: str, owner: Literal["client", "edge"], training: Training
) -> None:
    played = played_by(path, Interpolated(owner=owner, alpha=0.4), training)

    def learn(round_: int, client: int, got: Model) -> Model:
        me = Client(played, training, round_, client)
        w, v, alpha = got["global"], got["personal"], got["alpha"]["alpha"]
        for step, (x, y) in enumerate(me.batches):
            blend = {n: alpha * v[n] + (1 - alpha) * w[n] for n in w}
            slope, alone = me.gradient(blend, x, y), me.gradient(w, x, y)
            along = sum(((v[n] - w[n]) * slope[n]).sum() for n in w)
            w, v, alpha = (
                me.sgd("w", w, alone),
                me.sgd("v", v, {n: alpha * g for n, g in slope.items()}),
                alpha if step else (alpha - me.rate * (along + 0.02 * alpha)).clamp(0, 1),
            )
        return {"global": w, "personal": v, "alpha": {"alpha": alpha}}

    start = {
        "global": weights_of(played),
        "personal": weights_of(played),
        "alpha": {"alpha": torch.tensor(0.4, dtype=torch.float64)},
    }
    agree(played, federated(start, {"global": "cloud", "personal": owner, "alpha": owner}, learn))


@pytest.mark.covering
@through_torch
@every_owner
@every_training
@pytest.mark.parametrize("mixing", [1.0, 2.0])
def test_personal_networks_solve_a_proximal_problem_as_in_algorithm_1_of_pfedme(
    path: str, owner: Literal["client", "edge"], training: Training, mixing: float
) -> None:
    scheme = MoreauEnvelope(owner=owner, strength=3.0, inner_steps=3, inner_rate=0.2, mixing=mixing)
    played = played_by(path, scheme, training)

    def learn(round_: int, client: int, got: Model) -> Model:
        me = Client(played, training, round_, client)
        w = theta = got["global"]
        for x, y in me.batches:
            for _ in range(3):
                slope = me.clipped(me.gradient(theta, x, y))
                theta = {n: theta[n] - 0.2 * (slope[n] + 3.0 * (theta[n] - w[n])) for n in w}
            w = {n: w[n] - me.rate * 3.0 * (w[n] - theta[n]) for n in w}
        return {"global": w, "personal": theta}

    def serve(round_: int, client: int, got: Model) -> Model:
        """The server's part of line 11, told to the client: means of such mixtures are mixtures of means."""
        made = learn(round_, client, got)
        return made | {
            "global": {n: (1 - mixing) * got["global"][n] + mixing * made["global"][n] for n in got["global"]}
        }

    start = {"global": weights_of(played), "personal": weights_of(played)}
    agree(played, federated(start, {"global": "cloud", "personal": owner}, serve))


@pytest.mark.covering
@pytest.mark.parametrize("path", PATHS)
@every_owner
@every_training
def test_starts_are_mixed_as_in_algorithm_1_of_fedala(
    path: str, owner: Literal["client", "edge"], training: Training
) -> None:
    """The first time, in round 2, W goes on until the losses of ten passes differ little; later one pass is made."""
    scheme = AdaptiveStart(owner=owner, mix_rate=2.0, settled=SETTLED, first_passes=30)
    played = played_by(path, scheme, training)
    passes: list[int] = []

    def learn(round_: int, client: int, got: Model) -> Model:
        me = Client(played, training, round_, client)
        w, v, mix = got["global"], got["personal"], got["mix"]
        sample, left = [], max(1, int(0.8 * len(SHARDS.train[client])))
        for x, y in me.first:  # s % of the examples
            sample += [(x[:left], y[:left])] if left > 0 else []
            left -= len(y)
        losses: list[float] = []
        begins = round_ == 2
        while round_ > 1:
            for x, y in sample:
                start = {n: v[n] + mix[n] * (w[n] - v[n]) if n in mix else w[n] for n in w}
                top = {n: start[n] for n in HEAD}
                slope, loss = grad_and_value(lambda top, s=start, x=x, y=y: me.loss({**s, **top}, x, y))(top)
                mix = {n: (mix[n] - 2.0 * slope[n] * (w[n] - v[n])).clamp(0, 1) for n in HEAD}
            losses.append(float(loss))
            settled = len(losses) > 10 and torch.tensor(losses[-10:]).std(correction=0) < SETTLED
            if not begins or settled or len(losses) == 30:
                break
        if begins:
            passes.append(len(losses))
        now = {n: v[n] + mix[n] * (w[n] - v[n]) if n in mix else w[n] for n in w}
        for x, y in me.batches:
            now = me.sgd("w", now, me.gradient(now, x, y))
        return {"global": now, "personal": now, "mix": mix}

    ones = {n: torch.ones_like(weights_of(played)[n]) for n in HEAD}
    start = {"global": weights_of(played), "personal": weights_of(played), "mix": ones}
    agree(played, federated(start, {"global": "cloud", "personal": owner, "mix": owner}, learn))
    assert min(passes) < max(passes), "some need more passes than others"


def deep() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))


@pytest.mark.covering
@through_torch
@every_owner
@every_training
@pytest.mark.parametrize("head_layers", [1, 2])
@pytest.mark.parametrize("balanced", [True, False])
def test_two_heads_learn_from_the_same_batches_as_in_fedrod(
    path: str, owner: Literal["client", "edge"], training: Training, head_layers: int, balanced: bool
) -> None:
    """Body and generic head by the balanced softmax of the generic logits alone, one's own by the plain loss of the
    sum of both. A class that a client lacks takes no part in its softmax."""
    scheme = HeadsTogether(owner=owner, head_layers=head_layers, balanced=balanced)
    played = played_by(path, scheme, training, user=deep)
    assert any(len(np.unique(DATA.y_train[rows])) < DATA.num_classes for rows in SHARDS.train)

    def learn(round_: int, client: int, got: Model) -> Model:
        me = Client(played, training, round_, client)
        body, generic, personal = got["body"], got["generic"], got["personal"]
        count_K = np.bincount(DATA.y_train[SHARDS.train[client]], minlength=DATA.num_classes)
        prior_K = (
            torch.from_numpy(count_K / count_K.sum()).log() if balanced else torch.zeros(4)
        )  # −∞ where it has none
        for x, y in me.batches:

            def risk(network: Weights, x: Tensor = x, y: Tensor = y) -> Tensor:
                return F.cross_entropy(me.logits(network, x) + prior_K, y)

            def own_risk(
                head: Weights, x: Tensor = x, y: Tensor = y, body: Weights = body, generic: Weights = generic
            ) -> Tensor:
                return F.cross_entropy(me.logits({**body, **generic}, x) + me.logits({**body, **head}, x), y)

            slope, own = me.clipped(grad(risk)({**body, **generic})), grad(own_risk)(personal)
            body, generic, personal = (
                me.sgd("body", body, {n: slope[n] for n in body}),
                me.sgd("generic", generic, {n: slope[n] for n in generic}),
                me.sgd("personal", personal, own),
            )
        return {"body": body, "generic": generic, "personal": personal}

    start = {part: weights_of(played, part) for part in scheme.parts}
    agree(played, federated(start, {part: spec.scope for part, spec in scheme.parts.items()}, learn))


@pytest.mark.full
@pytest.mark.parametrize("scheme", [Interpolated(), MoreauEnvelope(), HeadsTogether()], ids=lambda scheme: scheme.kind)
def test_one_at_a_time_or_all_at_once_with_distorted_images(scheme: Any) -> None:
    one, many = (played_by(path, scheme, RICH, augment=Augment(crop_padding=2)) for path in ("loop", "vmap"))
    for part, params in one.end.parts.items():
        for name, value in params.items():
            torch.testing.assert_close(value, many.end.parts[part][name], rtol=0, atol=2e-6)
    assert [r["selected"] for r in one.records] == [r["selected"] for r in many.records]
