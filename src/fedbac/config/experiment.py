"""The configuration tree: an experiment is a task, a method, how it is judged, and a seed."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from fedbac.config.changes import Change, Roster, held
from fedbac.config.columns import (
    AGGREGATION,
    CLOCK,
    CLUSTERING,
    PERSONALIZATION,
    SELECTION,
    SHARING,
    STEP,
    TOPOLOGY,
    Links,
)
from fedbac.config.tiers import Height, InnerTier, Tiers, parents
from fedbac.config.training import Training as Training
from fedbac.core.answers import checked_phases
from fedbac.core.bandits import budget
from fedbac.core.codecs import Alteration, Chain, Clip, GaussianNoise
from fedbac.core.liars import Liars
from fedbac.core.links import INNER, Tier
from fedbac.core.parts import Adjusting, Personalization, Stepping, judged_parts
from fedbac.core.policies import Aggregation, Clock, ClusterPolicy, SelectionPolicy, Sharing, Step, Topology, Trusting
from fedbac.core.queries import (
    AT_CLOUD,
    AT_EDGE,
    Accuracy,
    Gram,
    Loss,
    Moment,
    Query,
    Seconds,
    Slope,
    Split,
    Statistic,
    answerable,
    of_updates,
)
from fedbac.core.settings import MAX_CLIENTS, Edges, Examples, IntArray, Name, Positive, Rounds, Seed, Settings
from fedbac.core.world import World
from fedbac.data import Augment, DataName, Noise, OwnData, Partition
from fedbac.errors import PolicyError
from fedbac.losses import CrossEntropy, LossChoice
from fedbac.models import LeNet5, NetworkChoice
from fedbac.packages import Package
from fedbac.privacy import Privacy, Promise

MAX_PAIRS = 4_000_000
"""Members times clusters, or times members, of which a policy keeps numbers: half a gigabyte at most."""


class Task(Settings):
    """What is learned, from which data, with which network and local training."""

    dataset: DataName = "fashion-mnist-mini"
    """A data set's name (see: fedbac data list), an ``.npz`` file, a function that returns its arrays
    (``file.py:function``, ``package.module:function``), or the name of one given in Python."""
    data_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of every class that is used."""
    num_edges: Edges = 10
    """M: edges."""
    clients_per_edge: (
        Annotated[int, Field(gt=0, le=MAX_CLIENTS)] | tuple[Annotated[int, Field(ge=0, le=MAX_CLIENTS)], ...]
    ) = 10
    """N_m: clients of an edge; one number, or one per edge."""
    tiers: Tiers = ()
    """Nodes between edges and the cloud, tier by tier from below: ``[4]`` puts four regions there, ``[4, 2]`` two
    countries above these. Each has as many children as the next, in their order; or say how many: ``[[6, 4]]``."""
    rounds: Rounds = 100
    """T: cloud rounds."""
    partition: Partition = Partition()
    """How the data are spread over edges and clients."""
    noise: Noise | None = None
    """Wrong labels at some clients."""
    augment: Augment | None = None
    """Random crops and flips (C.6)."""
    world: World | None = None
    """Simulated devices."""
    changes: Annotated[tuple[Change, ...], Field(max_length=100)] = ()
    """Data that move, and clients and edges that come and go, in given rounds."""
    network: NetworkChoice = LeNet5()
    """The network; yours as ``file.py:name`` or ``package.module:name``."""
    frozen: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=200)], ...], Field(max_length=100)] = ()
    """Weights that never change: patterns of names, such as ``0.*``."""
    loss: LossChoice = CrossEntropy()
    """For classes (``cross_entropy``), numbers (``squared_error``) or tokens (``next_token``); yours like a network."""
    training: Training = Training()
    """How clients train."""
    targets: Annotated[tuple[Annotated[float, Field(gt=0, lt=1)], ...], Field(max_length=100)] = (0.5, 0.6, 0.7, 0.8)
    """Accuracies; reported are the rounds and bytes to reach them."""

    def clients(self) -> tuple[int, ...]:
        """Return N_m for every edge."""
        if isinstance(self.clients_per_edge, tuple):
            return self.clients_per_edge
        return (self.clients_per_edge,) * self.num_edges

    def held(self, seed: int, round_: int) -> Roster:
        """Return who is there in a round, and with whose data."""
        return held(self.changes, self.clients(), seed, round_)

    @property
    def liars(self) -> Liars | None:
        """Who lies, if anybody."""
        return None if self.world is None else self.world.liars

    @model_validator(mode="after")
    def _every_edge_has_clients(self) -> "Task":
        if len(self.clients()) != self.num_edges:
            raise ValueError(
                f"clients_per_edge lists {len(self.clients())} edges but num_edges is {self.num_edges}; make them equal"
            )
        for edge, count in enumerate(self.clients()):
            if count == 0:
                raise ValueError(f"clients_per_edge: edge {edge} has no clients; every edge needs at least 1")
        if sum(self.clients()) > MAX_CLIENTS:
            raise ValueError(
                f"num_edges and clients_per_edge make {sum(self.clients()):,} clients; there may be {MAX_CLIENTS:,}"
            )
        parents(self.tiers, self.num_edges)
        return self


