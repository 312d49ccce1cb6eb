"""A federation of processes on this machine, over gRPC with mutual TLS."""

import threading
from pathlib import Path
from typing import Any

import pytest

from fedbac.deploy.pki.credentials import Credentials
from fedbac.deploy.pki.kits import FederationFolder
from fedbac.deploy.protocol.handshake import hello
from fedbac.deploy.transports.grpc import GrpcParent
from tests.deploy.clinics import make_clinic
from tests.deploy.story import Story


class OverGrpc(Story):
    """Sites that dial each other."""

    patience = 240.0

    def log_of(self, name: str) -> str:
        return (self.folder / "logs" / f"{name}.log").read_text()

    def strangers_are_refused(self) -> None:
        """Dial the cloud with the key and certificate of another federation's edge, trusting the cloud's."""
        ours = self.clinic.folder
        other = FederationFolder.init(self.folder / "other", ours.config).kit("edge-0")
        stranger = Credentials(other / "site.key", other / "site.crt", ours.kit("edge-0") / "ca.crt")
        parent = GrpcParent(self.trial.addresses["cloud"], "cloud", "edge-0", stranger, heartbeat=1, limit=2**20)
        welcomes: list[bytes] = []
        stop = threading.Event()
        said = (lambda: hello("edge-0"), welcomes.append, lambda payload, gone: payload, stop)
        dialling = threading.Thread(target=parent.serve, args=said)
        dialling.start()
        try:
            self.until("the stranger is logged", lambda: "CERTIFICATE_VERIFY_FAILED" in self.log_of("cloud"))
        finally:
            stop.set()
            dialling.join()
        assert welcomes == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("fed-bac", {"counts": (1, 1)}),  # as few processes as there can be
        *(
            pytest.param(method, {"owner": "edge"}, marks=pytest.mark.full)  # clients that take gradients themselves
            for method in ("apfl", "fedala", "pfedme")
        ),
    ],
)
def test_the_first_rounds_over_grpc_are_the_simulators(method: str, more: dict[str, Any], tmp_path: Path) -> None:
    story = OverGrpc(make_clinic(tmp_path / "federation", "grpc", method, **more), tmp_path)
    expected = story.clinic.simulated(3)
    with story.trial.running():
        story.rounds_are(expected)
        story.the_cloud_stops_and_hands_out_models()


@pytest.mark.full
@pytest.mark.timeout(600)
def test_three_tiers_over_grpc_play_the_simulators_rounds_and_outlive_what_happens(tmp_path: Path) -> None:
    OverGrpc(make_clinic(tmp_path / "federation", "grpc"), tmp_path).told()
