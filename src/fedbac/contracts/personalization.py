"""What every personalization scheme promises the rounds and the trainers."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from fedbac import models
from fedbac.contracts.common import calling, check_settings, difference, require, trying
from fedbac.core import trees
from fedbac.core.answers import (
    check_finite,
    checked_outcome,
    checked_own_step,
    checked_phases,
    checked_start,
    checked_start_of_clients,
)
from fedbac.core.parts import (
    Adjusting,
    Anatomy,
    Blending,
    LocalRun,
    Params,
    Parts,
    Personalization,
    Phase,
    Scope,
    Start,
    Stepping,
    extension,
    judged_parts,
)
from fedbac.errors import ConfigError, PolicyError

OWNERS: Mapping[Scope, int] = {"cloud": 1, "cluster": 3, "country": 2, "region": 3, "edge": 4, "client": 7}
SHAPE, NUM_CLASSES = (1, 4, 4), 3
NETWORK = models.Perceptron(hidden=(6, 5, 4))
COUNT_CK = np.array([[4, 0, 1], [0, 0, 3], [2, 2, 2], [0, 9, 1], [0, 0, 0], [5, 0, 0], [1, 1, 0]])
"""Examples of clients by class: some lack classes, one has none at all."""
NUM_CLIENTS, NUM_STEPS, BATCH, RATE = len(COUNT_CK), 2, 4, 0.1
GROUPS = [[1], [0, 2, 4], [1, 3, 5, 6]]
"""Clients that are tried in stacks of their own, too."""
STEPS = f"{NUM_STEPS} steps of {NUM_CLIENTS} clients on {BATCH} examples each"
TRIED = f"tried with {NUM_CLIENTS} clients, of which client 4 has no examples, and so a travel of 0"


def check_personalization(scheme: Any, network: Callable[[], nn.Module] | None = None) -> None:
    """Hold a scheme to its promises, with a perceptron of four layers or a network of yours for images 1×4×4."""
    who = check_settings("personalization", scheme, Personalization)
    build = models.builder(NETWORK, network, SHAPE, NUM_CLASSES, seed=0, extend=extension(scheme))
    try:
        phases, anatomy = checked_phases(scheme), Anatomy(scheme, build(0))
    except (PolicyError, ConfigError) as error:  # which names the scheme
        raise AssertionError(str(error)) from error
    parts = _check_init(who, scheme, anatomy, build)
    _check_pulls(who, phases, anatomy)
    if scheme.terms is None:
        _check_predict(who, scheme, anatomy, parts, build(0))
    if isinstance(scheme, Adjusting):
        _check_hooks(who, scheme, parts, len(phases), build(0))
    if isinstance(scheme, Stepping):
        _check_step(who, scheme, parts, build(0))
    if isinstance(scheme, Blending):
        _check_blended(who, scheme, parts)


def _check_init(who: str, scheme: Any, anatomy: Anatomy, build: models.Build) -> Parts:
    """Hold the start to have a row for each owner, of its own memory, and to be the same every time."""
    with calling(who, "init()"):
        parts = checked_start(scheme, scheme.init(build, OWNERS), OWNERS)
    template = models.weights(build(0))
    for part, params in parts.items():
        names = anatomy.weights[part] or tuple(params)
        require(names, f"{who}: init() must return some numbers as part {part!r}")
        require(
            sorted(params) == sorted(names),
            f"{who}: init() must return the weights {', '.join(names)} as part {part!r}, not {', '.join(params)}",
        )
        for name, value in params.items():
            free = not scheme.parts[part].networks
            shape = (OWNERS[scheme.parts[part].scope], *(value if free else template[name][None]).shape[1:])
            found = tuple(value.shape)
            require(found == shape, f"{who}: init() must return {name} of part {part!r} as {shape}, not {found}")
            require(bool(value.isfinite().all()), f"{who}: init() must return finite weights, but {name} has others")
    where = difference(parts, scheme.init(build, OWNERS))
    require(not where, f"{who}: init() must start the same every time, from build alone, but {where} differs")
    _check_memory(who, parts)
    return parts


def _check_memory(who: str, parts: Parts) -> None:
    """Rows are written to one by one: those that shared memory would move together."""
    places: dict[int, str] = {}
    for part, params in parts.items():
        for name, value in params.items():
            for row in value:
                here, other = f"{name} of part {part!r}", places.get(row.data_ptr())
                require(
                    other is None,
                    f"{who}: init() must give every row its own memory, but one of {here} shares it with {other}",
                )
                places[row.data_ptr()] = here


def _check_pulls(who: str, phases: tuple[Phase, ...], anatomy: Anatomy) -> None:
    for number, phase in enumerate(phases):
        for part, pull in phase.pull.items():
            same = pull.to is None or anatomy.weights[part] == anatomy.weights[pull.to]
            what = f"{who}: phase {number} of phases()"
            require(same, f"{what} pulls {part!r} to {pull.to!r}, which holds other layers")


def _check_predict(who: str, scheme: Any, anatomy: Anatomy, parts: Parts, network: nn.Module) -> None:
    model = {part: trees.take(params, 0) for part, params in parts.items()}

    def apply(name: str, x: Tensor) -> Tensor:
        known = ", ".join(anatomy.networks)
        require(name in anatomy.networks, f"{who}: predict() applies {name!r}, but its networks are {known}")
        logits: Tensor = functional_call(network, anatomy.assemble(model, name), (x,))
        return logits

    logits = scheme.predict(apply, torch.zeros(2, *SHAPE))
    good = isinstance(logits, Tensor) and tuple(logits.shape) == (2, NUM_CLASSES)
    require(good, f"{who}: predict() must return a row of logits for each example, as a network does")


class Rehearsal:
    """``LocalSteps`` on made-up examples, another batch of them for every client and step."""

    def __init__(self, network: nn.Module, clients: Collection[int]) -> None:
        self.network, self.clients, self.step = network, list(clients), 0
        self.rate_C, self.loss_C = torch.full((len(clients),), RATE), torch.zeros(len(clients))
        self.count_CK = COUNT_CK[self.clients]

    def batches(self, share: float = 1.0) -> Iterator[None]:
        """Go through two batches."""
        for self.step in range(NUM_STEPS):
            yield

    def gradient(self, network_C: Params, names: Collection[str] | None = None, beside: Params | None = None) -> Params:
        """Return the gradient of each client's batch."""
        found, losses = [], []
        for row, client in enumerate(self.clients):
            generator = torch.Generator().manual_seed(100 * client + self.step)
            x = torch.randn((BATCH, *SHAPE), generator=generator)
            y = torch.randint(NUM_CLASSES, (BATCH,), generator=generator)

            others = [] if beside is None else [trees.take(beside, row)]

            def loss(params: Params, x: Tensor = x, y: Tensor = y, others: list[Params] = others) -> Tensor:
                logits = [functional_call(self.network, one, (x,)) for one in (params, *others)]
                return nn.functional.cross_entropy(torch.stack(logits).sum(0), y)

            gradient, value = grad_and_value(loss)(trees.take(network_C, row))
            found.append(gradient)
            losses.append(value)
        self.loss_C = torch.stack(losses)
        return {name: value for name, value in trees.stack(found).items() if names is None or name in names}

    def clipped(self, gradient_C: Params) -> Params:
        """Return the gradient as it is."""
        return gradient_C

    def descend(self, part: str, value_C: Params, gradient_C: Params) -> Params:
        """Return weights after a step of plain SGD."""
        return value_C | {name: value_C[name] - RATE * slope for name, slope in gradient_C.items()}


