"""Edges dealt out to processes: by their examples, and with the simulator's numbers, on a GPU that they share too."""

import pickle
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
import torch

from fedbac.config.experiment import Experiment, Runtime
from fedbac.core import trees
from fedbac.data import toy
from fedbac.engines.actors import Dealt, EdgeHost, deal, examples_of, gpu_share, ready
from fedbac.federation import Federation, assemble
from fedbac.networks import LeNet5
from fedbac.rounds.cloud import rounds
from fedbac.rounds.messages import MeasureOrder, Order, TrainOrder, Wanted
from fedbac.rounds.start import start
from fedbac.runs.configure import Inputs, configure
from fedbac.runs.play import finish, play
from tests.engines.test_ray import timeless
from tests.store import worker
from tests.support import NO_GPU

HOSTS: list[EdgeHost] = []
"""Of this process, if it was started for some edges."""


def _host(*made_of: Any) -> None:
    HOSTS.append(EdgeHost(*made_of))


def _run(orders: list[Order]) -> Any:
    return HOSTS[0].run(orders), HOSTS[0].edges.path


class Processes(Dealt):
    """Two processes, as Ray would start them."""

    def __init__(self, experiment: Experiment, federation: Federation, runtime: Runtime) -> None:
        self.device, self.keeps, self.path = torch.device("cpu"), frozenset[Any](), ""
        self.dealt = deal([site.size for site in federation.sites], 2)
        common = experiment, federation.sites, federation.network, runtime, len(self.dealt)
        self.pools = [
            ProcessPoolExecutor(1, get_context("spawn"), _host, (examples_of(federation, mine), *common))
            for mine in self.dealt
        ]

    def ask(self, orders: Mapping[int, list[Order]]) -> list[list[Any]]:
        futures = [self.pools[process].submit(_run, mine) for process, mine in orders.items()]
        reports, paths = zip(*[future.result() for future in futures], strict=True)
        (self.path,) = set(paths)
        return list(reports)

    def close(self) -> None:
        for pool in self.pools:
            pool.shutdown()


@pytest.mark.full
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NO_GPU)])
def test_edges_in_two_processes_have_the_simulators_numbers(device: Any) -> None:
    """To the bit on a CPU; on a GPU up to rounding, as fewer clients are trained together there."""
    inputs, runtime = Inputs(dataset=toy(size=16)), Runtime(device=device, workers=1)
    task = worker.SHORT.model_copy(update={"network": LeNet5()})
    experiment = configure("fed-bac", task, rounds=3, settings=worker.SETTINGS, inputs=inputs)
    alone = finish(play(experiment, inputs=inputs, runtime=runtime))
    federation = assemble(experiment, dataset=inputs.dataset)
    edges = Processes(experiment, federation, runtime)
    steps = rounds(experiment, federation.sites, edges, start(experiment, federation.build, federation.sites))
    records = timeless([record for record, _ in steps])
    edges.close()
    assert edges.path == alone.computed_by(1)["trainer"]
    for mine, expected in zip(records, timeless(alone.records), strict=True):
        if device == "cpu":
            assert mine == expected
        assert mine["selected"] == expected["selected"]
        assert mine["loss"] == pytest.approx(expected["loss"], rel=1e-4)


@pytest.mark.parametrize(("num_actors", "gpus"), [(10, 8), (10, 1), (3, 8), (7, 2), (16, 8)])
def test_every_actor_finds_a_place_on_a_gpu(num_actors: int, gpus: int) -> None:
    """None can have parts of two GPUs: as many fit on each as their shares allow."""
    share = gpu_share(num_actors, gpus)
    assert 0 < share <= 1
    assert int(1 / share + 1e-9) * gpus >= num_actors


@pytest.mark.parametrize(
    ("loads", "dealt"),
    [
        ([5, 5, 5], [[0], [1], [2]]),
        ([1, 9, 2, 3, 3], [[1], [0, 2, 3, 4]]),
        ([4, 3, 3, 2, 2], [[0, 3, 4], [1, 2]]),
        ([0, 7, 0], [[1], [0], [2]]),
    ],
)
def test_edges_are_dealt_out_by_their_examples(loads: list[int], dealt: list[list[int]]) -> None:
    assert deal(loads, len(dealt)) == dealt


@pytest.mark.parametrize(("actors", "most"), [(2, 0.505), (4, 0.3), (8, 0.18)])
def test_the_largest_share_of_the_ten_edges_of_the_paper(actors: int, most: float) -> None:
    """Two of eight GPUs have two edges each, so eight are 5.6 times as fast as one at best."""
    for seed in range(3):
        loads = [site.size for site in assemble(configure("fed-bac", "fashion-mnist-mini", seed=seed)).sites]
        largest = max(sum(loads[site] for site in mine) for mine in deal(loads, actors)) / sum(loads)
        assert max(1 / actors, max(loads) / sum(loads)) <= largest < most


def test_orders_travel_without_what_their_networks_are_views_of() -> None:
    """Pickled, a view takes the whole tensor along: ten orders for one network each would be a hundred networks."""
    stack = trees.unravel(torch.randn(10, 3000), {"a": torch.zeros(50, 50), "b": torch.zeros(500)})
    row = np.array([0])
    for k in range(10):
        bank = {part: {n: v[k : k + 1] for n, v in stack.items()} for part in ("global", "cluster")}
        rows = dict.fromkeys(bank, row)
        for order in (
            MeasureOrder(0, bank, (Wanted(rows, "test"),)),
            TrainOrder(0, 1, bank, rows, selection=None, moved=False, momentum={"global": bank["global"]}),
        ):
            networks = len(bank) + isinstance(order, TrainOrder)
            assert len(pickle.dumps(order)) > 10 * 3000 * 4, "a view takes all along"
            text = pickle.dumps(ready(order))
            assert len(text) < 1.2 * networks * 3000 * 4
            there = pickle.loads(text)
            for sent, same in (
                (order.bank, there.bank),
                (getattr(order, "momentum", {}), getattr(there, "momentum", {})),
            ):
                assert sent.keys() == same.keys()
                for part, params in sent.items():
                    for name, value in params.items():
                        assert torch.equal(same[part][name], value)
