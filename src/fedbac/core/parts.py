"""The parts of a client's model: who owns them, which weights they hold, how they predict together and are trained."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol, runtime_checkable

from torch import Tensor, nn

from fedbac.core.queries import Moment
from fedbac.core.settings import FloatArray, IntArray
from fedbac.errors import ConfigError

Params = dict[str, Tensor]
"""The weights of one network, or of many stacked on a leading axis."""
Parts = dict[str, Params]
"""Weights by the name of their part: of one client's model, or stacked on a leading axis, a row for each owner."""
Scope = Literal["cloud", "cluster", "country", "region", "edge", "client"]
"""Who owns a part: everybody together, the members of a cluster together, every edge its own, every client its own; or
every node of a tier between edges and the cloud, where the task has some.
A part is averaged over all who share its owner, and travels only as far as its owner is."""


@dataclass(frozen=True)
class Part:
    """Weights that are owned, averaged and sent together.

    - ``scope``: who owns them: ``cloud``, ``cluster``, ``edge`` or ``client``; or ``region`` or ``country``.
    - ``network``: the network that they belong to, which may be made of several parts; or several networks that
      share them; or none, ``()``: numbers that no phase trains and that the scheme itself works out
      (``Adjusting``).
    - ``layers``: which of its layers: modules with weights of their own, in their order. The last one is the head.
    - ``matching``: patterns on the names of weights, with ``*`` for anything: only those that match one; all without.
    - ``follows``: a part of the cloud, of the same layers, that this one equals until its owner first trains it.
    - ``returns_as``: a part that this one equals as clients come back with it: where that one passes a link, both
      are sent at once. Without it, links would count the same weights twice.
    """

    scope: Scope
    network: str | tuple[str, ...]
    layers: slice = field(default_factory=lambda: slice(None))
    matching: tuple[str, ...] = ()
    follows: str | None = None
    returns_as: str | None = None

    @property
    def networks(self) -> tuple[str, ...]:
        """All networks that they belong to."""
        return (self.network,) if isinstance(self.network, str) else self.network

    @property
    def whole(self) -> bool:
        """Whether they are all weights of their networks."""
        return self.layers == slice(None) and not self.matching


@dataclass(frozen=True)
class Pull:
    """A force on the weights of a part: ``strength`` times their distance from a point is added to the gradient.

    - ``strength``: at least 0.
    - ``to``: the part that pulls, as the client received it (its own name: where the client started); None pulls to
      zero.
    - ``clipped``: whether the pull is part of the loss, and so clipped with the gradient, or added to what was clipped,
      as weight decay is. (AdamW has no place for that unless it pulls to zero: there it is part of the loss.)
    """

    strength: float
    to: str | None = None
    clipped: bool = True


@dataclass(frozen=True)
class Phase:
    """One stretch of local training: what moves, which networks are summed, for how long, and what pulls.

    - ``moves``: the names of the parts that are trained.
    - ``terms``: the networks whose logits are summed; those of the prediction when not given.
    - ``epochs``: passes over the client's data; as many as the task says when not given.
    - ``pull``: by part; at most one each.
    - ``momentum``: of SGD; the task's when not given.
    - ``taught``: whether clients learn from their teachers beside the labels, where a request brings some.
    - ``last``: only in so many last rounds of the run.
    - ``until_last``: only before so many last rounds of the run.
    """

    moves: tuple[str, ...]
    terms: tuple[str, ...] | None = None
    epochs: int | None = None
    pull: Mapping[str, Pull] = field(default_factory=dict)
    momentum: float | None = None
    taught: bool = False
    last: int | None = None
    until_last: int | None = None  # two numbers and no function: links work out from them in which rounds a part passes

    def runs(self, moment: Moment) -> bool:
        """Whether it is part of training in a round."""
        left = moment.num_rounds - moment.round
        return (self.last is None or left < self.last) and (self.until_last is None or left >= self.until_last)

    def has_run(self, moment: Moment) -> bool:
        """Whether it was part of training in a round or in one before it."""
        first = 1 if self.last is None else max(1, moment.num_rounds - self.last + 1)
        return first <= moment.round and self.runs(moment._replace(round=first))


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
class Extending(Protocol):
    """A personalization that adds to the task's network what it trains."""

    def extend(self, network: nn.Module) -> nn.Module:
        """Return the network with all that parts hold. It may be the same, changed; random weights are drawn from the
        run's seed, and what needs no gradient afterwards is frozen."""


@runtime_checkable
class Predicting(Protocol):
    """A personalization whose prediction is more than a sum of networks."""

    def predict(self, apply: Apply, x: Tensor) -> Tensor:
        """Return the logits."""