class Measurement(Settings):
    """How the loss L_m^(k) of a cluster's model on an edge's data is measured (C.19, C.39)."""

    split: Split = "train"
    """The data it is measured on."""
    clients: Literal["trusted", "all", "selected"] = "trusted"
    """Clients that selection trusts, all of the edge, or those that trained in this round."""
    max_samples_per_client: Examples | None = 256
    """Most examples of a client to measure on, a fixed subset; null: all."""
    average: Literal["mean", "median"] = "mean"
    """How clients speak for their edge: by the mean, by examples, or the median, which few liars cannot move far."""
    location: Literal["clients", "edge"] = "clients"
    """Who holds these data, for the bytes counted."""


class Method(Settings, defer_build=True):
    """A row of Table I: one choice per column."""

    name: Name
    """What tables, reports and folders call the method."""
    topology: Annotated[Topology, TOPOLOGY] = Field(default_factory=TOPOLOGY.default)
    """Where clients meet: at edges, or at the cloud."""
    unit: Literal["edge", "client"] = "edge"
    """What is clustered: sites with all their clients, or clients."""
    clustering: Annotated[ClusterPolicy, CLUSTERING] = Field(
        default_factory=partial(CLUSTERING.default, num_clusters=1)
    )
    """The cluster of every member."""
    selection: Annotated[SelectionPolicy, SELECTION] = Field(default_factory=SELECTION.default)
    """The clients that train."""
    sharing: Annotated[Sharing, SHARING] = Field(default_factory=SHARING.default)
    """What clusters give each other."""
    personalization: Annotated[Personalization, PERSONALIZATION] = Field(default_factory=PERSONALIZATION.default)
    """The networks that predict, and their owners."""
    aggregation: Annotated[Aggregation, AGGREGATION] = Field(default_factory=AGGREGATION.default)
    """How edges combine their clients, and the cloud its edges."""
    cloud_aggregation: Annotated[Aggregation, AGGREGATION] | None = None
    """How the cloud combines its edges, if otherwise."""
    step: Annotated[Step, STEP] = Field(default_factory=STEP.default)
    """What the cloud and clusters do with the combination, once a round."""
    region: InnerTier = Field(default_factory=InnerTier)
    """What regions do, where the task has some (``task.tiers``)."""
    country: InnerTier = Field(default_factory=InnerTier)
    """What countries do, the tier above regions."""
    clock: Annotated[Clock, CLOCK] = Field(default_factory=CLOCK.default)
    """When an edge ends a round."""
    cloud_clock: Annotated[Clock, CLOCK] = Field(default_factory=CLOCK.default)
    """When the cloud ends a round."""
    links: Links = Links()
    """What links make of what is sent for training."""
    privacy: Privacy | None = None
    """Differential privacy for clients or examples."""
    client_weight: Literal["examples", "uniform"] = "examples"
    """Weight of a client at its edge: its examples, or 1."""
    cloud_weight: Literal["total", "selected", "uniform"] = "total"
    """Weight of an edge at the cloud, or of a node at the one above: that of all its clients, of those that trained, or
    1 (C.41)."""
    measurement: Measurement = Measurement()
    """How losses of clusters are measured."""
    judged: Literal["before_training", "after_training"] = "before_training"
    """When personal models are judged: as sent out, or after local training."""
    network: NetworkChoice | None = None
    """A network instead of the task's, for studies of capacity."""
    learning_rate: Positive | None = None
    """η instead of the task's, such as one tuned for the method."""

    @property
    def adaptive(self) -> bool:
        """Whether a policy learns during training (a derived column of Table I)."""
        return self.clustering.adaptive or self.selection.adaptive or self.sharing.adaptive

    def counted(self, size_N: IntArray) -> IntArray:
        """Return as how many examples clients count in averages."""
        return np.minimum(size_N, 1) if self.client_weight == "uniform" else size_N

    @property
    def secret(self) -> bool:
        """Whether sites see only sums of their clients."""
        return bool(getattr(self.aggregation, "secret", False))

    @property
    def needs(self) -> dict[str, frozenset[Query]]:
        """All that the policies may ever ask for, by the field that decides it, each with its split."""
        needs = {
            "method.clustering": self.clustering.needs(),
            "method.selection": self.selection.needs(),
            "method.sharing": self.sharing.needs(),
        }
        return {field: frozenset(map(self.resolved, queries)) for field, queries in needs.items()}

    def resolved(self, query: Query) -> Query:
        """Return a query with its split: where the method measures, if it names none."""
        if isinstance(query, Loss | Accuracy) and query.on is None:
            return replace(query, on=self.measurement.split)
        return query

    def splits(self, field: str) -> frozenset[Split]:
        """Return the splits that a policy may ever have models measured on."""
        asked = [query.on for query in self.needs[field] if isinstance(query, Loss | Accuracy)]
        return frozenset(split for split in asked if split is not None)


