"""A federation for NVFlare, with data for every site."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from fedbac.config.experiment import Experiment
from fedbac.deploy.kits import FederationFolder
from fedbac.deploy.nvflare.project import provision
from fedbac.deploy.settings import CloudPlace, DeploySettings, EdgePlace, FederationConfig
from fedbac.deploy.trial import cut_data, free_ports
from fedbac.federation import assemble
from fedbac.runs.configure import configure

ROUNDS = 5000
"""More than are ever played: the test stops the cloud when it has seen enough."""
COUNTS = (2, 2)
SMALL = {"task.num_edges": 2, "task.clients_per_edge": [2, 2], "task.network": {"kind": "mlp", "hidden": [8]}}
SLIVER = {"task.data_fraction": 0.05, "task.partition.min_edge_test": 5, "task.partition.min_client_samples": 5}


@dataclass(frozen=True)
class Clinic:
    """A federation, the folder with a folder of data per site, and what it computes."""

    folder: FederationFolder
    data: Path
    experiment: Experiment


@pytest.fixture(scope="session")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Clinic:
    """Two edges with two clients each, on free ports of this machine, with NVFlare's startup folders."""
    folder = tmp_path_factory.mktemp("federation")
    experiment = configure("fed-bac", "fashion-mnist-mini", rounds=ROUNDS, settings=SMALL)
    sliver = configure("fed-bac", "fashion-mnist-mini", rounds=ROUNDS, settings=SMALL | SLIVER)
    cut_data(sliver, assemble(sliver), folder / "data")
    cloud, *edges = ({"address": f"127.0.0.1:{port}", "listen": f"127.0.0.1:{port}"} for port in free_ports(3))
    config = FederationConfig(
        name="clinic",
        cloud=CloudPlace(**cloud),
        edges=tuple(EdgePlace(**edge, clients=count) for edge, count in zip(edges, COUNTS, strict=True)),
        deploy=DeploySettings(heartbeat=1, deadline=60, transport="nvflare"),
        experiment=experiment.model_dump(mode="json"),
    )
    made = FederationFolder.init(folder / "clinic", config)
    provision(made)
    return Clinic(made, folder / "data", experiment)
