"""The parts of a client's model: who owns them, which weights they hold, how they predict together and are trained."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor, nn

from fedbac.errors import ConfigError

Params = dict[str, Tensor]
"""The weights of one network, or of many stacked on a leading axis."""
Parts = dict[str, Params]
"""Weights by the name of their part: of one client's model, or stacked on a leading axis, a row for each owner."""
Scope = Literal["cloud", "cluster", "edge", "client"]
"""Who owns a part: everybody together, the members of a cluster together, every edge its own, every client its own.
A part is averaged over all who share its owner, and travels only as far as its owner is."""


@dataclass(frozen=True)
class Part:
    """Weights that are owned, averaged and sent together."""

    scope: Scope
    network: str | tuple[str, ...]
    """The network that they belong to, which may be made of several parts; or several networks that share them."""
    layers: slice = field(default_factory=lambda: slice(None))
    """Which of its layers: modules with weights of their own, in their order. The last one is the head."""
    follows: str | None = None
    """A part of the cloud, of the same layers, that this one equals until its owner first trains it."""

    @property
    def networks(self) -> tuple[str, ...]:
        """All networks that they belong to."""
        return (self.network,) if isinstance(self.network, str) else self.network


@dataclass(frozen=True)
class Pull:
    """A force on the weights of a part: ``strength`` times their distance from a point is added to the gradient."""

    strength: float
    to: str | None = None
    """The part that pulls, as the client received it (its own name: where the client started); None pulls to zero."""
    clipped: bool = True
    """Whether the pull is part of the loss, and so clipped with the gradient, or weight decay of the optimizer."""

    def __post_init__(self) -> None:
        if self.to is not None and not self.clipped:
            raise ValueError("a pull that is not clipped is weight decay, and that pulls to zero")


@dataclass(frozen=True)
class Phase:
    """One stretch of local training: what moves, which networks are summed, for how long, and what pulls."""

    moves: tuple[str, ...]
    """Names of parts."""
    terms: tuple[str, ...] | None = None
    """The networks whose logits are summed; those of the prediction when not given."""
    epochs: int | None = None
    """Passes over the client's data; as many as the task says when not given."""
    pull: Mapping[str, Pull] = field(default_factory=dict)
    """By part; at most one each."""
    taught: bool = False
    """Whether clients learn from their teachers beside the labels, where a request brings some."""


Apply = Callable[[str, Tensor], Tensor]
"""Run the named network on a batch."""


@runtime_checkable
class Personalization(Protocol):
    """Names the parts of a client's model, who owns each, and how they make a prediction together."""

    @property
    def kind(self) -> str:
        """The name by which configurations choose it."""

    @property
    def parts(self) -> Mapping[str, Part]:
        """The parts by name."""

    @property
    def terms(self) -> tuple[str, ...] | None:
        """The networks whose logits are summed to a prediction; None if ``predict`` says (see ``Predicting``)."""

    def init(self, build: Callable[[int], nn.Module], owners: Mapping[Scope, int]) -> Parts:
        """Return the initial parts, a row for each owner; ``build(i)`` makes the i-th independent network."""

    def phases(self) -> tuple[Phase, ...]:
        """Return how the parts are trained, one phase after another."""


@runtime_checkable
class Predicting(Protocol):
    """A personalization whose prediction is more than a sum of networks."""

    def predict(self, apply: Apply, x: Tensor) -> Tensor:
        """Return the logits."""


def predict(scheme: Personalization, terms: tuple[str, ...] | None, apply: Apply, x: Tensor) -> Tensor:
    """Return the sum of the terms' logits, or what the scheme itself predicts where there are none."""
    if terms is None:
        assert isinstance(scheme, Predicting)
        return scheme.predict(apply, x)
    logits = apply(terms[0], x)
    for term in terms[1:]:
        logits = logits + apply(term, x)
    return logits


def judged_parts(scheme: Personalization) -> tuple[str, ...]:
    """Return the parts of the networks that make a prediction."""
    return tuple(
        part
        for part, spec in scheme.parts.items()
        if scheme.terms is None or not set(spec.networks).isdisjoint(scheme.terms)
    )


class Anatomy:
    """Which weights of which network each part of a scheme holds, for one architecture."""

    def __init__(self, scheme: Personalization, network: nn.Module) -> None:
        self.scheme = scheme
        self.buffers = tuple(name for name, value in network.named_buffers() if value.is_floating_point())
        """Weights that no gradient moves: statistics that layers gather while they run."""
        self.names: tuple[str, ...] = (*self.buffers, *(name for name, _ in network.named_parameters()))
        """All weights of one network, in the order in which they are flattened."""
        owners = list(dict.fromkeys(_module(name) for name in self.names))
        order = [name for name, _ in network.named_modules() if name in owners]
        self.weights = {
            part: tuple(name for name in self.names if _module(name) in set(order[spec.layers]))
            for part, spec in scheme.parts.items()
        }
        """The names of the weights that each part holds."""
        self.parts: dict[str, tuple[str, ...]] = {}
        """The parts that each network is made of."""
        for part, spec in scheme.parts.items():
            for name in spec.networks:
                self.parts[name] = (*self.parts.get(name, ()), part)
        self._check()

    @property
    def networks(self) -> tuple[str, ...]:
        """The names of the networks."""
        return tuple(self.parts)

    @property
    def judged(self) -> tuple[str, ...]:
        """The networks that make a prediction."""
        return self.networks if self.scheme.terms is None else self.scheme.terms

    def whole(self, network: str) -> bool:
        """Whether a network is one part."""
        return len(self.parts[network]) == 1

    def assemble(self, parts: Parts, network: str) -> Params:
        """Return a network, single or stacked, from its parts."""
        if self.whole(network):
            return parts[self.parts[network][0]]
        holder = {name: part for part in self.parts[network] for name in self.weights[part]}
        return {name: parts[holder[name]][name] for name in self.names}

    def split(self, networks: Mapping[str, Params]) -> Parts:
        """Return the parts of networks, single or stacked; one that several share is taken from the first."""
        found: Parts = {}
        for part, spec in self.scheme.parts.items():
            holder = next((network for network in spec.networks if network in networks), None)
            if holder is not None:
                found[part] = {name: networks[holder][name] for name in self.weights[part]}
        return found

    def _check(self) -> None:
        num_layers = len({_module(name) for name in self.names})
        for part, names in self.weights.items():
            if not names:
                raise ConfigError(
                    f"method.personalization {self.scheme.kind!r}: part {part!r} would have no layers, because the "
                    f"network has only {num_layers}; use a deeper network, or fewer layers for the other parts"
                )
        for network, parts in self.parts.items():
            held = [name for part in parts for name in self.weights[part]]
            if sorted(held) != sorted(self.names):
                raise ConfigError(
                    f"method.personalization {self.scheme.kind!r}: its parts {', '.join(parts)} must hold every layer "
                    f"of network {network!r} exactly once; this network has {num_layers} layers"
                )


def _module(name: str) -> str:
    return name.rpartition(".")[0]