class Evaluation(Settings):
    """How a run is judged (C.13, C.14, C.33, C.37)."""

    point: Literal["pre_reassign", "post_reassign", "edge_model"] = "pre_reassign"
    """Accuracy after the cloud's average with the round's clusters or the new ones, or of edges' averages (C.14)."""
    last_rounds: Rounds = 10
    """The last rounds, whose mean is the final accuracy."""
    target_patience: Rounds = 3
    """Consecutive rounds at or above a target, of which the first reaches it."""
    global_every: Rounds = 1
    """Rounds between measurements of ``accuracy_global``, of each cluster's model on all test data; the last has
    one."""


class Experiment(Settings, defer_build=True):
    """Everything that decides the numbers of a run."""

    seed: Seed = 0
    task: Task
    method: Method
    evaluation: Evaluation = Evaluation()

    @property
    def network(self) -> NetworkChoice:
        """The network: the task's, unless the method has its own."""
        return self.method.network or self.task.network

    def rate(self, round_: int) -> float:
        """Return η_t: by the task's schedule, from the method's own η if it has one."""
        own, training = self.method.learning_rate, self.task.training
        training = training if own is None else training.model_copy(update={"learning_rate": own})
        return training.rate(round_, self.task.rounds)

    @cached_property
    def heights(self) -> tuple[Height, ...]:
        """The tiers between edges and the cloud, from below; none where all clients meet at the cloud."""
        placed = zip(INNER, _parents(self.task, self.method), strict=False)
        return tuple(Height(name, parent_C, getattr(self.method, name)) for name, parent_C in placed)

    def above(self, node: int) -> tuple[int, ...]:
        """Return the nodes above an edge, from below."""
        nodes = accumulate(self.heights, lambda child, height: int(height.parent_C[child]), initial=node)
        return tuple(nodes)[1:]

    @property
    def link_names(self) -> tuple[Tier, ...]:
        """The links from clients to the cloud, by the tier that each is counted for."""
        return ("client", *(height.name for height in self.heights), "cloud")

    @property
    def edge_rounds(self) -> int:
        """Averages of an edge for each round of the cloud."""
        return self.method.topology.edge_rounds * math.prod(height.does.rounds for height in self.heights)

    @property
    def fewest(self) -> int:
        """How many clients of a site take part at least, where noise comes in shares of theirs."""
        privacy = self.method.privacy
        if privacy is not None and privacy.fewest is not None:
            return privacy.fewest
        return min(budget(self.method.selection.fraction, num) for num in site_sizes(self.task, self.method))

    @cached_property
    def promise(self) -> Promise | None:
        """What the method promises of privacy, with the noise that keeps it."""
        privacy, selection, rounds = self.method.privacy, self.method.selection, self.task.rounds
        if privacy is None:
            return None
        if self.method.client_weight == "uniform":  # nobody counts as more than one example, nor needs more noise
            privacy = privacy.model_copy(update={"most_examples": 1})
        each = [1 if privacy.bounds_clients else self.passes(Moment(t, rounds)) for t in range(1, rounds + 1)]
        queries = accumulate((self.edge_rounds * one for one in each), initial=0)
        # Whoever is drawn must take part, and nobody else: no shares that are too few, no dropping out, no deputies.
        world = self.world
        alone = privacy.where == "edge" and (
            world is None or (world.over_selection == 1 and world.dropout == 0 and world.deadline is None)
        )
        sampling = getattr(selection, "sampling", 1.0) if privacy.bounds_clients and alone else 1.0
        return Promise.of(privacy, tuple(queries), sampling, self.method.secret)

    @property
    def chains(self) -> Mapping[str, Chain]:
        """The links that do something: those of the method, and what privacy makes of the changes of clients."""
        promise = self.promise
        if promise is None or not promise.privacy.bounds_clients:
            return self.method.links.chains
        limits: tuple[Alteration, ...] = (Clip(norm=promise.privacy.clip),)
        if promise.privacy.where == "clients":
            share = promise.privacy.most_examples * promise.noise_multiplier / math.sqrt(self.fewest)
            limits += (GaussianNoise(multiplier=share),)
        return self.method.links.chains | {"client_up": Chain(limits)}

    @cached_property
    def world(self) -> World | None:
        """Devices and links of clients, with the deadline that the method sets them."""
        return None if self.task.world is None else self.method.clock.world(self.task.world)

    def passes(self, moment: Moment) -> int:
        """Return how often a client that is selected passes over its examples, in all phases of one training."""
        usual, phases = self.task.training.epochs, self.method.personalization.phases()
        return sum(usual if phase.epochs is None else phase.epochs for phase in phases if phase.runs(moment))

    @property
    def judged_after_training(self) -> bool:
        """Whether the models that count are those of the edges' own averages, before the cloud's."""
        return self.evaluation.point == "edge_model" or self.method.judged == "after_training"

    @property
    def packages(self) -> dict[str, Package]:
        """By field, what is to be imported."""
        named: dict[str, Any] = {"task.network": self.task.network, "task.loss": self.task.loss}
        named |= {"method.network": self.method.network}
        if ":" in self.task.dataset:
            named["task.dataset"] = OwnData(name=self.task.dataset)
        return {field: value for field, value in named.items() if isinstance(value, Package)}

    @property
    def stretches(self) -> tuple[int, ...]:
        """The first rounds of the stretches in which nothing changes (``task.changes``)."""
        return tuple(sorted({1, *(change.round for change in self.task.changes)}))

    @model_validator(mode="after")
    def _fits_together(self) -> "Experiment":
        for problem in _problems(self.task, self.method):
            raise ValueError(problem)
        for round_ in self.stretches:
            self.task.held(self.seed, round_)
        return self