def _check_step(who: str, scheme: Any, parts: Parts, network: nn.Module) -> None:
    """Hold steps to keep shapes, write to nothing they are given, give finite numbers, and keep clients apart."""

    def stepped(clients: list[int]) -> Parts:
        now_C = received_C = _received(parts, clients)
        local = Rehearsal(network, clients)
        for local.step in range(NUM_STEPS):
            with calling(who, f"step(), tried as {STEPS},", now=now_C, received=received_C):
                now_C = checked_own_step(scheme, scheme.step(now_C, received_C, local), now_C)
                check_finite(f"{who}: step(), tried as {STEPS},", now_C, [received_C])
        return now_C

    _check_apart(f"{who}: step(), tried as {STEPS},", stepped)


def _check_hooks(who: str, scheme: Any, parts: Parts, num_phases: int, network: nn.Module) -> None:
    """Hold hooks to keep shapes, write to nothing they are given, give finite numbers, and keep clients apart."""

    def started(clients: list[int]) -> tuple[Start, Parts, LocalRun]:
        received_C, count_CK = _received(parts, clients), COUNT_CK[clients]
        steps_FC = np.tile(count_CK.sum(1), (num_phases, 1))
        run = LocalRun(count_CK, RATE * steps_FC, 0.99**steps_FC, local=lambda: Rehearsal(network, clients))
        with trying(TRIED), calling(who, "before()", received=received_C):
            start = checked_start_of_clients(scheme, scheme.before(received_C, run), received_C)
            for made_C in (start.parts, start.shift):
                check_finite(f"{who}: before()", made_C, [received_C])
        return start, received_C, run

    def ended(clients: list[int]) -> Parts:
        start, received_C, run = started(clients)
        trained_C = {
            part: {name: value + 0.1 * value.cos() for name, value in params.items()}
            if scheme.parts[part].networks
            else params
            for part, params in start.parts.items()
        }
        given = {"received": received_C, "started": start.parts, "trained": trained_C}
        with trying(TRIED), calling(who, "after()", **given):
            return checked_outcome(scheme, scheme.after(*given.values(), run), *given.values())

    def scales(start: Start) -> Parts:
        return {"rate_scale": {str(phase): torch.as_tensor(scale_C) for phase, scale_C in start.rate_scale.items()}}

    with trying(TRIED):
        for made in (lambda start: start.parts, lambda start: start.shift, scales):
            _check_apart(f"{who}: before()", lambda clients, made=made: made(started(clients)[0]))  # type: ignore[misc]
        outcome_C = _check_apart(f"{who}: after()", ended)
    for part, spec in scheme.parts.items():
        if spec.returns_as is not None:
            same = not difference(outcome_C[part], outcome_C[spec.returns_as])
            require(same, f"{who}: after() must return the same as parts {part!r} and {spec.returns_as!r}")


