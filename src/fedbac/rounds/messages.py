"""What cloud and sites say to each other; all but local fields travel (``core.schema``).

An order carries all that its work needs, so whoever dies loses nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch

from fedbac.core.codecs import Broadcast, Changes
from fedbac.core.links import Ledger
from fedbac.core.parts import Parts, Scope
from fedbac.core.queries import Query, Split, Statistic
from fedbac.core.requests import Measured, Teachers
from fedbac.core.schema import LARGEST, AnyNumber, Finite, Local, Some, Unchecked, Within
from fedbac.core.settings import FloatArray, IntArray
from fedbac.core.state import Waiting

NUMBERS_PER_MODEL = 2
"""Whoever measures a model answers with its loss and its accuracy."""
NUMBERS_PER_UPDATE = 2
"""A client and an edge send with their update how many examples are behind it, and the loss."""


@dataclass(frozen=True)
class Site:
    """Where clients meet: an edge, or the cloud itself where the topology is flat."""

    index: int
    clients: tuple[int, ...]
    size_N: IntArray
    validation_N: IntArray
    num_classes: int
    edge_N: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """The edge of the task that each client belongs to; the site's own number when not given."""
    above: tuple[int, ...] = ()
    """The nodes above it, from below: its region and its country, if there are some."""

    def __post_init__(self) -> None:
        if self.edge_N.size != len(self.clients):
            object.__setattr__(self, "edge_N", np.full(len(self.clients), self.index))

    @property
    def edges(self) -> tuple[int, ...]:
        """The edges of the task whose clients meet here."""
        return tuple(np.unique(self.edge_N).tolist())

    @property
    def size(self) -> int:
        """Training examples of all clients."""
        return int(self.size_N.sum())


@dataclass(frozen=True)
class TrainOrder:
    """Run a round: select, train, average, measure, and let selection learn."""

    site: Local[int]
    round: int
    bank: AnyNumber[Parts]
    """Stacked: what the clients start from, and what they and the site keep for themselves."""
    row_N: Mapping[str, IntArray]
    """Per part, the row of the bank that each client uses."""
    selection: Any
    moved: bool
    momentum: Local[Parts | None] = None
    readings: AnyNumber[tuple[Query, ...]] = ()
    """What the cloud wants to know of the site's model, once its clients have trained."""
    statistics: frozenset[Statistic] = frozenset()
    """What clients tell of their training, besides their loss."""
    teachers: Teachers | None = None
    """Who teaches each of the site's clients, if anybody."""
    waiting: Local[Waiting | None] = None
    """Updates of the site's clients that are on their way, where it does not wait for all."""
    links: Local[Mapping[str, Parts]] = field(default_factory=dict)
    """What the site's links remember of these rows, where they compress."""
    owner_R: Mapping[str, Some[IntArray]] = field(default_factory=dict)
    """Per part, the owner of each row of the bank: by them a site remembers what its links do."""
    broadcast: Local[Broadcast | None] = None
    """How the bank is sent to the site, where that link compresses."""
    wants_updates: bool = False
    """Whether the site passes on what each client changed in the parts that clusters own."""
    edge_round: int = 0
    """Averages of the site in this round of the cloud that were made for earlier orders."""


