"""Putting a federation together: data, partition, networks and the sites of the edges."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedbac import data, losses, models, packages
from fedbac.config.experiment import Experiment
from fedbac.core.liars import Liars
from fedbac.core.parts import extension
from fedbac.core.settings import IntArray
from fedbac.data import Dataset, Shards
from fedbac.errors import ConfigError
from fedbac.local import Examples
from fedbac.rounds.messages import Site

Normalization = tuple[NDArray[np.float32], NDArray[np.float32]] | None


class Assembled(Protocol):
    """What the cloud must know of a federation, wherever its data are."""

    @property
    def sites(self) -> tuple[Site, ...]:
        """Where clients meet."""

    @property
    def build(self) -> models.Build:
        """Makes the networks of the run."""

    @property
    def network(self) -> nn.Module:
        """A network of the architecture, as a template."""

    @property
    def fingerprint(self) -> str:
        """A hash of all examples that are used."""

    @property
    def source_sha256(self) -> str | None:
        """The hash of all the data, where a sample is used."""

    @property
    def normalization(self) -> Normalization:
        """Per-channel mean and deviation of all training images; None for data used as they are."""

    @property
    def example(self) -> Tensor:
        """One example of the data, or one of its shape, to trace a model with."""

    @property
    def edge_names(self) -> tuple[str, ...]:
        """What each edge is called, if the data say so."""

    def classes_per_edge(self) -> IntArray:
        """Return how many examples of each class the clients of each edge hold, for training and validation."""


@dataclass(frozen=True, eq=False)
class Federation:
    """What the cloud, the edges and the clients of one experiment consist of."""

    dataset: Dataset
    """The examples that are used: a sample, where the task uses a fraction of the data."""
    shards: Shards
    sites: tuple[Site, ...]
    examples: Examples
    build: models.Build
    source_sha256: str | None = None
    """The hash of all the data, where a sample is used."""

    @property
    def network(self) -> nn.Module:
        """A network of the architecture, as a template."""
        return self.build(0)

    @property
    def fingerprint(self) -> str:
        """The hash of the examples that are used."""
        return self.dataset.fingerprint

    @property
    def normalization(self) -> Normalization:
        """Per-channel mean and deviation of all training images."""
        return self.examples.normalization

    @property
    def example(self) -> Tensor:
        """The first training example."""
        return torch.from_numpy(self.dataset.x_train[:1].copy())

    @property
    def edge_names(self) -> tuple[str, ...]:
        """What each edge is called, if the data say so and the task has all of their edges."""
        tiers = self.dataset.tiers
        return tiers.names if tiers is not None and len(tiers.names) == len(self.shards.clients) else ()

    def at(self, experiment: Experiment, round_: int) -> "Federation":
        """Return it as it is in a round (``task.changes``)."""
        shards = self.shards.dealt(*experiment.task.held(experiment.seed, round_))
        sites = _sites(experiment, shards, self.dataset.num_classes)
        return replace(self, shards=shards, sites=sites, examples=replace(self.examples, shards=shards))

    def classes_per_edge(self) -> IntArray:
        """Return how many examples of each class the clients of each edge hold, for training and validation."""
        splits = self.shards.train, self.shards.validation
        held = [np.concatenate([split[c] for c in clients for split in splits]) for clients in self.shards.clients]
        class_N, _, num_classes = self.dataset.dealt_by
        return data.class_counts(class_N, held, num_classes)


def assemble(
    experiment: Experiment,
    *,
    dataset: Dataset | str | None = None,
    shards: Shards | None = None,
    network: models.UserNetwork | None = None,
    data_folder: Path | str | None = None,
) -> Federation:
    """Load and partition the data and check that everything fits, before any training."""
    task = experiment.task
    for named in experiment.packages.values():
        if named.name in packages.announced(packages.NETWORKS).values():
            packages.permit(named.package)  # it was installed to be used by fedbac
    if not isinstance(dataset, Dataset):
        dataset = data.load(task.dataset, data_folder)
    source_sha256 = None
    if task.data_fraction < 1:
        source_sha256 = dataset.fingerprint
        dataset = dataset.sample(task.data_fraction, experiment.seed)
    if task.augment is not None and dataset.x_train.ndim != 4:
        raise ConfigError(
            f"task.augment: crops and flips need images [N, C, H, W], but {dataset.name!r} has examples of shape "
            f"{list(dataset.x_train.shape[1:])}; set task.augment to null"
        )
    losses.check(task.loss, dataset.labels, dataset.y_train.shape[1:], dataset.num_classes)
    if experiment.method.network is not None:  # a study of capacity brings its own, whatever the task's is
        network = None
    build = models.builder(
        experiment.network,
        None if isinstance(network, str) else network,
        dataset.x_train.shape[1:],
        dataset.num_classes,
        experiment.seed,
        dataset.largest_token,
        task.frozen,
        dataset.y_train.shape[1:] if dataset.labels == "tokens" else (),
        extension(experiment.method.personalization),
    )
    if shards is None and task.partition.natural:
        if dataset.tiers is None:
            raise ConfigError(
                f"task.partition.natural: data set {dataset.name!r} has no edges and clients of its own; set it to "
                "false, or give client_train, edge_test and edge with the data"
            )
        shards = data.by_nature(dataset.tiers, task.partition.validation_fraction, experiment.seed)
    elif shards is None:
        shards = data.partition(*dataset.dealt_by, task.clients(), task.partition, experiment.seed)
    else:
        shards = shards.checked(len(dataset.y_train), len(dataset.y_test))
    if task.noise is not None:
        dataset, shards = data.add_noise(dataset, shards, task.noise, experiment.seed)
    liars, claims = task.liars, dict[int, int]()
    if liars is not None and liars.attack == "label_flip":
        dataset = data.flip_labels(dataset, shards, _lying(liars, experiment.seed, shards))
    elif liars is not None and liars.attack == "examples":
        claims = dict.fromkeys(_lying(liars, experiment.seed, shards), int(liars.size))
    normalization = dataset.normalization()
    if normalization is not None and experiment.method.privacy is not None:
        normalization = data.fixed_normalization(len(normalization[0]))
    sites = _sites(experiment, shards, dataset.num_classes, claims)
    _check(experiment, shards)
    check_validation(experiment, sites)
    return Federation(
        dataset=dataset,
        shards=shards,
        sites=sites,
        examples=Examples(dataset, shards, task.training, task.augment, experiment.seed, normalization, task.loss),
        build=build,
        source_sha256=source_sha256,
    )


def _lying(liars: Liars, seed: int, shards: Shards) -> list[int]:
    """Return the clients that lie."""
    every = tuple(client for clients in shards.clients for client in clients)
    edge_N = np.repeat(np.arange(len(shards.clients)), [len(clients) for clients in shards.clients])
    lying_N, _ = liars.among(seed, every, edge_N, len(shards.clients))
    return [client for client, lies in zip(every, lying_N, strict=True) if lies]


def _sites(
    experiment: Experiment, shards: Shards, num_classes: int, claims: Mapping[int, int] = MappingProxyType({})
) -> tuple[Site, ...]:
    """Return where clients meet; ``claims`` are examples that some of them only say they have."""
    sites = []
    for index, edges in enumerate(experiment.method.topology.sites(len(shards.clients))):
        clients = [client for edge in edges for client in shards.clients[edge]]
        sites.append(
            Site(
                index=index,
                clients=tuple(clients),
                size_N=np.array([claims.get(client, shards.train[client].size) for client in clients]),
                validation_N=np.array([shards.validation[client].size for client in clients]),
                num_classes=num_classes,
                edge_N=np.repeat(edges, [len(shards.clients[edge]) for edge in edges]),
                above=experiment.above(index),
            )
        )
    return tuple(sites)


def _check(experiment: Experiment, shards: Shards) -> None:
    expected, found = experiment.task.clients(), tuple(len(clients) for clients in shards.clients)
    if found != expected:
        each = found[0] if len(set(found)) == 1 else str(list(found)).replace(" ", "")
        raise ConfigError(
            f"task.clients_per_edge: the data have {sum(found)} clients at {len(found)} edges, the task "
            f"{sum(expected)} at {len(expected)}; set task.num_edges={len(found)} and task.clients_per_edge={each}"
        )
    for edge, clients in enumerate(shards.clients):
        if not any(shards.train[client].size for client in clients):
            raise ConfigError(f"edge {edge} has no training examples; every edge needs some")
        if shards.test[edge].size == 0:
            raise ConfigError(f"edge {edge} has no test examples, so its accuracy is undefined")


def check_validation(experiment: Experiment, sites: Sequence[Site]) -> None:
    """Refuse sites without validation examples where a policy asks for some."""
    asking = [field for field in experiment.method.needs if "validation" in experiment.method.splits(field)]
    for site in sites:
        if asking and not site.validation_N.any():
            raise ConfigError(
                f"edge {site.index} has no validation examples: task.partition.validation_fraction "
                f"{experiment.task.partition.validation_fraction} leaves none of its clients' data; raise it, or "
                f"have {' and '.join(asking)} use other data"
            )
