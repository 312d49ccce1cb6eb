"""A federation of processes on this machine, over gRPC with mutual TLS."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbac.deploy.pki.credentials import Credentials
from fedbac.deploy.pki.kits import FederationFolder, Kit
from fedbac.deploy.protocol.handshake import hello
from fedbac.deploy.protocol.heads import kind_of
from fedbac.deploy.protocol.wire import decode, encode
from fedbac.deploy.roles.data_holder import DataHolder
from fedbac.deploy.roles.edge import REGIONS_AT_CLOUD
from fedbac.deploy.transports.connect import serve_parent
from fedbac.deploy.transports.grpc import GrpcParent
from fedbac.deploy.trial import Trial
from tests.deploy.clinics import PLAIN, SMALL, kill, make_clinic
from tests.deploy.in_memory import CPU
from tests.deploy.story import Story

NEVER = threading.Event()


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
        ("fed-bac", {"counts": (1,)}),  # as few processes as there can be
        *(
            pytest.param(method, {"owner": "edge"}, marks=pytest.mark.full)  # clients that take gradients themselves
            for method in ("apfl", "fedala-edges", "pfedme")
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
@pytest.mark.timeout(900)
def test_secret_sums_over_grpc_are_the_simulators(tmp_path: Path) -> None:
    """Clients prove their keys to each other by the certificates of their kits."""
    changes = {
        "method.aggregation": {"kind": "mean", "secret": True, "threshold": 2},
        "method.links.client_up": [{"kind": "clip", "norm": 9.0}],
    }
    story = OverGrpc(make_clinic(tmp_path / "federation", "grpc", settings=SMALL | changes), tmp_path)
    expected = story.clinic.simulated(2)
    with story.trial.running():
        story.rounds_are(expected)
        logs = "".join(story.log_of(name) for name in story.trial.sites)
    assert "what it learns leaves it only in secret sums" in logs
    assert "takes no part" not in logs


@pytest.mark.full
@pytest.mark.timeout(900)
def test_regions_over_grpc_are_the_simulators_whoever_is_killed(tmp_path: Path) -> None:
    """Regions remember, and are asked twice in a round. Rounds need everybody."""
    regions = {"task.tiers": [2], "method.region.rounds": 2, "method.region.step": "adam"}
    clinic = make_clinic(tmp_path / "federation", "grpc", "hierfavg", (1, 1, 1), 3, PLAIN | regions)
    story = OverGrpc(clinic, tmp_path)
    with story.trial.running():
        story.until("two rounds", lambda: len(story.records) >= 2)
        kill(story.trial, "cloud", story.patience)
        story.trial.start("cloud")
        story.until("it resumes", lambda: len(story.records) >= 4)
        kill(story.trial, "edge-1", story.patience)
        kill(story.trial, "edge-2-client-0", story.patience)
        story.trial.start("edge-1")
        story.trial.start("edge-2-client-0")
        played = len(story.records) + 3
        story.rounds_are(clinic.simulated(played))
        assert REGIONS_AT_CLOUD in story.log_of("cloud")
        assert REGIONS_AT_CLOUD in story.log_of("edge-0")


@pytest.mark.full
@pytest.mark.timeout(600)
def test_three_tiers_over_grpc_play_the_simulators_rounds_and_outlive_what_happens(tmp_path: Path) -> None:
    OverGrpc(make_clinic(tmp_path / "federation", "grpc"), tmp_path).told()


class Liar(DataHolder):
    """Sends weights of 1e30 whenever it is to, and whenever it is to gives no answer at all."""

    lies, stuck = False, False

    def answer(self, payload: bytes, gone: threading.Event = NEVER) -> bytes:
        if kind_of(payload) != "fit":
            return super().answer(payload)
        if self.stuck:
            gone.wait()
        message = decode(super().answer(payload), ("update",))
        networks = "trained/parts_C/"
        garbage = {p: torch.full_like(t, 1e30) if p.startswith(networks) else t for p, t in message.tensors.items()}
        return encode(message.kind, message.head, garbage if self.lies else message.tensors)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_client_of_garbage_that_then_gives_no_answer_costs_a_federation_little(tmp_path: Path) -> None:
    """It is left out, named at edge and cloud, and benched, and its edge does not wait for it in every round."""
    clinic = make_clinic(tmp_path / "f", "grpc", "hierfavg", (3, 2), settings=PLAIN, min_deadline=3)
    story = OverGrpc(clinic, tmp_path)
    trial, name, stop = story.trial, "edge-0-client-0", threading.Event()
    site = trial.sites[name]
    kit, state = Kit.load(trial.kits / name), trial.state(name)
    liar = Liar(name, site.number, site.edge or 0, True, str(trial.data / name), state, CPU)
    address = trial.addresses["edge-0"]
    thread = threading.Thread(target=serve_parent, args=(kit, liar.answer, stop, address))
    rest = Trial(trial.kits, trial.data, tmp_path, {n: one for n, one in trial.sites.items() if n != name})
    rest.addresses = trial.addresses
    story.trial = rest
    with rest.running():
        thread.start()
        try:
            story.until("five rounds", lambda: len(story.records) >= 5)
            liar.lies = True
            story.until("it is left out", lambda: name in story.records[-1].get("reasons", {}))
            at = len(story.records)
            story.until("more rounds", lambda: len(story.records) >= at + 12)
            for said in (story.log_of("edge-0"), story.log_of("cloud")):
                assert f"{name}" in said
                assert "as much as is allowed (deploy.outlier_factor)" in said
            before, *during = (record["accuracy"] for record in story.records[at - 2 :])
            assert min(during) > before - 0.1
            liar.stuck, began = True, len(story.records)
            story.until("it is late", lambda: "it gave no answer in time" in story.log_of("cloud"))
            story.until("more rounds", lambda: len(story.records) >= began + 20)
        finally:
            stop.set()
            liar.stuck = False
    thread.join()
    assert not any("is played again" in line for line in story.log_of("cloud").splitlines())
