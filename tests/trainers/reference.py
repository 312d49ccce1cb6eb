"""A naive trainer to compare with: fresh modules, torch's own optimizer and clipping, one image at a time."""

import copy
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedbac.config.training import AdamW, Training
from fedbac.core import trees
from fedbac.core.parts import Anatomy, Params, Parts, Personalization, predict
from fedbac.core.requests import Teachers, Train, Trained, Trainer
from fedbac.core.rng import stream, torch_seed
from fedbac.data import Augment, Dataset, toy
from fedbac.federation import Federation
from fedbac.local import LoopTrainer, NativeTrainer, VmapTrainer
from fedbac.local.kernel import layers_of
from fedbac.personalization import Additive, PerCluster, Shared
from tests.schemes import Branched, InTurns, Layered, Personal, Warmed
from tests.support import (
    NO_KERNEL,
    ON_GPU,
    OnlyClusterMoves,
    OnlyGlobalMoves,
    deal,
    federate,
    on_gpu,
    order,
    start_of,
)

DATA = toy(num_classes=4, train=50, test=30)
MEAN, STD = float((DATA.x_train / 255).mean()), float((DATA.x_train / 255).std())
SIZES = [[1, 7, 13], [8, 3], [10]]
"""A client with a single example, one smaller than a batch, ragged ones, one of whole batches."""
CLIENTS = ((0, 1, 2), (3, 4), (5,))
RATE = 0.2
SCHEMES: dict[str, Personalization] = {
    "shared": Shared(),
    "per_cluster": PerCluster(),
    "additive": Additive(l2_cluster=0.3),
    "additive_loss": Additive(l2_cluster=0.3, l2_form="loss"),
    "frozen_cluster": OnlyGlobalMoves(),
    "frozen_global": OnlyClusterMoves(),
    "in_turns": InTurns(),
    "warmed": Warmed(),
    "proximal": Shared(proximal=0.7),
    "personal": Personal(),
    "layered": Layered(),
    "layers_in_turns": Layered(in_turns=True),
    "branched": Branched(),
    "branched_in_turns": Branched(in_turns=True),
}
BASE: dict[str, Any] = {"epochs": 2, "batch_size": 5, "weight_decay": 0.02, "momentum": 0.8, "clip_norm": None}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no_momentum": {"momentum": 0},
    "whole_batches": {"batch_size": 4},
    "large_batch": {"batch_size": 64},
    "drop_last": {"drop_last": True},
    "clip_joint": {"clip_norm": 0.4, "clip_scope": "joint"},
    "clip_per_network": {"clip_norm": 0.4, "clip_scope": "per_network"},
    "clip_no_momentum": {"clip_norm": 0.4, "momentum": 0},
    "three_epochs": {"epochs": 3},
    "augment": {"augment": Augment(crop_padding=2)},
}
PATHS = ["loop", "vmap", pytest.param("native", marks=NO_KERNEL), *ON_GPU]


def setting(
    scheme: Personalization | None = None, user: Callable[[], nn.Module] | None = None, **options: Any
) -> Federation:
    values = BASE | options
    augment = values.pop("augment", None)
    return federate(DATA, deal(DATA, SIZES), training=Training(**values), user=user, augment=augment, seed=3)


def starts(federation: Federation, scheme: Personalization) -> list[Parts]:
    """Return a different start for each request."""
    parts = scheme.init(federation.build, {"cloud": 1, "cluster": 1, "edge": 1, "client": 1})
    return [
        {part: {name: value[0] * (1 + 0.2 * edge) for name, value in p.items()} for part, p in parts.items()}
        for edge in range(len(CLIENTS))
    ]


def requests(federation: Federation, scheme: Personalization, round_: int = 2, edge_round: int = 0) -> list[Train]:
    parts = starts(federation, scheme)
    return [order(clients, p, round_, edge_round, RATE) for clients, p in zip(CLIENTS, parts, strict=True)]


def make(path: str, federation: Federation, scheme: Personalization) -> Trainer:
    if path == "loop":
        return LoopTrainer(federation.network, scheme, federation.examples)
    if path == "vmap":
        return VmapTrainer(federation.network, scheme, federation.examples, torch.device("cpu"))
    if path in ("emulated", "fused", "vmap-cuda"):
        return on_gpu(path, federation, scheme)
    layers = layers_of(federation.network, DATA.x_train.shape[1:])
    assert layers is not None
    return NativeTrainer(federation.network, scheme, federation.examples, layers, threads=2)


