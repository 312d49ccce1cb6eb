"""A federation of processes on this machine, over gRPC with mutual TLS: the simulator's numbers, and lost sites."""

import os
import signal
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbac.cli.deploying import described
from fedbac.config.experiment import Experiment
from fedbac.deploy.credentials import Credentials
from fedbac.deploy.greeting import hello
from fedbac.deploy.grpc import GrpcParent
from fedbac.deploy.kits import FederationFolder
from fedbac.deploy.settings import CloudPlace, DeploySettings, EdgePlace, FederationConfig
from fedbac.deploy.status import read_status
from fedbac.deploy.trial import Trial, cut_data
from fedbac.federation import assemble
from fedbac.runs.configure import Inputs, configure
from fedbac.runs.play import play
from tests.deploy.following import records, until
from tests.deploy.in_memory import CPU, gathered

ROUNDS = 5000
"""More than are ever played: the test stops the cloud when it has seen enough."""
COUNTS = (2, 2)
SMALL = {"task.num_edges": 2, "task.clients_per_edge": [2, 2], "task.network": {"kind": "mlp", "hidden": [8]}}
SLIVER = {"task.data_fraction": 0.05, "task.partition.min_edge_test": 5, "task.partition.min_client_samples": 5}
PATIENCE = 240.0
"""Seconds: the machine may be slow, and nothing here depends on how fast it is."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> tuple[FederationFolder, Path, Experiment]:
    """A federation's folder with kits, and a folder of data for every site."""
    folder = tmp_path_factory.mktemp("federation")
    experiment = configure("fed-bac", "fashion-mnist-mini", rounds=ROUNDS, settings=SMALL)
    sliver = configure("fed-bac", "fashion-mnist-mini", rounds=ROUNDS, settings=SMALL | SLIVER)
    cut_data(sliver, assemble(sliver), folder / "data")
    place = {"address": "127.0.0.1:1", "listen": "127.0.0.1:1"}
    config = FederationConfig(
        name="clinic",
        cloud=CloudPlace(**place),
        edges=tuple(EdgePlace(**place, clients=count) for count in COUNTS),
        deploy=DeploySettings(heartbeat=1, deadline=60),
        experiment=experiment.model_dump(mode="json"),
    )
    return FederationFolder.init(folder / "clinic", config), folder / "data", experiment


def simulated(experiment: Experiment, data: Path, rounds: int) -> list[dict[str, Any]]:
    """Return the first records of the same experiment in the simulator, on everybody's data."""
    sites = {path.name: dict(np.load(path / "data.npz")) for path in data.iterdir()}
    inputs = Inputs(*gathered(experiment.task.dataset, sites, COUNTS, 10))
    playing = play(experiment, runtime=CPU, inputs=inputs)
    first = list(islice(playing, rounds))
    playing.close()
    return first


def kill(trial: Trial, name: str) -> None:
    """Kill a site, as a lost machine would be."""
    os.kill(trial.processes[name].pid, signal.SIGKILL)
    trial.processes[name].wait()


def stranger_is_refused(trial: Trial, tmp_path: Path, ours: FederationFolder) -> None:
    """Dial the cloud with the key and certificate of another federation's edge, trusting the cloud's."""
    other = FederationFolder.init(tmp_path / "other", ours.config).kit("edge-0")
    stranger = Credentials(other / "site.key", other / "site.crt", ours.kit("edge-0") / "ca.crt")
    parent = GrpcParent(trial.addresses["cloud"], "cloud", "edge-0", stranger, heartbeat=1, limit=2**20)
    welcomes: list[bytes] = []
    stop = threading.Event()
    said = (lambda: hello("edge-0"), welcomes.append, lambda payload, gone: payload, stop)
    dialling = threading.Thread(target=parent.serve, args=said)
    dialling.start()
    try:
        log = trial.folder / "logs" / "cloud.log"
        until("the stranger is logged", lambda: "CERTIFICATE_VERIFY_FAILED" in log.read_text(), trial, PATIENCE)
    finally:
        stop.set()
        dialling.join()
    assert welcomes == []


def test_three_tiers_of_processes_play_the_simulators_rounds_and_outlive_a_client_and_the_cloud(
    federation: tuple[FederationFolder, Path, Experiment], tmp_path: Path
) -> None:
    folder, data, experiment = federation
    expected = simulated(experiment, data, 3)
    trial = Trial(folder.path / "kits", data, tmp_path, folder.config.sites())
    with trial.running():
        until("three rounds", lambda: len(records(trial)) >= 3, trial, PATIENCE)
        for mine, theirs in zip(records(trial)[:3], expected, strict=True):
            for key in theirs.keys() - {"seconds"}:
                assert mine[key] == theirs[key], (mine["round"], key)
        here = "  edge-0: here, with edge-0-client-0, edge-0-client-1"
        kit = folder.path / "kits" / "cloud"
        until("the status", lambda: here in described(read_status(kit), time.time()), trial, PATIENCE)

        stranger_is_refused(trial, tmp_path, folder)

        kill(trial, "edge-1-client-0")
        alone = len(records(trial))
        until("rounds without the client", lambda: len(records(trial)) >= alone + 4, trial, PATIENCE)
        assert all(2 not in record["selected"][1] for record in records(trial)[alone + 2 :])
        trial.start("edge-1-client-0")
        until("the client is back", lambda: 2 in records(trial)[-1]["selected"][1], trial, PATIENCE)

        kill(trial, "cloud")
        before = (trial.run / "rounds.jsonl").read_bytes()
        complete = before[: before.rfind(b"\n") + 1]
        trial.start("cloud")
        until("it resumes", lambda: len(records(trial)) > complete.count(b"\n") + 1, trial, PATIENCE)
        trial.processes["cloud"].send_signal(signal.SIGTERM)
        assert trial.processes["cloud"].wait(PATIENCE) == 130  # it saved the round in hand and stopped
    after = (trial.run / "rounds.jsonl").read_bytes()
    assert after.startswith(complete)
    assert [record["round"] for record in records(trial)] == list(range(1, len(records(trial)) + 1))
    secrets = [path.read_text().splitlines()[1] for path in folder.path.rglob("*.key")]
    for path in [*(tmp_path / "logs").iterdir(), *trial.run.rglob("*.*")]:
        assert not any(line in path.read_bytes().decode(errors="replace") for line in secrets), path
