"""Putting a federation together: data, partition, networks and the sites of the edges."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import nn

from fedbac import data, models
from fedbac.config.experiment import Experiment
from fedbac.data import Dataset, Shards
from fedbac.errors import ConfigError
from fedbac.local import Examples
from fedbac.rounds.edge import EdgeSite


@dataclass(frozen=True, eq=False)
class Federation:
    """What the cloud, the edges and the clients of one experiment consist of."""

    dataset: Dataset
    shards: Shards
    sites: tuple[EdgeSite, ...]
    examples: Examples
    build: models.Build

    @property
    def network(self) -> nn.Module:
        """A network of the architecture, as a template."""
        return self.build(0)


def assemble(
    experiment: Experiment,
    *,
    dataset: Dataset | None = None,
    shards: Shards | None = None,
    network: models.UserNetwork | None = None,
    data_folder: Path | str | None = None,
) -> Federation:
    """Load and partition the data and check that everything fits, before any training."""
    task = experiment.task
    if dataset is None:
        dataset = data.load(task.dataset, data_folder)
    if task.data_fraction < 1:
        dataset = dataset.sample(task.data_fraction, experiment.seed)
    if task.augment is not None and dataset.x_train.ndim != 4:
        raise ConfigError(
            f"task.augment: crops and flips need images [N, C, H, W], but {dataset.name!r} has examples of shape "
            f"{list(dataset.x_train.shape[1:])}; set task.augment to null"
        )
    if experiment.method.network is not None:  # a study of capacity brings its own, whatever the task's is
        network = None
    recipe = experiment.method.network or task.network
    build = models.builder(recipe, network, dataset.x_train.shape[1:], dataset.num_classes, experiment.seed)
    if shards is None:
        shards = data.partition(
            dataset.y_train, dataset.y_test, dataset.num_classes, task.clients(), task.partition, experiment.seed
        )
    if task.noise is not None:
        dataset, shards = data.add_noise(dataset, shards, task.noise, experiment.seed)
    sites = tuple(_site(m, clients, shards) for m, clients in enumerate(shards.clients))
    _check(experiment, sites, shards)
    return Federation(
        dataset=dataset,
        shards=shards,
        sites=sites,
        examples=Examples(dataset, shards, task.training, task.augment, experiment.seed, dataset.normalization()),
        build=build,
    )


def _site(index: int, clients: Sequence[int], shards: Shards) -> EdgeSite:
    return EdgeSite(
        index=index,
        clients=tuple(clients),
        size_N=np.array([shards.train[client].size for client in clients]),
        validation_N=np.array([shards.validation[client].size for client in clients]),
    )


def _check(experiment: Experiment, sites: Sequence[EdgeSite], shards: Shards) -> None:
    expected = experiment.task.clients()
    if tuple(len(site.clients) for site in sites) != expected:
        raise ConfigError(
            f"shards: they describe clients {[len(s.clients) for s in sites]} per edge, the task {list(expected)}"
        )
    uses_validation = any("validation" in asked for asked in experiment.method.splits.values())
    for site in sites:
        if not site.size_N.any():
            raise ConfigError(f"edge {site.index} has no training examples; every edge needs some")
        if shards.test[site.index].size == 0:
            raise ConfigError(f"edge {site.index} has no test examples, so its accuracy is undefined")
        if uses_validation and not site.validation_N.any():
            raise ConfigError(
                f"edge {site.index} has no validation examples: task.partition.validation_fraction "
                f"{experiment.task.partition.validation_fraction} leaves none of its clients' data; raise it, or "
                "have method.selection, method.clustering and method.measurement.split use other data"
            )
