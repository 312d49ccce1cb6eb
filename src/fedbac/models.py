"""Networks: LeNet-5 of any width, a small perceptron, and any ``nn.Module`` of the user's."""

import copy
import fnmatch
import hashlib
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedbac.core.parts import Params
from fedbac.core.rng import torch_seed
from fedbac.core.runtime import seeded
from fedbac.core.settings import BareKind, Settings, Width
from fedbac.errors import ConfigError, quoted
from fedbac.packages import Package

LENET_WIDTHS = (6, 16, 120, 84)
MAX_WEIGHTS = 100_000_000
"""Of one network that a configuration describes: clients take several times 400 MB each to train it."""


class LeNet5(Settings):
    """LeNet-5 without padding: 62,006 weights for 3×32×32, 44,426 for 1×28×28 (C.7)."""

    kind: Literal["lenet5"] = "lenet5"
    width: Annotated[float, Field(gt=0, le=100)] | tuple[Width, Width, Width, Width] = 1.0
    """A multiplier, or the four layer widths; 1.41 gives the paper's "HierFAVG 2×" with 123,825 weights (C.8)."""
    activation: Literal["relu", "tanh"] = "relu"
    """Not given in the paper (C.7); the native kernel knows ReLU."""
    pooling: Literal["max", "average"] = "max"
    """Not given in the paper (C.7); the native kernel knows maxima."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Return the network for images of this shape."""
        if len(shape) != 3 or min(shape[1:]) < 16:
            raise ConfigError(
                f"task.network: lenet5 needs images [channels, height, width] of at least 16×16, "
                f"but an example of this data set has shape {list(shape)}; use task.network.kind=mlp or your own"
            )
        c1, c2, f1, f2 = self.widths()
        active = {"relu": nn.ReLU, "tanh": nn.Tanh}[self.activation]
        pool = {"max": nn.MaxPool2d, "average": nn.AvgPool2d}[self.pooling]
        height, width = (((side - 4) // 2 - 4) // 2 for side in shape[1:])
        return nn.Sequential(
            nn.Conv2d(shape[0], c1, 5), active(), pool(2),
            nn.Conv2d(c1, c2, 5), active(), pool(2),
            nn.Flatten(),
            nn.Linear(c2 * height * width, f1), active(),
            nn.Linear(f1, f2), active(),
            nn.Linear(f2, num_classes),
        )  # fmt: skip

    def widths(self) -> tuple[int, int, int, int]:
        """Return the widths of the four hidden layers."""
        if isinstance(self.width, tuple):
            return self.width
        c1, c2, f1, f2 = (max(1, round(base * self.width)) for base in LENET_WIDTHS)
        return c1, c2, f1, f2


class Perceptron(Settings):
    """A multi-layer perceptron on the flattened example; no hidden layer makes it a linear model."""

    kind: Literal["mlp"] = "mlp"
    hidden: Annotated[tuple[Width, ...], Field(max_length=100)] = (32,)
    """Widths of the hidden layers."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Return the network for examples of this shape."""
        layers: list[nn.Module] = [nn.Flatten()]
        width = int(torch.Size(shape).numel())
        for hidden in self.hidden:
            layers += [nn.Linear(width, hidden), nn.ReLU()]
            width = hidden
        return nn.Sequential(*layers, nn.Linear(width, num_classes))


class Custom(Settings):
    """Stands in a configuration for a network that was handed over in Python; a resume must hand it over again."""

    kind: Literal["custom"] = "custom"
    name: str

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Refuse: only the caller has this network."""
        raise ConfigError(
            f"task.network: {self.name!r} is a network of your own; pass it again with network=... "
            "(a function that returns a new nn.Module, or an nn.Module)"
        )


class OwnNetwork(Package):
    """Of an installed package: a class, or a function without arguments that returns a new ``nn.Module``.

    The weights that it returns are those that a run starts with: random ones are drawn from the run's seed, others may
    be read from a file of the package.
    """

    field: ClassVar[str] = "task.network"

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Return a new network."""
        make = self.load()
        try:
            return _renew(make)
        except Exception as error:
            why = error if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
            raise ConfigError(f"task.network: {self.name}() failed: {why}") from error

    def outputs(self, shape: tuple[int, ...], largest_token: int | None) -> int:
        """Return how many numbers it predicts for an example, or for each of its tokens."""
        return _output(self.build(shape, 0), shape, largest_token).shape[-1]


NetworkChoice = Annotated[LeNet5 | Perceptron | Custom | OwnNetwork, Field(discriminator="kind"), BareKind]
Maker = nn.Module | Callable[[], nn.Module]
UserNetwork = Maker | str
"""A network that is handed over, or named as ``package.module:name``."""
Build = Callable[[int], nn.Module]
"""``build(i)`` returns the i-th independently initialized network of a run."""


def check_recipe(network: NetworkChoice, labels: str, frozen: Sequence[str] = ()) -> None:
    """Refuse a network that no site of a federation could build, as far as that is known without data."""
    if isinstance(network, Custom):
        raise ConfigError(
            f"task.network: {network.name!r} was given in Python, so no site has it; put it into a package that is "
            "installed at every site, and name it: task.network=package.module:name"
        )
    if isinstance(network, OwnNetwork):
        _freeze(network.build((), 0), frozen)
    elif labels == "tokens":
        raise ConfigError(f"task.network: {network.kind} predicts no tokens; name one of yours: package.module:name")


def builder(
    network: NetworkChoice,
    user: Maker | None,
    shape: tuple[int, ...],
    num_classes: int,
    seed: int,
    largest_token: int | None = None,
    frozen: Sequence[str] = (),
    steps: tuple[int, ...] = (),
) -> Build:
    """Return the function that makes a run's networks, after checking once that one fits the data.

    ``largest_token`` is given where examples are tokens. Weights that match a pattern of ``frozen``, and those of a
    network of the user's that need no gradient, never change: they are the same tensors in all networks of the run.
    ``steps`` are the tokens of an example, where the next one of each is to be predicted.
    """
    if largest_token is not None and user is None and not isinstance(network, Custom | OwnNetwork):
        raise ConfigError(
            f"task.network: {network.kind} reads numbers, but the examples are tokens (int64); pass a network of your "
            "own that begins with an embedding (network=..., or package.module:name), or give images as uint8"
        )

    base: dict[str, nn.Parameter] = {}

    def build(index: int) -> nn.Module:
        with seeded(torch_seed(seed, "init", index)):
            made = network.build(shape, num_classes) if user is None else _renew(user)
        _freeze(made, frozen)
        for name, value in frozen_weights(made).items():
            module, _, own = name.rpartition(".")
            setattr(made.get_submodule(module), own, base.setdefault(name, value))
        return made

    if user is None and not isinstance(network, OwnNetwork):
        with torch.device("meta"):  # without memory for the weights
            count = sum(value.numel() for value in network.build(shape, num_classes).parameters())
        if count > MAX_WEIGHTS:
            raise ConfigError(
                f"task.network: on examples of shape {list(shape)} it has {count:,} weights, of at most "
                f"{MAX_WEIGHTS:,}; make it narrower, or pass a network of your own in Python"
            )
    wanted, found = (2, *steps, num_classes), _output(build(0), shape, largest_token).shape
    if found != wanted:
        raise ConfigError(
            f"network: for two examples it must return logits of shape {list(wanted)} (the data set has {wanted[-1]} "
            f"classes, or numbers to predict), but it returns {list(found)}"
        )
    return build


def _renew(user: Maker) -> nn.Module:
    if not isinstance(user, nn.Module):
        made = user()
        if not isinstance(made, nn.Module):
            raise ConfigError(f"network: the function must return a new nn.Module, not {type(made).__name__}")
        return made
    module = copy.deepcopy(user)
    for child in module.modules():
        reset, own = getattr(child, "reset_parameters", None), list(child.parameters(recurse=False))
        if own and not any(value.requires_grad for value in own):
            continue
        if reset is not None:
            reset()
        elif own:
            raise ConfigError(
                f"network: {type(child).__name__} has weights but no reset_parameters(), so it cannot be initialized "
                "anew; pass a function that returns a new module instead of the module"
            )
    given = frozen_weights(user)
    with torch.no_grad():
        for name, value in frozen_weights(module).items():  # of a layer that is frozen in part
            value.copy_(given[name])
    return module


def _freeze(module: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze the weights that match; a pattern that matches none is a mistake, and so is to freeze all."""
    names = dict(module.named_parameters())
    for pattern in patterns:
        matching = fnmatch.filter(names, pattern)
        if not matching:
            raise ConfigError(f"task.frozen: {quoted(pattern)} matches none of the weights {', '.join(names)}")
        for name in matching:
            names[name].requires_grad_(False)
    if not any(value.requires_grad for value in names.values()):
        raise ConfigError("task.frozen: every weight of the network is frozen, so nothing can learn; leave some out")


def frozen_weights(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights that never change."""
    return {name: value for name, value in module.named_parameters() if not value.requires_grad}


def duplicate(module: nn.Module) -> nn.Module:
    """Return a copy of a network that shares the weights that never change."""
    return copy.deepcopy(module, {id(value): value for value in frozen_weights(module).values()})


def frozen_sha256(module: nn.Module) -> str | None:
    """Return the hash by which a run knows its frozen weights again; None if there are none."""
    frozen = frozen_weights(module)
    digest = hashlib.sha256()
    for name, value in frozen.items():
        digest.update(f"{name}{value.dtype}{tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest() if frozen else None


def _output(module: nn.Module, shape: Sequence[int], largest_token: int | None) -> Tensor:
    """Return what a network makes of two examples, if that can be learned from."""
    for name, value in module.named_parameters():
        if isinstance(value, nn.UninitializedParameter):
            raise ConfigError(
                f"network: {name} is of a lazy layer, of no shape yet; use the layer that is told its size"
            )
        if value.requires_grad and value.dtype != torch.float32:
            kind = str(value.dtype).removeprefix("torch.")
            raise ConfigError(f"network: {name} is {kind}, but only float32 is trained; call float() on the network")
    module.eval()
    examples = torch.zeros(2, *shape) if largest_token is None else torch.full((2, *shape), largest_token)
    with torch.enable_grad():
        try:
            logits = module(examples)
        except IndexError as error:
            raise ConfigError(
                f"network: it cannot read the token {largest_token} ({error}); its embedding needs more rows"
            ) from error
        except Exception as error:  # whatever the user's code raises
            raise ConfigError(f"network: it cannot read examples of shape {list(shape)}: {error}") from error
    if not isinstance(logits, Tensor):
        raise ConfigError(f"network: it must return a tensor of logits, not {type(logits).__name__}")
    if not logits.requires_grad:
        raise ConfigError(
            "network: its output does not depend on any weight that can learn; is it detached, or made under no_grad()?"
        )
    return logits


def weights(module: nn.Module) -> Params:
    """Return a network's weights that can change: parameters, and floating-point buffers (averaged, not trained)."""
    named = {name: value.detach().clone() for name, value in module.named_buffers() if value.is_floating_point()}
    named |= {name: value.detach().clone() for name, value in module.named_parameters() if value.requires_grad}
    return named


def zero_last_layer(params: Params) -> Params:
    """Return the weights with the last layer at zero, so that the network's output is zero yet it can learn (C.15)."""
    last = list(params)[-1].rpartition(".")[0]
    return {
        name: torch.zeros_like(value) if name.rpartition(".")[0] == last else value.clone()
        for name, value in params.items()
    }