def _check_apart(verb: str, made: Callable[[list[int]], Parts]) -> Parts:
    """Return what is made of all clients if it is the same for those who come in a smaller stack."""
    together = made(list(range(NUM_CLIENTS)))
    for clients in GROUPS:
        for part, params in made(clients).items():
            for name, value in params.items():
                same = torch.allclose(value, together[part][name][clients], rtol=1e-3, atol=1e-5)
                require(
                    same,
                    f"{verb} made something else of {name} of part {part!r} for "
                    f"{'client' if len(clients) == 1 else 'clients'} {', '.join(map(str, clients))} alone than beside "
                    "the others; a stack may hold any of the clients, so it must use each client's own row only",
                )
    return together


def _check_blended(who: str, scheme: Any, parts: Parts) -> None:
    with calling(who, "blended()", parts=parts):
        blended = scheme.blended(parts)
    judged = judged_parts(scheme)
    require(
        isinstance(blended, dict) and set(blended) <= set(judged),
        f"{who}: blended() must return some of the parts that predict: {', '.join(judged)}",
    )
    for part, params in blended.items():
        shapes = [{name: tuple(value.shape) for name, value in one.items()} for one in (params, parts[part])]
        require(shapes[0] == shapes[1], f"{who}: blended() must return part {part!r} as it is kept: {shapes[1]}")


def _received(parts: Parts, clients: list[int]) -> Parts:
    """Return parts as these clients receive them: a row for each, all different."""
    generator, owner_C = torch.Generator().manual_seed(0), np.arange(NUM_CLIENTS)
    return {
        part: {
            name: (
                value[owner_C % len(value)] + 0.01 * torch.randn((NUM_CLIENTS, *value.shape[1:]), generator=generator)
            )[clients]
            for name, value in params.items()
        }
        for part, params in parts.items()
    }
