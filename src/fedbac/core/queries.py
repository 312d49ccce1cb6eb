"""Measurements as values: policies name what they need, and look the answers up by the same names."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

import numpy as np

from fedbac.core.rng import Rng
from fedbac.core.settings import BoolArray, FloatArray, IntArray
from fedbac.core.world import Profile
from fedbac.errors import PolicyError

Split = Literal["train", "validation", "test"]
Models = Literal["received", "trained", "own", "unaveraged", "others", "mean", "clusters", "occupied"]
"""Which models of a member are measured, in the order in which they come to be:

received     the model that an edge got from the cloud, before its clients train
trained      the mean of its clients' models, before the cloud has seen it
own          the model of its cluster, after the cloud has averaged
unaveraged   the same, with the parts of the cluster as this member trained them itself
others       the same, with the mean of all other clusters' parts, weighted by the data of their members
mean         the same, with the mean of all clusters' parts, weighted in the same way
clusters     the models of all clusters
occupied     the models of all clusters that have members; the others count as infinitely bad

They are names and no rows of a mix: a policy says all that it may ever ask for before there are labels.
"""


@dataclass(frozen=True)
class _OfModels:
    of: Models
    on: Split | None = None
    """Where the method measures (``method.measurement.split``) when not given."""
    each: bool = False
    """For selection: a number for each client, on its own data, instead of one for the edge."""


@dataclass(frozen=True)
class Loss(_OfModels):
    """The mean loss of models on a member's data."""

    candidates: int | None = None
    """Of ``clusters``: how many a member measures, its own and others drawn anew each time; all when not given."""

    share: float = 1.0
    """Of ``mean``: how much of it, above 0; the rest is the network of the member's own cluster. Only the cloud, which
    has all networks, can make such a blend."""

    def __post_init__(self) -> None:
        if self.share != 1 and not (self.of == "mean" and 0 < self.share < 1):
            raise PolicyError(f"share={self.share} of Loss({self.of!r}): only 'mean' has one, above 0 and up to 1")
        if self.candidates is not None and (self.of != "clusters" or self.candidates < 2):
            raise PolicyError(f"candidates={self.candidates} of Loss({self.of!r}): only 'clusters' has any, at least 2")

    def columns(self, label: int, num_clusters: int, rng: Rng) -> IntArray:
        """Return the clusters that a member of cluster ``label`` measures, in order."""
        every_K = np.arange(num_clusters)
        if self.candidates is None or self.candidates >= num_clusters:
            return every_K
        others = rng.choice(np.delete(every_K, label), self.candidates - 1, replace=False)
        return np.sort(np.append(others, label))


@dataclass(frozen=True)
class Accuracy(_OfModels):
    """The share of a member's data that models get right."""


@dataclass(frozen=True)
class Statistic:
    """A number that clients compute while they train, and send with their update."""

    name: Literal["loss", "square", "epochs"]
    """``loss``: the mean loss over the examples visited; ``square``: the mean of its square over them; ``epochs``: the
    mean loss of each epoch, a column for each. Only trainers see these numbers, so what there is of them is fixed."""


@dataclass(frozen=True)
class Gram:
    """The inner products of the members' updates of what clusters own: enough for norms, angles and distances."""

    since: Literal["round", "start"] = "round"
    """What updates are counted from: where members began the round, or the run."""


@dataclass(frozen=True)
class Slope:
    """The inner products of each member's update with the networks of all clusters as the round began, a column each:
    how fast the loss falls if a member moves towards a network. A query, though one policy asks it: policies
    see products of updates, never updates."""


@dataclass(frozen=True)
class Seconds:
    """How long each client took, from receiving the model to sending its update (selection only)."""


Query = Loss | Accuracy | Statistic | Gram | Slope | Seconds


def of_updates(queries: Iterable[Query]) -> bool:
    """Whether one of the queries is answered from the updates of members."""
    return any(isinstance(query, Gram | Slope) for query in queries)


SINCE_START = Gram("start")
AT_EDGE: frozenset[Models] = frozenset({"received", "trained"})
"""Models that an edge has at hand."""
AT_CLOUD: frozenset[Models] = frozenset(get_args(Models)) - AT_EDGE
"""Models that are the cloud's to send."""
FOR_SHARING: frozenset[Models] = frozenset({"trained", "own", "others", "mean", "clusters", "occupied"})
"""Models that a sharing policy may have measured."""
MODELS = {"selection": AT_EDGE, "clustering": AT_CLOUD, "sharing": FOR_SHARING}