def _problems(task: Task, method: Method) -> Iterator[str]:
    """Yield what keeps a method from running on a task, the field first."""
    try:
        checked_phases(method.personalization)
    except PolicyError as error:
        yield str(error)
    if task.training.optimizer.kind != "sgd" and isinstance(method.personalization, Adjusting):
        yield (
            f"method.personalization {method.personalization.kind!r} works with how far SGD moves a weight; use "
            "task.training.optimizer=sgd"
        )
    num_sites = len(method.topology.sites(task.num_edges))
    num_members = num_sites if method.unit == "edge" else sum(task.clients())
    num_clusters = method.clustering.clusters(num_members)
    scopes = {spec.scope for spec in method.personalization.parts.values()}
    kind = method.personalization.kind
    clusters_edges = bool(method.clustering.needs()) and method.unit == "edge"
    if num_sites == 1 < task.num_edges and (clusters_edges or "edge" in scopes):
        lonely = f"method.clustering {method.clustering.kind!r}" if clusters_edges else ""
        lonely = lonely or f"method.personalization {kind!r}, which gives every edge a part,"
        yield (
            f"{lonely} needs several edges, but with method.topology {method.topology.kind!r} all clients meet at one "
            "site; use hierarchical" + (", or method.unit=client" if clusters_edges else "")
        )
    if num_clusters > num_members:
        yield f"method.clustering.num_clusters is {num_clusters} but " + (
            f"there are only {num_members} {method.unit}s to cluster; choose at most {num_members}"
            if num_members > 1 or num_sites == task.num_edges
            else f"with method.topology {method.topology.kind!r} there is only {num_sites} site to cluster; "
            f"choose {num_sites}, hierarchical, or method.unit=client"
        )
    yield from _too_many_pairs(method, num_members, num_clusters)
    if num_clusters > 1 and "cluster" not in scopes:
        yield (
            f"method.personalization {kind!r} has no part per cluster, so method.clustering must have one cluster, not "
            f"{num_clusters}"
        )
    if method.sharing.active and "cluster" not in scopes:
        yield (
            f"method.sharing is {method.sharing.kind!r} but method.personalization {kind!r} has no part per cluster to "
            "share; choose 'apart', or another personalization"
        )
    if getattr(method.sharing, "teaches", False):
        yield from _unteachable(method)
        if task.loss.kind != "cross_entropy":
            yield f"method.sharing {method.sharing.kind!r} teaches classes; task.loss must be cross_entropy for it"
    if getattr(method.personalization, "balanced", False) and task.loss.kind != "cross_entropy":
        yield f"method.personalization {kind!r} balances classes, which task.loss {task.loss.kind!r} has not; set false"
    alphas = {getattr(policy, "alpha", None) for policy in (method.step, method.personalization)}
    if method.step.kind == "dynamic" and len(alphas) > 1:
        yield "method.step 'dynamic' is FedDyn's server; use personalization dynamic_pull with the same alpha"
    yield from _unanswerable(method)
    yield from _not_in_tiers(task, method)
    yield from _uncombinable(task, method)
    yield from _untimely(task, method)
    yield from _unchangeable(task, method)
    if method.privacy is not None:
        yield from _unprotected(task, method, method.privacy)
    if method.secret:
        yield from _not_sums(task, method)
    passed_on = next((f for f, queries in method.needs.items() if of_updates(queries)), None)
    if method.unit == "client" and passed_on is not None and method.links.chains.get("cloud_up", Chain()).alterations:
        yield (
            f"method.links.cloud_up alters the edges' averages, but for {passed_on} with method.unit=client edges pass "
            "on the update of every client as it is; alter those on method.links.client_up"
        )
    for field in method.needs:
        if "validation" in method.splits(field) and task.partition.validation_fraction == 0:
            yield (
                f"{field} asks for validation data but task.partition.validation_fraction is 0; hold out some data "
                "(0.1 is usual) or choose another split"
            )


