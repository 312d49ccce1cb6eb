"""The protocols of a method's columns: state goes in, a new one comes out.

A policy is a frozen model of its settings. Its state is a named tuple of numpy arrays, so that it can be saved,
replayed and compared.
"""

import inspect
from abc import ABC
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from fedbac.core.queries import Ask, Evidence, Moment, Query
from fedbac.core.rng import Rng
from fedbac.core.settings import BoolArray, FloatArray, IntArray, Settings
from fedbac.core.world import World


class NoState(NamedTuple):
    """The state of a policy that remembers nothing."""


class Assignment(NamedTuple):
    """The cluster of every member, and where the networks of clusters come from."""

    label_N: IntArray
    origin_KJ: FloatArray | None = None
    """Row k: the mix of networks that cluster k goes on with, Θ'_k = Σ_j w_kj Θ_j, of sum one; else its own."""


class Teaching(NamedTuple):
    """Networks whose predictions members learn beside the labels, in the phases that are taught.

    The loss is (1 − λ)·CE + λ·τ²·Σ_t β_t·KL(teacher t ‖ student), both softened by the temperature τ.
    """

    mix_TJ: FloatArray
    """Row t: the mix of today's networks of clusters that makes teacher t; rows sum to one."""
    weight_NT: FloatArray
    """β: by member, what each teacher counts; rows sum to one, or to zero where a member has none."""
    share_N: FloatArray
    """λ, by member, from 0 to 1."""
    temperature: float = 1.0
    """τ."""


class Exchange(NamedTuple):
    """What clusters give each other before their networks are sent down."""

    mix_KJ: FloatArray | None = None
    """Row k: the mix of today's networks that cluster k sends, Σ_j w_kj Θ_j; rows sum to one. Its own if not given."""
    kept: bool = False
    """Whether the mix replaces the network of the cluster, or is only sent."""
    judged_KJ: FloatArray | None = None
    """Row k: the mix with which the members of cluster k predict. Its network as averaged if not given."""
    teaching: Teaching | None = None
    """Who teaches whom in this round, if anybody."""


class Unlearned(Settings):
    """A policy of the cloud that remembers nothing."""

    adaptive: ClassVar[bool] = False

    def init(self, num_members: int) -> NoState:
        """Return the empty state."""
        return NoState()

    def learn(self, state: NoState, evidence: Evidence) -> NoState:
        """Learn nothing."""
        return state


class Chosen(Protocol):
    """What stands in a column of a method."""

    @property
    def kind(self) -> str:
        """The name by which configurations choose it."""


class Asking(Chosen, Protocol):
    """A policy that has something measured and remembers."""

    @property
    def adaptive(self) -> bool:
        """Whether it learns; a setting may decide it."""

    def needs(self) -> frozenset[Query]:
        """Return all that it may ever ask for."""

    def init(self, num_members: int) -> Any:
        """Return the state before the first round."""


@runtime_checkable
class Topology(Chosen, Protocol):
    """Attaches clients to sites, and says how often tiers meet."""

    @property
    def edge_rounds(self) -> int:
        """Averages at a site for each round of the cloud."""

    @property
    def tiers(self) -> int:
        """3 if sites are apart from the cloud, 2 if the only site is the cloud itself."""

    def sites(self, num_edges: int) -> tuple[tuple[int, ...], ...]:
        """Return the edges of the task whose clients meet at each site."""


@runtime_checkable
class ClusterPolicy(Asking, Protocol):
    """Assigns every member (a site, or a client) a cluster."""

    def clusters(self, num_members: int) -> int:
        """Return the number of cluster models for this many members."""

    def start(self, num_members: int, rng: Rng) -> IntArray:
        """Return the labels before anything is known."""

    def ask(self, state: Any, moment: Moment) -> Ask | None:
        """Say what must be measured after this round, or None when assignments are not due."""

    def learn(self, state: Any, evidence: Evidence) -> Any:
        """Return the state after seeing how the current labels did."""

    def act(self, state: Any, evidence: Evidence, rng: Rng) -> tuple[Any, Assignment]:
        """Return the state and the new labels."""


@runtime_checkable
class SelectionPolicy(Asking, Protocol):
    """Picks the clients of one site that train this round."""

    @property
    def fraction(self) -> float:
        """p, the share of the members to select; of one with an attribute ``sampling`` below 1, the probability of each
        by chance alone, whatever the data are."""

    def ask(self, state: Any, evidence: Evidence, rng: Rng) -> Ask:
        """Say what must be measured in this round; nothing is yet."""

    def act(self, state: Any, evidence: Evidence, rng: Rng) -> BoolArray:
        """Return the mask of selected members."""

    def learn(self, state: Any, evidence: Evidence, mask_N: BoolArray) -> Any:
        """Return the state after seeing what the selected members achieved."""