def answerable(column: str, query: Query) -> bool:
    """Whether a query can be answered for a policy of a column at all."""
    if isinstance(query, Loss | Accuracy):
        return query.of in MODELS[column] and not (query.each and (column != "selection" or query.on == "test"))
    return isinstance(query, Statistic) or isinstance(query, Seconds) == (column == "selection")


class Moment(NamedTuple):
    """When a policy is asked."""

    round: int
    num_rounds: int
    steps: float = math.nan
    """Batches that a client trains on in a round, by the mean over clients (told to clustering and sharing, which know
    neither the task's training nor the scheme's phases)."""


@dataclass(frozen=True)
class Ask:
    """What a policy wants measured. Nothing else is measured, and nothing is measured twice."""

    before: tuple[Query, ...] = ()
    """Before it acts: for selection, before clients train. The other policies have nothing to ask then."""
    after: tuple[Query, ...] = ()
    """Before it learns: once clients have trained, and for clustering once the cloud has averaged."""
    among_N: BoolArray | None = None
    """For selection: the clients whom ``before`` is about, and who get the model for it; all when not given. It decides
    which bytes are sent, and so cannot be left to the policy."""


@dataclass(frozen=True)
class Evidence:
    """What a policy may look at when it acts and learns."""

    round: int
    num_rounds: int
    num_classes: int
    size_N: IntArray
    """Training examples of each member."""
    readings: Mapping[Query, FloatArray] = field(default_factory=dict)
    """The answers. A selection policy reads one number for its edge; of a ``Statistic``, and where it asks for
    ``each``, one for each client. The other policies read one for each member; of ``clusters`` and ``occupied`` a row
    for each member, a column for each cluster. NaN stands for a member that did not train, was not asked, or holds no
    such data, and for a cluster that was not among a member's candidates."""
    label_N: IntArray | None = None
    """The current cluster of each member (not for selection)."""
    used_K: BoolArray | None = None
    """Which clusters have ever had a member (not for selection)."""
    profile: Profile | None = None
    """The clients' devices and links (selection only); all the same where the task has no ``world``."""
    expected_N: FloatArray | None = None
    """Seconds that each client would take in this round, by its device, its link and its data (selection only)."""
    selected_N: BoolArray | None = None
    """Who was selected, when selection learns: some of them may have failed, dropped out or been late."""
    share_N: FloatArray | None = None
    """How much of the change of each client counted, when selection learns: less than 1 where it came late and the
    clock discounts age; None if none did."""
    moved: bool = False
    """Since its last round the edge changed its cluster, or that cluster's network was replaced (selection only).
    Told here, though one policy uses it: an edge, which sees no clusters, would put down to its clients what a new
    network does."""

    def __post_init__(self) -> None:
        # A policy that wrote to what the round goes on with would change it behind its back.
        for name in ("size_N", "label_N", "used_K"):
            array = getattr(self, name)
            if array is not None and array.flags.writeable:
                view = array.view()  # its owner can still write to it
                view.setflags(write=False)
                object.__setattr__(self, name, view)
        for value in self.readings.values():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    def __getitem__(self, query: Query) -> FloatArray:
        """Return the answer to a query that was asked."""
        if query not in self.readings:
            asked = ", ".join(map(str, self.readings)) or "nothing"
            raise PolicyError(f"{query} was not asked for, so it was not measured; ask() named {asked}")
        return self.readings[query]

    @property
    def labels(self) -> IntArray:
        """The current clusters, for policies that are always given them."""
        assert self.label_N is not None
        return self.label_N

    @property
    def devices(self) -> Profile:
        """The clients' devices and links, for selection policies, which are always told of them."""
        assert self.profile is not None
        return self.profile

    @property
    def durations(self) -> FloatArray:
        """Seconds that each client would take, for selection policies, which are always told of them."""
        assert self.expected_N is not None
        return self.expected_N

    @property
    def started(self) -> BoolArray:
        """Who was selected, for selection policies that learn, which are always told of it."""
        assert self.selected_N is not None
        return self.selected_N
