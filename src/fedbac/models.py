"""Networks of a run: those at hand by their kinds, and any ``nn.Module`` of the user's, handed over or named."""

import copy
import fnmatch
import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor, nn

from fedbac.core.parts import Params
from fedbac.core.rng import torch_seed
from fedbac.core.runtime import on_cpu, seeded
from fedbac.core.settings import Settings, of_kind
from fedbac.errors import ConfigError, quoted, unknown
from fedbac.language import SmolLM2, with_logits
from fedbac.networks import LSTM, ResNet, Transformer
from fedbac.networks import LeNet5 as LeNet5
from fedbac.networks import Perceptron as Perceptron
from fedbac.packages import NETWORKS, Package, announced

MAX_WEIGHTS = 100_000_000
"""Of one network that a configuration describes: clients take several times 400 MB each to train it."""
YOURS = "name one of yours as package.module:Net or file.py:Net"


class Custom(Settings):
    """Stands in a configuration for a network that was handed over in Python; a resume must hand it over again."""

    kind: Literal["custom"] = "custom"
    name: str

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Refuse: only the caller has this network."""
        raise ConfigError(
            f"task.network: {self.name!r} is a network of your own; pass it again in Python with network=... "
            "(a function that returns a new nn.Module, or an nn.Module)"
        )


class OwnNetwork(Package):
    """Of a package or a file: a class or a function that returns a new ``nn.Module``.

    It takes no arguments, or the shape of an example and the number of classes. The weights that it returns are those
    that a run starts with: random ones are drawn from the run's seed, others may be read from a file of the package.
    """

    field: ClassVar[str] = "task.network"

    @property
    def sized(self) -> bool:
        """Whether it is told the shape of an example and the number of classes."""
        return _is_told(self.load())

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Return a new network."""
        make = self.load()
        try:
            return _renew(make, shape, num_classes)
        except Exception as error:
            why = error if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
            raise ConfigError(f"task.network: {self.name}() failed: {why}") from error

    def outputs(self, shape: tuple[int, ...], largest_token: int | None, classes: int) -> int:
        """Return how many numbers it predicts for an example, or for each of its tokens; it may decide itself."""
        return classes if self.sized else _output(self.build(shape, 0), shape, largest_token).shape[-1]


AtHand = LeNet5 | Perceptron | ResNet | LSTM | Transformer | SmolLM2
KINDS = tuple(str(cls.model_fields["kind"].default) for cls in AtHand.__args__)


def _named(value: Any) -> Any:
    """Return what a kind, a name of code, or a name that a package announces stands for."""
    value = of_kind(value)
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if kind == "custom" and "name" not in value:
        raise ValueError(f"'custom' stands for a network that was handed over in Python; {YOURS}")
    if not isinstance(kind, str) or kind in (*KINDS, "custom", "package"):
        return value
    found = announced(NETWORKS)
    if kind not in found:
        raise ValueError(f"{unknown('kind', kind, {*KINDS, *found})}; or {YOURS}")
    return {"kind": "package", "name": found[kind]}


NetworkChoice = Annotated[AtHand | Custom | OwnNetwork, Field(discriminator="kind"), BeforeValidator(_named)]
Maker = nn.Module | Callable[[], nn.Module] | Callable[[tuple[int, ...], int], nn.Module]
UserNetwork = Maker | str
"""A network that is handed over, or named: ``package.module:name``, ``file.py:name``, or a kind."""
Build = Callable[[int], nn.Module]
"""``build(i)`` returns the i-th independently initialized network of a run."""


