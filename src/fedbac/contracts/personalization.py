"""What every personalization scheme promises the rounds and the trainers."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedbac import models
from fedbac.contracts.common import calling, check_settings, difference, require
from fedbac.core import trees
from fedbac.core.answers import checked_start
from fedbac.core.parts import Anatomy, Parts, Personalization, Phase, Scope
from fedbac.core.schemes import checked_phases
from fedbac.errors import ConfigError, PolicyError

OWNERS: Mapping[Scope, int] = {"cloud": 1, "cluster": 3, "edge": 4, "client": 7}
SHAPE, NUM_CLASSES = (1, 4, 4), 3
NETWORK = models.Perceptron(hidden=(6, 5, 4))


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


def _check_init(who: str, scheme: Any, anatomy: Anatomy, build: models.Build) -> Parts:
    """Hold the start to have a row for each owner, of its own memory, and to be the same every time."""
    with calling(who, "init()"):
        parts = checked_start(scheme, scheme.init(build, OWNERS), OWNERS)
    template = models.weights(build(0))
    for part, params in parts.items():
        names = anatomy.weights[part]
        require(
            sorted(params) == sorted(names),
            f"{who}: init() must return the weights {', '.join(names)} as part {part!r}, not {', '.join(params)}",
        )
        for name, value in params.items():
            shape = (OWNERS[scheme.parts[part].scope], *template[name].shape)
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