def _too_many_pairs(method: Method, num_members: int, num_clusters: int) -> Iterator[str]:
    """Yield the policies that keep more numbers than there may be."""
    for field, policy in (("method.clustering", method.clustering), ("method.sharing", method.sharing)):
        if num_members**2 > MAX_PAIRS and any(isinstance(query, Gram) for query in policy.needs()):
            yield (
                f"{field} {policy.kind!r} compares the updates of every pair of {method.unit}s, {num_members**2:,} "
                f"here; there may be {MAX_PAIRS:,}: use at most {math.isqrt(MAX_PAIRS):,} {method.unit}s, or a policy "
                "that needs no updates"
            )
    if num_members * num_clusters > MAX_PAIRS and method.clustering.needs():
        member = "an edge" if method.unit == "edge" else "a client"
        yield (
            f"method.clustering {method.clustering.kind!r} looks at every pair of {member} and a cluster, "
            f"{num_members * num_clusters:,} here; there may be {MAX_PAIRS:,}: use fewer {method.unit}s or clusters"
        )


def _uncombinable(task: Task, method: Method) -> Iterator[str]:
    """Yield why a rule cannot combine as many children as there are, and liars that are none of them."""
    sites = site_sizes(task, method)
    selected = {budget(method.selection.fraction, num) for num in sites}
    cloud = method.cloud_aggregation or method.aggregation
    above = "method.aggregation" if method.cloud_aggregation is None else "method.cloud_aggregation"
    children, num = "edges", len(sites)
    combining = [("method.aggregation", method.aggregation, "clients of an edge", selected)]
    for name, parent_C in zip(INNER, _parents(task, method), strict=False):
        each = set(Counter(parent_C.tolist()).values())
        combining.append((f"method.{name}.aggregation", getattr(method, name).aggregation, children, each))
        children, num = f"{name} nodes", int(parent_C[-1]) + 1
    combining.append((above, cloud, children, {num}))
    for field, rule, where, nums in combining:
        for num in sorted(nums - {1}):
            if (fault := getattr(rule, "fault", lambda num: None)(num)) is not None:
                yield f"{field} {rule.kind!r} cannot combine {num} {where}: {fault}"
    for who, most in (("clients", sum(task.clients())), ("edges", task.num_edges)) if task.liars else ():
        named = getattr(task.liars, who)
        beyond = [one for one in named if one >= most] if isinstance(named, tuple) else []
        if beyond:
            yield f"task.world.liars.{who}: there is no {beyond[0]}; they are numbered from 0 to {most - 1}"