def check_recipe(network: NetworkChoice, labels: str, frozen: Sequence[str] = ()) -> None:
    """Refuse a network that no site of a federation could build, as far as that is known without data."""
    if isinstance(network, Custom):
        raise ConfigError(
            f"task.network: {network.name!r} was given in Python, so no site has it; put it into a package that is "
            "installed at every site, or a file, and name it: task.network=package.module:name"
        )
    if isinstance(network, OwnNetwork):
        if not network.sized:
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
    extend: Callable[[nn.Module], nn.Module] | None = None,
) -> Build:
    """Return the function that makes a run's networks, after checking once that one fits the data.

    ``largest_token`` is given where examples are tokens. Weights that match a pattern of ``frozen``, and those of a
    network of the user's that need no gradient, never change: they are the same tensors in all networks of the run.
    ``steps`` are the tokens of an example, where the next one of each is to be predicted. ``extend`` is what a scheme
    makes of a network; one that is handed over as a module then keeps its weights, and each is made only once.
    """
    if largest_token is not None and user is None and not getattr(network, "reads_tokens", True):
        raise ConfigError(
            f"task.network: {network.kind} reads numbers, but the examples are tokens (int64); use lstm or "
            f"transformer, give images as uint8, or {YOURS}"
        )
    tokens = None if largest_token is None else max(largest_token + 1, num_classes if steps else 0)
    base: dict[str, nn.Parameter] = {}
    extended: dict[int, nn.Module] = {}

    def make() -> nn.Module:
        if isinstance(user, nn.Module) and extend is not None:
            return copy.deepcopy(user, {id(value): nn.Parameter(value.detach()) for value in user.parameters()})
        if user is not None:
            return _renew(user, shape, num_classes)
        if isinstance(network, Custom | OwnNetwork):
            return network.build(shape, num_classes)
        return network.build(shape, num_classes, tokens, bool(steps))

    def build(index: int) -> nn.Module:
        if index in extended:
            return duplicate(extended[index])
        with on_cpu(), seeded(torch_seed(seed, "init", index)):
            made = with_logits(make())
            if extend is not None:
                made = extend(made)
        _freeze(made, frozen)
        for name, value in made.named_parameters(remove_duplicate=False):  # a tied weight is one under each name
            if not value.requires_grad:
                module, _, own = name.rpartition(".")
                setattr(made.get_submodule(module), own, base.setdefault(name, value))
        if extend is not None:
            extended[index] = duplicate(made)
        return made

    if user is None and not isinstance(network, OwnNetwork | SmolLM2):
        with torch.device("meta"):  # without memory for the weights
            count = sum(value.numel() for value in make().parameters())
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


def _is_told(make: Callable[..., Any]) -> bool:
    """Whether a function takes the shape of an example and the number of classes."""
    try:
        given = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # of something that is not Python
        return False
    needed = [one for one in given if one.default is one.empty and one.kind <= one.POSITIONAL_OR_KEYWORD]
    if len(needed) not in (0, 2):
        raise ConfigError(
            f"network: {getattr(make, '__name__', make)} takes {', '.join(one.name for one in needed)}; it must take "
            "no arguments, or the shape of an example and the number of classes"
        )
    return bool(needed)


def _renew(user: Maker, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    if not isinstance(user, nn.Module):
        made = user(shape, num_classes) if _is_told(user) else user()  # type: ignore[call-arg]
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
    if not names:
        raise ConfigError("network: it has no weights, so nothing can learn; give its layers to it as attributes")
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
        digest.update(value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data)
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
            use = "make it of two real ones" if value.is_complex() else "call float() on the network"
            raise ConfigError(f"network: {name} is {kind}, but only float32 is trained; {use}")
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
    if not isinstance(logits, Tensor) or logits.layout != torch.strided or logits.is_complex():
        raise ConfigError(
            f"network: it must return a dense tensor of real logits, not {_kind(logits)}; one of transformers must "
            "be a model with a head (AutoModelFor…)"
        )
    if not logits.requires_grad:
        raise ConfigError(
            "network: its output does not depend on any weight that can learn; is it detached, or made under no_grad()?"
        )
    return logits


def _kind(output: object) -> str:
    if not isinstance(output, Tensor):
        return type(output).__name__
    return f"{output.dtype}, {output.layout}".replace("torch.", "")


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
