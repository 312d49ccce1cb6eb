"""One round of every scheme with hooks against plain PyTorch, on every trainer."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad
from torch.nn import functional as F

from fedbac import Method
from fedbac.config.experiment import Training
from fedbac.core import trees
from fedbac.core.parts import Params, Parts, Personalization
from fedbac.engines.adjusting import decayed, reach
from fedbac.federation import Federation
from fedbac.personalization import TwoHeads
from tests.support import PLAIN_SGD, Played, deal, play, prepare
from tests.trainers.reference import DATA, PATHS, SIZES, make, naive_batches

SHARDS = deal(DATA, SIZES)
PLAIN = PLAIN_SGD.model_copy(update={"epochs": 2, "batch_size": 5, "learning_rate": 0.2})
RICH = PLAIN.model_copy(update={"momentum": 0.8, "weight_decay": 0.05})
every_path = pytest.mark.parametrize("path", PATHS)
every_owner = pytest.mark.parametrize("owner", ["client", "edge"])
HEAD = ("3.weight", "3.bias")
Logits = Callable[[Params, Tensor], Tensor]


def two_rounds(path: str, scheme: Personalization, training: Training) -> Played:
    method = Method(name="m", personalization=scheme)
    _, federation = prepare(method, DATA, SHARDS, training=training, num_rounds=2)
    return play(method, DATA, SHARDS, make(path, federation, scheme), training=training, num_rounds=2)


def received(played: Played, client: int) -> Parts:
    """Return what a client received in the second round."""
    edge = next(m for m, clients in enumerate(SHARDS.clients) if client in clients)
    row = {"cloud": 0, "edge": edge, "client": client}
    parts = played.experiment.method.personalization.parts
    return {
        part: trees.to(trees.take(stack, row[parts[part].scope]), torch.device("cpu"))
        for part, stack in played.states[1].parts.items()
    }


class Sgd:
    """Steps of SGD on some weights; their gradients are those of other weights."""

    def __init__(self, training: Training, scale: float = 1.0) -> None:
        self.training, self.scale, self.velocity, self.gradients = training, scale, {}, []  # type: ignore[var-annotated]

    def step(self, moved: Params, at: Params, gradient: Params) -> Params:
        """Move weights by a gradient at (possibly other) weights, which decay too."""
        self.gradients.append(gradient)
        out = dict(moved)
        for name, slope in gradient.items():
            push = slope + self.training.weight_decay * at[name]
            self.velocity[name] = self.training.momentum * self.velocity.get(name, 0.0) + push
            out[name] = moved[name] - self.scale * self.training.learning_rate * self.velocity[name]
        return out

    def total(self, name: str) -> Tensor:
        return torch.stack([gradient[name] for gradient in self.gradients]).sum(0)


def batches(federation: Federation, client: int) -> list[tuple[Tensor, Tensor]]:
    return [(x, y) for _, x, y in naive_batches(federation, (2, 0, client), federation.examples.training.epochs)]


def plain(federation: Federation) -> Logits:
    def logits(params: Params, x: Tensor) -> Tensor:
        found: Tensor = functional_call(federation.network, params, (x,))
        return found

    return logits


def learn(
    start: Params, sgd: Sgd, federation: Federation, client: int, logits: Logits, moves: tuple[str, ...]
) -> Params:
    """Train some weights of a network by the cross-entropy of these logits."""
    now = dict(start)
    for x, y in batches(federation, client):
        moving = {name: now[name] for name in moves}

        def loss(moving: Params, now: Params = now, x: Tensor = x, y: Tensor = y) -> Tensor:
            return F.cross_entropy(logits({**now, **moving}, x), y)

        now = sgd.step(now, now, grad(loss)(moving))
    return now


def averaged(of_clients: list[Params], scope: str) -> Params:
    """Return the means over everybody, over edges, or of nobody, stacked."""
    groups = {
        "cloud": [range(len(of_clients))],
        "edge": SHARDS.clients,
        "client": [(c,) for c in range(len(of_clients))],
    }
    size_C = np.array([rows.size for rows in SHARDS.train], dtype=np.float64)
    means = [
        trees.weighted_mean(trees.stack([of_clients[c] for c in group]), size_C[list(group)]) for group in groups[scope]
    ]
    return trees.stack(means)


def compare(played: Played, part: str, of_clients: list[Params], close: float = 2e-5) -> None:
    scope = played.experiment.method.personalization.parts[part].scope
    for name, value in averaged(of_clients, scope).items():
        found = played.end.parts[part][name]
        before = played.states[1].parts[part][name]
        torch.testing.assert_close(found.cpu(), value, rtol=1e-4, atol=close)
        assert not torch.equal(found, before), f"{name} of {part} has not moved"


@pytest.mark.covering
@every_path
@every_owner
def test_a_generic_head_sees_all_classes_alike_and_ones_own_adds_to_it(path: str, owner: str) -> None:
    """One's own is trained first, beside what was received. With momentum and weight decay, which wears a little of the
    shift off: the rest leaves no trace, though it is as large as 15 for classes that a client lacks, which count not
    at all."""
    scheme, training = TwoHeads.model_validate({"owner": owner}), RICH.model_copy(update={"weight_decay": 1e-3})
    played = two_rounds(path, scheme, training)
    federation = played.federation
    logits = plain(federation)
    body, generic, personal = [], [], []
    for client in range(len(SHARDS.train)):
        start = received(played, client)
        count_K = torch.from_numpy(np.bincount(DATA.y_train[SHARDS.train[client]], minlength=DATA.num_classes))
        prior_K = (count_K / count_K.sum()).log()  # −∞ of those that it lacks

        def balanced(params: Params, x: Tensor, prior_K: Tensor = prior_K) -> Tensor:
            return logits(params, x) + prior_K

        network = {**start["body"], **start["generic"]}
        trained = learn(network, Sgd(training), federation, client, balanced, tuple(network))
        beside = {**start["body"], **start["personal"]}

        def summed(params: Params, x: Tensor, network: Params = network) -> Tensor:
            return logits(network, x) + logits(params, x)

        head = learn(beside, Sgd(training), federation, client, summed, HEAD)
        body.append({name: trained[name] for name in start["body"]})
        generic.append({name: trained[name] for name in HEAD})
        personal.append({name: head[name] for name in HEAD})
    assert any(len(np.unique(DATA.y_train[rows])) < DATA.num_classes for rows in SHARDS.train)
    for part, of_clients in (("body", body), ("generic", generic), ("personal", personal)):
        compare(played, part, of_clients, close=2e-4)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_reach_and_decay_are_those_of_sgd(momentum: float) -> None:
    for gradient, decay, expected in (
        (1.0, 0.0, -0.1 * reach(7, momentum)),
        (0.0, 0.3, decayed(7, 0.1, momentum, 0.3)),
    ):
        weight = torch.tensor(1.0 if decay else 0.0, requires_grad=True)
        sgd = torch.optim.SGD([weight], lr=0.1, momentum=momentum, weight_decay=decay)
        for _ in range(7):
            weight.grad = torch.tensor(gradient)
            sgd.step()
        assert float(weight.detach()) == pytest.approx(expected, rel=1e-5)