@dataclass(frozen=True)
class TrainReport:
    """What a site sends up after a round."""

    bank: Finite[Parts]
    """The same rows, each the average of the clients that use it, as it arrives at the cloud."""
    weight: Annotated[Mapping[str, IntArray], Within(0, LARGEST)]
    """Per part, the examples behind each row; 0 where no client counts in the average."""
    selection: Any
    selected: Some[tuple[int, ...]]
    failed: Some[tuple[int, ...]]
    loss: Unchecked[float]
    """The mean loss in training; NaN if nobody trained."""
    statistic_N: Mapping[Statistic, FloatArray]
    """What each client told when it trained last; NaN if it did not, or failed."""
    traffic: Ledger
    momentum: Local[Parts | None] = None
    waiting: Local[Waiting | None] = None
    """What is on its way now."""
    under_way: Local[bool] = False
    """Whether the cloud goes on before it has heard this; the site is still busy."""
    ages: Local[tuple[int, ...]] = ()
    """How many averages each update that counts was behind, where a site does not wait for all."""
    readings: tuple[Unchecked[float], ...] = ()
    """As wanted; NaN where nobody trained."""
    updates: AnyNumber[Finite[Parts]] = field(default_factory=dict)
    """As wanted: stacked, a row for each client whose loss is finite."""
    links: Local[Mapping[str, Parts]] = field(default_factory=dict)
    """What the links remember now."""
    changes: Local[Changes] = field(default_factory=dict)
    """How the bank is sent to the cloud, where that link compresses."""
    seconds: float | None = None
    """How long the site would have taken, where the task has a world."""
    dropped: Some[tuple[int, ...]] = ()
    """Selected clients that dropped out, and below those that were late."""
    late: Some[tuple[int, ...]] = ()
    reasons: Some[Mapping[str, str]] = field(default_factory=dict)
    """In a federation: by the name of a client or an edge, why it is left out."""
    absent: Local[bool] = False
    """Whether the site did not answer, so that all this is only what was known of it before."""


@dataclass(frozen=True)
class Wanted:
    """Some models of a bank, to be measured on some data of a site."""

    row_V: Some[AnyNumber[Mapping[str, IntArray]]]
    """Per part, the row of the bank that each model uses."""
    split: Split
    by: Literal["site", "each", "edge", "client"] = "site"
    """One number for the site, from the clients that measure, or one for each of its clients; or one for the test data
    of each edge; or one for each client's share of them, where model and client are paired."""
    max_samples: Annotated[int, Within(1, LARGEST)] | None = None

    @property
    def num_models(self) -> int:
        """V."""
        return len(next(iter(self.row_V.values())))


@dataclass(frozen=True)
class MeasureOrder:
    """Measure models on the site's data. A network of the bank travels once, however often it is measured."""

    site: Local[int]
    bank: Some[AnyNumber[Parts]]
    wanted: AnyNumber[tuple[Wanted, ...]]
    kept: Local[Parts] = field(default_factory=dict)
    """Rows that follow those of the bank: networks that the site has trained itself, so nobody needs to send them."""
    selection: Any | None = None
    """What the site's selection policy remembers: it may say which clients to trust."""
    selected: Some[tuple[int, ...]] = ()
    round: Local[int] = 0
    """Which it is, where a simulation has clients that lie from some round on."""


@dataclass(frozen=True)
class MeasureReport:
    """What a site measured, as wanted."""

    readings: tuple[Measured, ...]
    traffic: Ledger


Order = TrainOrder | MeasureOrder
Report = TrainReport | MeasureReport


class Edges(Protocol):
    """How the cloud reaches its sites."""

    path: str
    """Which trainer does the work, for the record."""
    device: torch.device
    """Where the cloud keeps the networks of a run."""
    keeps: frozenset[Scope]
    """Owners whose parts never leave them: what the cloud has of those is as it was before the first round."""

    def train(self, orders: Sequence[TrainOrder]) -> list[TrainReport]:
        """Have every site run its order."""

    def measure(self, orders: Sequence[MeasureOrder]) -> list[MeasureReport]:
        """Have every site measure."""

    def close(self) -> None:
        """Let the sites go."""


class Arrival(NamedTuple):
    """An answer that has come, with what was asked."""

    order: TrainOrder
    report: TrainReport


@runtime_checkable
class Arriving(Protocol):
    """Edges that say when an answer comes, which is not to be worked out then."""

    def busy(self, round_: int) -> frozenset[int]:
        """Return the sites that, as a round begins, have yet to answer an order of an earlier one."""

    def arrivals(self, round_: int, orders: Sequence[TrainOrder]) -> list[Arrival]:
        """Give sites their orders, and wait until enough of all that are at work have answered: return those. Who
        cannot answer any more is among them, as absent."""
