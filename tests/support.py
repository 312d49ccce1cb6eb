"""Small federations that tests put together and play in this process."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import nn

from fedbac import gpu, native
from fedbac.config.changes import Change
from fedbac.config.experiment import Evaluation, Experiment, Method, Task, Training
from fedbac.core import trees
from fedbac.core.parts import Params, Part, Parts, Personalization, Phase, Scope
from fedbac.core.policies import Assignment, NoState
from fedbac.core.queries import Ask, Evidence, Moment, Query, Split
from fedbac.core.requests import Evaluate, Measured, Train, Trained, Trainer
from fedbac.core.rng import Rng
from fedbac.core.settings import IntArray, Settings
from fedbac.core.state import State
from fedbac.core.world import World
from fedbac.data import Augment, Dataset, Shards
from fedbac.engines import Simulator
from fedbac.federation import Federation, assemble
from fedbac.local import Examples, FusedTrainer, LoopTrainer, VmapTrainer, fused
from fedbac.local.fused import plan_for
from fedbac.local.kernel import layers_of
from fedbac.models import Build, Custom, Maker, NetworkChoice, Perceptron, builder
from fedbac.personalization import Additive, PerCluster
from fedbac.rounds.cloud import rounds
from fedbac.rounds.rows import site_rows
from fedbac.rounds.start import start
from tests.emulator import NO_COMPILER, EmulatedModule

torch.set_num_threads(1)  # more threads only get in each other's way on networks this small

NO_KERNEL = pytest.mark.skipif(native.missing() is not None, reason="fedbac was installed without its native kernel")
NO_GPU = pytest.mark.skipif(not gpu.available(), reason="there is no GPU here")
ON_GPU = [
    pytest.param("emulated", marks=NO_COMPILER),
    *(pytest.param(path, marks=NO_GPU) for path in ("fused", "vmap-cuda")),
]
"""The trainers for a GPU; the kernels of one of them also without."""

SMALL = Perceptron(hidden=(6,))
PLAIN_SGD = Training(
    epochs=1, batch_size=8, learning_rate=0.1, learning_rate_decay=1, momentum=0, weight_decay=0, clip_norm=None
)
"""Gradient descent and nothing else."""

Record = dict[str, Any]


@dataclass(frozen=True)
class Played:
    """A run that was played: ``states[0]`` is the start, ``states[t]`` the state after round t."""

    experiment: Experiment
    federation: Federation
    records: list[Record]
    states: list[State]

    @property
    def end(self) -> State:
        return self.states[-1]

    @property
    def accuracy(self) -> float:
        return float(self.records[-1]["accuracy"])


def prepare(
    method: Method, dataset: Dataset, shards: Shards, *, training: Training = PLAIN_SGD, num_rounds: int = 3,
    seed: int = 0, evaluation: Evaluation | None = None, network: NetworkChoice = SMALL,
    user: Maker | None = None, augment: Augment | None = None, world: World | None = None,
    tiers: tuple[int | tuple[int, ...], ...] = (), changes: tuple[Change, ...] = (),
) -> tuple[Experiment, Federation]:  # fmt: skip
    """Return an experiment on given data, and its federation."""
    task = Task(
        dataset=dataset.name,
        num_edges=len(shards.clients),
        clients_per_edge=tuple(len(clients) for clients in shards.clients),
        tiers=tiers,
        changes=changes,
        rounds=num_rounds,
        augment=augment,
        world=world,
        network=network if user is None else Custom(name="test"),
        training=training,
    )
    experiment = Experiment(seed=seed, task=task, method=method, evaluation=evaluation or Evaluation())
    return experiment, assemble(experiment, dataset=dataset, shards=shards, network=user)


def play(
    method: Method, dataset: Dataset, shards: Shards, trainer: Trainer | None = None, *, parts: Parts | None = None,
    memory_gib: float | None = None,
    **options: Any,
) -> Played:  # fmt: skip
    """Play all rounds, from given weights or from those of the seed; ``options`` are those of ``prepare``."""
    experiment, federation = prepare(method, dataset, shards, **options)
    if trainer is None:
        trainer = LoopTrainer(federation.network, method.personalization, federation.examples)
    edges = Simulator(experiment, federation.sites, trainer, memory_gib)
    states = [start(experiment, federation.build, federation.sites)]
    parts = states[0].parts if parts is None else parts
    states = [replace(states[0], parts={part: trees.to(params, edges.device) for part, params in parts.items()})]
    records = []
    for record, state in rounds(experiment, federation.sites, edges, states[0]):
        records.append(record)
        states.append(state)
    return Played(experiment, federation, records, states)


def model_of_edge(played: Played, edge: int, state: State | None = None) -> Parts:
    """Return the networks that an edge uses, by default at the end."""
    state = state or played.end
    site = played.federation.sites[edge]
    held = site_rows(
        played.experiment.method.personalization.parts, site, np.full(len(site.clients), state.label_N[edge])
    )
    return {part: trees.take(state.parts[part], int(own.owner_R[0])) for part, own in held.items()}


# ------------------------------------------------------------------------------------ what trainers are asked


def federate(
    dataset: Dataset, shards: Shards, *, training: Training = PLAIN_SGD, seed: int = 0,
    network: NetworkChoice = SMALL, user: Maker | None = None, augment: Augment | None = None,
) -> Federation:  # fmt: skip
    """Return what trainers need of a federation, without a method."""
    build = builder(network, user, dataset.x_train.shape[1:], dataset.num_classes, seed)
    examples = Examples(dataset, shards, training, augment, seed, dataset.normalization())
    return Federation(dataset=dataset, shards=shards, sites=(), examples=examples, build=build)


def order(
    clients: Sequence[int], start: Parts, round_: int = 1, edge_round: int = 0, rate: float = 0.1,
    momentum: Parts | None = None,
) -> Train:  # fmt: skip
    """Return the request to train clients that all start from one model."""
    bank = {part: {name: value[None] for name, value in params.items()} for part, params in start.items()}
    row_C = {part: np.zeros(len(clients), dtype=np.int64) for part in bank}
    return Train(tuple(clients), bank, row_C, round_, edge_round, rate, momentum)


def start_of(request: Train, client: int) -> Parts:
    """Return the model from which a client of a request starts, by its place there."""
    return {part: trees.take(stack, int(request.row_C[part][client])) for part, stack in request.bank.items()}


def question(models: Sequence[Parts], split: Split, owners: Sequence[int], **options: Any) -> Evaluate:
    """Return the request to measure models; parts that are one object are one row of the bank."""
    bank: Parts = {}
    row_V: dict[str, IntArray] = {}
    for part in models[0]:
        distinct = {id(model[part]): model[part] for model in models}
        bank[part] = trees.stack(list(distinct.values()))
        row_V[part] = np.array([list(distinct).index(id(model[part])) for model in models])
    return Evaluate(bank, row_V, split, tuple(owners), **options)


def on_test(models: Sequence[Parts], edge: int) -> Evaluate:
    """Return the request to measure models on the test data of an edge."""
    return question(models, "test", (edge,), level="edge")


# ---------------------------------------------------------------------------------------------------- data


def deal(
    dataset: Dataset, sizes: Sequence[Sequence[int]], *, validation: int = 0, test: Sequence[int] | None = None
) -> Shards:
    """Give every client the next ``size`` training examples and then ``validation`` more; edges split the test set."""
    train: list[IntArray] = []
    held: list[IntArray] = []
    clients: list[range] = []
    at = 0
    for edge in sizes:
        clients.append(range(len(train), len(train) + len(edge)))
        for size in edge:
            train.append(np.arange(at, at + size))
            held.append(np.arange(at + size, at + size + validation))
            at += size + validation
    assert at <= len(dataset.y_train)
    if test is None:
        pieces = np.array_split(np.arange(len(dataset.y_test)), len(sizes))
    else:
        pieces = np.split(np.arange(sum(test)), np.cumsum(test)[:-1])
    return Shards(tuple(train), tuple(held), tuple(pieces), tuple(clients))


def only_edge(shards: Shards, edge: int) -> Shards:
    """Return a federation of one edge; its clients keep their numbers, and with them their random streams."""
    return Shards(shards.train, shards.validation, (shards.test[edge],), (shards.clients[edge],))


def in_order(shards: Shards, edges: Sequence[int]) -> Shards:
    """Return the same edges in another order."""
    return Shards(
        shards.train,
        shards.validation,
        tuple(shards.test[edge] for edge in edges),
        tuple(shards.clients[edge] for edge in edges),
    )


def poisoned(dataset: Dataset, rows: IntArray) -> Dataset:
    """Return the data with some training examples so large that they are infinite to a network."""
    x_train, x_test = dataset.x_train.astype(np.float64), dataset.x_test.astype(np.float64)
    made = Dataset(dataset.name, x_train, dataset.y_train, x_test, dataset.y_test, dataset.num_classes)
    x_train[rows] = 1e300  # later, as a data set that holds it is refused
    return made


# ---------------------------------------------------------------------------------------------- comparison


def distance(a: Mapping[str, Params], b: Mapping[str, Params]) -> float:
    """Return the largest difference between any two weights; parts and names must agree."""
    assert a.keys() == b.keys()
    largest = 0.0
    for part in a:
        assert a[part].keys() == b[part].keys()
        for name, value in a[part].items():
            assert value.shape == b[part][name].shape
            assert torch.isfinite(value).all()
            largest = max(largest, float((value.cpu() - b[part][name].cpu()).abs().max()))
    return largest


def without(records: Sequence[Record], *fields: str) -> list[Record]:
    """Return the records without the time they took and without these fields."""
    return [{key: value for key, value in r.items() if key not in {"seconds", *fields}} for r in records]


# ------------------------------------------------------------------------- choices that only tests need


class Scripted(Settings):
    """Labels from a list: ``script[t]`` holds after t rounds; after the last nothing is due."""

    kind: Literal["scripted"] = "scripted"
    adaptive: ClassVar[bool] = False
    num_clusters: int
    script: tuple[tuple[int, ...], ...]
    origin: tuple[tuple[float, ...], ...] | None = None
    """Where the networks of clusters come from, whenever labels are given."""

    def needs(self) -> frozenset[Query]:
        return frozenset()

    def clusters(self, num_members: int) -> int:
        return self.num_clusters

    def start(self, num_members: int, rng: Rng) -> IntArray:
        return np.array(self.script[0])

    def init(self, num_members: int) -> NoState:
        return NoState()

    def ask(self, state: NoState, moment: Moment) -> Ask | None:
        return Ask() if moment.round < len(self.script) else None

    def learn(self, state: NoState, evidence: Evidence) -> NoState:
        return state

    def act(self, state: NoState, evidence: Evidence, rng: Rng) -> tuple[NoState, Assignment]:
        origin = None if self.origin is None else np.array(self.origin)
        return state, Assignment(np.array(self.script[evidence.round]), origin)


class OnlyGlobalMoves(Settings):
    """Additive with f ≡ 0, for good."""

    kind: Literal["only_global_moves"] = "only_global_moves"
    parts: ClassVar[Mapping[str, Part]] = Additive.parts
    terms: ClassVar[tuple[str, ...]] = Additive.terms

    def init(self, build: Build, owners: Mapping[Scope, int]) -> Parts:
        parts = Additive().init(build, owners)
        return {"global": parts["global"], "cluster": _zeros(parts["cluster"])}

    def phases(self) -> tuple[Phase, ...]:
        return (Phase(moves=("global",)),)


class OnlyClusterMoves(Settings):
    """Additive with h ≡ 0 and λ = 0; its cluster networks start where those of ``PerCluster`` do."""

    kind: Literal["only_cluster_moves"] = "only_cluster_moves"
    parts: ClassVar[Mapping[str, Part]] = Additive.parts
    terms: ClassVar[tuple[str, ...]] = Additive.terms
    cluster_init: Literal["shared", "distinct"] = "shared"

    def init(self, build: Build, owners: Mapping[Scope, int]) -> Parts:
        cluster = PerCluster(cluster_init=self.cluster_init).init(build, owners)["cluster"]
        return {"global": _zeros({name: value[:1] for name, value in cluster.items()}), "cluster": cluster}

    def phases(self) -> tuple[Phase, ...]:
        return (Phase(moves=("cluster",)),)


def _zeros(params: Params) -> Params:
    return {name: torch.zeros_like(value) for name, value in params.items()}


class StubTrainer:
    """Client i comes back with every weight equal to i (times the edge round), so that averages can be done by hand."""

    path = "stub"
    device = torch.device("cpu")

    def __init__(self, failing: Mapping[int, Sequence[tuple[int, int]]] | None = None) -> None:
        self.failing = failing or {}
        """Per client, the (round, edge round) in which its loss is not finite."""

    def train(self, requests: Sequence[Train]) -> list[Trained]:
        return [self._train(request) for request in requests]

    def _train(self, request: Train) -> Trained:
        at = (request.round, request.edge_round)
        value_C = [float(client) * (request.edge_round + 1) for client in request.clients]
        parts_C = {
            part: {name: torch.stack([torch.full_like(p[0], value) for value in value_C]) for name, p in params.items()}
            for part, params in request.bank.items()
        }
        loss_C = np.array([np.nan if at in self.failing.get(client, ()) else 1.0 for client in request.clients])
        return Trained(parts_C, loss_C)

    def evaluate(self, requests: Sequence[Evaluate]) -> list[Measured]:
        out = []
        for request in requests:
            shape = (1 if request.paired else request.num_models, len(request.owners))
            out.append(Measured(np.ones(shape), np.full(shape, 0.5), np.ones(shape[1], dtype=np.int64)))
        return out

    def close(self) -> None:
        pass


class Regular(nn.Module):
    """A small convolutional network with dropout and batch normalization, each optional."""

    def __init__(self, num_classes: int = 4, dropout: float = 0.0, norm: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, stride=2)
        self.norm: nn.Module = nn.BatchNorm2d(3) if norm else nn.Identity()
        self.drop = nn.Dropout(dropout)
        self.out = nn.Linear(27, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.norm(self.conv(x)))
        logits: torch.Tensor = self.out(self.drop(hidden.flatten(1)))
        return logits


def on_gpu(path: str, federation: Federation, scheme: Personalization) -> Trainer:
    """Return one of the trainers for a GPU."""
    examples, cuda = federation.examples, torch.device("cuda")
    if path == "vmap-cuda":
        return VmapTrainer(copy.deepcopy(federation.network), scheme, examples, cuda)
    layers = layers_of(federation.network, examples.dataset.x_train.shape[1:])
    assert layers is not None
    plan = plan_for(layers, examples)
    if path == "fused":
        assert plan.shared <= gpu.shared_limit()
        return FusedTrainer(federation.network, scheme, examples, plan, cuda)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "Module", EmulatedModule)
        return FusedTrainer(federation.network, scheme, examples, plan, torch.device("cpu"))
