"""Edges as Ray actors: the simulator's numbers, even when a process or a whole node dies in the middle; and sweeps."""

import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedbac.config.experiment import Runtime
from fedbac.data import toy
from fedbac.errors import ConfigError
from fedbac.federation import assemble
from fedbac.rounds.cloud import rounds
from fedbac.rounds.start import start
from fedbac.runs import sweep
from fedbac.runs.configure import Inputs, configure
from fedbac.runs.play import finish, play
from tests.store import worker

# Ray's own code leaves sockets and files to the collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

INPUTS = Inputs(dataset=toy(size=8))
ROBUST = (
    "method.aggregation={kind: median, before: bucketing}",
    "method.step=momentum",
    "task.world.liars={attack: min_max, clients: 0.5}",
)
EXPERIMENT = configure(
    "fed-bac",
    worker.TASK.model_copy(update={"rounds": 6, "num_edges": 3}),
    settings=(*worker.SETTINGS, *ROBUST),
    inputs=INPUTS,
)

# A busy machine may take more than Ray's usual half a minute to start a node. Ray reads this when it is imported.
os.environ.setdefault("RAY_raylet_start_wait_time_s", "180")
WATCHFUL = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 500, "health_check_failure_threshold": 4}


def timeless(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


@pytest.fixture(scope="module")
def expected() -> list[dict[str, Any]]:
    run = finish(play(EXPERIMENT, inputs=INPUTS, runtime=Runtime(workers=1, device="cpu")))
    return timeless(run.records)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one core each on this machine, which soon notice that one of them is gone."""
    node = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.cluster_utils import Cluster

        for patience in (2, 1, 0):
            try:
                nodes = Cluster(initialize_head=True, head_node_args=node | {"_system_config": WATCHFUL})
                break
            except RuntimeError:  # Ray waits for its own processes for a few seconds, too few on a busy machine
                if not patience:
                    raise
        nodes.add_node(**node)
        yield nodes
        import ray

        ray.shutdown()
        nodes.shutdown()


@pytest.mark.full
def test_a_sweep_is_interrupted_resumed_and_collected_as_on_this_machine(cluster: Any, tmp_path: Path) -> None:
    settings = ["task.num_edges=3", "task.clients_per_edge=2", "task.training.epochs=1"]
    settings += ["task.network={kind: mlp, hidden: [8]}"]
    axes = ("method.selection.fraction=0.5,1.0",)
    alone = Runtime(workers=1, device="cpu")
    tables = []
    for place in (tmp_path / "here", tmp_path / "ray"):
        points = sweep.grid(["fed-bac"], "fashion-mnist-mini", axes, [], [0, 1], 3, settings, place)
        sweep.lay_out(points, alone)
        folders = [point.folder for point in points]
        if place.name == "here":
            for _ in sweep.run_all(folders, alone, 1):
                pass
        else:
            spread = Runtime(engine="ray", address=cluster.address)
            for done in (interrupted := sweep.run_all(folders, spread, 1)):
                if any(done.values()):
                    break
            interrupted.close()
            assert 0 < sum(done.values()) < 3 * len(points)
            for done in sweep.run_all(folders, spread, 1):
                last = done
            assert set(last.values()) == {3}
        runs = [folder.read() for folder in folders]
        tables.append((sweep.collect(runs), [timeless(run.records) for run in runs]))
    assert tables[0] == tables[1]


@pytest.mark.full
def test_same_numbers_though_an_actor_and_a_node_die(cluster: Any, expected: list[dict[str, Any]]) -> None:
    """After the sweep, for which both nodes are needed."""
    import ray

    from fedbac.engines.ray import RayEdges

    ray.init(address=cluster.address, log_to_driver=False)
    federation = assemble(EXPERIMENT, dataset=INPUTS.dataset)
    edges = RayEdges(EXPERIMENT, federation, Runtime(engine="ray", device="cpu"))
    steps = rounds(EXPERIMENT, federation.sites, edges, start(EXPERIMENT, federation.build, federation.sites))
    records = [next(steps)[0]]
    before = edges.places()
    assert len({place.node for place in before}) == 2, "edges should be spread over both nodes"
    os.kill(before[0].pid, signal.SIGKILL)
    records.append(next(steps)[0])
    assert edges.places()[0].pid != before[0].pid
    third = threading.Thread(target=lambda: records.append(next(steps)[0]))
    third.start()
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    third.join()
    # Processes of the lost node may answer until they notice that it is gone.
    for _ in range(240):
        if len({place.node for place in edges.places()}) == 1:
            break
        time.sleep(0.25)
    else:
        pytest.fail("the edges of the lost node were not started on the other")
    records += [record for record, _ in steps]
    edges.close()
    assert timeless(records) == expected


def test_without_ray_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "fedbac.engines.ray", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'fedbac\[ray\]'"):
        next(play(EXPERIMENT, inputs=INPUTS, runtime=Runtime(engine="ray", device="cpu")))
