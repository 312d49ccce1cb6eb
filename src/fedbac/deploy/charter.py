"""What every site must know to take part in a run: the experiment, what the data look like, and who is who."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from fedbac import models
from fedbac.config.experiment import Experiment
from fedbac.config.explain import parse
from fedbac.core.parts import Parts, Scope
from fedbac.core.settings import IntArray
from fedbac.data.datasets import normalization_of
from fedbac.deploy.messages.pieces import Owners
from fedbac.deploy.wire import Message, WireError, encode
from fedbac.errors import ConfigError, DeployError, quoted
from fedbac.federation import Normalization
from fedbac.rounds.orders import Site

NUMBERS = {"uint8": np.uint8, "int64": np.int64, "float32": np.float32, "float64": np.float64, "float16": np.float16}
Whole = Field(ge=0, le=2**53)


class Facts(BaseModel):
    """What a client, or an edge with test data, says of its data: numbers, never an example."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    train: int = Whole
    validation: int = Whole
    test: int = Whole
    shape: list[int] = Field(max_length=8)
    dtype: str
    classes: list[int] = Field(max_length=100_000)
    """Examples of each class, for training and validation; of an edge, for testing."""
    sums: list[list[int]] | None
    """Per channel of images the sum, the sum of squares and the number of pixels, of training and validation data."""
    largest_token: int | None
    fingerprint: str = Field(pattern=r"^[0-9a-f]{64}$")


@dataclass(frozen=True)
class Charter:
    """The terms of a run, the same for everybody. Sites know it by its hash, and work under no other."""

    run: str
    """Which run: what owners keep of one is of no use to another."""
    experiment: Experiment
    shape: tuple[int, ...]
    dtype: str
    num_classes: int
    largest_token: int | None
    sums: tuple[tuple[int, ...], ...] | None
    clients: tuple[tuple[int, ...], ...]
    """Per edge, the numbers of its clients."""
    size_N: tuple[int, ...]
    validation_N: tuple[int, ...]
    test_M: tuple[int, ...]
    """Test examples that each edge itself holds; 0 where its clients do."""
    fingerprints: Mapping[str, str]
    """By the name of a site, the hash of its data: a site whose data have changed takes no part."""

    @cached_property
    def text(self) -> str:
        """The charter as it travels."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "experiment"}
        plain["experiment"] = self.experiment.model_dump(mode="json")
        return json.dumps(plain, sort_keys=True)

    @cached_property
    def id(self) -> str:
        """Its hash."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:32]

    def encoded(self) -> bytes:
        """Return the message that hands it over."""
        return encode("begin", {"charter": self.text}, {})

    @property
    def owners(self) -> Owners:
        """Who owns which part."""
        return Owners({part: spec.scope for part, spec in self.experiment.method.personalization.parts.items()})

    @cached_property
    def normalization(self) -> Normalization:
        """Per-channel mean and deviation of all training images, whoever holds them."""
        return None if self.sums is None else normalization_of(np.array(self.sums))

    @cached_property
    def build(self) -> models.Build:
        """Makes the networks of the run."""
        recipe = self.experiment.method.network or self.experiment.task.network
        return models.builder(recipe, None, self.shape, self.num_classes, self.experiment.seed, self.largest_token)

    @property
    def network(self) -> nn.Module:
        """A network of the architecture, as a template."""
        return self.build(0)

    @property
    def example(self) -> Tensor:
        """An example of the right shape."""
        return torch.from_numpy(self.blank())

    def blank(self, count: int = 1) -> Any:
        """Return so many examples that say nothing."""
        return np.zeros((count, *self.shape), dtype=NUMBERS[self.dtype])

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """Where clients meet."""
        found = []
        for index, edges in enumerate(self.experiment.method.topology.sites(len(self.clients))):
            members = [client for edge in edges for client in self.clients[edge]]
            found.append(
                Site(
                    index=index,
                    clients=tuple(members),
                    size_N=np.array(self.size_N)[members],
                    validation_N=np.array(self.validation_N)[members],
                    num_classes=self.num_classes,
                    edge_N=np.repeat(edges, [len(self.clients[edge]) for edge in edges]),
                )
            )
        return tuple(found)

    @cached_property
    def first(self) -> Parts:
        """All parts as they are before the first round, a row for each owner."""
        scheme = self.experiment.method.personalization
        num_clients = sum(map(len, self.clients))
        num_members = len(self.sites) if self.experiment.method.unit == "edge" else num_clients
        owners: dict[Scope, int] = {
            "cloud": 1,
            "cluster": self.experiment.method.clustering.clusters(num_members),
            "edge": len(self.sites),
            "client": num_clients,
        }
        return scheme.init(self.build, owners)

    @cached_property
    def template(self) -> Parts:
        """One row of every part, for its shape."""
        return self.experiment.method.personalization.init(
            self.build, {"cloud": 1, "cluster": 1, "edge": 1, "client": 1}
        )

    def unknown(self, count: int) -> Parts:
        """Return what stands in for the parts of so many clients where nobody but themselves has them."""
        return {
            part: {name: value.expand(count, *value.shape[1:]) for name, value in self.template[part].items()}
            for part, spec in self.experiment.method.personalization.parts.items()
            if spec.scope == "client"
        }

    def own(self, scope: Scope, owner: int, kept: Parts, received: Parts) -> Parts:
        """Return the parts of one owner, a row each: as it has kept them, else as everybody's that they follow, else
        as they were at first."""
        found: Parts = {}
        for part, spec in self.experiment.method.personalization.parts.items():
            if spec.scope != scope:
                continue
            if part in kept:
                found[part] = kept[part]
            elif spec.follows is not None and spec.follows in received:
                found[part] = {name: value[:1] for name, value in received[spec.follows].items()}
            else:
                found[part] = {name: value[owner : owner + 1] for name, value in self.first[part].items()}
        return found


def read_charter(message: Message) -> Charter:
    """Return the charter that a parent hands over."""
    try:
        plain = json.loads(message.value("charter", str))
        experiment = parse(Experiment, plain.pop("experiment"))
        return Charter(
            run=str(plain["run"]),
            experiment=experiment,
            shape=tuple(map(int, plain["shape"])),
            dtype=str(plain["dtype"]),
            num_classes=int(plain["num_classes"]),
            largest_token=plain["largest_token"],
            sums=None if plain["sums"] is None else tuple(tuple(map(int, row)) for row in plain["sums"]),
            clients=tuple(tuple(map(int, clients)) for clients in plain["clients"]),
            size_N=tuple(map(int, plain["size_N"])),
            validation_N=tuple(map(int, plain["validation_N"])),
            test_M=tuple(map(int, plain["test_M"])),
            fingerprints=dict(plain["fingerprints"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise DeployError(f"the experiment of the federation cannot run here: {error}") from error
        raise WireError("begin: it holds no charter") from error


def read_facts(said: Any) -> Facts:
    """Return what a site says of its data."""
    try:
        facts = Facts.model_validate(said)
    except ValidationError as error:
        raise WireError(f"facts: {quoted(said)} says not what the data are") from error
    good = facts.dtype in NUMBERS and (facts.sums is None or all(len(row) == 3 for row in facts.sums))
    if not good or any(count < 0 for count in facts.classes):
        raise WireError(f"facts: {quoted(said)} cannot be")
    return facts


def classes_per_edge(facts: Mapping[int, list[Facts]], num_classes: int) -> IntArray:
    """Return how many examples of each class the clients of each edge hold."""
    table = np.zeros((len(facts), num_classes), dtype=np.int64)
    for edge, told in facts.items():
        for one in told:
            table[edge, : len(one.classes)] += one.classes
    return table