def _not_in_tiers(task: Task, method: Method) -> Iterator[str]:
    """Yield what is said of a tier that is not there, and what does not go with tiers between edges and the cloud."""
    there = () if method.topology.tiers == 2 else INNER[: len(task.tiers)]
    for name in INNER[len(there) :]:
        links = [link for link in method.links.chains if link.startswith(name)]
        if links or getattr(method, name) != InnerTier():
            said = f"method.links.{links[0]}" if links else f"method.{name}"
            flat = f"with method.topology {method.topology.kind!r} clients meet at the cloud; leave it out"
            more = f"task.tiers has {len(there)} tiers; give it {INNER.index(name) + 1}, or leave this out"
            yield f"{said} is for the tier {name!r}, but {flat if method.topology.tiers == 2 else more}"
    for part, spec in method.personalization.parts.items():
        if spec.scope in INNER[len(there) :]:
            yield (
                f"method.personalization {method.personalization.kind!r} gives every {spec.scope} a part ({part}), but "
                f"there is none between edges and the cloud; give task.tiers {INNER.index(spec.scope) + 1} and use a "
                "topology with edges, or choose another owner"
            )
    if not there:
        return
    if len(method.topology.sites(task.num_edges)) != task.num_edges:
        yield f"task.tiers are above edges, which method.topology {method.topology.kind!r} merges; use hierarchical"
    if getattr(method.sharing, "teaches", False):
        yield f"method.sharing {method.sharing.kind!r} sends teachers, which do not pass task.tiers; use another"
    for field, queries in method.needs.items():
        if of_updates(queries):
            yield (
                f"{field} compares updates of single {method.unit}s, but with task.tiers the cloud sees only averages "
                f"of its {there[-1]} nodes; choose a policy that needs none"
            )
    for name in there:
        if method.personalization.kind == "group_corrections" and getattr(method, name).rounds > 1:
            yield (
                "method.personalization 'group_corrections' leads edges to what the cloud knows after all their "
                f"averages of a round, but with method.{name}.rounds they meet before; set it to 1, or use "
                "method.topology.edge_rounds"
            )
        policy = getattr(method, name).selection
        if beyond := sorted(map(str, policy.needs() - {Statistic("loss")})):
            yield (
                f"method.{name}.selection {policy.kind!r} asks for {beyond[0]}, but a {name} knows only with what loss "
                "its children trained; choose random, or power_of_choice with variant=last"
            )
        elif policy.needs() and method.privacy is not None:
            yield f"method.{name}.selection {policy.kind!r} asks for losses, to which method.privacy adds no noise"
        if getattr(getattr(method, name).aggregation, "secret", False):
            yield f"method.{name}.aggregation.secret: it sees averages; set secret in method.aggregation alone"


def _untimely(task: Task, method: Method) -> Iterator[str]:
    """Yield what a clock lacks, and what does not go with updates that come later than asked for."""
    above = {"method.cloud_clock": method.cloud_clock}
    above |= {f"method.{name}.clock": getattr(method, name).clock for name in INNER}
    clocks = {"method.clock": method.clock, **above}
    timed = next((f"{field} {clock.kind!r}" for field, clock in clocks.items() if clock.timed), None)
    if timed is not None and task.world is None:
        yield f"{timed} needs to know how long clients take; set task.world, {{}} for its defaults, or use synchronous"
    for field, own in above.items():
        if own.timed and not own.holds:
            yield f"{field} {own.kind!r} is for edges; set it as method.clock"
        if own.holds and method.unit == "client":
            yield f"{field} {own.kind!r} does not go with method.unit=client; use edge"
    clock = next((f"{field} {clock.kind!r}" for field, clock in clocks.items() if clock.holds), None)
    if clock is None:
        return
    if method.secret:
        yield f"{clock} adds updates to a later sum, but method.aggregation.secret makes a sum of those who began it"
    if method.privacy is not None:
        yield f"{clock} has no account of privacy: who is late depends on data; use synchronous with method.privacy"
    if getattr(method.sharing, "teaches", False):
        yield f"{clock} keeps no teachers for clients that are under way; use another method.sharing, or synchronous"


def _unchangeable(task: Task, method: Method) -> Iterator[str]:
    """Yield what does not go with data that move, and with clients that come and go."""
    for change in task.changes:
        if change.round > task.rounds:
            yield f"task.changes: something changes in round {change.round}, but task.rounds is {task.rounds}"
        if change.what != "swap" and method.privacy is not None:
            yield (
                f"task.changes: {change.who} {change.what}, but method.privacy counts on all clients in every round; "
                "use swap, or no privacy"
            )
    if task.changes and task.liars is not None and task.liars.attack in ("label_flip", "examples"):
        yield f"task.world.liars: {task.liars.attack} lies about data that task.changes moves; choose another attack"


def _parents(task: Task, method: Method) -> list[IntArray]:
    """Return the parents in each tier between edges and the cloud, if there are edges."""
    return [] if method.topology.tiers == 2 else parents(task.tiers, task.num_edges)


def site_sizes(task: Task, method: Method) -> list[int]:
    """Return how many clients meet at each site."""
    return [sum(task.clients()[edge] for edge in edges) for edges in method.topology.sites(task.num_edges)]