@runtime_checkable
class Sharing(Asking, Protocol):
    """Says what clusters give each other of their networks."""

    @property
    def active(self) -> bool:
        """Whether it ever shares anything."""

    def ask(self, state: Any, moment: Moment) -> tuple[Query, ...]:
        """Say what must be measured in this round, once clients have trained."""

    def act(self, state: Any, evidence: Evidence) -> Exchange:
        """Return what clusters send down in this round."""

    def learn(self, state: Any, evidence: Evidence) -> Any:
        """Return the state after seeing how the round went."""


@runtime_checkable
class Aggregation(Chosen, Protocol):
    """Combines what an owner's children changed: clients at an edge, and what sites report at the cloud."""

    @property
    def needs(self) -> Literal["sum", "all"]:
        """What a tier must hold of its children: their weighted sum, which is the mean, or all of them."""

    def combine(self, change_CD: Tensor, weight_C: Tensor) -> Tensor:
        """Return one change, given those of at least two children that count, and the examples behind each.

        A change is counted from where the children started. A single child is taken as it is, without being asked for.
        """


@runtime_checkable
class Clock(Chosen, Protocol):
    """Says when an edge goes on with what its clients have sent."""

    @property
    def timed(self) -> bool:
        """Whether it depends on how long clients take."""

    @property
    def holds(self) -> bool:
        """Whether an update that comes later waits, and counts then; else it is lost."""

    def world(self, world: World) -> World:
        """Return devices and links with what the clock makes of deadlines and spare clients."""

    def enough(self, wanted: int) -> int:
        """Return how many updates end a round, where so many clients are to be under way at a time."""

    def discount(self, age_C: FloatArray) -> FloatArray:
        """Return what an update counts that began so many averages ago; 1 for one of age 0."""


@runtime_checkable
class Step(Chosen, Protocol):
    """What the cloud, or a cluster, does with the combination of its children."""

    active: ClassVar[bool]
    """Whether it ever does anything but take it; if not, nobody calls it."""

    def init(self, row_KD: Tensor) -> Mapping[str, Tensor]:
        """Return what it remembers before the first round: by name, a row for each owner, of D numbers or of one."""

    def step(
        self, before_KD: Tensor, combined_KD: Tensor, memory: Mapping[str, Tensor], share_K: Tensor
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the rows after a round and what is remembered, of owners from whom at least one client reported.

        ``before_KD`` is what their children started from, ``combined_KD`` what these became, and ``share_K`` the
        examples of the clients that trained over those of all clients that share the owner.
        """


@runtime_checkable
class Opening(Protocol):
    """A clustering policy that may act before the first round, by what the initial networks show."""

    def first(self) -> Ask | None:
        """Say what must be measured then, or None to begin with the labels of ``start``."""


@runtime_checkable
class Trusting(Protocol):
    """A selection policy that can say whose data to believe: other columns have models measured on these.

    A protocol, though few policies follow it: what measures must not know any by name.
    """

    def trusted(self, state: Any) -> BoolArray:
        """Return the mask of members that nothing speaks against."""


@runtime_checkable
class Noting(Protocol):
    """A policy with numbers of its own for the record of a round."""

    def notes(self, state: Any) -> Mapping[str, float]:
        """Return them by name; one that is not finite is written down as missing."""


@runtime_checkable
class Believing(Protocol):
    """A selection policy that holds a belief about each of its members."""

    def beliefs(self, state: Any) -> FloatArray:
        """Return what it expects of each member, from 0 to 1; the record of a round keeps it."""


@runtime_checkable
class Showing(Protocol):
    """A clustering policy with more than single numbers for the record of a round in which it acts.

    A protocol, though one policy follows it: what writes records must not know any by name.
    """

    def shown(self, state: Any, evidence: Evidence) -> Mapping[str, Any]:
        """Return it by name, as plain data."""


def lacking(cls: type, protocol: type) -> str | None:
    """Return in which way a class of settings does not follow a protocol or a base class, or None if it does."""
    if ABC in protocol.__mro__ and not issubclass(cls, protocol):
        return f"{cls.__name__} does not derive from {protocol.__name__}"
    fields = getattr(cls, "model_fields", {})
    known: dict[str, Any] = {}
    for base in reversed([protocol, *(base for base in protocol.__mro__ if getattr(base, "_is_protocol", False))]):
        known |= dict.fromkeys(getattr(base, "__annotations__", ())) | vars(base)
    members = {name for name in known if not name.startswith("_")}
    missing = sorted(name for name in members if not hasattr(cls, name) and name not in fields)
    missing += sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        return f"{cls.__name__} lacks {', '.join(missing)}, which {protocol.__name__} asks for"
    for name, wanted in known.items():
        if name in members and inspect.isfunction(wanted) and not _takes(getattr(cls, name), wanted):
            given = ", ".join(list(inspect.signature(wanted).parameters)[1:])
            return f"{cls.__name__} has a verb {name}() that does not take what it is given: {name}({given})"
    return None


def _takes(verb: object, wanted: object) -> bool:
    if not inspect.isfunction(verb) or not inspect.isfunction(wanted):
        return callable(verb)
    try:
        inspect.signature(verb).bind(*inspect.signature(wanted).parameters)
    except TypeError:
        return False
    return True