def naive_image(dataset: Dataset, index: int, shift: tuple[int, int] | None, flip: bool, padding: int) -> Tensor:
    image = torch.from_numpy(dataset.x_train[index]).float()
    if shift is not None:
        row, column = shift
        height, width = image.shape[1:]
        image = F.pad(image, (padding,) * 4)[:, row : row + height, column : column + width]
        image = image.flip(2) if flip else image
    return (image / 255 - MEAN) / STD


class Outcome(NamedTuple):
    """What a client comes back with."""

    weights: dict[str, Params]
    loss: float
    velocity: dict[str, Params]
    square: float
    epochs: list[float]


def naive(federation: Federation, scheme: Personalization, request: Train, row: int, template: nn.Module) -> Outcome:
    """Train one client as anybody would write it down."""
    examples, training = federation.examples, federation.examples.training
    address = (request.round, request.edge_round, request.clients[row])
    anatomy, start = Anatomy(scheme, template), start_of(request, row)
    modules = {network: copy.deepcopy(template) for network in anatomy.networks}
    for network, module in modules.items():
        module.load_state_dict(anatomy.assemble(start, network), strict=False)
        module.train()

    for part, spec in scheme.parts.items():  # networks that share a part have the very same parameters
        for name, other in ((name, other) for name in anatomy.weights[part] for other in spec.networks[1:]):
            owner, _, field = name.rpartition(".")
            shared = getattr(modules[spec.networks[0]].get_submodule(owner), field)
            setattr(modules[other].get_submodule(owner), field, shared)

    def parameters(part: str) -> dict[str, nn.Parameter]:
        module = modules[scheme.parts[part].networks[0]]
        return {name: p for name, p in module.named_parameters() if name in anatomy.weights[part]}

    velocity = {
        part: {
            name: torch.zeros_like(p) if request.momentum is None else request.momentum[part][name][row].cpu()
            for name, p in parameters(part).items()
        }
        for part in scheme.parts
    }
    epochs: list[list[float]] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(examples.seed, "dropout", *address))
        for phase in scheme.phases():
            decay = {part: phase.pull[part].strength for part in phase.pull if not phase.pull[part].clipped}
            pulls = {part: pull for part, pull in phase.pull.items() if pull.clipped}
            groups = [
                {
                    "params": list(parameters(part).values()),
                    "weight_decay": training.weight_decay + decay.get(part, 0.0),
                }
                for part in phase.moves
            ]
            adam = training.optimizer
            optimizer: torch.optim.Optimizer = torch.optim.SGD(
                groups, lr=request.learning_rate, momentum=training.momentum
            )
            if isinstance(adam, AdamW):
                betas = adam.beta1, adam.beta2
                optimizer = torch.optim.AdamW(groups, lr=request.learning_rate, betas=betas, eps=adam.epsilon)
            moved = [(part, name, p) for part in phase.moves for name, p in parameters(part).items()]
            if training.momentum and not isinstance(adam, AdamW):
                for part, name, p in moved:
                    optimizer.state[p]["momentum_buffer"] = velocity[part][name].clone()
            terms = phase.terms or scheme.terms
            batches = naive_batches(federation, address, phase.epochs or training.epochs)
            lost: list[list[float]] = [[] for _ in range(phase.epochs or training.epochs)]
            epochs += lost
            for epoch, x, y in batches:
                for module in modules.values():
                    module.zero_grad()
                logits = predict(scheme, terms, lambda n, x: modules[n](x), x)
                each = F.cross_entropy(logits, y, reduction="none")
                lost[epoch] += each.tolist()
                loss = each.mean()
                if phase.taught and request.teachers is not None:
                    loss = naive_lesson(request.teachers, row, template, loss, logits, x)
                for part, pull in pulls.items():
                    for name, p in parameters(part).items():
                        anchor = 0.0 if pull.to is None else start[pull.to][name].cpu()
                        loss = loss + pull.strength / 2 * (p - anchor).square().sum()
                if loss.requires_grad:  # not where all that moves is frozen
                    loss.backward()  # type: ignore[no-untyped-call]
                if training.clip_norm is not None:
                    through = {
                        part: next(n for n in scheme.parts[part].networks if n in (terms or anatomy.networks))
                        for part in phase.moves
                    }
                    networks = dict.fromkeys(through.values())
                    moving = [[p for part, _, p in moved if through[part] == n] for n in networks]
                    scopes = [[*chain(*moving)]] if training.clip_scope == "joint" else moving
                    for scope in scopes:
                        nn.utils.clip_grad_norm_(scope, training.clip_norm)
                for part, name, p in moved:
                    if p.grad is not None and name in request.shift.get(part, {}):
                        p.grad += request.shift[part][name][row].cpu()
                optimizer.step()
            if training.momentum and not isinstance(adam, AdamW):
                for part, name, p in moved:
                    velocity[part][name] = optimizer.state[p]["momentum_buffer"]
    learned = anatomy.split({network: module.state_dict() for network, module in modules.items()})
    losses = np.array([*chain(*epochs)])
    return Outcome(learned, losses.mean(), velocity, (losses**2).mean(), [float(np.mean(lost)) for lost in epochs])