class LocalSteps(Protocol):
    """Gradients on the clients' own examples, for a scheme that learns from them by itself; stacks, a row for each."""

    step: int
    """How many steps of this training have been taken."""
    rate_C: Tensor
    """Each one's learning rate."""
    loss_C: Tensor
    """The mean loss of each one's batch, where a gradient was last taken."""
    count_CK: IntArray
    """Each one's training examples of each class."""

    def batches(self, share: float = 1.0) -> Iterator[None]:
        """Go before training through the batches of a random share of everybody's examples, the same ones each time;
        who has fewer has gradients of 0 while others go on."""

    def gradient(self, network_C: Params, names: Collection[str] | None = None, beside: Params | None = None) -> Params:
        """Return the gradient of the mean loss of everybody's batch at these weights: of all, or of those named; where
        another network stands beside, which keeps still, by the sum of both networks' logits."""

    def clipped(self, gradient_C: Params) -> Params:
        """Return a gradient as the task clips those of a network."""

    def descend(self, part: str, value_C: Params, gradient_C: Params) -> Params:
        """Return weights of a part after one step of the task's optimizer, which clips by the norm of this part alone
        and has weight decay and the part's own momentum."""


@dataclass(frozen=True)
class LocalRun:
    """What a scheme may know of the clients in a training: numpy arrays, C clients of the stack, F phases, K classes.

    - ``count_CK``: their training examples of each class.
    - ``travel_FC``: how far a constant gradient of 1 moves a weight in a phase that begins at rest, at the rate of
      the round; 0 for a client without a batch.
    - ``left_FC``: what the task's weight decay leaves in a phase of a weight of 1 that has no gradient.
    - ``local``: returns gradients on their examples, for a scheme that takes some before training.
    - ``round``: of the cloud, counted from 1.
    - ``edge_round``: of this round, counted from 0.
    - ``edge_rounds``: how many edge rounds a round has.
    - ``share``: what the clients that train in this edge round count, of what all of the site do.
    """

    count_CK: IntArray
    travel_FC: FloatArray
    left_FC: FloatArray
    local: Callable[[], LocalSteps]
    round: int = 1
    edge_round: int = 0
    edge_rounds: int = 1
    share: float = 1.0


@dataclass(frozen=True)
class Start:
    """What is particular about how clients begin a training; by default, nothing.

    - ``parts``: the parts that start otherwise than received.
    - ``rate_scale``: by the number of a phase, what each client's learning rate is multiplied by.
    - ``shift``: by part, a constant that is added to each client's gradient in every step; weights may be missing.
      It is added after clipping, as weight decay is: what corrects gradients estimates their mean as SGD had them,
      clipped, and a shift that was clipped with them would no longer cancel out over all clients.
    """

    parts: Parts = field(default_factory=dict)
    rate_scale: Mapping[int, FloatArray] = field(default_factory=dict)
    shift: Parts = field(default_factory=dict)


@runtime_checkable
class Adjusting(Protocol):
    """A personalization that changes what clients start from and what is made of what they come back with.

    Its hooks are plain arithmetic on stacks, wherever these lie, a row for each of some clients of a site: any that fit
    into memory at once, so a hook uses each client's own row only. They write nothing in place.
    """

    def before(self, received_C: Parts, run: LocalRun) -> Start:
        """Return how clients start, where it is otherwise than usual."""

    def after(self, received_C: Parts, started_C: Parts, trained_C: Parts, run: LocalRun) -> Parts:
        """Return the parts that are to be averaged and kept otherwise than they were trained."""


@runtime_checkable
class Stepping(Protocol):
    """A personalization that takes the steps of local training itself. It has one phase: what moves, and how long."""

    def step(self, now_C: Parts, received_C: Parts, local: LocalSteps) -> Parts:
        """Return the parts that one step on everybody's current batch changes; those who have one are the rows.

        Plain arithmetic, as hooks are. The loss of the first gradient is reported.
        """


@runtime_checkable
class Blending(Protocol):
    """A personalization that predicts with other weights than those that it keeps."""

    def blended(self, parts: Parts) -> Parts:
        """Return the parts to predict with where they differ, with as many rows as they have; the one row of a part of
        the cloud goes with all rows of the others."""


def extension(scheme: Personalization) -> Callable[[nn.Module], nn.Module] | None:
    """Return what a scheme makes of a network before anybody uses it; None where it takes the network as it is."""
    return scheme.extend if isinstance(scheme, Extending) else None


