"""What every personalization scheme promises the rounds and the trainers."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from fedbac import models
from fedbac.contracts.common import calling, check_settings, difference, require
from fedbac.core import trees
from fedbac.core.answers import checked_start
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
    Stepping,
    judged_parts,
)
from fedbac.core.schemes import checked_outcome, checked_phases, checked_start_of_clients, checked_step
from fedbac.errors import ConfigError, PolicyError

OWNERS: Mapping[Scope, int] = {"cloud": 1, "cluster": 3, "edge": 4, "client": 7}
SHAPE, NUM_CLASSES = (1, 4, 4), 3
NETWORK = models.Perceptron(hidden=(6, 5, 4))
COUNT_CK = np.array([[4, 0, 1], [0, 0, 3], [2, 2, 2], [0, 9, 1], [0, 0, 0], [5, 0, 0], [1, 1, 0]])
"""Examples of clients by class: some lack classes, one has none at all."""
NUM_CLIENTS, NUM_STEPS, BATCH, RATE = len(COUNT_CK), 2, 4, 0.1
TRIED = f"{NUM_STEPS} steps of {NUM_CLIENTS} clients on {BATCH} examples each"


def check_personalization(scheme: Any, network: Callable[[], nn.Module] | None = None) -> None:
    """Hold a scheme to its promises, with a perceptron of four layers or a network of yours for images 1×4×4."""
    who = check_settings("personalization", scheme, Personalization)
    build = models.builder(NETWORK, network, SHAPE, NUM_CLASSES, seed=0)
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

    def batches(self, share: float = 1.0) -> Iterator[None]:
        """Go through two batches."""
        for self.step in range(NUM_STEPS):
            yield

    def gradient(self, network_C: Params, names: Collection[str] | None = None) -> Params:
        """Return the gradient of each client's batch."""
        found, losses = [], []
        for row, client in enumerate(self.clients):
            generator = torch.Generator().manual_seed(100 * client + self.step)
            x = torch.randn((BATCH, *SHAPE), generator=generator)
            y = torch.randint(NUM_CLASSES, (BATCH,), generator=generator)

            def loss(params: Params, x: Tensor = x, y: Tensor = y) -> Tensor:
                return nn.functional.cross_entropy(functional_call(self.network, params, (x,)), y)

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
        now_C = received_C = {part: trees.select(p, np.array(clients)) for part, p in everybody.items()}
        local = Rehearsal(network, clients)
        for local.step in range(NUM_STEPS):
            with calling(who, f"step(), tried as {TRIED},", now=now_C, received=received_C):
                now_C = checked_step(scheme, scheme.step(now_C, received_C, local), now_C)
        return now_C

    everybody = _for_clients(parts, NUM_CLIENTS)
    together = stepped(list(range(NUM_CLIENTS)))
    _check_finite(who, f"step(), tried as {TRIED},", together)
    for part, params in stepped([1]).items():
        for name, value in params.items():
            same = torch.allclose(value[0], together[part][name][1], rtol=1e-3, atol=1e-5)
            require(
                same,
                f"{who}: step(), tried as {TRIED}, made something else of {name} of part {part!r} for client 1 alone "
                "than beside the others; it must use each client's own row only",
            )


def _check_hooks(who: str, scheme: Any, parts: Parts, num_phases: int, network: nn.Module) -> None:
    """Hold hooks to keep shapes, write to nothing they are given, and give finite numbers."""
    steps_FC = np.tile(COUNT_CK.sum(1), (num_phases, 1))

    def local() -> Rehearsal:
        return Rehearsal(network, range(NUM_CLIENTS))

    run = LocalRun(COUNT_CK, travel_FC=RATE * steps_FC, left_FC=0.99**steps_FC, local=local)
    received_C = _for_clients(parts, NUM_CLIENTS)
    with calling(who, "before()", received=received_C):
        start = checked_start_of_clients(scheme, scheme.before(received_C, run), received_C)
    started_C = start.parts
    _check_finite(who, "before()", started_C)
    _check_finite(who, "before()", start.shift)
    trained_C = {
        part: {name: value + 0.1 * value.cos() for name, value in params.items()}
        if scheme.parts[part].networks
        else params
        for part, params in started_C.items()
    }
    with calling(who, "after()", received=received_C, started=started_C, trained=trained_C):
        outcome_C = checked_outcome(scheme, scheme.after(received_C, started_C, trained_C, run), trained_C)
    _check_finite(who, "after()", outcome_C)
    for part, spec in scheme.parts.items():
        if spec.returns_as is not None:
            same = not difference(outcome_C[part], outcome_C[spec.returns_as])
            require(same, f"{who}: after() must return the same as parts {part!r} and {spec.returns_as!r}")
    for scale_C in start.rate_scale.values():
        require(np.isfinite(scale_C).all(), f"{who}: before() must scale rates by finite numbers")


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


def _for_clients(parts: Parts, num_clients: int) -> Parts:
    """Return parts as clients receive them: a row for each, all different."""
    generator = torch.Generator().manual_seed(0)
    return {
        part: {
            name: value[np.arange(num_clients) % len(value)]
            + 0.01 * torch.randn((num_clients, *value.shape[1:]), generator=generator)
            for name, value in params.items()
        }
        for part, params in parts.items()
    }


def _check_finite(who: str, verb: str, parts_C: Parts) -> None:
    for part, params in parts_C.items():
        good = all(bool(value.isfinite().all()) for value in params.values())
        require(good, f"{who}: {verb} must return finite numbers, but part {part!r} has others")