def _unprotected(task: Task, method: Method, privacy: Privacy) -> Iterator[str]:
    """Yield what would tell more about data than the noise of ``method.privacy`` covers."""
    clients, scheme, columns = privacy.bounds_clients, method.personalization, ("clustering", "selection", "sharing")
    for column in columns:
        policy = getattr(method, column)
        for query in sorted(method.needs[f"method.{column}"], key=str):
            # What is computed from noised updates tells no more than they do; devices and links are no data.
            noised = isinstance(query, Gram | Slope) and (not clients or method.unit == "edge")
            if not (noised or isinstance(query, Seconds)):
                yield (
                    f"method.{column} {policy.kind!r} asks for {_in_words(query)}, which is an answer about "
                    "clients' data, and method.privacy adds no noise to it; choose a policy that asks for no such thing"
                )
    if clients and method.aggregation.needs == "all":
        yield (
            f"method.aggregation {method.aggregation.kind!r} is no sum, so nobody can say how far one client moves it "
            "(method.privacy); use mean; method.cloud_aggregation may be robust, as it sees noised sums"
        )
    if clients and method.links.client_up:
        kinds = ", ".join(one.kind for one in method.links.client_up)
        yield (
            f"method.links.client_up ({kinds}) comes after the clipping of method.privacy, or repeats it, and what "
            "arrives would have no bound; leave it out, and use method.links.cloud_up"
        )
    twins = [part for part, spec in scheme.parts.items() if spec.returns_as is not None]
    if clients and twins and scheme.parts[scheme.parts[twins[0]].returns_as or ""].scope != "client":
        yield (
            f"method.personalization {scheme.kind!r} has a part stand for two ({twins[0]}), to which "
            "method.privacy cannot add noise; choose another personalization"
        )
    if not clients and isinstance(scheme, Adjusting | Stepping):
        yield (
            f"method.personalization {scheme.kind!r} looks at data outside of SGD, where method.privacy "
            "guarantee=example adds no noise; use guarantee=client, or another personalization"
        )
    people = sum(task.clients())
    if clients and privacy.delta * people > 1:
        yield (
            f"method.privacy.delta={privacy.delta:g} is more than one over the {people:,} clients, so that it would "
            f"allow to publish one of them; use at most {1 / people:.1g}"
        )
    if privacy.where == "clients":
        if method.unit == "client" and method.clustering.clusters(people) > 1:
            yield (
                "method.privacy.where=clients needs the noise of all clients of an edge in every sum, but with "
                "method.unit=client an edge sums those of each cluster apart; use where=edge"
            )
        if getattr(method.selection, "sampling", 1.0) < 1 and privacy.fewest is None:
            yield (
                f"method.selection {method.selection.kind!r} draws any number of clients; say how many shares of noise "
                "are enough, by method.privacy.fewest"
            )
        most = min(site_sizes(task, method))
        if privacy.fewest is not None and privacy.fewest > most:
            yield f"method.privacy.fewest is {privacy.fewest}, but an edge has {most} clients; use at most {most}"


def _in_words(query: Query) -> str:
    if isinstance(query, Loss | Accuracy):
        return f"the {type(query).__name__.lower()} of {query.of!r} models on {query.on} data"
    if isinstance(query, Statistic):
        return f"the statistic {query.name!r} of local training"
    return f"{type(query).__name__} of single clients' updates"


def _not_sums(task: Task, method: Method) -> Iterator[str]:
    """Yield what asks for more than sums of clients, and sums of too few."""
    rule: Any = method.aggregation
    only = "and with method.aggregation.secret=true a site sees only sums of clients"
    for field, queries in method.needs.items():
        for query in sorted(queries, key=str):
            single = method.unit == "client" and field != "method.selection"
            single = single or getattr(query, "each", False) or getattr(query, "name", None) == "square"
            if single or (field == "method.selection" and isinstance(query, Statistic)):
                kind = getattr(method, field.removeprefix("method.")).kind
                yield f"{field} {kind!r} asks for {query} of single clients, {only}; use another, or secret=false"
    measurement = method.measurement
    if measurement.average == "median":
        yield f"method.measurement.average takes the median of single clients, {only}; use mean"
    some = isinstance(method.selection, Trusting) if measurement.clients == "trusted" else True
    if measurement.clients != "all" and some:
        yield (
            f"method.measurement.clients={measurement.clients} measures with some clients what is also measured with "
            f"all; the difference of two sums is of a few, {only}; use all"
        )
    if method.links.chains.get("client_up", Chain()).codec is not None:
        yield f"method.links.client_up packs each client's change for itself, {only}; use clip and noise alone"
    if getattr(method.cloud_aggregation, "secret", False):
        yield "method.cloud_aggregation.secret: the cloud sees edges' averages; set secret in method.aggregation alone"
    if task.liars is not None and task.liars.attack == "losses":
        yield f"task.world.liars tells lies about single clients' losses, {only}; use another attack"
    for num in site_sizes(task, method):
        if (chosen := budget(method.selection.fraction, num)) < rule.threshold:
            yield (
                f"method.aggregation.threshold is {rule.threshold}, but of {num} clients that meet at a site {chosen} "
                "train in a round; lower it, or use more clients"
            )
            return


