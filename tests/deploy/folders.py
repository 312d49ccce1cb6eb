"""Small federations for tests of what runs on a network."""

from pathlib import Path

from fedbac.deploy.pki.kits import FederationFolder
from fedbac.deploy.settings import CloudPlace, DeploySettings, EdgePlace, FederationConfig


def small(*clients: int, name: str = "clinic", deploy: DeploySettings | None = None) -> FederationConfig:
    """Return a federation with so many clients at each edge, all on this machine."""
    places = [f"127.0.0.1:{8443 + number}" for number in range(1 + len(clients))]
    return FederationConfig(
        name=name,
        cloud=CloudPlace(address=places[0], listen=places[0]),
        edges=tuple(
            EdgePlace(address=place, listen=place, clients=number)
            for place, number in zip(places[1:], clients, strict=True)
        ),
        deploy=deploy or DeploySettings(),
        experiment={"task": {"num_edges": len(clients), "clients_per_edge": list(clients)}},
    )


def make(path: Path, *clients: int, name: str = "clinic") -> FederationFolder:
    """Make a federation in a folder."""
    return FederationFolder.init(path, small(*clients, name=name))
