"""The same small run twice: simulated with all data in one place, and with every site holding its own."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedbac.config.experiment import Experiment
from fedbac.core.settings import IntArray
from fedbac.data import Dataset, Shards, toy
from fedbac.deploy.roles.enrolment import Enrolled
from fedbac.deploy.settings import DeploySettings
from fedbac.federation import assemble
from fedbac.local import Examples
from fedbac.rounds.record import by_clients
from fedbac.runs.configure import Inputs, configure
from fedbac.runs.play import finish, play
from fedbac.runs.store import StoredRun
from tests.deploy.in_memory import CPU, MemoryFederation, cut, gathered
from tests.support import Record
from tests.unit.tiny import tiny_task

COUNTS = (2, 3)
"""Clients of each edge."""
FIRST = "edge-0-client-0"
"""Number 0."""


@dataclass(frozen=True, eq=False)
class Small:
    """An experiment, and the data of its sites."""

    experiment: Experiment
    sites: Mapping[str, Mapping[str, Any]]
    dataset: Dataset
    shards: Shards

    def simulated(self) -> StoredRun:
        """Play it where all data are in one place."""
        inputs = Inputs(dataset=self.dataset, shards=self.shards)
        with self._own_test_data():
            return finish(play(self.experiment, runtime=CPU, inputs=inputs))

    def federation(self, folder: Path, **deploy: Any) -> MemoryFederation:
        """Return the sites, each with its own data; a round counts with whoever is there, unless told otherwise."""
        settings = DeploySettings(**({"min_edges": 1, "min_clients": 1} | deploy))
        return MemoryFederation(self.experiment, folder, self.sites, settings)

    @contextmanager
    def _own_test_data(self) -> Iterator[None]:
        """Have the simulator, too, judge every client by the test data that it brought."""
        if not any("x_test" in self.sites[name] for name in self.sites if "client" in name):
            yield
            return
        own: list[IntArray] = []
        for edge, count in enumerate(self.experiment.task.clients()):
            at = 0
            for within in range(count):
                size = len(self.sites[f"edge-{edge}-client-{within}"].get("y_test", ()))
                own.append(self.shards.test[edge][at : at + size])
                at += size
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Examples, "client_test", property(lambda examples: tuple(own)))
            yield


def small(
    method: str,
    *settings: str,
    rounds: int = 3,
    tests_at: str | None = None,
    counts: tuple[int, ...] = COUNTS,
    **task: Any,
) -> Small:
    """Return a run of a preset on a few images; clients hold test data where each has a model of its own."""
    size = 16 if "network" in task else 8
    whole = toy(size=size, train=200, test=60)
    plain = tiny_task(num_edges=len(counts), clients_per_edge=counts, rounds=rounds, **task)
    experiment = configure(method, plain, settings=settings, inputs=Inputs(dataset=whole))
    federation = assemble(experiment, dataset=whole)
    at = tests_at or ("clients" if by_clients(experiment.method) else "edge")
    sites = cut(federation.dataset, federation.shards, at, federation.examples.client_test)
    dataset, shards = gathered("toy", sites, counts, whole.num_classes)
    return Small(experiment, sites, dataset, shards)


def compared(records: list[Record]) -> list[Record]:
    """Return records without what may differ: the time they took."""
    return [{name: value for name, value in record.items() if name != "seconds"} for record in records]


def begun(folder: Path, method: str = "fed-bac", *settings: str, rounds: int = 3, **deploy: Any) -> Any:
    """Return a federation in which everybody has enrolled."""
    federation = small(method, *settings, rounds=rounds).federation(folder, **deploy)
    return federation, federation.enrol()


def played(federation: MemoryFederation, enrolled: Enrolled) -> list[Record]:
    records = federation.run(enrolled=enrolled).records
    json.dumps(records, allow_nan=False)
    return records