def _unteachable(method: Method) -> Iterator[str]:
    """Yield why the members of clusters cannot be taught by other clusters' networks."""
    parts, kind = method.personalization.parts, method.personalization.kind
    owned = [part for part, spec in parts.items() if spec.scope == "cluster"]
    whole = len(owned) == 1 and parts[owned[0]].whole and len(parts[owned[0]].networks) == 1
    if not whole or not any(phase.taught for phase in method.personalization.phases()):
        yield (
            f"method.sharing {method.sharing.kind!r} has clusters teach each other, for which method.personalization "
            f"needs one whole network per cluster and a phase that is taught; {kind!r} has not; use per_cluster with "
            "taught=true"
        )


def _unanswerable(method: Method) -> Iterator[str]:
    """Yield the queries that nobody can answer: an edge knows its own model, the cloud those of the clusters."""
    kind = method.personalization.kind
    scopes = {method.personalization.parts[part].scope for part in judged_parts(method.personalization)}
    own_part = "client" in scopes
    own_model = own_part or (method.unit == "client" and "cluster" in scopes)
    for field, queries in method.needs.items():
        for query in queries:
            if not answerable(field.removeprefix("method."), query):
                place = "at an edge" if field == "method.selection" else "by the cloud"
                yield f"{field} asks for {query}, which cannot be measured {place}"
            elif not isinstance(query, Loss | Accuracy):
                continue
            elif query.of in AT_EDGE and own_model and (query.on == "test" or method.measurement.location == "edge"):
                yield (
                    f"{field} asks for {query}, but with method.personalization {kind!r} and method.unit "
                    f"{method.unit!r} every client has a model of its own, which an edge cannot measure; use training "
                    "or validation data, and method.measurement.location=clients"
                )
            elif query.of in AT_CLOUD and own_part:
                yield (
                    f"{field} asks for {query}, but with method.personalization {kind!r} every client has a model of "
                    "its own, so there is none of a cluster to measure; choose a policy that needs none, such as fixed "
                    "or apart"
                )
            elif (method.unit, field) == ("client", "method.selection"):
                continue
            elif method.unit == "client" and (query.of in ("trained", "unaveraged") or query.on == "test"):
                yield (
                    f"{field} asks for {query}, which an edge measures, but members are clients (method.unit=client); "
                    "choose another policy, other data, or method.unit=edge"
                )


class Runtime(Settings):
    """Where and how the work is done. Numbers change only by rounding and by dropout's own draws."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """``auto`` takes a GPU if there is one."""
    workers: Annotated[int, Field(gt=0, le=1024)] | None = None
    """Threads or processes on the CPU; default: one per core."""
    memory_gib: Annotated[float, Field(ge=1e-6, le=1e6)] | None = None
    """Memory for clients trained at once, shared by Ray's actors (on GPUs by those of one); default: a quarter of what
    is free, on a CPU at most half a GiB per core."""
    trainer: Literal["auto", "torch", "native"] = "auto"
    """Our kernels (``native``, CPU and GPU) where they know the network, else torch; or one by name."""
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    """Of torch's products on a GPU (``torch-vmap-cuda``); with ``tf32`` and ``bf16``, repeated runs differ."""
    engine: Literal["simulator", "ray", "federation"] = "simulator"
    """All edges in this process, or in actors of Ray; ``federation`` is for ``fedbac cloud``."""
    actors: Annotated[int, Field(gt=0, le=100_000)] | None = None
    """Processes of Ray, to which edges are dealt by their examples; default: one per GPU, or per edge without GPUs."""
    address: str | None = None
    """The Ray cluster to join (``auto``: this machine's); default: a local one."""
    track: Literal["tensorboard", "mlflow", "wandb"] | None = None
    """Where rounds are also logged."""
    keep_last: Annotated[int, Field(ge=2, le=1_000_000)] = 2
    """Newest checkpoints to keep."""
    keep_every: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Rounds between checkpoints that stay, for ``fedbac verify``."""
    mixed: Literal["allow", "refuse", "replay"] = "allow"
    """If other code, torch, numpy, trainer or processor resumes a run: warn, refuse, or first replay the last round."""