def predicting(scheme: Personalization, parts: Parts) -> Parts:
    """Return the parts that make predictions, given those that are kept."""
    return parts | scheme.blended(parts) if isinstance(scheme, Blending) else parts


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
        if spec.networks and (scheme.terms is None or not set(spec.networks).isdisjoint(scheme.terms))
    )


def measured_parts(scheme: Personalization) -> tuple[str, ...]:
    """Return the parts that whoever measures a model must have: all of them where the scheme blends its predictions."""
    return tuple(scheme.parts) if isinstance(scheme, Blending) else judged_parts(scheme)


def moving_parts(scheme: Any, moment: Moment | None = None) -> frozenset[str]:
    """Return the parts that change in a round, or in any: those that a phase moves, and those of no network."""
    phases = [phase for phase in scheme.phases() if moment is None or phase.runs(moment)]
    return _changed(scheme, phases)


def moved_parts(scheme: Any, moment: Moment) -> frozenset[str]:
    """Return the parts that change in a round or did before; the others are as everybody has them from the start."""
    return _changed(scheme, [phase for phase in scheme.phases() if phase.has_run(moment)])


def running_phases(scheme: Any, moment: Moment) -> tuple[int, ...] | None:
    """Return the numbers of the phases of a round; None where it has all of them."""
    phases = scheme.phases()
    running = tuple(number for number, phase in enumerate(phases) if phase.runs(moment))
    return None if len(running) == len(phases) else running


def _changed(scheme: Any, phases: Sequence[Phase]) -> frozenset[str]:
    free = {part for part, spec in scheme.parts.items() if not spec.networks}
    return frozenset(part for phase in phases for part in phase.moves) | free


def with_leaders(scheme: Personalization, parts: Iterable[str]) -> tuple[str, ...]:
    """Return parts, and those that they equal until they are trained, which their owners may need."""
    given = tuple(parts)
    leaders = (leader for part in given if (leader := scheme.parts[part].follows) is not None)
    return tuple(dict.fromkeys((*given, *leaders)))


class Anatomy:
    """Which weights of which network each part of a scheme holds, for one architecture."""

    def __init__(self, scheme: Personalization, network: nn.Module) -> None:
        self.scheme = scheme
        self.buffers = tuple(name for name, value in network.named_buffers() if value.is_floating_point())
        """Weights that no gradient moves: statistics that layers gather while they run."""
        self.names = (*self.buffers, *(name for name, value in network.named_parameters() if value.requires_grad))
        """The weights of one network that can change, in the order in which they are flattened. Those that are frozen
        belong to no part: whoever runs the network has them."""
        self.weights = {
            part: held_by(network, self.names, spec.layers, spec.matching) if spec.networks else ()
            for part, spec in scheme.parts.items()
        }
        """The names of the weights that each part holds of its networks."""
        self.parts: dict[str, tuple[str, ...]] = {}
        """The parts that each network is made of."""
        for part, spec in scheme.parts.items():
            for name in spec.networks:
                self.parts[name] = (*self.parts.get(name, ()), part)
        self.networks = tuple(self.parts)
        self.judged = self.networks if scheme.terms is None else scheme.terms
        """The networks that make a prediction."""
        self._check()

    def assemble(self, parts: Parts, network: str) -> Params:
        """Return a network, single or stacked, from its parts."""
        if len(self.parts[network]) == 1:
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
            if not names and self.scheme.parts[part].networks:
                raise ConfigError(
                    f"method.personalization {self.scheme.kind!r}: part {part!r} would have no layers, because the "
                    f"network has only {num_layers} that are not frozen; use a deeper network, freeze less of it, or "
                    "use fewer layers for the other parts"
                )
        for network, parts in self.parts.items():
            held = [name for part in parts for name in self.weights[part]]
            if sorted(held) != sorted(self.names):
                raise ConfigError(
                    f"method.personalization {self.scheme.kind!r}: its parts {', '.join(parts)} must hold every layer "
                    f"of network {network!r} exactly once; this network has {num_layers} layers"
                )


def held_by(network: nn.Module, names: Sequence[str], layers: slice, matching: Sequence[str] = ()) -> tuple[str, ...]:
    """Return which of a network's weights some of its layers hold, only those that match a pattern if any is given."""
    owners = {_module(name) for name in names}
    order = [name for name, _ in network.named_modules() if name in owners]
    chosen = set(order[layers])
    return tuple(
        name
        for name in names
        if _module(name) in chosen and (not matching or any(fnmatchcase(name, pattern) for pattern in matching))
    )


def _module(name: str) -> str:
    return name.rpartition(".")[0]