def naive_lesson(
    teachers: Teachers, client: int, template: nn.Module, loss: Tensor, logits: Tensor, x: Tensor
) -> Tensor:
    """Return what a client with teachers learns by: (1 − λ)·CE + λ·τ²·Σ_j β_j·KL(p_j ‖ q)."""
    share, heat, apart = float(teachers.share_C[client]), teachers.temperature, torch.zeros(())
    for weight, teacher in zip(teachers.weight_CT[client].tolist(), range(len(teachers.weight_CT[0])), strict=True):
        if weight > 0:
            module = copy.deepcopy(template).eval()
            module.load_state_dict(trees.take(teachers.bank, teacher), strict=False)
            with torch.no_grad():
                p = F.softmax(module(x) / heat, 1)
            apart = apart + weight * F.kl_div(F.log_softmax(logits / heat, 1), p, reduction="batchmean")
    if not (teachers.weight_CT[client] > 0).any():
        return loss
    return (1 - share) * loss + share * heat**2 * apart


def naive_batches(
    federation: Federation, address: tuple[int, int, int], epochs: int
) -> list[tuple[int, Tensor, Tensor]]:
    """Return the batches of one phase, each with its epoch: every phase begins the client's streams anew."""
    examples, training, client = federation.examples, federation.examples.training, address[2]
    visits, draws = stream(examples.seed, "batches", *address), stream(examples.seed, "augment", *address)
    mine = federation.shards.train[client]
    shifts: list[Any] = [None] * (epochs * mine.size)
    flips, padding = [False] * len(shifts), 0
    if examples.augment is not None:
        padding = examples.augment.crop_padding
        drawn = examples.augment.draw(draws, len(shifts))
        shifts, flips = [(int(r), int(c)) for r, c in drawn[0]], drawn[1].tolist()
    found = []
    for epoch in range(epochs):
        visit = mine[visits.permutation(mine.size)]
        for first in range(0, mine.size, training.batch_size):
            batch = visit[first : first + training.batch_size]
            if training.drop_last and batch.size < training.batch_size and first > 0:
                continue
            at = range(epoch * mine.size + first, epoch * mine.size + first + batch.size)
            x = [naive_image(DATA, int(v), shifts[i], flips[i], padding) for v, i in zip(batch, at, strict=True)]
            found.append((epoch, torch.stack(x).float(), torch.from_numpy(DATA.y_train[batch])))
    return found


def check(
    trained: Trained,
    federation: Federation,
    scheme: Personalization,
    request: Train,
    known: list[Outcome] | None = None,
    close: float = 1e-5,
) -> None:
    """Compare what a trainer made of a request with what the naive one makes, client by client."""
    template = federation.network
    for row in range(len(request.clients)):
        expected = known[row] if known else naive(federation, scheme, request, row, template)
        assert set(trained.parts_C) == set(expected.weights)
        for part, params in expected.weights.items():
            assert set(trained.parts_C[part]) == set(params)
            for name, value in params.items():
                torch.testing.assert_close(trained.parts_C[part][name][row].cpu(), value, rtol=close, atol=close)
        assert trained.loss_C[row] == pytest.approx(expected.loss, rel=1e-5)
        if trained.square_C is not None:
            assert trained.square_C[row] == pytest.approx(expected.square, rel=1e-5)
        if trained.epoch_CE is not None:
            assert trained.epoch_CE[row] == pytest.approx(expected.epochs, rel=1e-5)
        if request.momentum is not None:
            assert trained.momentum is not None
            for part, params in expected.velocity.items():
                for name, value in params.items():
                    torch.testing.assert_close(trained.momentum[part][name][row].cpu(), value, rtol=1e-5, atol=1e-5)


def with_momentum(request: Train, momentum: Parts | None, federation: Federation) -> Train:
    """Return the request with these momentum buffers, or with zeros."""
    names = {name for name, _ in federation.network.named_parameters()}
    zeros = {
        part: {n: torch.zeros(len(request.clients), *v.shape[1:]) for n, v in params.items() if n in names}
        for part, params in request.bank.items()
    }
    start = {part: trees.take(stack, 0) for part, stack in request.bank.items()}
    return order(request.clients, start, request.round, request.edge_round, RATE, momentum or zeros)
