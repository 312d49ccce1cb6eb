"""A federation of processes that is watched from outside, and whose cloud is restored from an old backup."""

import shutil
import signal
import time
import urllib.request
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fedbac.cli.deploying import described
from fedbac.deploy.roles.status import read_status
from fedbac.deploy.trial import Trial, free_ports
from tests.deploy.clinics import make_clinic
from tests.deploy.following import records, until
from tests.deploy.test_metrics import read

PATIENCE = 240.0
WATCHED = ("cloud", "edge-0", "edge-0-client-0")


class Watched(Trial):
    """Processes of which a monitor may ask."""

    def __post_init__(self) -> None:
        super().__post_init__()
        ports = iter(free_ports(2 * len(WATCHED)))
        self.asked = {name: (f"127.0.0.1:{next(ports)}", f"127.0.0.1:{next(ports)}") for name in WATCHED}

    def command(self, name: str) -> list[str]:
        metrics, health = self.asked.get(name, (None, None))
        more = [] if metrics is None or health is None else ["--metrics", metrics, "--health", health]
        return [*super().command(name), *more]

    def numbers(self, name: str) -> dict[str, float]:
        return read(urllib.request.urlopen(f"http://{self.asked[name][0]}/metrics").read().decode())

    def takes_part(self, name: str) -> bool:
        with grpc.insecure_channel(self.asked[name][1]) as channel:
            said = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service="fedbac"), timeout=30
            )
        return bool(said.status == health_pb2.HealthCheckResponse.SERVING)

    def stop_cloud(self) -> None:
        self.processes["cloud"].send_signal(signal.SIGTERM)
        assert self.processes["cloud"].wait(PATIENCE) == 130


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_federation_is_watched_and_does_not_go_back_unasked(tmp_path: Path) -> None:
    clinic = make_clinic(tmp_path / "federation", "grpc", "ditto", min_edges=2)
    trial = Watched(clinic.folder.path / "kits", clinic.data, tmp_path, clinic.folder.config.sites())

    def played(rounds: int) -> None:
        until(f"{rounds} rounds", lambda: len(records(trial)) >= rounds, trial, PATIENCE)

    with trial.running():
        played(2)
        trial.stop_cloud()
        backup = len(records(trial))
        shutil.copytree(trial.run, tmp_path / "backup")
        trial.start("cloud")
        played(backup + 8)

        cloud, edge, client = map(trial.numbers, WATCHED)
        assert cloud["fedbac_rounds_total"] >= 7
        assert min(edge["fedbac_rounds_total"], client["fedbac_rounds_total"]) >= cloud["fedbac_rounds_total"]
        for numbers, links in ((cloud, ["edges"]), (edge, ["cloud", "clients"]), (client, ["edge"])):
            moved = [numbers[f"fedbac_bytes_total {link} {way}"] for link in links for way in ("sent", "received")]
            assert min(moved) > 1000
            assert numbers["process_resident_memory_bytes"] > 2**20
            assert 89 < numbers["fedbac_certificate_days_left"] <= 90
        assert cloud["fedbac_children present"] == edge["fedbac_children present"] == 2
        assert client["fedbac_linked"] == edge["fedbac_linked"] == 1
        assert all(map(trial.takes_part, WATCHED))

        trial.stop_cloud()
        until("the edge sees that", lambda: not trial.takes_part("edge-0"), trial, PATIENCE)
        shutil.rmtree(trial.run)
        shutil.copytree(tmp_path / "backup", trial.run)
        trial.start("cloud")
        assert trial.processes["cloud"].wait(PATIENCE) == 2
        said = (tmp_path / "logs" / "cloud.log").read_text()
        assert f"cannot continue after round {backup}: it has kept state up to round" in said
        assert "fedbac cloud KIT --accept-rollback" in said
        assert (
            "restore this folder, or the newest run folder of the cloud"
            in (tmp_path / "logs" / "edge-0-client-0.log").read_text()
        )
        status = described(read_status(clinic.folder.kit("cloud"), trial.state("cloud")), time.time())
        assert status[0].startswith("cloud: stopped: the run stopped, as edge-")
        assert len(records(trial)) == backup

        trial.cloud_options = ("--accept-rollback",)
        trial.start("cloud")
        played(backup + 3)
        trial.stop_cloud()
