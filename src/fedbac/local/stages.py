"""The phases of a scheme as trainers run them: in networks and names of weights, with every setting given; AdamW."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from torch import Tensor

from fedbac.config.training import AdamW, Training
from fedbac.core.parts import Anatomy, Params, Phase, Stepping
from fedbac.core.requests import Train
from fedbac.errors import ConfigError


@dataclass(frozen=True)
class Moving:
    """Weights of a network that move together, and what pulls them besides the loss."""

    names: tuple[str, ...]
    decay: float
    """Weight decay of the optimizer: that of the task, and the pull that is not clipped."""
    penalty: float
    """Strength of the pull that is clipped with the gradient."""
    anchor: str | None
    """The network whose weights of the same names, as the client received them, pull; None pulls to zero."""


@dataclass(frozen=True)
class Copy:
    """Weights of a part that several networks share: after a phase the others take them from the one that ran."""

    names: tuple[str, ...]
    source: str
    targets: tuple[str, ...]


@dataclass(frozen=True)
class Stage:
    """A phase."""

    terms: tuple[str, ...] | None
    """The networks whose logits are summed; None if the scheme says how they predict."""
    networks: tuple[str, ...]
    """Those that take part; the others are left alone."""
    epochs: int
    """0 where it rests."""
    moving: Mapping[str, tuple[Moving, ...]]
    """By network; those that keep still are missing."""
    copies: tuple[Copy, ...] = ()
    momentum: float = 0.0
    """Of SGD."""
    taught: bool = False

    @property
    def changed(self) -> frozenset[str]:
        """The networks that are others after the phase."""
        return frozenset(self.moving).union(*(copy.targets for copy in self.copies))

    @property
    def anchors(self) -> frozenset[str]:
        """The networks that pull as they were received."""
        found = {moving.anchor for parts in self.moving.values() for moving in parts if moving.penalty}
        return frozenset(anchor for anchor in found if anchor is not None)


def stages_of(anatomy: Anatomy, training: Training) -> tuple[Stage, ...]:
    """Return the phases of a scheme."""
    return tuple(_stage(anatomy, phase, training) for phase in anatomy.scheme.phases())


def stages_now(stages: Sequence[Stage], requests: Sequence[Train]) -> tuple[Stage, ...]:
    """Return the phases as requests that are served together run them."""
    asked = {request.phases for request in requests}
    if len(asked) > 1:
        raise ValueError(f"requests that run different phases ({asked}) cannot be trained together")
    running = next(iter(asked), None)
    if running is None:
        return tuple(stages)
    return tuple(stage if number in running else replace(stage, epochs=0) for number, stage in enumerate(stages))


def _stage(anatomy: Anatomy, phase: Phase, training: Training) -> Stage:
    scheme = anatomy.scheme
    terms = phase.terms if phase.terms is not None else scheme.terms
    networks = anatomy.networks if terms is None else terms
    moving: dict[str, tuple[Moving, ...]] = {}
    for part in () if isinstance(scheme, Stepping) else phase.moves:
        own, pull, anchor = scheme.parts[part].networks, phase.pull.get(part), None
        through = [network for network in own if network in networks]
        if len(through) != 1:
            raise ConfigError(
                f"personalization {scheme.kind!r}: a phase moves part {part!r}, so one of its networks "
                f"({', '.join(own)}), and only one, must be among the terms of that phase ({', '.join(networks)})"
            )
        (network,) = through
        if pull is not None and pull.to is not None:
            pulling = scheme.parts[pull.to].networks
            anchor = network if network in pulling else pulling[0]  # all are alike as they were received
            if anatomy.weights[pull.to] != anatomy.weights[part]:
                raise ConfigError(
                    f"personalization {scheme.kind!r}: part {part!r} is pulled to part {pull.to!r}, which holds other "
                    "layers; a part can be pulled only to one of the same layers"
                )
        strength = 0.0 if pull is None else pull.strength
        clipped = pull is None or pull.clipped or (pull.to is not None and adamw_of(training) is not None)
        here = Moving(
            names=tuple(name for name in anatomy.weights[part] if name not in anatomy.buffers),
            decay=training.weight_decay + (0.0 if clipped else strength),
            penalty=strength if clipped else 0.0,
            anchor=anchor if clipped else None,  # else requests shift gradients by what is left of λ(w − anchor)
        )
        moving[network] = (*moving.get(network, ()), here)
    epochs = training.epochs if phase.epochs is None else phase.epochs
    momentum = training.momentum if phase.momentum is None else phase.momentum
    return Stage(terms, networks, epochs, moving, _copies(anatomy, phase, networks), momentum, phase.taught)


def _copies(anatomy: Anatomy, phase: Phase, networks: Sequence[str]) -> tuple[Copy, ...]:
    """Return what networks take over: weights that moved, and statistics that their layers gather while they run."""
    found = []
    for part, spec in anatomy.scheme.parts.items():
        ran = [network for network in spec.networks if network in networks]
        names = tuple(n for n in anatomy.weights[part] if part in phase.moves or n in anatomy.buffers)
        if ran and names and len(spec.networks) > 1:
            found.append(Copy(names, ran[0], tuple(network for network in spec.networks if network != ran[0])))
    return tuple(found)


@dataclass(frozen=True)
class Span:
    """Weights that lie side by side in a flat network, and what pulls them: what our kernels can move."""

    weights: slice
    decay: float = 0.0
    penalty: float = 0.0
    anchor: str | None = None


def span(stage: Stage, network: str, like: Params) -> Span:
    """Return which weights of a network move in a phase that has no ``obstacle``."""
    parts = stage.moving.get(network, ())
    if not parts:
        return Span(slice(0, 0))
    (whole,) = places([name for part in parts for name in part.names], like)
    return Span(whole, parts[0].decay, parts[0].penalty, parts[0].anchor)


def places(names: Sequence[str], like: Params) -> list[slice]:
    """Return where weights lie in a flat network, those side by side as one."""
    ends = accumulate(value.numel() for value in like.values())
    return joined(slice(end - like[name].numel(), end) for name, end in zip(like, ends, strict=True) if name in names)


def joined(slices: Iterable[slice]) -> list[slice]:
    """Return slices in ascending order, those side by side as one."""
    found: list[slice] = []
    for here in sorted(slices, key=lambda one: int(one.start)):
        if found and found[-1].stop == here.start:
            here = slice(found.pop().start, here.stop)
        found.append(here)
    return found


def obstacle(stages: Sequence[Stage], like: Params) -> str | None:
    """Return why our kernels cannot run these phases, or None where they can."""
    for stage in stages:
        if stage.taught:
            return "a phase learns from teachers"
        for network, parts in stage.moving.items():
            if len(places([name for part in parts for name in part.names], like)) > 1:
                return f"layers of network {network!r} that do not lie side by side move in one phase"
            if len({(part.decay, part.penalty, part.anchor) for part in parts}) > 1:
                return f"layers of network {network!r} that move in one phase are pulled in different ways"
    return None


Number = float | Tensor
"""Of one client, or a tensor that goes with stacked weights."""


def adamw_of(training: Training) -> AdamW | None:
    """Return the settings of AdamW; None if training goes by SGD."""
    return training.optimizer if isinstance(training.optimizer, AdamW) else None


def corrections(settings: AdamW, steps: Number) -> tuple[Number, Number]:
    """Return 1 − β₁ⁿ and 1 − β₂ⁿ; single precision would lose digits of them."""
    return 1 - settings.beta1**steps, 1 - settings.beta2**steps


def adamw_step(
    settings: AdamW, weight: Tensor, moments: tuple[Tensor, Tensor], gradient: Tensor, decay: Number, rate: Number,
    corrected: Sequence[Number],
) -> None:  # fmt: skip
    """w ← (1 − η·decay)·w − η·m̂/(√v̂ + ε), as ``torch.optim.AdamW``."""
    first, second = moments
    first.lerp_(gradient, 1 - settings.beta1)
    second.mul_(settings.beta2).addcmul_(gradient, gradient, value=1 - settings.beta2)
    weight.mul_(1 - rate * decay)
    weight.sub_(first / (second.sqrt() / corrected[1] ** 0.5 + settings.epsilon) * (rate / corrected[0]))
